//! The embedded XDP program in the real kernel: crafted packets through `BPF_PROG_TEST_RUN`, and
//! attaching on veth pairs. Needs root; says so and skips where it is not.

use std::{
    os::fd::{AsFd, OwnedFd},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use aya::programs::{TestRun, TestRunOptions, Xdp, loaded_programs};
use aya_obj::programs::XdpAttachType;
use nix::mount::{MsFlags, mount};
use xskit::{
    AttachMode, Attached, Counters, ErrorKind, Interface, Program, QueueId, Rule, Rules, SocketMap,
    Step,
    program::{Loaded, ProgramOptions, QueueCounters, VlanTags},
};
use xskit_lab::{Lab, LabConfig, Link, Need, Netns, RawPort, XdpMode, require};

const UDP: u8 = 17;
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;

/// What became of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// A rule matches: the packet would go to a socket.
    Match,
    NoRule,
    Malformed,
    TooDeep,
    Fragment,
}

fn handle(id: u32) -> Xdp {
    let info = loaded_programs()
        .find_map(|info| info.ok().filter(|info| info.id() == id))
        .expect("our program is loaded");
    Xdp::from_program_info(info, "xskit".into(), XdpAttachType::Interface).unwrap()
}

fn run(program: &Xdp, packet: &[u8]) -> u32 {
    let options = TestRunOptions { data_in: Some(packet), ..TestRunOptions::default() };
    program.test_run(options).unwrap().return_value
}

/// The program in the kernel, without a socket, so that what it does shows in its counters.
struct Kernel {
    loaded: Loaded,
    program: Xdp,
    before: QueueCounters,
}

impl Kernel {
    fn new(rules: &Rules) -> Self {
        Self::with(rules, &ProgramOptions::default())
    }

    fn with(rules: &Rules, options: &ProgramOptions) -> Self {
        let loaded = Loaded::new(rules, options).unwrap();
        let program = handle(loaded.info().unwrap().id);
        Self { loaded, program, before: QueueCounters::default() }
    }

    fn set_rules(&mut self, rules: &Rules) {
        self.loaded.set_rules(rules).unwrap();
        self.program = handle(self.loaded.info().unwrap().id);
    }

    fn outcome(&mut self, packet: &[u8]) -> Outcome {
        assert_eq!(run(&self.program, packet), XDP_PASS, "there is no socket");
        let counters = self.loaded.counters().unwrap();
        let now = counters.total;
        assert_eq!(counters.queues[0], now, "test runs arrive on queue 0");
        let before = std::mem::replace(&mut self.before, now);
        assert_eq!(now.redirected, 0);
        assert_eq!(now.passed(), before.passed() + 1, "each packet counts once");
        [
            (now.passed_no_socket - before.passed_no_socket, Outcome::Match),
            (now.passed_no_rule - before.passed_no_rule, Outcome::NoRule),
            (now.passed_malformed - before.passed_malformed, Outcome::Malformed),
            (now.passed_too_deep - before.passed_too_deep, Outcome::TooDeep),
            (now.passed_fragment - before.passed_fragment, Outcome::Fragment),
        ]
        .into_iter()
        .find_map(|(count, outcome)| (count == 1).then_some(outcome))
        .expect("one counter moved")
    }

    #[track_caller]
    fn expect(&mut self, packet: &[u8], expected: Outcome) {
        assert_eq!(self.outcome(packet), expected, "{packet:02x?}");
    }
}

// Packets, from the outside to the inside.

fn ethernet(tags: &[(u16, u16)], ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    for (kind, id) in tags {
        packet.extend(kind.to_be_bytes());
        packet.extend((id | 0x6000).to_be_bytes()); // with a priority
    }
    packet.extend(ether_type.to_be_bytes());
    packet.extend(payload);
    packet
}

fn ports(source: u16, destination: u16) -> Vec<u8> {
    [source.to_be_bytes(), destination.to_be_bytes(), [0, 8], [0, 0]].concat()
}

#[derive(Clone)]
struct Ip4 {
    source: [u8; 4],
    destination: [u8; 4],
    protocol: u8,
    fragment: u16,
    options: usize,
    payload: Vec<u8>,
}

