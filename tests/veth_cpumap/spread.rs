//! Which CPU a packet goes to: crafted packets through the program, by `BPF_PROG_TEST_RUN`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use aya::programs::{TestRun, TestRunOptions, Xdp, loaded_programs};
use aya_obj::programs::XdpAttachType;
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use xskit::{
    Rules,
    program::{CpuCounters, CpuSpread, Loaded, ProgramOptions, StackCpus},
};
use xskit_lab::{Flow, Need, Protocol, require};

const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;
const MACS: ([u8; 6], [u8; 6]) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);

/// The program in the kernel.
struct Kernel {
    loaded: Loaded,
    program: Xdp,
    before: Vec<CpuCounters>,
}

impl Kernel {
    fn new(rules: &Rules, cpus: impl Into<StackCpus>, frags: bool) -> Self {
        let stack_cpus = Some(cpus.into());
        let options = ProgramOptions { stack_cpus, frags, ..ProgramOptions::default() };
        let loaded = Loaded::new(rules, &options).unwrap();
        let program = handle(&loaded);
        let before = loaded.counters().unwrap().stack_cpus;
        Self { loaded, program, before }
    }

    fn set_rules(&mut self, rules: &Rules) {
        self.loaded.set_rules(rules).unwrap();
        self.program = handle(&self.loaded);
    }

    /// The CPU that the packet is sent to.
    fn cpu(&mut self, packet: &[u8]) -> u32 {
        let options = TestRunOptions { data_in: Some(packet), ..TestRunOptions::default() };
        assert_eq!(self.program.test_run(options).unwrap().return_value, XDP_REDIRECT);
        let now = self.loaded.counters().unwrap().stack_cpus;
        let before = std::mem::replace(&mut self.before, now.clone());
        let moved: Vec<u32> = now
            .iter()
            .zip(&before)
            .flat_map(|(now, before)| (before.redirected..now.redirected).map(|_| now.cpu))
            .collect();
        assert_eq!(moved.len(), 1, "each packet goes to one CPU: {now:?}");
        moved[0]
    }

    /// How many of these packets go to each of the two CPUs.
    fn share(&mut self, packets: impl IntoIterator<Item = Vec<u8>>) -> [usize; 2] {
        let mut share = [0; 2];
        for packet in packets {
            share[self.cpu(&packet) as usize] += 1;
        }
        share
    }
}

fn handle(loaded: &Loaded) -> Xdp {
    let id = loaded.info().unwrap().id;
    let info = loaded_programs()
        .find_map(|info| info.ok().filter(|info| info.id() == id))
        .expect("our program is loaded");
    Xdp::from_program_info(info, "xskit".into(), XdpAttachType::Interface).unwrap()
}

/// Two CPUs are needed to tell them apart.
fn two_cpus() -> bool {
    require(Need::Bpf)
        && match std::thread::available_parallelism() {
            Ok(count) if count.get() >= 2 => true,
            _ => panic!("these tests need two CPUs"),
        }
}

fn v4(protocol: Protocol, source: u32, port: u16) -> Flow {
    let source = IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + source));
    let to = IpAddr::from(Ipv4Addr::new(10, 9, 9, 9));
    Flow::new(protocol, MACS, (source, port).into(), (to, 80).into())
}

fn v6(protocol: Protocol, source: u32, port: u16) -> Flow {
    let source = IpAddr::from(Ipv6Addr::from_bits((0xfd00 << 112) + u128::from(source)));
    let to = IpAddr::from(Ipv6Addr::from_bits((0xfd00 << 112) + (9 << 64)));
    Flow::new(protocol, MACS, (source, port).into(), (to, 80).into())
}

fn is_even([one, other]: [usize; 2]) -> bool {
    one.min(other) * 3 >= one.max(other)
}

