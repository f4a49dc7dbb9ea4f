//! UDP packets, with right lengths and checksums.

use fastrand::Rng;

use crate::{Flows, Stamp, checksum};

const UDP: u8 = 17;
const TTL: u8 = 64;

/// Writes the packets of some flows. Behind a stamp, where there is one, the payload is zero.
#[derive(Clone, Debug)]
pub struct Template {
    flows: Flows,
    stamped: bool,
}

impl Template {
    /// For these flows, with a stamp or without.
    ///
    /// # Errors
    ///
    /// If the addresses are of two kinds.
    pub fn new(flows: Flows, stamped: bool) -> Result<Self, String> {
        if flows.source.v6 != flows.destination.v6 {
            return Err("source and destination address: one is IPv4, the other IPv6".to_owned());
        }
        Ok(Self { flows, stamped })
    }

    /// Bytes of the shortest packet.
    pub fn least(&self) -> usize {
        self.headers() + if self.stamped { Stamp::LEN } else { 0 }
    }

    /// Whether packets have a stamp.
    pub fn is_stamped(&self) -> bool {
        self.stamped
    }

    fn headers(&self) -> usize {
        let ip = if self.flows.source.v6 { 40 } else { 20 };
        14 + if self.flows.vlan.is_some() { 4 } else { 0 } + ip + 8
    }

    /// Writes the packet of that number, as long as `frame` is. The stamp is left out where packets have none.
    ///
    /// # Panics
    ///
    /// If it is shorter than the [shortest](Self::least), or has more than 65535 bytes behind its Ethernet
    /// header.
    pub fn write(&self, frame: &mut [u8], number: u64, random: &mut Rng, stamp: Stamp) {
        assert!(frame.len() >= self.least(), "a frame of {} bytes is too short", frame.len());
        let flows = &self.flows;
        let destination = flows.destination_mac.value(number, random);
        let source = flows.source_mac.value(number, random);
        put(frame, 0, destination, 6);
        put(frame, 6, source, 6);
        let mut at = 12;
        if let Some(vlan) = flows.vlan {
            put(frame, at, 0x8100, 2);
            put(frame, at + 2, vlan.value(number, random), 2);
            at += 4;
        }
        let v6 = flows.source.v6;
        put(frame, at, if v6 { 0x86dd } else { 0x0800 }, 2);
        at += 2;
        let ip = &mut frame[at..];
        assert!(u16::try_from(ip.len()).is_ok(), "{} bytes behind the Ethernet header", ip.len());
        let addresses =
            [flows.source, flows.destination].map(|side| side.values.value(number, random));
        let (header, sum) = if v6 { write_v6(ip, addresses) } else { write_v4(ip, addresses) };
        let ports = [flows.source_port, flows.destination_port];
        let ports = ports.map(|port| port.value(number, random));
        self.write_udp(&mut ip[header..], ports, sum, stamp);
    }

    /// `sum` is that of the pseudo header, but for the length.
    fn write_udp(&self, udp: &mut [u8], [source, destination]: [u128; 2], sum: u32, stamp: Stamp) {
        let len = udp.len();
        put(udp, 0, source, 2);
        put(udp, 2, destination, 2);
        put(udp, 4, len as u128, 2);
        put(udp, 6, 0, 2);
        let mut used = 8;
        if self.stamped {
            stamp.write(&mut udp[8..]);
            used += Stamp::LEN;
        }
        udp[used..].fill(0);
        let sum = checksum::add(sum, &udp[..used]) + u32::try_from(len).expect("16 bits");
        // Zero would mean that there is none.
        let sum = match checksum::finish(sum) {
            0 => 0xffff,
            sum => sum,
        };
        put(udp, 6, sum.into(), 2);
    }
}

/// Returns the length of the header, and the sum of the pseudo header.
fn write_v4(ip: &mut [u8], [source, destination]: [u128; 2]) -> (usize, u32) {
    let len = ip.len();
    // Version and length of the header; no identification, since it must not be fragmented.
    put(ip, 0, 0x4500, 2);
    put(ip, 2, len as u128, 2);
    put(ip, 4, 0x4000, 4);
    put(ip, 4, 0, 2);
    put(ip, 6, 0x4000, 2);
    ip[8] = TTL;
    ip[9] = UDP;
    put(ip, 10, 0, 2);
    put(ip, 12, source, 4);
    put(ip, 16, destination, 4);
    let sum = checksum::finish(checksum::add(0, &ip[..20]));
    put(ip, 10, sum.into(), 2);
    (20, checksum::add(UDP.into(), &ip[12..20]))
}