impl Ip4 {
    fn new(protocol: u8, payload: Vec<u8>) -> Self {
        Self {
            source: [10, 1, 2, 3],
            destination: [192, 168, 0, 1],
            protocol,
            fragment: 0x4000, // don't
            options: 0,
            payload,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let words = u8::try_from(5 + self.options).unwrap();
        let length = u16::try_from(usize::from(words) * 4 + self.payload.len()).unwrap();
        let mut bytes = vec![0x40 | words, 0];
        bytes.extend(length.to_be_bytes());
        bytes.extend([0, 1]);
        bytes.extend(self.fragment.to_be_bytes());
        bytes.extend([64, self.protocol, 0, 0]);
        bytes.extend(self.source);
        bytes.extend(self.destination);
        bytes.extend([1].repeat(self.options * 4)); // no operation
        bytes.extend(&self.payload);
        bytes
    }

    fn packet(&self) -> Vec<u8> {
        ethernet(&[], 0x0800, &self.bytes())
    }
}

const SOURCE_6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const DESTINATION_6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

/// An IPv6 packet with these extension headers, each given by its number and bytes behind the first.
fn ip6(extensions: &[(u8, Vec<u8>)], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut following: Vec<u8> = extensions.iter().map(|(kind, _)| *kind).collect();
    following.push(protocol);
    let mut body = Vec::new();
    for ((_, rest), next) in extensions.iter().zip(&following[1..]) {
        body.push(*next);
        body.extend(rest);
    }
    body.extend(payload);
    let mut bytes = vec![0x60, 0, 0, 0];
    bytes.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
    bytes.extend([following[0], 64]);
    bytes.extend(SOURCE_6);
    bytes.extend(DESTINATION_6);
    bytes.extend(body);
    ethernet(&[], 0x86dd, &bytes)
}

/// Hop-by-hop, routing and destination options of `units` times 8 bytes.
fn options(units: u8) -> Vec<u8> {
    let mut rest = vec![units - 1];
    rest.resize(usize::from(units) * 8 - 1, 0);
    rest
}

fn to_port(port: u16) -> Vec<u8> {
    Ip4::new(UDP, ports(1000, port)).packet()
}

#[test]
fn all_takes_everything_and_none_nothing() {
    if !require(Need::Bpf) {
        return;
    }
    for frags in [false, true] {
        let options = ProgramOptions { frags, ..ProgramOptions::default() };
        let mut all = Kernel::with(&Rules::all(), &options);
        let mut none = Kernel::with(&Rules::none(), &options);
        for packet in [to_port(1), ethernet(&[], 0x0806, &[0; 28]), vec![0; 14]] {
            all.expect(&packet, Outcome::Match);
            none.expect(&packet, Outcome::NoRule);
        }
    }
}

#[test]
fn ether_types_are_those_behind_the_tags() {
    if !require(Need::Bpf) {
        return;
    }
    let mut kernel = Kernel::new(&Rules::from(vec![Rule::new().ether_type(0x0806)]));
    let arp = |tags: &[(u16, u16)]| ethernet(tags, 0x0806, &[0; 28]);
    kernel.expect(&arp(&[]), Outcome::Match);
    kernel.expect(&arp(&[(0x8100, 5)]), Outcome::Match);
    kernel.expect(&arp(&[(0x88a8, 5), (0x8100, 6)]), Outcome::Match);
    kernel.expect(&arp(&[(0x8100, 5), (0x8100, 6), (0x8100, 7)]), Outcome::TooDeep);
    kernel.expect(&to_port(1), Outcome::NoRule);
    let tagged = arp(&[(0x88a8, 5), (0x8100, 6)]);
    kernel.expect(&tagged[..21], Outcome::Malformed);
    kernel.expect(&tagged[..17], Outcome::Malformed);
}

#[test]
fn vlans_are_those_of_the_outer_tag() {
    if !require(Need::Bpf) {
        return;
    }
    let mut kernel =
        Kernel::new(&Rules::from(vec![Rule::new().vlan(5), Rule::new().vlan(0).ether_type(1600)]));
    let tagged = |tags: &[(u16, u16)]| ethernet(tags, 1600, &[0; 46]);
    kernel.expect(&tagged(&[(0x8100, 5)]), Outcome::Match);
    kernel.expect(&tagged(&[(0x88a8, 5), (0x8100, 6)]), Outcome::Match);
    kernel.expect(&tagged(&[(0x88a8, 6), (0x8100, 5)]), Outcome::NoRule);
    kernel.expect(&tagged(&[(0x8100, 5), (0x8100, 5), (0x8100, 5)]), Outcome::TooDeep);
    kernel.expect(&tagged(&[(0x8100, 0)]), Outcome::Match);
    kernel.expect(&tagged(&[]), Outcome::NoRule);
    kernel.expect(&tagged(&[(0x8100, 4095)]), Outcome::NoRule);
}

#[test]
fn tags_move_what_follows_them() {
    if !require(Need::Bpf) {
        return;
    }
    let mut kernel = Kernel::new(&Rules::udp_port(4242));
    let ip = Ip4::new(UDP, ports(1, 4242)).bytes();
    kernel.expect(&ethernet(&[(0x8100, 1)], 0x0800, &ip), Outcome::Match);
    kernel.expect(&ethernet(&[(0x88a8, 1), (0x8100, 2)], 0x0800, &ip), Outcome::Match);
    let ip = Ip4::new(UDP, ports(1, 4243)).bytes();
    kernel.expect(&ethernet(&[(0x8100, 1)], 0x0800, &ip), Outcome::NoRule);
}

#[test]
fn protocols_of_both_ip_versions() {
    if !require(Need::Bpf) {
        return;
    }
    let mut kernel = Kernel::new(&Rules::from(vec![Rule::new().protocol(1)]));
    kernel.expect(&Ip4::new(1, vec![8, 0]).packet(), Outcome::Match);
    kernel.expect(&Ip4::new(UDP, ports(1, 1)).packet(), Outcome::NoRule);
    kernel.expect(&ip6(&[], 1, &[]), Outcome::Match);
    kernel.expect(&ip6(&[(60, options(1))], 1, &[]), Outcome::Match);
    kernel.expect(&ip6(&[], 58, &[]), Outcome::NoRule);
    // Protocol 1 at the place where IPv4 has it.
    kernel.expect(&ethernet(&[], 0x0806, &Ip4::new(1, vec![]).bytes()), Outcome::NoRule);
    // All fragments are of their packet's protocol.
    kernel.expect(&Ip4 { fragment: 0x2000, ..Ip4::new(1, vec![]) }.packet(), Outcome::Match);
    kernel.expect(&Ip4 { fragment: 0x0010, ..Ip4::new(1, vec![]) }.packet(), Outcome::Match);
}

#[test]
fn prefixes_match_the_longest_and_all_around_it() {
    if !require(Need::Bpf) {
        return;
    }
    let source = |text: &str| Rule::new().source(text.parse().unwrap());
    let destination = |text: &str| Rule::new().destination(text.parse().unwrap());
    let v4 = Ip4::new(UDP, ports(1, 2)); // 10.1.2.3 to 192.168.0.1
    let v6 = ip6(&[], UDP, &ports(1, 2)); // 2001:db8::1 to fd00::2
    for (rule, on_v4, on_v6) in [
        (source("10.1.2.3/32"), true, false),
        (source("10.1.2.2/32"), false, false),
        (source("10.0.0.0/8"), true, false),
        (source("11.0.0.0/8"), false, false),
        (source("0.0.0.0/0"), true, false),
        (source("192.168.0.1"), false, false),
        (source("::/0"), false, true),
        (source("2001:db8::/32"), false, true),
        (source("2001:db9::/32"), false, false),
        (destination("192.168.0.0/16"), true, false),
        (destination("10.1.2.3"), false, false),
        (destination("fd00::2"), false, true),
        (destination("fd00::3"), false, false),
        (source("10.0.0.0/8").destination("192.168.0.1".parse().unwrap()), true, false),
        (source("10.0.0.0/8").destination("192.168.0.2".parse().unwrap()), false, false),
        (source("2001:db8::/32").destination("fd00::/8".parse().unwrap()), false, true),
    ] {
        let mut kernel = Kernel::new(&Rules::from(vec![rule.clone()]));
        assert_eq!(kernel.outcome(&v4.packet()) == Outcome::Match, on_v4, "{rule} on IPv4");
        assert_eq!(kernel.outcome(&v6) == Outcome::Match, on_v6, "{rule} on IPv6");
        kernel.expect(&ethernet(&[], 0x0806, &v4.bytes()), Outcome::NoRule);
    }
    // The shorter prefix still counts where a longer one is found, and asks for less.
    let mut kernel = Kernel::new(&Rules::from(vec![
        source("10.0.0.0/8"),
        source("10.1.0.0/16").destination_port(7),
        source("10.2.0.0/16").destination_port(7),
        Rule::new().destination_port(9),
    ]));
    kernel.expect(&v4.packet(), Outcome::Match);
    let other = |source, port| Ip4 { source, ..Ip4::new(UDP, ports(1, port)) }.packet();
    kernel.expect(&other([10, 2, 0, 1], 8), Outcome::Match);
    kernel.expect(&other([11, 2, 0, 1], 8), Outcome::NoRule);
    kernel.expect(&other([11, 2, 0, 1], 9), Outcome::Match);
}

#[test]
fn ports_of_tcp_udp_and_sctp() {
    if !require(Need::Bpf) {
        return;
    }
    let mut kernel = Kernel::new(&Rules::from(vec![
        Rule::new().source_port(53),
        Rule::new().destination_port(4242).protocol(UDP),
    ]));
    for (protocol, source, destination, expected) in [
        (6, 53, 9, Outcome::Match),
        (UDP, 53, 9, Outcome::Match),
        (132, 53, 9, Outcome::Match),
        (1, 53, 9, Outcome::NoRule),
        (UDP, 9, 4242, Outcome::Match),
        (6, 9, 4242, Outcome::NoRule),
        (UDP, 4242, 53, Outcome::NoRule),
        // 4242 = 0x1092, in the other byte order.
        (UDP, 9, 0x9210, Outcome::NoRule),
    ] {
        let ports = ports(source, destination);
        kernel.expect(&Ip4::new(protocol, ports.clone()).packet(), expected);
        kernel.expect(&ip6(&[], protocol, &ports), expected);
    }
}

#[test]
fn the_ipv4_header_length_is_honoured() {
    if !require(Need::Bpf) {
        return;
    }
    let mut kernel = Kernel::new(&Rules::udp_port(4242));
    for options in 0..=10 {
        let ip = Ip4 { options, ..Ip4::new(UDP, ports(1, 4242)) };
        kernel.expect(&ip.packet(), Outcome::Match);
    }
    let good = to_port(4242);
    let mut short = good.clone();
    short[14] = 0x44; // 16 bytes
    kernel.expect(&short, Outcome::Malformed);
    let mut version = good.clone();
    version[14] = 0x65;
    kernel.expect(&version, Outcome::Malformed);
    let mut long = good.clone();
    long[14] = 0x4f; // 60 bytes, which the packet does not have
    kernel.expect(&long, Outcome::Malformed);
    // Behind the length that the header states is padding, not ports.
    let mut padded = Ip4::new(UDP, vec![]).packet();
    padded.extend(ports(1, 4242));
    kernel.expect(&padded, Outcome::Malformed);
    for length in 14..good.len() - 4 {
        kernel.expect(&good[..length], Outcome::Malformed);
    }
    kernel.expect(&good[..good.len() - 4], Outcome::Match);
}

#[test]
fn six_ipv6_extension_headers_and_no_more() {
    if !require(Need::Bpf) {
        return;
    }
    let mut kernel = Kernel::new(&Rules::udp_port(4242));
    let ports = ports(1, 4242);
    let kinds = [0, 43, 60, 60, 43, 60];
    for count in 0..=6 {
        let units = |n: usize| options(u8::try_from(n % 3 + 1).unwrap());
        let headers: Vec<_> = (0..count).map(|n| (kinds[n], units(n))).collect();
        kernel.expect(&ip6(&headers, UDP, &ports), Outcome::Match);
    }
    let seven = vec![(60, options(1)); 7];
    kernel.expect(&ip6(&seven, UDP, &ports), Outcome::TooDeep);
    // The authentication header counts in other units: 4 bytes, and 2 more of them.
    let mut authentication = vec![4];
    authentication.resize(23, 0);
    kernel.expect(&ip6(&[(51, authentication)], UDP, &ports), Outcome::Match);
    // A header that is longer than the packet.
    let long = ip6(&[(60, vec![200, 0, 0, 0, 0, 0, 0])], UDP, &ports);
    kernel.expect(&long, Outcome::Malformed);
    // No next header, and encrypted payload.
    kernel.expect(&ip6(&[], 59, &ports), Outcome::NoRule);
    kernel.expect(&ip6(&[], 50, &ports), Outcome::NoRule);
    let mut version = ip6(&[], UDP, &ports);
    version[14] = 0x40;
    kernel.expect(&version, Outcome::Malformed);
    // What a rule on the address means does not depend on the other rules.
    kernel.set_rules(&Rules::from(vec![
        Rule::new().source("2001:db8::1".parse().unwrap()),
        Rule::new().destination_port(1),
    ]));
    kernel.expect(&ip6(&seven, UDP, &ports), Outcome::Match);
}

#[test]
fn fragments_have_no_ports() {
    if !require(Need::Bpf) {
        return;
    }
    let udp = Ip4::new(UDP, ports(1, 4242));
    let mut kernel = Kernel::new(&Rules::udp_port(4242));
    kernel.expect(&udp.packet(), Outcome::Match);
    for fragment in [0x2000, 0x0001, 0x1fff, 0x3000] {
        kernel.expect(&Ip4 { fragment, ..udp.clone() }.packet(), Outcome::Fragment);
    }
    let header = |offset_and_more: u16| {
        let [high, low] = offset_and_more.to_be_bytes();
        (44, vec![0, high, low, 0, 0, 0, 1])
    };
    for offset_and_more in [0, 1, 8, 9] {
        let fragment = ip6(&[(60, options(1)), header(offset_and_more)], UDP, &udp.payload);
        kernel.expect(&fragment, Outcome::Fragment);
    }
    let mut protocol = Kernel::new(&Rules::from(vec![Rule::new().protocol(UDP)]));
    protocol.expect(&ip6(&[header(9)], UDP, &udp.payload), Outcome::Match);
}

/// Small numbers without end, the same on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap() % bound
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// `None` three times out of four, so that rules constrain few fields each.
    fn maybe<T: Copy>(&mut self, values: &[T]) -> Option<T> {
        (self.below(4) == 0).then(|| self.one_of(values))
    }
}

