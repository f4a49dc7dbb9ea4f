//! Packets that arrive, on the CPUs that were asked for, in order, and counted.

use std::{
    io::ErrorKind::WouldBlock,
    net::{Ipv4Addr, UdpSocket},
    time::{Duration, Instant},
};

use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};
use xskit::{
    AttachMode, Attached, Counters, Port, PortConfig, Rules,
    program::{CpuCounters, CpuSpread, StackCpus},
};
use xskit_lab::{Checker, Flow, Lab, Protocol, RawPort, XdpAction, cpumap_program};

use crate::support::{PORT, adds_up, eventually, near, receive, to_near};

/// The kernel's own address, to which the flows go.
const NEAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const STACK_PORT: u16 = 9000;
const FLOWS: u16 = 16;
const MODES: [(AttachMode, Attached); 2] =
    [(AttachMode::Native, Attached::Native), (AttachMode::Generic, Attached::Generic)];

fn open(config: PortConfig, mode: AttachMode, cpus: impl Into<StackCpus>) -> Port {
    config.attach(mode).stack_cpus(cpus).open().unwrap()
}

/// One of the flows to the kernel's own socket.
fn flow(lab: &Lab, number: u16) -> Flow {
    let macs = (lab.far.mac(), lab.near.mac());
    let from = (Ipv4Addr::new(192, 0, 2, 2), 1000 + number).into();
    Flow::new(Protocol::Udp, macs, from, (NEAR, STACK_PORT).into())
}

/// The kernel's own socket.
fn stack_socket(lab: &Lab) -> UdpSocket {
    lab.near.add_address(NEAR, 24).unwrap();
    let socket = UdpSocket::bind((NEAR, STACK_PORT)).unwrap();
    socket.set_nonblocking(true).unwrap();
    // More than a test sends: what the socket drops would be missing.
    setsockopt(&socket, RcvBufForce, &(64 << 20)).unwrap();
    socket
}

/// Receives what arrives until that many datagrams were there, or nothing comes any more; how many came
/// of each flow, and how many after one with a higher number.
fn drain(socket: &UdpSocket, expected: u64) -> (Vec<u64>, u64) {
    let (mut counts, mut newest, mut late) = (vec![0; FLOWS.into()], vec![0; FLOWS.into()], 0);
    let mut last = Instant::now();
    let mut buffer = [0; 64];
    while counts.iter().sum::<u64>() < expected && last.elapsed() < Duration::from_millis(500) {
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) => {
                let number = u64::from_be_bytes(buffer[..length].try_into().unwrap());
                let flow = usize::from(from.port() - 1000);
                counts[flow] += 1;
                late += u64::from(number < newest[flow]);
                newest[flow] = number;
                last = Instant::now();
            }
            Err(error) if error.kind() == WouldBlock => {
                std::thread::sleep(Duration::from_micros(200));
            }
            Err(error) => panic!("{error}"),
        }
    }
    (counts, late)
}

