//! [`Rules`]: which packets go to sockets, while the rest passes to the kernel's stack.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use crate::error::{Error, ErrorKind, Result, Step};

/// How many rules a program takes: one bit each in a 64-bit mask.
pub const MAX_RULES: usize = 64;

pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const SCTP: u8 = 132;

fn refused(reason: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(Step::Rules, ErrorKind::InvalidInput, reason)
}

/// Which packets go to sockets: those that match any of up to [`MAX_RULES`] rules.
///
/// The rest passes to the kernel's network stack.
///
/// ```
/// use xskit::{Rule, Rules};
///
/// let mut rules = Rules::udp_port(4242);
/// rules.push(Rule::new().source("10.0.0.0/8".parse()?).protocol(1))?;
/// # Ok::<(), xskit::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules(Choice);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    All,
    Matching(Vec<Rule>),
}

impl Rules {
    /// Every packet. On the interface that carries your SSH session, this ends it.
    pub fn all() -> Self {
        Self(Choice::All)
    }

    /// No packet: everything passes to the kernel's stack.
    pub fn none() -> Self {
        Self(Choice::Matching(Vec::new()))
    }

    /// UDP datagrams to this destination port, over IPv4 and IPv6.
    pub fn udp_port(port: u16) -> Self {
        Self(Choice::Matching(vec![Rule::new().protocol(UDP).destination_port(port)]))
    }

    /// Adds a rule: packets that match it go to sockets, too.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a 65th rule, for a rule that no packet or every packet would match, and
    /// for a rule beside [`Rules::all`].
    pub fn push(&mut self, rule: Rule) -> Result<()> {
        rule.check()?;
        match &mut self.0 {
            Choice::All => {
                Err(refused("Rules::all() matches every packet and takes no further rule")
                    .hint("start from Rules::none()"))
            }
            Choice::Matching(list) if list.len() == MAX_RULES => Err(too_many(MAX_RULES + 1)),
            Choice::Matching(list) => {
                list.push(rule);
                Ok(())
            }
        }
    }

    /// Whether these are [`Rules::all`], which take every packet.
    pub fn is_all(&self) -> bool {
        self.0 == Choice::All
    }

    /// The rules, in the order of their adding; empty for [`Rules::all`] and [`Rules::none`].
    pub fn as_slice(&self) -> &[Rule] {
        match &self.0 {
            Choice::All => &[],
            Choice::Matching(list) => list,
        }
    }

    /// Whether any rule constrains the VLAN id.
    pub fn use_vlans(&self) -> bool {
        self.as_slice().iter().any(|rule| rule.vlan.is_some())
    }

    /// What [`push`](Self::push) would have refused, for rules that came all at once.
    pub(super) fn check(&self) -> Result<()> {
        let list = self.as_slice();
        if list.len() > MAX_RULES {
            return Err(too_many(list.len()));
        }
        list.iter().try_for_each(Rule::check)
    }
}

fn too_many(count: usize) -> Error {
    refused(format!("{count} rules: a program takes at most {MAX_RULES}"))
        .hint("prefixes cover many addresses with one rule")
}

/// Checked when the rules are used, by the same tests as [`Rules::push`].
impl From<Vec<Rule>> for Rules {
    fn from(list: Vec<Rule>) -> Self {
        Self(Choice::Matching(list))
    }
}

/// Checked when the rules are used, by the same tests as [`Rules::push`].
impl FromIterator<Rule> for Rules {
    fn from_iter<I: IntoIterator<Item = Rule>>(rules: I) -> Self {
        Self(Choice::Matching(rules.into_iter().collect()))
    }
}

/// What one packet must have: every field that is set must match.
///
/// A field of IP implies IP, and an address its version; a packet that lacks a field (a fragment
/// has no ports, an ARP packet no protocol) does not match a rule that sets it.
///
/// As text, for command lines: `vlan=5,protocol=udp,source=10.0.0.0/8,destination-port=53`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[must_use = "a rule does nothing until it is among the rules of a program"]
pub struct Rule {
    pub(super) ether_type: Option<u16>,
    pub(super) vlan: Option<u16>,
    pub(super) protocol: Option<u8>,
    pub(super) source: Option<Prefix>,
    pub(super) destination: Option<Prefix>,
    pub(super) source_port: Option<u16>,
    pub(super) destination_port: Option<u16>,
}