const ETHER_TYPES: [u16; 3] = [0x0806, 0x0800, 0x86dd];
const IDS: [u16; 3] = [0, 5, 4094];
const PROTOCOLS: [u8; 4] = [1, 6, UDP, 132];
const PORTS: [u16; 3] = [0, 53, 4242];
/// Prefixes, and whether the addresses of the crafted packets are within: as source, as destination.
const PREFIXES: [(&str, [u16; 2]); 8] = [
    ("10.1.2.3", [0x0800, 0]),
    ("10.0.0.0/8", [0x0800, 0]),
    ("0.0.0.0/0", [0x0800, 0x0800]),
    ("192.168.0.0/24", [0, 0x0800]),
    ("192.168.0.2", [0, 0]),
    ("2001:db8::/32", [0x86dd, 0]),
    ("fd00::2", [0, 0x86dd]),
    ("::/0", [0x86dd, 0x86dd]),
];

/// A rule's fields, as the oracle reads them.
struct Wanted {
    ether_type: Option<u16>,
    vlan: Option<u16>,
    protocol: Option<u8>,
    source: Option<(&'static str, [u16; 2])>,
    destination: Option<(&'static str, [u16; 2])>,
    source_port: Option<u16>,
    destination_port: Option<u16>,
}

impl Wanted {
    fn new(random: &mut Random) -> Self {
        Self {
            ether_type: random.maybe(&ETHER_TYPES),
            vlan: random.maybe(&IDS),
            protocol: random.maybe(&PROTOCOLS),
            source: random.maybe(&PREFIXES),
            destination: random.maybe(&PREFIXES),
            source_port: random.maybe(&PORTS),
            destination_port: random.maybe(&PORTS),
        }
    }

    fn rule(&self) -> Rule {
        let mut rule = Rule::new();
        if let Some(ether_type) = self.ether_type {
            rule = rule.ether_type(ether_type);
        }
        if let Some(id) = self.vlan {
            rule = rule.vlan(id);
        }
        if let Some(protocol) = self.protocol {
            rule = rule.protocol(protocol);
        }
        if let Some((prefix, _)) = self.source {
            rule = rule.source(prefix.parse().unwrap());
        }
        if let Some((prefix, _)) = self.destination {
            rule = rule.destination(prefix.parse().unwrap());
        }
        if let Some(port) = self.source_port {
            rule = rule.source_port(port);
        }
        if let Some(port) = self.destination_port {
            rule = rule.destination_port(port);
        }
        rule
    }
}

/// A packet and what is in it.
struct Crafted {
    bytes: Vec<u8>,
    ether_type: u16,
    vlan: Option<u16>,
    protocol: Option<u8>,
    ports: Option<(u16, u16)>,
}

impl Crafted {
    fn new(random: &mut Random) -> Self {
        let tags: Vec<_> = (0..random.below(3))
            .map(|_| (random.one_of(&[0x8100, 0x88a8]), random.one_of(&IDS)))
            .collect();
        let ether_type = random.one_of(&ETHER_TYPES);
        let (from, to) = (random.one_of(&PORTS), random.one_of(&PORTS));
        let protocol = random.one_of(&PROTOCOLS);
        let fragment = random.below(8) == 0;
        let payload = match ether_type {
            0x0800 => Ip4 {
                fragment: if fragment { 0x2000 } else { 0x4000 },
                options: random.below(11),
                ..Ip4::new(protocol, ports(from, to))
            }
            .bytes(),
            0x86dd => {
                let mut headers: Vec<_> = (0..random.below(6))
                    .map(|_| (random.one_of(&[0, 43, 60]), options(random.one_of(&[1, 2, 5]))))
                    .collect();
                if fragment {
                    headers.push((44, vec![0, 0, 1, 0, 0, 0, 7]));
                }
                ip6(&headers, protocol, &ports(from, to)).split_off(14)
            }
            _ => vec![0x45; 46],
        };
        let ip = ether_type != 0x0806;
        Self {
            bytes: ethernet(&tags, ether_type, &payload),
            ether_type,
            vlan: tags.first().map(|(_, id)| *id),
            protocol: ip.then_some(protocol),
            ports: (ip && !fragment && protocol != 1).then_some((from, to)),
        }
    }

    fn matches(&self, wanted: &Wanted) -> bool {
        fn field<T: PartialEq + Copy>(wanted: Option<T>, has: Option<T>) -> bool {
            wanted.is_none() || wanted == has
        }
        field(wanted.ether_type, Some(self.ether_type))
            && field(wanted.vlan, self.vlan)
            && field(wanted.protocol, self.protocol)
            && wanted.source.is_none_or(|(_, [version, _])| version == self.ether_type)
            && wanted.destination.is_none_or(|(_, [_, version])| version == self.ether_type)
            && field(wanted.source_port, self.ports.map(|ports| ports.0))
            && field(wanted.destination_port, self.ports.map(|ports| ports.1))
    }
}

/// Any rules together on any packets, against an oracle that knows what it put into the packets.
#[test]
fn random_rules_on_random_packets() {
    if !require(Need::Bpf) {
        return;
    }
    let mut random = Random(1);
    let (mut matched, mut missed) = (0, 0);
    for round in 0..40 {
        let mut rules = Rules::none();
        let mut wanted = Vec::new();
        // From one rule, which leaves most fields unused, to as many as there may be.
        let count = [1, 2, 3, 64][round % 4];
        while wanted.len() < count {
            let candidate = Wanted::new(&mut random);
            // Contradictions are refused, and tested elsewhere.
            if rules.push(candidate.rule()).is_ok() {
                wanted.push(candidate);
            }
        }
        let options =
            ProgramOptions { frags: round % 8 < 4, sockets: 1, ..ProgramOptions::default() };
        let mut kernel = Kernel::with(&rules, &options);
        for _ in 0..100 {
            let packet = Crafted::new(&mut random);
            let expected = wanted.iter().any(|wanted| packet.matches(wanted));
            let found = kernel.outcome(&packet.bytes);
            assert_eq!(
                found == Outcome::Match,
                expected,
                "{found:?} of {:02x?}\n{:#?}",
                packet.bytes,
                rules.as_slice()
            );
            if expected { matched += 1 } else { missed += 1 }
        }
    }
    assert!(matched > 500 && missed > 500, "{matched} matched, {missed} missed");
}

/// All 64 rules at once, each of them reached.
#[test]
fn sixty_four_rules() {
    if !require(Need::Bpf) {
        return;
    }
    let rules: Rules = (0..64).map(|n| Rule::new().destination_port(1000 + n)).collect();
    let mut kernel = Kernel::new(&rules);
    for port in 1000..1064 {
        kernel.expect(&to_port(port), Outcome::Match);
    }
    kernel.expect(&to_port(999), Outcome::NoRule);
    kernel.expect(&to_port(1064), Outcome::NoRule);
}

#[test]
fn an_exchange_keeps_counters_and_may_use_other_fields() {
    if !require(Need::Bpf) {
        return;
    }
    let mut kernel = Kernel::new(&Rules::udp_port(1));
    let tagged = ethernet(&[(0x8100, 9)], 0x0806, &[0; 28]);
    kernel.expect(&to_port(1), Outcome::Match);
    kernel.expect(&tagged, Outcome::NoRule);
    kernel.set_rules(&Rules::from(vec![Rule::new().vlan(9)]));
    kernel.expect(&to_port(1), Outcome::NoRule);
    kernel.expect(&tagged, Outcome::Match);
    kernel.set_rules(&Rules::all());
    kernel.expect(&to_port(2), Outcome::Match);
    kernel.set_rules(&Rules::none());
    kernel.expect(&to_port(1), Outcome::NoRule);
    let error = kernel.loaded.set_rules(&Rules::from(vec![Rule::new()])).unwrap_err();
    assert_eq!((error.step(), error.kind()), (Step::Rules, ErrorKind::InvalidInput));
    kernel.expect(&to_port(1), Outcome::NoRule);
    assert_eq!(kernel.loaded.counters().unwrap().total.passed(), 7);
}

#[test]
fn unused_fields_cost_nothing() {
    if !require(Need::Bpf) {
        return;
    }
    let size = |rules: &Rules| {
        let loaded = Loaded::new(rules, &ProgramOptions::default()).unwrap();
        loaded.info().unwrap().translated_bytes.unwrap()
    };
    let all = size(&Rules::all());
    let vlan = size(&Rules::from(vec![Rule::new().vlan(1)]));
    let port = size(&Rules::udp_port(1));
    let source = Rule::new().source("10.0.0.0/8".parse().unwrap()).source_port(1);
    let every = Rule::new().vlan(1).destination("10.0.0.0/8".parse().unwrap()).ether_type(0x0800);
    let every = size(&Rules::from(vec![source, every, Rule::new().protocol(1)]));
    assert!(all < vlan && vlan < port && port < every, "{all} {vlan} {port} {every}");
    assert!(all < 450, "{all} bytes for a redirect and a counter");
}

/// An AF_XDP socket, not bound: enough for the map to take it.
#[allow(unsafe_code, reason = "nix knows no AF_XDP")]
fn socket() -> OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: no memory is passed, and the new descriptor is ours alone.
    unsafe {
        let fd = libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    }
}

#[test]
fn the_map_knows_whose_socket_it_holds() {
    if !require(Need::Bpf) {
        return;
    }
    let mut loaded =
        Loaded::new(&Rules::all(), &ProgramOptions { sockets: 2, ..Default::default() }).unwrap();
    let map = loaded.socket_map().clone();
    let redirects =
        |loaded: &Loaded| run(&handle(loaded.info().unwrap().id), &[0; 64]) == XDP_REDIRECT;
    assert_eq!(map.sockets(), 2);
    assert!(!redirects(&loaded));

    let (one, two) = (socket(), socket());
    let first = map.insert(QueueId::new(0), one.as_fd()).unwrap();
    assert!(redirects(&loaded));
    let second = map.insert(QueueId::new(0), two.as_fd()).unwrap();
    drop(first);
    assert!(redirects(&loaded), "the newer socket stays");
    loaded.set_rules(&Rules::udp_port(1)).unwrap();
    assert!(!redirects(&loaded), "the rules are others");
    loaded.set_rules(&Rules::all()).unwrap();
    assert!(redirects(&loaded), "an exchange keeps the sockets");
    drop(second);
    assert!(!redirects(&loaded));

    let held = map.insert(QueueId::new(0), one.as_fd()).unwrap();
    drop(one);
    assert!(!redirects(&loaded), "a closed socket is gone by itself");
    drop(held);
    let counters = loaded.counters().unwrap();
    assert_eq!(counters.total.redirected, 3);
    assert_eq!(counters.queues.len(), 2);

    let error = map.insert(QueueId::new(2), two.as_fd()).unwrap_err();
    assert_eq!((error.step(), error.kind()), (Step::Map, ErrorKind::InvalidInput));
    assert!(error.to_string().contains("queues below 2"), "{error}");
    let null = std::fs::File::open("/dev/null").unwrap();
    let error = map.insert(QueueId::new(0), null.as_fd()).unwrap_err();
    assert_eq!(error.step(), Step::Map, "{error}");
}

#[test]
fn maps_of_another_type_are_refused() {
    if !require(Need::Bpf) {
        return;
    }
    let mut ebpf = aya::Ebpf::load(include_bytes!("../src/program/xskit.bpf.o")).unwrap();
    let Some(aya::maps::Map::HashMap(data)) = ebpf.take_map("VLANS") else {
        panic!("a table of rules is a hash")
    };
    let error = SocketMap::from_fd(data.fd().as_fd().try_clone_to_owned().unwrap()).unwrap_err();
    assert_eq!((error.step(), error.kind()), (Step::Map, ErrorKind::Corrupt), "{error}");
    assert!(error.to_string().contains("XSKMAP"), "{error}");
    let null = std::fs::File::open("/dev/null").unwrap();
    let error = SocketMap::from_fd(null.into()).unwrap_err();
    assert_eq!((error.step(), error.kind()), (Step::Map, ErrorKind::Corrupt), "{error}");
    let error = SocketMap::from_pin("/sys/fs/bpf/xskit-no-such-map").unwrap_err();
    assert_eq!((error.step(), error.kind()), (Step::Map, ErrorKind::NotFound), "{error}");
}

#[test]
fn maps_of_other_programs_by_pin_and_by_aya() {
    if !require(Need::Bpf) {
        return;
    }
    // A bpffs of this thread's own, which is gone with it.
    let worker = std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        mount(Some("bpffs"), "/mnt", Some("bpf"), MsFlags::empty(), none).unwrap();

        let mut ebpf = aya::Ebpf::load(include_bytes!("../src/program/xskit.bpf.o")).unwrap();
        ebpf.map("SOCKETS").unwrap().pin("/mnt/sockets").unwrap();
        ebpf.map("VLANS").unwrap().pin("/mnt/vlans").unwrap();
        let error = SocketMap::from_pin("/mnt/vlans").unwrap_err();
        assert_eq!((error.step(), error.kind()), (Step::Map, ErrorKind::Corrupt), "{error}");
        let socket = socket();
        let pinned = SocketMap::from_pin("/mnt/sockets").unwrap();
        drop(pinned.insert(QueueId::new(63), socket.as_fd()).unwrap());
        assert!(pinned.insert(QueueId::new(64), socket.as_fd()).is_err());
        let map = aya::maps::XskMap::try_from(ebpf.take_map("SOCKETS").unwrap()).unwrap();
        let map = SocketMap::from_aya(map);
        assert_eq!(map.sockets(), 64);
        drop(map.insert(QueueId::new(0), socket.as_fd()).unwrap());
    });
    worker.join().unwrap();
}