/// Sends numbered datagrams, those of the flows in turn.
fn send(lab: &Lab, raw: &RawPort, count: u64) {
    for number in 0..count {
        let flow = flow(lab, u16::try_from(number % u64::from(FLOWS)).unwrap());
        raw.send(&flow.frame(&number.to_be_bytes())).unwrap();
        if number % 64 == 63 {
            // A veth queues 256 for native XDP, and a socket not many more.
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

/// Counters at rest: what was redirected went into a queue or was dropped, and what went in came out.
#[track_caller]
fn at_rest(port: &Port) -> Counters {
    let mut counters = Counters::default();
    eventually("what was enqueued is processed", || {
        counters = port.counters().unwrap();
        counters.stack_cpus.iter().all(|cpu| {
            let (queue, thread) = (cpu.queue.unwrap(), cpu.thread.unwrap());
            cpu.redirected == queue.enqueued + queue.dropped && queue.enqueued == thread.processed
        })
    });
    counters
}

fn sum(counters: &Counters, number: impl Fn(&CpuCounters) -> u64) -> u64 {
    counters.stack_cpus.iter().map(number).sum()
}

#[test]
fn flows_keep_their_order_and_the_counters_add_up() {
    const COUNT: u64 = 4000;
    for (mode, attached) in MODES {
        let Some(lab) = Lab::for_test() else { return };
        let raw = lab.raw().unwrap();
        lab.enter(|| {
            let port = open(near(), mode, [0, 1]);
            assert_eq!(port.attached(), attached);
            let socket = stack_socket(&lab);
            let sender = std::thread::scope(|scope| {
                let sender = scope.spawn(|| send(&lab, &raw, COUNT));
                let (counts, late) = drain(&socket, COUNT);
                sender.join().unwrap();
                (counts, late)
            });
            let (counts, late) = sender;
            assert_eq!(late, 0, "{attached}: overtaken");
            let counters = at_rest(&port);
            assert_eq!(sum(&counters, |cpu| cpu.redirected), COUNT, "{counters:?}");
            assert_eq!(counters.total.passed_no_rule, COUNT, "{counters:?}");
            assert_eq!(sum(&counters, |cpu| cpu.thread.unwrap().lost), 0, "{counters:?}");
            // A queue of 2048 has room for what is under way.
            assert_eq!(sum(&counters, |cpu| cpu.queue.unwrap().dropped), 0, "{counters:?}");
            assert!(counters.stack_cpus.iter().all(|cpu| cpu.redirected > 0), "{counters:?}");
            // The socket's own buffer is not ours to fill.
            let arrived: u64 = counts.iter().sum();
            assert_eq!(arrived, COUNT, "{counts:?} {counters:?}");
            let words = port.snapshot().unwrap().to_string();
            assert!(words.contains("\ncpu 0: redirected "), "{words}");
        });
    }
}

#[test]
fn in_turn_each_cpu_gets_its_share() {
    const COUNT: u64 = 1000;
    for (mode, _) in MODES {
        let Some(lab) = Lab::for_test() else { return };
        let raw = lab.raw().unwrap();
        lab.enter(|| {
            let cpus = StackCpus::new([0, 1]).spread(CpuSpread::RoundRobin);
            let port = open(near(), mode, cpus);
            let socket = stack_socket(&lab);
            send(&lab, &raw, COUNT);
            assert_eq!(drain(&socket, COUNT).0.iter().sum::<u64>(), COUNT);
            let counters = at_rest(&port);
            let redirected: Vec<u64> =
                counters.stack_cpus.iter().map(|cpu| cpu.redirected).collect();
            // Each receiving CPU counts for itself, and may end in the middle of a turn.
            assert!(redirected[0].abs_diff(redirected[1]) <= 2, "{redirected:?}");
            assert_eq!(redirected.iter().sum::<u64>(), COUNT);
        });
    }
}

#[test]
fn what_a_full_queue_drops_is_counted() {
    const COUNT: u64 = 20_000;
    for (mode, _) in MODES {
        let Some(lab) = Lab::for_test() else { return };
        let raw = lab.raw().unwrap();
        lab.enter(|| {
            let port = open(near(), mode, StackCpus::new([0, 1]).queue_size(1));
            let frames: Vec<Vec<u8>> =
                (0..64).map(|number| flow(&lab, number % FLOWS).frame(&[0; 8])).collect();
            let mut sent = 0;
            while sent < COUNT {
                raw.send_all(&frames).unwrap();
                sent += 64;
            }
            eventually("all have arrived or were refused", || {
                let counters = port.counters().unwrap();
                sum(&counters, |cpu| cpu.redirected) > 0
            });
            let counters = at_rest(&port);
            let dropped = sum(&counters, |cpu| cpu.queue.unwrap().dropped);
            assert!(dropped > 0, "{counters:?}");
            // Nothing is counted that the program did not see.
            let redirected = sum(&counters, |cpu| cpu.redirected);
            assert!(redirected <= sent, "{counters:?}");
            assert_eq!(redirected, counters.total.passed(), "{counters:?}");
        });
    }
}

#[test]
fn a_second_program_decides_on_the_other_cpu() {
    const COUNT: u64 = 500;
    for (mode, _) in MODES {
        for (action, frags) in
            [(XdpAction::Pass, false), (XdpAction::Drop, false), (XdpAction::Drop, true)]
        {
            let Some(lab) = Lab::for_test() else { return };
            let raw = lab.raw().unwrap();
            lab.enter(|| {
                let program = cpumap_program(action, frags).unwrap();
                let cpus = StackCpus::new([1]).program(program);
                let port = open(near().frags(frags), mode, cpus);
                let socket = stack_socket(&lab);
                send(&lab, &raw, COUNT);
                let passed = action == XdpAction::Pass;
                let expected = if passed { COUNT } else { 0 };
                let (counts, late) = drain(&socket, expected.max(1));
                assert_eq!((counts.iter().sum::<u64>(), late), (expected, 0));
                let counters = at_rest(&port);
                let [cpu] = counters.stack_cpus[..] else { panic!("{counters:?}") };
                let thread = cpu.thread.unwrap();
                assert_eq!(cpu.cpu, 1);
                assert_eq!(
                    (thread.processed, thread.program_dropped),
                    (COUNT, COUNT - expected),
                    "{mode:?} {action:?} {frags}"
                );
                // Older kernels (6.1) do not count them in generic mode.
                let uncounted = mode == AttachMode::Generic && thread.program_passed == 0;
                assert!(thread.program_passed == expected || uncounted, "{counters:?}");
            });
        }
    }
}

#[test]
fn sockets_get_theirs_and_rules_change_under_way() {
    const COUNT: u64 = 600;
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    lab.enter(|| {
        let mut port = open(near(), AttachMode::Native, [0, 1]);
        let umem = port.umem().clone();
        let mut socket = port.take_queue(0).unwrap();
        let stack = stack_socket(&lab);
        for round in 1..=3 {
            let series = to_near(&lab, 100);
            for number in 0..COUNT {
                raw.send(&series.frame(number)).unwrap();
                let other = flow(&lab, u16::try_from(number % 16).unwrap());
                raw.send(&other.frame(&number.to_be_bytes())).unwrap();
                if number % 32 == 31 {
                    std::thread::sleep(Duration::from_micros(500));
                }
            }
            let mut checker = Checker::new(series);
            receive(&mut socket, &mut checker, COUNT, 64);
            assert!(checker.tally().is_perfect(COUNT), "{:?}", checker.tally());
            let (counts, late) = drain(&stack, COUNT);
            assert_eq!((counts.iter().sum::<u64>(), late), (COUNT, 0));
            let counters = at_rest(&port);
            assert_eq!(sum(&counters, |cpu| cpu.redirected), round * COUNT, "{counters:?}");
            assert_eq!(counters.total.redirected, round * COUNT, "{counters:?}");
            // Other fields, the same packets.
            let rule = format!("protocol=udp,destination-port={PORT},source=198.18.0.0/15");
            port.set_rules(&Rules::from(vec![rule.parse().unwrap()])).unwrap();
        }
        adds_up(&umem);
    });
}