impl Rule {
    /// A rule without any field yet; at least one is needed.
    pub fn new() -> Self {
        Self::default()
    }

    /// The EtherType behind up to two VLAN tags: 0x0800 for IPv4, 0x86dd for IPv6, 0x0806 for ARP.
    /// At least 0x0600; below are lengths, not types.
    pub fn ether_type(mut self, ether_type: u16) -> Self {
        self.ether_type = Some(ether_type);
        self
    }

    /// The VLAN id, 0 to 4094, in the packet's first (outer) tag, 802.1Q or 802.1ad: for a packet
    /// with two tags (QinQ) the service provider's. 0 is a tag that carries a priority only; a
    /// packet without a tag matches no VLAN.
    ///
    /// XDP sees no tag that the NIC has taken out of the packet: rules with VLANs are refused there
    /// until [`Offload::RxVlan`](crate::interface::Offload::RxVlan) is off. On veth, the sender's
    /// transmit offload hides it.
    pub fn vlan(mut self, id: u16) -> Self {
        self.vlan = Some(id);
        self
    }

    /// The IP protocol: 6 for TCP, 17 for UDP. In IPv6 it is what follows the extension headers, of
    /// which up to six are followed; in an IPv6 fragment what follows the fragment header.
    pub fn protocol(mut self, protocol: u8) -> Self {
        self.protocol = Some(protocol);
        self
    }

    /// The source address.
    pub fn source(mut self, prefix: Prefix) -> Self {
        self.source = Some(prefix);
        self
    }

    /// The destination address.
    pub fn destination(mut self, prefix: Prefix) -> Self {
        self.destination = Some(prefix);
        self
    }

    /// The source port of TCP, UDP or SCTP. Fragments, the first one included, have no ports.
    pub fn source_port(mut self, port: u16) -> Self {
        self.source_port = Some(port);
        self
    }

    /// The destination port of TCP, UDP or SCTP. Fragments, the first one included, have no ports.
    pub fn destination_port(mut self, port: u16) -> Self {
        self.destination_port = Some(port);
        self
    }

    /// Refuses what no packet could match, and what every packet would.
    pub(super) fn check(&self) -> Result<()> {
        let asked = |error: Error| error.asked(self.to_string());
        if *self == Self::default() {
            return Err(refused("a rule without any field matches every packet")
                .hint("ask for that by name: Rules::all()"));
        }
        match self.ether_type {
            Some(length @ 0..0x0600) => {
                return Err(asked(
                    refused(format!(
                        "EtherType {length:#06x} is below 0x0600: such a field holds a length"
                    ))
                    .hint("EtherTypes begin at 0x0600"),
                ));
            }
            Some(tag @ (0x8100 | 0x88a8)) => {
                return Err(asked(
                    refused(format!("{tag:#06x} is a VLAN tag, and tags are skipped"))
                        .hint("use vlan for the tag's id, and ether_type for what follows it"),
                ));
            }
            _ => {}
        }
        if let Some(id @ 4095..) = self.vlan {
            return Err(asked(
                refused(format!("VLAN id {id} is not within 0–4094"))
                    .hint("4095 is reserved; a rule without vlan takes packets of every VLAN"),
            ));
        }
        let version =
            match (self.source, self.destination) {
                (Some(source), Some(destination)) if source.is_ipv4() != destination.is_ipv4() => {
                    return Err(asked(refused(format!(
                    "source {source} and destination {destination} are of different IP versions"
                ))
                .hint("make two rules, one of each version")));
                }
                (Some(prefix), _) | (None, Some(prefix)) => {
                    Some(if prefix.is_ipv4() { IPV4 } else { IPV6 })
                }
                (None, None) => None,
            };
        let ports = self.source_port.is_some() || self.destination_port.is_some();
        if let Some(ether_type) = self.ether_type {
            if let Some(version) = version.filter(|&version| version != ether_type) {
                return Err(asked(
                    refused(format!(
                        "the addresses are of EtherType {version:#06x}, not {ether_type:#06x}"
                    ))
                    .hint("leave the EtherType out: addresses imply it"),
                ));
            }
            if (ports || self.protocol.is_some()) && !matches!(ether_type, IPV4 | IPV6) {
                return Err(asked(
                    refused(format!(
                        "protocol and ports belong to IP, not to EtherType {ether_type:#06x}"
                    ))
                    .hint("leave one of them out, or make two rules"),
                ));
            }
        }
        let without_ports = |protocol: &u8| !matches!(*protocol, TCP | UDP | SCTP);
        if let Some(protocol) = self.protocol.filter(without_ports).filter(|_| ports) {
            return Err(asked(refused(format!(
                "IP protocol {protocol} has no ports: TCP ({TCP}), UDP ({UDP}) and SCTP ({SCTP}) do"
            ))
            .hint("leave the ports out, or make two rules")));
        }
        Ok(())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut field = |name: &str, value: Option<String>| {
            let Some(value) = value else { return Ok(()) };
            write!(f, "{separator}{name}={value}")?;
            separator = ",";
            Ok(())
        };
        field("ether-type", self.ether_type.map(|value| format!("{value:#06x}")))?;
        field("vlan", self.vlan.map(|id| id.to_string()))?;
        field("protocol", self.protocol.map(|number| number.to_string()))?;
        field("source", self.source.map(|prefix| prefix.to_string()))?;
        field("destination", self.destination.map(|prefix| prefix.to_string()))?;
        field("source-port", self.source_port.map(|port| port.to_string()))?;
        field("destination-port", self.destination_port.map(|port| port.to_string()))
    }
}

