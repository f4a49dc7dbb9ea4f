//! Rules in the NIC: which queue a flow arrives on.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
};

use super::{
    Rules,
    rules::{IPV4, IPV6, Prefix, Rule, SCTP, TCP, UDP},
};
use crate::{
    Interface, QueueId,
    error::{Error, ErrorKind, Result, Step},
    interface::{Flows, Record},
    sys::steering::{
        ETHER_FLOW, FLOW_EXT, FlowSpec, IPV4_USER_FLOW, IPV6_USER_FLOW, SCTP_V4_FLOW, SCTP_V6_FLOW,
        TCP_V4_FLOW, TCP_V6_FLOW, UDP_V4_FLOW, UDP_V6_FLOW,
    },
};

/// Keeps flow rules in a NIC, which bring the packets of [`Rules`] to queues with sockets.
///
/// A program's rules choose among the packets of a queue; these choose the queue, in hardware, whatever RSS
/// would say. Each rule goes to one of the queues, in turn; one that matches both IP versions becomes two.
/// Dropping the guard takes them away again, and switches the NIC's ntuple filters off if they were, in the
/// network namespace in which it was made. After a killed process,
/// [`restore_stale`](crate::interface::restore_stale) does.
///
/// Make it after a program is attached: rules can vanish then.
/// [`PortConfig::steer`](crate::PortConfig::steer) does.
///
/// ```no_run
/// use xskit::{Interface, QueueId, Rules, program::FlowRules};
///
/// let eth0 = Interface::by_name("eth0")?;
/// let flows = FlowRules::install(&eth0, &Rules::udp_port(4242), &[QueueId::new(0)])?;
/// # drop(flows);
/// # Ok::<(), xskit::Error>(())
/// ```
#[doc(alias = "ntuple")]
#[doc(alias = "ETHTOOL_SRXCLSRLINS")]
#[derive(Debug)]
#[must_use = "dropping it takes the rules away"]
pub struct FlowRules(Flows);

impl FlowRules {
    /// Brings the packets that these rules match to these queues, a queue for each rule, in turn.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for no queues, for [`Rules::all`] and [`Rules::none`], and
    /// for a rule that flow rules cannot express (ports without a protocol);
    /// [`NotFound`](ErrorKind::NotFound) for a queue that is not active,
    /// [`Unsupported`](ErrorKind::Unsupported) where the device has no flow rules (veth has none),
    /// [`Limit`](ErrorKind::Limit) where its table is full, [`Permission`](ErrorKind::Permission) without
    /// CAP_NET_ADMIN, [`LinkGone`](ErrorKind::LinkGone) where the interface was deleted. Nothing stays then.
    pub fn install(interface: &Interface, rules: &Rules, queues: &[QueueId]) -> Result<Self> {
        let refused =
            |reason| Error::new(Step::Steer, ErrorKind::InvalidInput, reason).on(interface.name());
        rules.check().map_err(|error| error.on(interface.name()))?;
        if rules.as_slice().is_empty() {
            return Err(refused("there is no rule to choose flows by")
                .hint("all packets: `interface::Spread` keeps RSS to some queues"));
        }
        interface.active_queues(queues)?;
        let mut specs = Vec::new();
        for (rule, queue) in rules.as_slice().iter().zip(queues.iter().cycle()) {
            let flows = flows(rule)
                .map_err(|(reason, hint)| refused(reason).asked(rule.to_string()).hint(hint))?;
            for mut spec in flows {
                spec.ring_cookie = queue.get().into();
                specs.push(spec);
            }
        }
        Flows::install(interface, &specs).map(Self)
    }

    /// The interface.
    pub fn interface(&self) -> &Interface {
        self.0.interface()
    }

    /// Where the rules are in the NIC's table, as `ethtool -u` numbers them.
    pub fn locations(&self) -> &[u32] {
        self.0.locations()
    }

