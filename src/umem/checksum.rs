//! The Internet checksum, as the offload would compute it.

use std::net::IpAddr;

/// Adds bytes up in 16-bit words of the network's order; `odd` says that a byte was left over before.
pub(super) fn add(sum: u64, bytes: &[u8], odd: bool) -> u64 {
    let (first, rest) = bytes.split_at(usize::from(odd).min(bytes.len()));
    let mut sum = sum + first.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    let words = rest.chunks_exact(2);
    let last = words.remainder().iter().map(|byte| u64::from(*byte) << 8).sum::<u64>();
    sum += words.map(|word| u64::from(u16::from_be_bytes([word[0], word[1]]))).sum::<u64>();
    sum + last
}

/// Carries added until 16 bits are left.
pub(super) fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded to 16 bits")
}

/// The sum of the pseudo-header of TCP and UDP, as it has to be in the packet's checksum field, in network
/// byte order, before a [checksum is asked for](super::TxRequest::checksum) or
/// [computed](super::PacketMut::fill_checksum). `len` is that of the TCP or UDP header with all that
/// follows.
///
/// `None` for addresses of two families.
///
/// ```
/// use std::net::{IpAddr, Ipv4Addr};
///
/// let [from, to] = [1, 2].map(|last| IpAddr::from(Ipv4Addr::new(10, 0, 0, last)));
/// let udp = 17;
/// assert_eq!(xskit::umem::pseudo_header(from, to, udp, 8), Some(0x141c));
/// ```
pub fn pseudo_header(from: IpAddr, to: IpAddr, protocol: u8, len: u32) -> Option<u16> {
    let addresses = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => [from.octets(), to.octets()].concat(),
        (IpAddr::V6(from), IpAddr::V6(to)) => [from.octets(), to.octets()].concat(),
        _ => return None,
    };
    Some(fold(add(u64::from(protocol) + u64::from(len), &addresses, false)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_1071_has_an_example() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(add(0, &bytes, false)), 0xddf2);
        // Wherever it is cut.
        for at in 0..=bytes.len() {
            let (first, second) = bytes.split_at(at);
            let sum = add(add(0, first, false), second, at % 2 == 1);
            assert_eq!(fold(sum), 0xddf2, "{at}");
        }
    }
}