impl FromStr for Rule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        fn number<T: TryFrom<u64>>(name: &str, value: &str) -> Result<T> {
            let parsed = match value.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => value.parse().ok(),
            };
            parsed.and_then(|value| T::try_from(value).ok()).ok_or_else(|| {
                refused(format!("{name}={value}: not a number in the range of this field"))
            })
        }
        let mut rule = Self::new();
        for field in text.split(',') {
            let (name, value) = field.split_once('=').ok_or_else(|| {
                refused(format!("{field:?} is not of the form field=value"))
                    .hint("for example protocol=udp,destination-port=53")
            })?;
            let twice = match name {
                "ether-type" => rule.ether_type.replace(number(name, value)?).is_some(),
                "vlan" => rule.vlan.replace(number(name, value)?).is_some(),
                "protocol" => {
                    let protocol = match value {
                        "icmp" => 1,
                        "tcp" => TCP,
                        "udp" => UDP,
                        "icmpv6" => 58,
                        "sctp" => SCTP,
                        _ => number(name, value)?,
                    };
                    rule.protocol.replace(protocol).is_some()
                }
                "source" => rule.source.replace(value.parse()?).is_some(),
                "destination" => rule.destination.replace(value.parse()?).is_some(),
                "source-port" => rule.source_port.replace(number(name, value)?).is_some(),
                "destination-port" => rule.destination_port.replace(number(name, value)?).is_some(),
                _ => {
                    return Err(refused(format!("a rule has no field {name:?}")).hint(
                        "fields: ether-type, vlan, protocol, source, destination, source-port, \
                         destination-port",
                    ));
                }
            };
            if twice {
                return Err(refused(format!("{name} is given twice in one rule"))
                    .hint("one value each; use several rules for several values"));
            }
        }
        rule.check()?;
        Ok(rule)
    }
}

/// The addresses that share their first bits: `10.0.0.0/8`, `2001:db8::/32`, or a single one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// The addresses whose first `length` bits are those of `address`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` where the length is above 32 (IPv4) or 128 (IPv6), and where `address` has
    /// bits behind the prefix: a typing error more often than not.
    pub fn new(address: IpAddr, length: u8) -> Result<Self> {
        let most = if address.is_ipv4() { 32 } else { 128 };
        if length > most {
            return Err(refused(format!("{address}/{length}: the length is at most {most}")));
        }
        let network = masked(address, length);
        if network != address {
            return Err(refused(format!(
                "{address}/{length}: the address has bits behind the prefix"
            ))
            .hint(format!("write {network}/{length}")));
        }
        Ok(Self { address, length })
    }

    /// The first address.
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// The number of bits shared.
    pub fn length(self) -> u8 {
        self.length
    }

    /// Whether the prefix is one of IPv4.
    pub fn is_ipv4(self) -> bool {
        self.address.is_ipv4()
    }

    /// Whether `other` lies within this prefix.
    pub fn covers(self, other: Prefix) -> bool {
        self.is_ipv4() == other.is_ipv4()
            && self.length <= other.length
            && masked(other.address, self.length) == self.address
    }
}

