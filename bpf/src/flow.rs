//! A number for a packet's flow: the same for all of its packets, evenly spread over flows.

use crate::packet::{self, Ethernet, Packet, Transport, Unknown};

/// Addresses and ports behind any VLAN tags; of a fragment, and where there are no ports, the addresses. Of
/// what is not IP, the MAC addresses.
#[inline(always)]
pub fn hash(packet: Packet) -> u32 {
    let hash = match packet::ethernet(packet) {
        Ok(Ethernet { ether_type: packet::IPV4, payload, .. }) => ipv4(packet, payload),
        Ok(Ethernet { ether_type: packet::IPV6, payload, .. }) => ipv6(packet, payload),
        _ => None,
    };
    match hash {
        Some(hash) => hash.finish(),
        None => mac_addresses(packet).finish(),
    }
}

#[inline(always)]
fn ipv4(packet: Packet, offset: usize) -> Option<Hash> {
    let ip = packet::ipv4(packet, offset).ok()?;
    let addresses = Hash(0)
        .with(u32::from_ne_bytes(ip.source).into())
        .with(u32::from_ne_bytes(ip.destination).into());
    Some(ports(packet, addresses, Ok(ip.transport)))
}

#[inline(always)]
fn ipv6(packet: Packet, offset: usize) -> Option<Hash> {
    let ip = packet::ipv6(packet, offset).ok()?;
    let addresses = Hash(0).with_address(ip.source).with_address(ip.destination);
    Some(ports(packet, addresses, packet::ipv6_transport(packet, &ip)))
}

#[inline(always)]
fn ports(packet: Packet, hash: Hash, transport: Result<Transport, Unknown>) -> Hash {
    let ports = transport.and_then(|transport| packet::ports(packet, &transport));
    match ports {
        Ok((source, destination)) => hash.with(u64::from(source) << 16 | u64::from(destination)),
        Err(_) => hash,
    }
}

#[inline(always)]
fn mac_addresses(packet: Packet) -> Hash {
    match packet.mac_addresses() {
        Some([first, second, third]) => Hash(0)
            .with(u32::from_ne_bytes(first).into())
            .with(u32::from_ne_bytes(second).into())
            .with(u32::from_ne_bytes(third).into()),
        None => Hash(0),
    }
}

#[derive(Clone, Copy)]
struct Hash(u64);

impl Hash {
    /// Every bit of the word reaches the upper half by the product, and the lower half from there.
    #[inline(always)]
    fn with(self, word: u64) -> Self {
        let product = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self(product ^ product >> 32)
    }

    #[inline(always)]
    fn with_address(self, address: [u8; 16]) -> Self {
        let address = u128::from_ne_bytes(address);
        self.with(address as u64).with((address >> 64) as u64)
    }

    #[inline(always)]
    fn finish(self) -> u32 {
        (self.with(0).0 >> 32) as u32
    }
}