    /// Takes the rules away. What dropping does, with its error.
    ///
    /// # Errors
    ///
    /// [`LinkGone`](ErrorKind::LinkGone) where the interface was deleted,
    /// [`Permission`](ErrorKind::Permission) where the process has lost CAP_NET_ADMIN.
    pub fn remove(mut self) -> Result<()> {
        self.0.undo()
    }

    /// The file in which it is written down what to take away if this process is killed. `None` where
    /// `/run/xskit` cannot be written.
    pub fn record(&self) -> Option<&Path> {
        self.0.record().map(Record::path)
    }
}

impl fmt::Display for FlowRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} flow rules in {}", self.locations().len(), self.interface())
    }
}

/// A rule as the kernel's flow specifications, or why it cannot be one, and what to do.
fn flows(rule: &Rule) -> Result<Vec<FlowSpec>, (&'static str, &'static str)> {
    let ports = rule.source_port.is_some() || rule.destination_port.is_some();
    if ports && rule.protocol.is_none() {
        return Err((
            "flow rules have ports of one protocol only",
            "name it: protocol=udp or protocol=tcp",
        ));
    }
    let version = match rule.source.or(rule.destination) {
        Some(prefix) => Some(if prefix.is_ipv4() { IPV4 } else { IPV6 }),
        None => rule.ether_type,
    };
    let versions: &[u16] = match version {
        Some(IPV4) => &[IPV4],
        Some(IPV6) => &[IPV6],
        None if rule.protocol.is_some() => &[IPV4, IPV6],
        _ => return Ok(vec![ethernet(rule)]),
    };
    Ok(versions.iter().map(|&version| ip(rule, version)).collect())
}

/// `struct ethhdr`: destination, source, EtherType.
fn ethernet(rule: &Rule) -> FlowSpec {
    let mut spec = FlowSpec::new(ETHER_FLOW);
    if let Some(ether_type) = rule.ether_type {
        put(&mut spec, 12, &ether_type.to_be_bytes(), &[0xff; 2]);
    }
    tag(&mut spec, rule);
    spec
}

/// Addresses, and what follows: ports (`ethtool_tcpip4_spec`, `ethtool_tcpip6_spec`) or the protocol
/// (`ethtool_usrip4_spec`, `ethtool_usrip6_spec`).
fn ip(rule: &Rule, version: u16) -> FlowSpec {
    let v4 = version == IPV4;
    let flow_type = match (rule.protocol, v4) {
        (Some(TCP), true) => TCP_V4_FLOW,
        (Some(TCP), false) => TCP_V6_FLOW,
        (Some(UDP), true) => UDP_V4_FLOW,
        (Some(UDP), false) => UDP_V6_FLOW,
        (Some(SCTP), true) => SCTP_V4_FLOW,
        (Some(SCTP), false) => SCTP_V6_FLOW,
        (_, true) => IPV4_USER_FLOW,
        (_, false) => IPV6_USER_FLOW,
    };
    let mut spec = FlowSpec::new(flow_type);
    let length = if v4 { 4 } else { 16 };
    for (at, prefix) in [(0, rule.source), (length, rule.destination)] {
        if let Some(prefix) = prefix {
            let (value, mask) = bytes(prefix);
            put(&mut spec, at, &value, &mask);
        }
    }
    let rest = 2 * length;
    match flow_type {
        IPV4_USER_FLOW => {
            /// `ETH_RX_NFC_IP4`, which is not masked.
            const IP_VERSION: u8 = 1;
            spec.value[rest + 5] = IP_VERSION;
            if let Some(protocol) = rule.protocol {
                put(&mut spec, rest + 6, &[protocol], &[0xff]);
            }
        }
        IPV6_USER_FLOW => {
            if let Some(protocol) = rule.protocol {
                put(&mut spec, rest + 5, &[protocol], &[0xff]);
            }
        }
        _ => {
            for (at, port) in [(rest, rule.source_port), (rest + 2, rule.destination_port)] {
                if let Some(port) = port {
                    put(&mut spec, at, &port.to_be_bytes(), &[0xff; 2]);
                }
            }
        }
    }
    tag(&mut spec, rule);
    spec
}