/// The address with all bits behind the first `length` cleared.
fn masked(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            Ipv4Addr::from_bits(v4.to_bits() & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            Ipv6Addr::from_bits(v6.to_bits() & mask).into()
        }
    }
}

impl From<IpAddr> for Prefix {
    fn from(address: IpAddr) -> Self {
        Self { address, length: if address.is_ipv4() { 32 } else { 128 } }
    }
}

impl FromStr for Prefix {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address
            .parse()
            .map_err(|_| refused(format!("{text:?} is no IP prefix")).hint("such as 10.0.0.0/8"))?;
        match length.map(str::parse) {
            None => Ok(address.into()),
            Some(Ok(length)) => Self::new(address, length),
            Some(Err(_)) => Err(refused(format!("{text:?}: no prefix length behind the slash"))),
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(rule: Rule) -> String {
        Rules::none().push(rule).unwrap_err().to_string()
    }

    #[test]
    fn rules_that_nothing_or_everything_matches_are_refused() {
        assert!(refusal(Rule::new()).contains("Rules::all()"));
        assert!(refusal(Rule::new().ether_type(0x05ff)).contains("below 0x0600"));
        assert!(refusal(Rule::new().ether_type(0x8100)).contains("VLAN tag"));
        assert!(refusal(Rule::new().vlan(4095)).contains("0–4094"));
        let (v4, v6): (Prefix, Prefix) =
            ("10.0.0.0/8".parse().unwrap(), "2001:db8::/32".parse().unwrap());
        assert!(refusal(Rule::new().source(v4).destination(v6)).contains("different IP versions"));
        assert!(refusal(Rule::new().source(v4).ether_type(IPV6)).contains("0x0800, not 0x86dd"));
        assert!(refusal(Rule::new().destination(v6).ether_type(0x0806)).contains("0x86dd"));
        assert!(refusal(Rule::new().protocol(6).ether_type(0x0806)).contains("belong to IP"));
        assert!(refusal(Rule::new().source_port(1).protocol(1)).contains("has no ports"));
        assert!(Rules::all().push(Rule::new().vlan(1)).unwrap_err().to_string().contains("all()"));
    }

    #[test]
    fn sixty_four_rules_and_no_more() {
        let mut rules = Rules::none();
        for id in 0..64 {
            rules.push(Rule::new().vlan(id)).unwrap();
        }
        let error = rules.push(Rule::new().vlan(64)).unwrap_err();
        assert_eq!((error.step(), error.kind()), (Step::Rules, ErrorKind::InvalidInput));
        assert!(error.to_string().contains("65 rules"));
        let at_once: Rules = (0..65).map(|id| Rule::new().vlan(id)).collect();
        assert!(at_once.check().unwrap_err().to_string().contains("65 rules"));
        assert!(Rules::from(vec![Rule::new()]).check().is_err());
    }

    #[test]
    fn prefixes_as_text() {
        for text in
            ["10.0.0.0/8", "0.0.0.0/0", "192.168.1.1/32", "2001:db8::/32", "::/0", "::1/128"]
        {
            assert_eq!(text.parse::<Prefix>().unwrap().to_string(), text);
        }
        assert_eq!("10.1.2.3".parse::<Prefix>().unwrap().to_string(), "10.1.2.3/32");
        assert!("10.1.0.0/8".parse::<Prefix>().unwrap_err().to_string().contains("10.0.0.0/8"));
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0.0/x", "10.0.0/8", "eth0"] {
            let error = text.parse::<Prefix>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}: {error}");
        }
    }

    #[test]
    fn a_rule_as_text_and_back() {
        let text = "ether-type=0x0800,vlan=5,protocol=17,source=10.0.0.0/8,\
                    destination=10.1.0.0/16,source-port=53,destination-port=4242";
        let rule: Rule = text.parse().unwrap();
        assert_eq!(rule.to_string(), text);
        assert_eq!(
            "protocol=udp,destination-port=4242".parse::<Rule>().unwrap(),
            Rules::udp_port(4242).as_slice()[0]
        );
        for text in ["", "udp", "port=1", "vlan=x", "vlan=5000", "protocol=256", "vlan=1,vlan=2"] {
            let error = text.parse::<Rule>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}: {error}");
        }
    }
}