#[test]
fn truncated_and_corrupt_objects_are_refused() {
    if !require(Need::Bpf) {
        return;
    }
    let options = ProgramOptions::default();
    let whole = include_bytes!("../src/program/xskit.bpf.o");
    let load = |object: &[u8]| Loaded::from_object(object, &Rules::udp_port(1), &options);
    load(whole).unwrap();
    for length in (0..whole.len()).step_by(499).chain([1, 63, 64, whole.len() - 1]) {
        let error = load(&whole[..length]).expect_err("a truncated object");
        assert_eq!(error.step(), Step::LoadProgram, "{length} bytes: {error}");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{length} bytes: {error}");
    }
    // Not every byte matters, but none may bring the process down or slip past the verifier.
    for place in (0..whole.len()).step_by(307) {
        let mut object = whole.to_vec();
        object[place] ^= 0xff;
        if let Err(error) = load(&object) {
            assert_eq!(error.step(), Step::LoadProgram, "byte {place}: {error}");
        }
    }
}

fn near(lab: &Lab) -> Interface {
    Interface::by_index(lab.near.index()).unwrap()
}

fn attached(link: &Link) -> Option<XdpMode> {
    link.xdp_program().unwrap().map(|program| program.mode)
}

fn attach(interface: &Interface, mode: AttachMode) -> xskit::Result<Program> {
    Program::attach(interface, &Rules::udp_port(4242), mode, &ProgramOptions::default())
}