/// The VLAN id, in `struct ethtool_flow_ext`: 2 bytes of padding, a MAC address, the tag's type, the tag.
fn tag(spec: &mut FlowSpec, rule: &Rule) {
    const TCI: usize = 10;
    if let Some(vlan) = rule.vlan {
        spec.flow_type |= FLOW_EXT;
        spec.value_ext[TCI..TCI + 2].copy_from_slice(&vlan.to_be_bytes());
        spec.mask_ext[TCI..TCI + 2].copy_from_slice(&0x0fff_u16.to_be_bytes());
    }
}

fn put(spec: &mut FlowSpec, at: usize, value: &[u8], mask: &[u8]) {
    spec.value[at..at + value.len()].copy_from_slice(value);
    spec.mask[at..at + mask.len()].copy_from_slice(mask);
}

/// The address and the mask of its prefix.
fn bytes(prefix: Prefix) -> (Vec<u8>, Vec<u8>) {
    let length = u32::from(prefix.length());
    match prefix.address() {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
            (address.octets().to_vec(), Ipv4Addr::from_bits(mask).octets().to_vec())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
            (address.octets().to_vec(), Ipv6Addr::from_bits(mask).octets().to_vec())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rule: &str) -> Vec<FlowSpec> {
        flows(&rule.parse().unwrap()).unwrap()
    }

    #[test]
    fn a_port_of_both_versions() {
        let both = of("protocol=udp,destination-port=4242");
        assert_eq!(
            both.iter().map(|spec| spec.flow_type).collect::<Vec<_>>(),
            [UDP_V4_FLOW, UDP_V6_FLOW]
        );
        for (spec, at) in both.iter().zip([10, 34]) {
            assert_eq!(spec.value[at..at + 2], 4242_u16.to_be_bytes());
            assert_eq!(spec.mask[at..at + 2], [0xff; 2]);
            assert_eq!(spec.mask.iter().filter(|&&byte| byte != 0).count(), 2);
        }
    }

    #[test]
    fn addresses_with_their_prefixes() {
        let [spec] = of("protocol=tcp,source=10.16.0.0/12,destination=10.2.3.4,source-port=80")[..]
        else {
            panic!()
        };
        assert_eq!(spec.flow_type, TCP_V4_FLOW);
        assert_eq!(spec.value[..12], [10, 16, 0, 0, 10, 2, 3, 4, 0, 80, 0, 0]);
        assert_eq!(spec.mask[..12], [0xff, 0xf0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]);
        let [spec] = of("source=2001:db8::/32")[..] else { panic!() };
        assert_eq!(spec.flow_type, IPV6_USER_FLOW);
        assert_eq!(spec.value[..5], [0x20, 0x01, 0x0d, 0xb8, 0]);
        assert_eq!(spec.mask[..5], [0xff, 0xff, 0xff, 0xff, 0]);
    }

    #[test]
    fn other_protocols_and_types() {
        let [v4, v6] = of("protocol=icmp,vlan=5")[..] else { panic!() };
        assert_eq!(
            (v4.flow_type, v6.flow_type),
            (IPV4_USER_FLOW | FLOW_EXT, IPV6_USER_FLOW | FLOW_EXT)
        );
        assert_eq!((v4.value[13], v4.mask[13], v4.value[14], v4.mask[14]), (1, 0, 1, 0xff));
        assert_eq!((v6.value[37], v6.mask[37]), (1, 0xff));
        assert_eq!(
            (v4.value_ext[10..12].to_vec(), v4.mask_ext[10..12].to_vec()),
            (vec![0, 5], vec![0x0f, 0xff])
        );
        let [arp] = of("ether-type=0x0806")[..] else { panic!() };
        assert_eq!((arp.flow_type, &arp.value[12..14]), (ETHER_FLOW, &[8, 6][..]));
    }

    #[test]
    fn ports_need_a_protocol() {
        assert!(flows(&Rule::new().destination_port(80)).is_err());
    }
}
