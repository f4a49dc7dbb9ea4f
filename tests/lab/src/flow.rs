//! [`Flow`]: who talks to whom, and frames of it with right lengths and checksums.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    EtherType, IpFragOffset, IpHeaders, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header,
    PacketBuilder, SingleVlanHeader, TcpHeader, UdpHeader, VlanHeader, VlanId,
};

/// A MAC address.
pub type Mac = [u8; 6];

/// What carries the ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// UDP, protocol number 17.
    Udp,
    /// TCP, protocol number 6.
    Tcp,
}

/// Who talks to whom: from this every frame of a conversation is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    protocol: Protocol,
    source_mac: Mac,
    destination_mac: Mac,
    vlans: Vec<u16>,
    source: SocketAddr,
    destination: SocketAddr,
}

impl Flow {
    /// A flow between two addresses of one family.
    ///
    /// # Panics
    ///
    /// When one is IPv4 and the other IPv6.
    pub fn new(
        protocol: Protocol,
        macs: (Mac, Mac),
        source: SocketAddr,
        destination: SocketAddr,
    ) -> Self {
        assert_eq!(source.is_ipv4(), destination.is_ipv4(), "both ends of one address family");
        let (source_mac, destination_mac) = macs;
        Self { protocol, source_mac, destination_mac, vlans: Vec::new(), source, destination }
    }

    /// The same with one more VLAN tag, inside those that it has. At most two.
    ///
    /// # Panics
    ///
    /// At the third, and when the id needs more than 12 bits.
    #[must_use]
    pub fn vlan(mut self, id: u16) -> Self {
        assert!(self.vlans.len() < 2 && id < 4096, "at most two tags of 12 bits");
        self.vlans.push(id);
        self
    }

    /// The same with the MAC addresses exchanged, as a reflector sends it back.
    #[must_use]
    pub fn reflected(mut self) -> Self {
        std::mem::swap(&mut self.source_mac, &mut self.destination_mac);
        self
    }

    /// The bytes before the payload.
    pub fn header_len(&self) -> usize {
        let ip = if self.source.is_ipv4() { Ipv4Header::MIN_LEN } else { Ipv6Header::LEN };
        let transport = match self.protocol {
            Protocol::Udp => UdpHeader::LEN,
            Protocol::Tcp => TcpHeader::MIN_LEN,
        };
        14 + 4 * self.vlans.len() + ip + transport
    }

    /// A frame with this payload.
    ///
    /// # Panics
    ///
    /// When the payload does not fit an IP packet of 64 KiB.
    pub fn frame(&self, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        self.write(payload, &mut frame);
        frame
    }

    /// Like [`frame`](Self::frame), in place of what `frame` holds.
    pub(crate) fn write(&self, payload: &[u8], frame: &mut Vec<u8>) {
        frame.clear();
        let ethernet = PacketBuilder::ethernet2(self.source_mac, self.destination_mac);
        let tag = |id: u16, ether_type| SingleVlanHeader {
            vlan_id: VlanId::try_new(id).expect("checked when it was added"),
            ether_type,
            ..SingleVlanHeader::default()
        };
        // The builder fills in the EtherTypes that follow.
        let network = match *self.vlans.as_slice() {
            [] => ethernet.ip(self.ip()),
            [id] => ethernet.vlan(VlanHeader::Single(tag(id, EtherType::IPV4))).ip(self.ip()),
            [outer, inner, ..] => ethernet
                .vlan(VlanHeader::Double(etherparse::DoubleVlanHeader {
                    outer: tag(outer, EtherType::VLAN_TAGGED_FRAME),
                    inner: tag(inner, EtherType::IPV4),
                }))
                .ip(self.ip()),
        };
        let (source, destination) = (self.source.port(), self.destination.port());
        let written = match self.protocol {
            Protocol::Udp => network.udp(source, destination).write(frame, payload),
            Protocol::Tcp => network.tcp(source, destination, 1, 1024).write(frame, payload),
        };
        written.expect("a payload that fits an IP packet, written to memory");
    }