#[test]
fn the_attachment_ends_with_its_last_share() {
    let Some(lab) = Lab::for_test() else { return };
    lab.enter(|| {
        let interface = near(&lab);
        for (mode, got, seen) in [
            (AttachMode::Auto, Attached::Native, XdpMode::Native),
            (AttachMode::Native, Attached::Native, XdpMode::Native),
            (AttachMode::Generic, Attached::Generic, XdpMode::Generic),
        ] {
            let program = attach(&interface, mode).unwrap();
            assert_eq!(program.attached(), got);
            assert_eq!(attached(&lab.near), Some(seen));
            let id = program.info().unwrap().id;
            assert_eq!(lab.near.xdp_program().unwrap().unwrap().id, id);
            program.set_rules(&Rules::all()).unwrap();
            assert_ne!(program.info().unwrap().id, id);
            assert_eq!(
                lab.near.xdp_program().unwrap().unwrap().id,
                program.info().unwrap().id,
                "the exchanged program is the attached one"
            );
            let share = program.attachment();
            drop(program);
            assert_eq!(attached(&lab.near), Some(seen));
            drop(share);
            assert_eq!(attached(&lab.near), None);
        }
    });
}

#[test]
fn somebody_elses_program_is_left_alone() {
    let Some(lab) = Lab::for_test() else { return };
    lab.enter(|| {
        let interface = near(&lab);
        let theirs = attach(&interface, AttachMode::Auto).unwrap();
        for mode in [AttachMode::Auto, AttachMode::Native, AttachMode::Generic] {
            let error = attach(&interface, mode).unwrap_err();
            assert_eq!((error.step(), error.kind()), (Step::AttachProgram, ErrorKind::Busy));
            assert!(
                error.to_string().contains("near0 (")
                    && error.to_string().contains("the interface has an XDP program already"),
                "{error}"
            );
            assert!(error.raw_os_error().is_some());
        }
        assert_eq!(
            lab.near.xdp_program().unwrap().unwrap().id,
            theirs.info().unwrap().id,
            "still attached"
        );
    });
}