/// As [`write_v4`].
fn write_v6(ip: &mut [u8], [source, destination]: [u128; 2]) -> (usize, u32) {
    let payload = ip.len() - 40;
    put(ip, 0, 0x6000_0000, 4);
    put(ip, 4, payload as u128, 2);
    ip[6] = UDP;
    ip[7] = TTL;
    put(ip, 8, source, 16);
    put(ip, 24, destination, 16);
    (40, checksum::add(UDP.into(), &ip[8..40]))
}

/// The lowest `bytes` bytes of a value, highest first.
fn put(frame: &mut [u8], at: usize, value: u128, bytes: usize) {
    frame[at..at + bytes].copy_from_slice(&value.to_be_bytes()[16 - bytes..]);
}

#[cfg(test)]
mod tests {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    use proptest::prelude::*;

    use super::{Flows, Rng, Stamp, Template};
    use crate::{Addresses, Values};

    fn flows(v6: bool, vlan: bool, drawn: bool) -> Flows {
        let mark = if drawn { '~' } else { '-' };
        let range = |first: &str, last: &str| format!("{first}{mark}{last}");
        let ips = |texts: [&str; 2]| range(texts[0], texts[1]).parse::<Addresses>().unwrap();
        let ports = |first, last| crate::parse_port(&range(first, last)).unwrap();
        let mac = |first, last| crate::parse_mac(&range(first, last)).unwrap();
        Flows {
            source_mac: mac("02:00:00:00:00:01", "02:00:00:00:01:00"),
            destination_mac: mac("02:00:00:00:00:00", "02:00:00:ff:ff:ff"),
            vlan: vlan.then(|| crate::parse_vlan(&range("0", "4095")).unwrap()),
            source: ips(if v6 {
                ["fd00::", "fd00::ffff:ffff"]
            } else {
                ["0.0.0.0", "255.255.255.255"]
            }),
            destination: ips(if v6 { ["::", "ffff::"] } else { ["10.0.0.0", "10.1.0.0"] }),
            source_port: ports("0", "65535"),
            destination_port: ports("1000", "1009"),
        }
    }

    proptest! {
        /// Another parser reads back what was meant, and comes to the same checksums.
        #[test]
        fn packets_are_right(
            (v6, vlan, drawn, stamped) in any::<(bool, bool, bool, bool)>(),
            (number, seed) in any::<(u64, u64)>(),
            (stream, sequence, time) in any::<(u16, u32, u64)>(),
            longer in 0..9000_usize,
        ) {
            let template = Template::new(flows(v6, vlan, drawn), stamped).unwrap();
            let mut random = Rng::with_seed(seed);
            let stamp = Stamp { stream, sequence, time };
            let mut frame = vec![0xa5; template.least() + longer];
            template.write(&mut frame, number, &mut random, stamp);
            let packet = SlicedPacket::from_ethernet(&frame).unwrap();
            prop_assert_eq!(packet.vlan_ids().len(), usize::from(vlan));
            let Some(TransportSlice::Udp(udp)) = &packet.transport else {
                panic!("no UDP: {packet:?}")
            };
            let header = udp.to_header();
            match packet.net.as_ref().unwrap() {
                NetSlice::Ipv4(ip) => {
                    prop_assert!(!v6);
                    let ip = ip.header().to_header();
                    prop_assert_eq!(ip.calc_header_checksum(), ip.header_checksum);
                    let sum = header.calc_checksum_ipv4(&ip, udp.payload()).unwrap();
                    prop_assert_eq!(sum, header.checksum);
                }
                NetSlice::Ipv6(ip) => {
                    prop_assert!(v6);
                    let ip = ip.header().to_header();
                    let sum = header.calc_checksum_ipv6(&ip, udp.payload()).unwrap();
                    prop_assert_eq!(sum, header.checksum);
                }
                NetSlice::Arp(_) => panic!("ARP"),
            }
            prop_assert!((1000..=1009).contains(&header.destination_port));
            if !drawn {
                prop_assert_eq!(u64::from(header.destination_port), 1000 + number % 10);
                prop_assert_eq!(u64::from(header.source_port), number % 65536);
            }
            let used = if stamped { Stamp::LEN } else { 0 };
            prop_assert_eq!(udp.payload().len(), used + longer);
            prop_assert!(udp.payload()[used..].iter().all(|byte| *byte == 0));
            prop_assert_eq!(Stamp::find(&frame), stamped.then_some(stamp));
            for cut in 0..template.least() {
                prop_assert!(Stamp::find(&frame[..cut]).is_none());
            }
        }
    }

    #[test]
    fn addresses_of_two_kinds() {
        let mut flows = flows(false, false, false);
        flows.source = Addresses { v6: true, values: Values::one(1) };
        assert!(Template::new(flows, true).is_err());
    }
}
