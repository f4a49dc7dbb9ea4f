//! rtnetlink: does an interface carry a default route?

use netlink_packet_core::NLM_F_DUMP_FILTERED;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAttribute, RouteMessage, RouteType},
};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;

use super::{Answer, NetlinkRefusal, dump, number};

/// `struct rtmsg`.
const HEADER: usize = 12;
/// `struct rtnexthop`.
const NEXT_HOP: usize = 8;

const RTN_UNICAST: u8 = 1;
const RTA_OIF: u16 = 4;
const RTA_MULTIPATH: u16 = 9;

/// Whether a unicast route to everywhere, IPv4 or IPv6, in any table, leaves through this interface.
pub(crate) fn carries_default_route(index: u32) -> Result<bool, NetlinkRefusal> {
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        message.header.kind = RouteType::Unicast;
        message.attributes.push(RouteAttribute::Oif(index));
        let answers = match dump(NETLINK_ROUTE, &RouteNetlinkMessage::GetRoute(message)) {
            Ok(answers) => answers,
            // The kernel has no such family, or no such interface any more.
            Err(NetlinkRefusal { errno: Errno::EOPNOTSUPP | Errno::ENODEV, .. }) => continue,
            Err(refusal) => return Err(refusal),
        };
        if answers.iter().any(|answer| is_default_through(answer, index)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_default_through(answer: &Answer, index: u32) -> bool {
    let Some(&[_, destination, source, .., kind, _, _, _, _]) =
        answer.payload.first_chunk::<HEADER>()
    else {
        return false;
    };
    if (destination, source, kind) != (0, 0, RTN_UNICAST) {
        return false;
    }
    // Next hops may be objects of their own, which only the kernel's filter can see into.
    answer.flags & NLM_F_DUMP_FILTERED != 0
        || answer.attributes(HEADER).any(|attribute| match attribute.kind() {
            RTA_OIF => number(attribute.value()) == Some(index),
            RTA_MULTIPATH => next_hops(attribute.value()).any(|hop| hop == index),
            _ => false,
        })
}

/// The interface of each next hop of a multipath route.
fn next_hops(mut bytes: &[u8]) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let header = bytes.first_chunk::<NEXT_HOP>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]])).max(NEXT_HOP);
        let index = number(&header[4..])?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(index)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(flags: u16, prefix: u8, attributes: &[u8]) -> Answer {
        let mut payload = vec![2, prefix, 0, 0, 254, 3, 0, RTN_UNICAST, 0, 0, 0, 0];
        payload.extend_from_slice(attributes);
        Answer { flags, payload }
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + value.len()).unwrap();
        [&length.to_ne_bytes(), &kind.to_ne_bytes(), value].concat()
    }

    fn hop(index: u32) -> Vec<u8> {
        // With a gateway after it, as the kernel writes it.
        let gateway = attribute(5, &[10, 0, 0, 1]);
        let length = u16::try_from(NEXT_HOP + gateway.len()).unwrap();
        [&length.to_ne_bytes()[..], &[0, 0], &index.to_ne_bytes(), &gateway].concat()
    }

    #[test]
    fn only_a_prefix_of_zero_is_default() {
        let out = attribute(RTA_OIF, &7_u32.to_ne_bytes());
        assert!(is_default_through(&answer(0, 0, &out), 7));
        assert!(!is_default_through(&answer(0, 0, &out), 8));
        assert!(!is_default_through(&answer(0, 1, &out), 7));
        assert!(!is_default_through(&Answer { flags: 0, payload: vec![2, 0] }, 7));
    }

    #[test]
    fn every_hop_of_a_multipath_route_counts() {
        let hops = attribute(RTA_MULTIPATH, &[hop(3), hop(9)].concat());
        assert!(is_default_through(&answer(0, 0, &hops), 3));
        assert!(is_default_through(&answer(0, 0, &hops), 9));
        assert!(!is_default_through(&answer(0, 0, &hops), 4));
    }

    #[test]
    fn the_kernels_filter_is_believed() {
        // A next hop object: no interface in the answer.
        let object = attribute(30, &1_u32.to_ne_bytes());
        assert!(is_default_through(&answer(NLM_F_DUMP_FILTERED, 0, &object), 7));
        assert!(!is_default_through(&answer(0, 0, &object), 7));
    }

    #[test]
    fn a_hop_of_length_zero_ends() {
        assert_eq!(next_hops(&[0; 24]).count(), 3);
        assert_eq!(next_hops(&[0; 7]).count(), 0);
    }
}