#[test]
fn lo_has_no_native_mode() {
    if !require(Need::Bpf) {
        return;
    }
    Netns::new().unwrap().enter(|| {
        let lo = Interface::by_name("lo").unwrap();
        let error = attach(&lo, AttachMode::Native).unwrap_err();
        assert_eq!((error.step(), error.kind()), (Step::AttachProgram, ErrorKind::Unsupported));
        assert!(error.to_string().contains("generic mode works"), "{error}");
        assert_eq!(attach(&lo, AttachMode::Auto).unwrap().attached(), Attached::Generic);
    });
}

#[test]
fn a_large_mtu_needs_frags() {
    let config = LabConfig { mtu: 9000, ..LabConfig::default() };
    let Some(lab) = Lab::for_test_with(&config) else { return };
    lab.enter(|| {
        let interface = near(&lab);
        for mode in [AttachMode::Native, AttachMode::Auto] {
            let error = attach(&interface, mode).unwrap_err();
            assert_eq!((error.step(), error.kind()), (Step::AttachProgram, ErrorKind::Unsupported));
            assert_eq!(error.raw_os_error(), Some(libc::ERANGE));
            assert!(error.to_string().contains("the kernel says: "), "{error}");
            assert!(error.next_step().unwrap().contains("frags"), "{error}");
            assert_eq!(attached(&lab.near), None);
        }
        let options = ProgramOptions { frags: true, ..ProgramOptions::default() };
        let rules = Rules::udp_port(4242);
        let program = Program::attach(&interface, &rules, AttachMode::Native, &options).unwrap();
        program.set_rules(&Rules::all()).unwrap();
        assert_eq!(program.attached(), Attached::Native);
    });
}