#[test]
fn packets_of_a_flow_go_to_one_cpu_and_flows_to_all() {
    if !two_cpus() {
        return;
    }
    for frags in [false, true] {
        let mut kernel = Kernel::new(&Rules::none(), [0, 1], frags);
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            for tags in 0..=2 {
                let tagged = |flow: Flow| (0..tags).fold(flow, |flow, tag| flow.vlan(100 + tag));
                for ip in [v4, v6] {
                    let flow = |n: u16| tagged(ip(protocol, 1, 1000 + n));
                    let by_port = kernel.share((0..128).map(|n| flow(n).frame(b"by port")));
                    assert!(is_even(by_port), "{protocol:?} {tags}: {by_port:?}");
                    let flow = |n: u32| tagged(ip(protocol, n, 1000));
                    let by_address = kernel.share((0..128).map(|n| flow(n).frame(b"by address")));
                    assert!(is_even(by_address), "{protocol:?} {tags}: {by_address:?}");
                    for n in 0..16 {
                        let cpu = kernel.cpu(&flow(n).frame(b""));
                        let mut other = flow(n).frame(&[7; 700]);
                        // Another priority, MAC address and time to live, or hop limit.
                        other[5] ^= 1;
                        if tags > 0 {
                            other[14] |= 0x60;
                        }
                        let ip = 14 + 4 * usize::from(tags);
                        let ttl = if other[ip] >> 4 == 4 { 8 } else { 7 };
                        other[ip + ttl] -= 1;
                        assert_eq!(kernel.cpu(&other), cpu, "{protocol:?} {tags} {n}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_numbers_of_the_cpus_are_the_users() {
    if !two_cpus() {
        return;
    }
    let mut kernel = Kernel::new(&Rules::none(), [1], false);
    for n in 0..32 {
        assert_eq!(kernel.cpu(&v4(Protocol::Udp, n, 1).frame(b"")), 1);
    }
    let mut there = Kernel::new(&Rules::none(), [0, 1], false);
    let mut back = Kernel::new(&Rules::none(), [1, 0], false);
    for n in 0..32 {
        let frame = v4(Protocol::Udp, n, 1).frame(b"");
        assert_eq!(there.cpu(&frame), 1 - back.cpu(&frame));
    }
}

/// An IPv4 fragment: with this offset, in units of 8 bytes, and more to come or not.
fn v4_fragment(flow: &Flow, offset: u16, more: bool) -> Vec<u8> {
    let mut frame = flow.frame(&[1; 64]);
    let field = offset | u16::from(more) << 13;
    frame[20..22].copy_from_slice(&field.to_be_bytes());
    frame
}

/// The same in IPv6, with an extension header before the UDP header.
fn v6_fragment(flow: &Flow, offset: u16, more: bool) -> Vec<u8> {
    let mut frame = flow.frame(&[1; 64]);
    let header = [17, 0, 0, 0, 0, 0, 0, 1];
    frame.splice(54..54, header);
    frame[56..58].copy_from_slice(&(offset << 3 | u16::from(more)).to_be_bytes());
    frame[20] = 44;
    let length = u16::from_be_bytes([frame[18], frame[19]]) + 8;
    frame[18..20].copy_from_slice(&length.to_be_bytes());
    frame
}

#[test]
fn fragments_go_by_their_addresses() {
    if !two_cpus() {
        return;
    }
    let mut kernel = Kernel::new(&Rules::none(), [0, 1], false);
    for (ip, fragment) in [
        (v4 as fn(Protocol, u32, u16) -> Flow, v4_fragment as fn(&Flow, u16, bool) -> Vec<u8>),
        (v6, v6_fragment),
    ] {
        // The first fragment has ports, and the others something else in their place.
        let one = |port| ip(Protocol::Udp, 7, port);
        let fragments = (0..32).flat_map(|port| {
            [(0, true), (100, true), (200, false)]
                .map(|(offset, more)| fragment(&one(port), offset, more))
        });
        let share = kernel.share(fragments);
        assert!(share.contains(&0), "{share:?}");
        let share = kernel.share((0..128).map(|n| fragment(&ip(Protocol::Udp, n, 1), 100, false)));
        assert!(is_even(share), "{share:?}");
    }
}

#[test]
fn ports_are_found_behind_options_and_extension_headers() {
    if !two_cpus() {
        return;
    }
    let mut kernel = Kernel::new(&Rules::none(), [0, 1], false);
    let v4_options = |port| {
        let mut frame = v4(Protocol::Udp, 1, port).frame(b"");
        frame.splice(34..34, [1; 8]);
        frame[14] = 0x47;
        frame[16..18].copy_from_slice(&36_u16.to_be_bytes());
        frame
    };
    let v6_options = |port| {
        let mut frame = v6(Protocol::Udp, 1, port).frame(b"");
        frame.splice(54..54, [17, 0, 1, 4, 0, 0, 0, 0]);
        frame[20] = 60;
        frame[18..20].copy_from_slice(&16_u16.to_be_bytes());
        frame
    };
    let share = kernel.share((0..128).map(v4_options));
    assert!(is_even(share), "{share:?}");
    let share = kernel.share((0..128).map(v6_options));
    assert!(is_even(share), "{share:?}");
    // Of other protocols the ports' place holds something else.
    let share = kernel.share((0..128).map(|port| {
        let mut frame = v4(Protocol::Udp, 1, port).frame(b"");
        frame[23] = 47;
        frame
    }));
    assert!(share.contains(&0), "{share:?}");
}

#[test]
fn what_is_not_ip_goes_by_its_mac_addresses() {
    if !two_cpus() {
        return;
    }
    let mut kernel = Kernel::new(&Rules::none(), [0, 1], false);
    let arp = |host: u8, content: u8| {
        let mut frame = vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, host, 8, 6];
        frame.resize(60, content);
        frame
    };
    let share = kernel.share((0..128).map(|host| arp(host, 0)));
    assert!(is_even(share), "{share:?}");
    for host in 0..16 {
        assert_eq!(kernel.cpu(&arp(host, 1)), kernel.cpu(&arp(host, 2)));
    }
    // Three tags are more than are followed, and what is cut off has no flow.
    let mut tagged = arp(1, 0);
    tagged.splice(12..12, [0x81, 0, 0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3]);
    assert_eq!(kernel.cpu(&tagged), kernel.cpu(&arp(1, 0)));
    for whole in [v4(Protocol::Tcp, 1, 1).frame(b"x"), v6(Protocol::Tcp, 1, 1).frame(b"x")] {
        for length in 14..whole.len() {
            kernel.cpu(&whole[..length]);
        }
    }
}

#[test]
fn in_turn_every_cpu_gets_the_same() {
    if !two_cpus() {
        return;
    }
    // Whose turn it is, every CPU knows for itself.
    let mut one = CpuSet::new();
    one.set(0).unwrap();
    sched_setaffinity(Pid::from_raw(0), &one).unwrap();
    let cpus = StackCpus::new([1, 0]).spread(CpuSpread::RoundRobin);
    let mut kernel = Kernel::new(&Rules::none(), cpus, false);
    let frame = v4(Protocol::Udp, 1, 1).frame(b"");
    let order: Vec<u32> = (0..10).map(|_| kernel.cpu(&frame)).collect();
    assert_eq!(order, [1, 0, 1, 0, 1, 0, 1, 0, 1, 0]);
}

#[test]
fn only_what_no_socket_takes_is_spread_whatever_the_rules() {
    if !two_cpus() {
        return;
    }
    let (first, second) = (v4(Protocol::Udp, 1, 1).frame(b""), v6(Protocol::Udp, 2, 2).frame(b""));
    // Every packet would go to a socket; there is none.
    let mut kernel = Kernel::new(&Rules::all(), [0, 1], false);
    let cpus = [kernel.cpu(&first), kernel.cpu(&second)];
    for rules in [Rules::none(), Rules::udp_port(80), Rules::udp_port(1), Rules::all()] {
        // On the same CPUs, and counted on.
        kernel.set_rules(&rules);
        assert_eq!([kernel.cpu(&first), kernel.cpu(&second)], cpus, "{rules:?}");
    }
    let counters = kernel.loaded.counters().unwrap();
    assert_eq!(counters.stack_cpus.iter().map(|cpu| cpu.redirected).sum::<u64>(), 10);
    assert_eq!(counters.total.passed(), 10, "they pass to the stack");
    assert_eq!((counters.total.passed_no_socket, counters.total.passed_no_rule), (6, 4));
}

#[test]
fn spreading_costs_nothing_where_it_is_not_asked_for() {
    if !require(Need::Bpf) {
        return;
    }
    let size = |stack_cpus: Option<StackCpus>| {
        let options = ProgramOptions { stack_cpus, ..ProgramOptions::default() };
        let loaded = Loaded::new(&Rules::all(), &options).unwrap();
        let options = TestRunOptions { data_in: Some(&[0; 60]), ..TestRunOptions::default() };
        let action = handle(&loaded).test_run(options).unwrap().return_value;
        (loaded.info().unwrap().translated_bytes.unwrap(), action, loaded)
    };
    let (without, action, loaded) = size(None);
    assert_eq!(action, XDP_PASS);
    assert_eq!(loaded.counters().unwrap().stack_cpus, []);
    let in_turn = size(Some(StackCpus::new([0]).spread(CpuSpread::RoundRobin))).0;
    let by_flow = size(Some(StackCpus::new([0]))).0;
    assert!(without < 450, "{without} bytes for a redirect and a counter");
    assert!(without < in_turn && in_turn < by_flow, "{without} {in_turn} {by_flow}");
}