    fn ip(&self) -> IpHeaders {
        // Lengths, checksum and protocol number are the builder's.
        match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header = Ipv4Header {
                    time_to_live: 64,
                    dont_fragment: true,
                    fragment_offset: IpFragOffset::ZERO,
                    source: source.octets(),
                    destination: destination.octets(),
                    ..Ipv4Header::default()
                };
                IpHeaders::Ipv4(header, etherparse::Ipv4Extensions::default())
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let header = Ipv6Header {
                    flow_label: Ipv6FlowLabel::ZERO,
                    next_header: IpNumber::UDP,
                    hop_limit: 64,
                    source: source.octets(),
                    destination: destination.octets(),
                    ..Ipv6Header::default()
                };
                IpHeaders::Ipv6(header, etherparse::Ipv6Extensions::default())
            }
            _ => unreachable!("the constructor takes one family alone"),
        }
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};

    use super::*;

    const MACS: (Mac, Mac) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);

    fn flow(protocol: Protocol, source: &str, destination: &str) -> Flow {
        Flow::new(protocol, MACS, source.parse().unwrap(), destination.parse().unwrap())
    }

    #[test]
    fn frames_parse_back_with_right_checksums() {
        let v4 = ("10.0.0.1:1000", "10.0.0.2:4242");
        let v6 = ("[fd00::1]:1000", "[fd00::2]:4242");
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            for (source, destination) in [v4, v6] {
                for tags in 0..=2 {
                    let flow = (0..tags).fold(flow(protocol, source, destination), |flow, tag| {
                        flow.vlan(100 + tag)
                    });
                    let frame = flow.frame(b"hello");
                    assert_eq!(frame.len(), flow.header_len() + 5);
                    let packet = SlicedPacket::from_ethernet(&frame).unwrap();
                    let ids = packet.vlan_ids();
                    assert_eq!(ids.len(), usize::from(tags));
                    let (payload, sum, right) =
                        match (packet.net.unwrap(), packet.transport.unwrap()) {
                            (NetSlice::Ipv4(ip), TransportSlice::Udp(udp)) => (
                                udp.payload().to_vec(),
                                udp.checksum(),
                                udp.to_header()
                                    .calc_checksum_ipv4(&ip.header().to_header(), udp.payload()),
                            ),
                            (NetSlice::Ipv6(ip), TransportSlice::Udp(udp)) => (
                                udp.payload().to_vec(),
                                udp.checksum(),
                                udp.to_header()
                                    .calc_checksum_ipv6(&ip.header().to_header(), udp.payload()),
                            ),
                            (NetSlice::Ipv4(ip), TransportSlice::Tcp(tcp)) => (
                                tcp.payload().to_vec(),
                                tcp.checksum(),
                                tcp.to_header()
                                    .calc_checksum_ipv4(&ip.header().to_header(), tcp.payload()),
                            ),
                            (NetSlice::Ipv6(ip), TransportSlice::Tcp(tcp)) => (
                                tcp.payload().to_vec(),
                                tcp.checksum(),
                                tcp.to_header()
                                    .calc_checksum_ipv6(&ip.header().to_header(), tcp.payload()),
                            ),
                            other => panic!("{other:?}"),
                        };
                    assert_eq!(payload, b"hello");
                    assert_eq!(sum, right.unwrap());
                }
            }
        }
    }

    #[test]
    fn reflected_exchanges_the_macs_alone() {
        let flow = flow(Protocol::Udp, "10.0.0.1:1", "10.0.0.2:2");
        let (there, back) = (flow.frame(b"x"), flow.clone().reflected().frame(b"x"));
        assert_eq!(there[..6], back[6..12]);
        assert_eq!(there[6..12], back[..6]);
        assert_eq!(there[12..], back[12..]);
    }
}