#[test]
fn an_interface_that_is_gone() {
    let Some(lab) = Lab::for_test() else { return };
    lab.enter(|| {
        let interface = near(&lab);
        let program = attach(&interface, AttachMode::Auto).unwrap();
        lab.near.delete().unwrap();
        let error = program.set_rules(&Rules::all()).unwrap_err();
        assert_eq!(error.interface(), Some("near0"), "{error}");
        program.counters().unwrap();
        drop(program);
        let error = attach(&interface, AttachMode::Auto).unwrap_err();
        assert_eq!((error.step(), error.kind()), (Step::AttachProgram, ErrorKind::LinkGone));
    });
}

#[test]
fn rules_on_vlans_need_visible_tags() {
    let Some(lab) = Lab::for_test() else { return };
    let vlans = Rules::from(vec![Rule::new().vlan(5)]);
    let options = ProgramOptions::default();
    let visible = ProgramOptions { vlan_tags: VlanTags::Visible, ..ProgramOptions::default() };
    lab.enter(|| {
        let interface = near(&lab);
        let attach = |rules| Program::attach(&interface, rules, AttachMode::Auto, &options);
        let error = attach(&vlans).unwrap_err();
        assert_eq!((error.step(), error.kind()), (Step::Rules, ErrorKind::Unsupported), "{error}");
        assert_eq!(attached(&lab.near), None);
        let program = attach(&Rules::udp_port(1)).unwrap();
        assert_eq!(program.set_rules(&vlans).unwrap_err().kind(), ErrorKind::Unsupported);
        drop(program);
        let program =
            Program::attach(&interface, &Rules::none(), AttachMode::Auto, &visible).unwrap();
        program.set_rules(&vlans).unwrap();
        let far = RawPort::open(&lab.far).unwrap();
        far.send(&ethernet(&[(0x8100, 5)], 0x0806, &[0; 46])).unwrap();
        far.send(&ethernet(&[(0x8100, 6)], 0x0806, &[0; 46])).unwrap();
        let counters = program.counters().unwrap().total;
        assert_eq!((counters.passed_no_socket, counters.passed_no_rule), (1, 1), "{counters:?}");
    });
}

/// Rules are exchanged under traffic that the old and the new ones match: no packet sees neither.
#[test]
fn no_packet_falls_between_the_rules() {
    let Some(lab) = Lab::for_test() else { return };
    lab.enter(|| {
        let program = attach(&near(&lab), AttachMode::Auto).unwrap();
        let far = RawPort::open(&lab.far).unwrap();
        let done = AtomicBool::new(false);
        let mut sent = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let by_address = Rule::new().destination("192.168.0.0/16".parse().unwrap());
                let others = Rules::from(vec![by_address]);
                for _ in 0..5 {
                    program.set_rules(&others).unwrap();
                    program.set_rules(&Rules::udp_port(4242)).unwrap();
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                far.send(&to_port(4242)).unwrap();
                sent += 1;
            }
        });
        let counters = program.counters().unwrap().total;
        assert_eq!(counters.passed_no_socket, sent, "{counters:?}");
        assert_eq!(counters.passed(), sent, "{counters:?}");
    });
}

/// Traffic over the wire: what matches no rule, and what has no socket, passes and is counted.
/// The counters once that many packets are in them: a busy kernel receives later than it was sent to.
fn counted(program: &Program, packets: u64) -> Counters {
    let started = Instant::now();
    loop {
        let counters = program.counters().unwrap();
        let count = counters.total.redirected + counters.total.passed();
        if count >= packets || started.elapsed() > Duration::from_secs(10) {
            return counters;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn packets_of_a_veth_are_counted() {
    let Some(lab) = Lab::for_test() else { return };
    lab.enter(|| {
        let program = attach(&near(&lab), AttachMode::Auto).unwrap();
        let far = RawPort::open(&lab.far).unwrap();
        for _ in 0..3 {
            far.send(&to_port(4242)).unwrap();
            far.send(&to_port(4243)).unwrap();
        }
        let counters = counted(&program, 6);
        assert_eq!(counters.total.passed_no_socket, 3, "{counters:?}");
        assert_eq!(counters.total.passed_no_rule, 3, "{counters:?}");

        // A socket that is not bound takes nothing: the program cannot know, the tracepoint does.
        let socket = socket();
        let entry = program.socket_map().insert(QueueId::new(0), socket.as_fd()).unwrap();
        far.send(&to_port(4242)).unwrap();
        let counters = counted(&program, 7);
        assert_eq!(counters.total.redirected, 1, "{counters:?}");
        let errors = counters.redirect_errors.expect("root may listen to the tracepoint");
        assert_eq!((errors.total(), errors.not_bound), (1, 1), "{errors:?}");
        drop(entry);
    });
}

/// `kill -9` runs no `Drop`; the kernel closes the link.
#[test]
fn a_killed_process_leaves_nothing_attached() {
    const CHILD: &str = "XSKIT_TEST_ATTACH_AND_WAIT";
    if let Ok(index) = std::env::var(CHILD) {
        let interface = Interface::by_index(index.parse().unwrap()).unwrap();
        let program = attach(&interface, AttachMode::Auto).unwrap();
        println!("attached");
        std::thread::sleep(std::time::Duration::from_secs(60));
        drop(program);
        return;
    }
    let Some(lab) = Lab::for_test() else { return };
    lab.enter(|| {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "a_killed_process_leaves_nothing_attached"])
            .env(CHILD, lab.near.index().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines =
            std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        assert!(lines.any(|line| line.unwrap().contains("attached")));
        assert_eq!(attached(&lab.near), Some(XdpMode::Native));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(attached(&lab.near), None);
        drop(attach(&near(&lab), AttachMode::Auto).unwrap());
    });
}

/// Gives up root for this thread alone, and with it the effective capabilities.
#[allow(unsafe_code, reason = "nix's setresuid changes all threads")]
fn become_nobody() {
    const NOBODY: libc::uid_t = 65534;
    // SAFETY: numbers only; what belongs to other threads stays theirs.
    let result = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn without_privileges_the_missing_ones_are_named() {
    if !require(Need::Bpf) {
        return;
    }
    let unprivileged = std::thread::spawn(|| {
        become_nobody();
        Loaded::new(&Rules::all(), &ProgramOptions::default()).unwrap_err()
    });
    let error = unprivileged.join().unwrap();
    assert_eq!((error.step(), error.kind()), (Step::LoadProgram, ErrorKind::Permission));
    assert!(error.to_string().contains("missing CAP_BPF, CAP_NET_ADMIN"), "{error}");
}
