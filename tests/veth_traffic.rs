//! Packets through real sockets on veth pairs: received, sent, split, shared, forwarded, waited for and
//! dropped. Needs root; says so and skips where it is not.

mod support;

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    os::fd::AsFd,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use aya::maps::MapData;
use nix::sys::socket::{getsockopt, sockopt};
use support::{
    LIMIT, MOMENT, PORT, adds_up, collect, comes_home, eventually, frames, kernel, near,
    near_interface, receive, ring, rings, send, settle, to_far, to_near, with_mount, write,
};
use xskit::{
    AttachMode, Attached, ChunkSize, ErrorKind, Interest, PortConfig, Program, ProgramOptions,
    Rules, Socket, SocketConfig, SocketMap, UmemConfig,
    socket::{Waiting, wait_any},
};
use xskit_lab::{Chain, Checker, Flow, Lab, LabConfig, Need, Numbered, Protocol, RawPort, require};

/// From the shortest frame to the longest.
const LENGTHS: [usize; 7] = [60, 61, 64, 128, 511, 1024, 1514];

/// Chunk size, headroom, batch size.
const SHAPES: [(ChunkSize, u32, usize); 6] = [
    (ChunkSize::K2, 0, 64),
    (ChunkSize::K2, 278, 256), // room for exactly 1514 bytes
    (ChunkSize::K4, 0, 1),
    (ChunkSize::K4, 64, 64),
    (ChunkSize::K4, 2326, 256), // as above
    (ChunkSize::K2, 14, 1),
];

#[test]
fn received_frames_are_whole() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    lab.enter(|| {
        for mode in [AttachMode::Native, AttachMode::Generic] {
            for (chunk_size, headroom, batch) in SHAPES {
                let config = near()
                    .attach(mode)
                    .umem_config(UmemConfig::default().chunk_size(chunk_size).headroom(headroom));
                let mut port = config.open().unwrap();
                let expected = match mode {
                    AttachMode::Generic => Attached::Generic,
                    _ => Attached::Native,
                };
                assert_eq!(port.attached(), expected);
                let umem = port.umem().clone();
                let mut socket = port.take_queue(0).unwrap();
                assert!(!socket.mode().zero_copy, "veth has none");
                let mut total = 0;
                for length in LENGTHS {
                    let series = to_near(&lab, length);
                    raw.send_all(&frames(&series, 200)).unwrap();
                    let mut checker = Checker::new(series);
                    receive(&mut socket, &mut checker, 200, batch);
                    assert!(checker.tally().is_perfect(200), "{length}: {:?}", checker.tally());
                    total += 200;
                    adds_up(&umem);
                }
                let statistics = socket.statistics().unwrap();
                assert_eq!(statistics.received, total);
                assert_eq!(statistics.kernel.rx_dropped, 0);
                assert_eq!(statistics.lost, 0);
                let counters = port.counters().unwrap();
                assert_eq!(counters.total.redirected, total);
                assert!(counters.redirect_errors.is_none_or(|errors| errors.total() == 0));
                drop((port, socket));
                comes_home(&umem, &[(&near_interface(), 0)]);
            }
        }
        assert_eq!(raw.drain().unwrap(), 0, "nobody answered");
    });
}

#[test]
fn sent_frames_are_whole() {
    let Some(lab) = Lab::for_test_with(&LabConfig { need: Need::Namespaces, ..Default::default() })
    else {
        return;
    };
    let mut raw = lab.raw().unwrap();
    lab.enter(|| {
        for (chunk_size, headroom, batch) in SHAPES {
            let umem =
                UmemConfig::new(4096).chunk_size(chunk_size).headroom(headroom).build().unwrap();
            let interface = near_interface();
            let mut socket = Socket::open(&umem, &interface, 0, &SocketConfig::default()).unwrap();
            let mut total = 0;
            for length in LENGTHS {
                let series = to_far(&lab, length);
                let mut checker = Checker::new(series.clone());
                send(&mut socket, &series, 0..300, batch);
                collect(&mut raw, &mut checker, 300);
                assert!(checker.tally().is_perfect(300), "{length}: {:?}", checker.tally());
                total += 300;
            }
            settle(&mut socket);
            adds_up(&umem);
            let statistics = socket.statistics().unwrap();
            assert_eq!((statistics.sent, statistics.completed), (total, total));
            assert_eq!((statistics.tx_dropped, statistics.tx_refused, statistics.lost), (0, 0, 0));
            assert_eq!(statistics.kernel.tx_invalid_descs, 0);
            drop(socket);
            comes_home(&umem, &[(&interface, 0)]);
        }
    });
}

#[test]
fn empty_packets_are_not_sent() {
    let Some(lab) = Lab::for_test_with(&LabConfig { need: Need::Namespaces, ..Default::default() })
    else {
        return;
    };
    let mut raw = lab.raw().unwrap();
    lab.enter(|| {
        let umem = UmemConfig::new(256).build().unwrap();
        let interface = near_interface();
        let mut socket = Socket::open(&umem, &interface, 0, &rings(64)).unwrap();
        let series = to_far(&lab, 60);
        let mut batch = umem.batch(64);
        batch.alloc(20);
        for (number, mut packet) in batch.packets_mut().enumerate() {
            if number % 2 == 0 {
                packet.write(&series.frame(number as u64 / 2)).unwrap();
            }
        }
        assert_eq!(socket.send(&mut batch).unwrap(), 10);
        let mut checker = Checker::new(series);
        collect(&mut raw, &mut checker, 10);
        settle(&mut socket);
        assert!(checker.tally().is_perfect(10), "{:?}", checker.tally());
        let statistics = socket.statistics().unwrap();
        assert_eq!((statistics.sent, statistics.tx_refused), (10, 10));
        assert_eq!(statistics.kernel.tx_invalid_descs, 0);
        adds_up(&umem);
        drop((batch, socket));
        comes_home(&umem, &[(&interface, 0)]);
    });
}

/// Two queues, over which the flows from the far end are spread.
fn lab_of_two_queues() -> Option<(Lab, RawPort)> {
    let lab = Lab::for_test_with(&LabConfig { queues: 2, ..LabConfig::default() })?;
    let raw = lab.raw().unwrap();
    raw.spread_flows().unwrap();
    Some((lab, raw))
}

/// The flow to the near end from this source port.
fn flow_from(lab: &Lab, source: u16) -> Flow {
    let address = |last, port| SocketAddr::from((Ipv4Addr::new(198, 18, 0, last), port));
    let macs = (lab.far.mac(), lab.near.mac());
    Flow::new(Protocol::Udp, macs, address(1, source), address(2, PORT))
}

fn source_port(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[34], frame[35]])
}

/// Exchanges the MAC addresses.
fn reflect(frame: &mut [u8]) {
    let (destination, rest) = frame.split_at_mut(6);
    destination.swap_with_slice(&mut rest[..6]);
}

/// Receives that many frames, and checks each flow by its source port.
fn check_flows(
    raw: &mut RawPort,
    mut missing: u64,
    series: impl Fn(u16) -> Numbered,
) -> BTreeMap<u16, Checker> {
    let mut checkers: BTreeMap<u16, Checker> = BTreeMap::new();
    while missing > 0 {
        let arrived = raw.recv_each(LIMIT, |frame| {
            checkers
                .entry(source_port(frame))
                .or_insert_with_key(|source| Checker::new(series(*source)))
                .check(frame);
        });
        let arrived = arrived.unwrap();
        assert!(arrived > 0, "{missing} are missing");
        missing -= arrived as u64;
    }
    checkers
}

#[test]
fn one_thread_waits_for_two_queues() {
    const FLOWS: u16 = 32;
    const EACH: u64 = 100;
    let Some((lab, mut raw)) = lab_of_two_queues() else { return };
    let series = |source| Numbered::new(flow_from(&lab, source), 200, 1);
    let back = |source| Numbered::new(flow_from(&lab, source).reflected(), 200, 1);
    lab.enter(|| {
        let mut port = near().attach(AttachMode::Native).open().unwrap();
        let umem = port.umem().clone();
        let mut sockets: Vec<_> =
            port.take_queues().into_iter().map(|socket| (socket, umem.batch(64))).collect();
        for number in 0..EACH {
            let frames: Vec<_> =
                (0..FLOWS).map(|source| series(1000 + source).frame(number)).collect();
            raw.send_all(&frames).unwrap();
            let mut moved = [0, 0];
            while moved.iter().sum::<usize>() < usize::from(FLOWS) {
                let mut set: Vec<_> = sockets
                    .iter_mut()
                    .map(|(socket, batch)| Waiting::socket(socket, Interest::for_batch(batch)))
                    .collect();
                assert!(wait_any(&mut set, LIMIT).unwrap(), "{moved:?}");
                let ready: Vec<_> = set.iter().map(Waiting::ready).collect();
                for (index, (socket, batch)) in sockets.iter_mut().enumerate() {
                    if ready[index].readable() {
                        assert!(socket.recv(batch).unwrap() > 0, "it said so");
                        batch.packets_mut().for_each(|mut packet| reflect(packet.head_mut()));
                    }
                    moved[index] += socket.send(batch).unwrap();
                }
            }
            assert!(moved.iter().all(|moved| *moved > 0), "flows are spread: {moved:?}");
        }
        let checkers = check_flows(&mut raw, u64::from(FLOWS) * EACH, back);
        assert_eq!(checkers.len(), usize::from(FLOWS));
        assert!(checkers.values().all(|checker| checker.tally().is_perfect(EACH)));
        for (mut socket, batch) in sockets {
            drop(batch);
            settle(&mut socket);
        }
        drop(port);
        comes_home(&umem, &[(&near_interface(), 0), (&near_interface(), 1)]);
    });
}

#[test]
fn two_queues_each_have_a_thread() {
    const FLOWS: u16 = 32;
    const EACH: u64 = 100;
    let Some((lab, mut raw)) = lab_of_two_queues() else { return };
    let series = |source| Numbered::new(flow_from(&lab, source), 200, 1);
    let back = |source| Numbered::new(flow_from(&lab, source).reflected(), 200, 1);
    lab.enter(|| {
        let mut port = near().attach(AttachMode::Native).open().unwrap();
        assert_eq!(port.queues().len(), 2);
        let umem = port.umem().clone();
        let stop = AtomicBool::new(false);
        let stop = &stop;
        let received = thread::scope(|scope| {
            let threads: Vec<_> = port
                .take_queues()
                .into_iter()
                .map(|mut socket| {
                    scope.spawn(move || {
                        let mut checkers = BTreeMap::new();
                        let mut batch = socket.umem().batch(64);
                        while !stop.load(Ordering::Relaxed) {
                            let interest = Interest::for_batch(&batch);
                            socket.wait(interest, Duration::from_millis(10)).unwrap();
                            if batch.is_empty() {
                                socket.recv(&mut batch).unwrap();
                                for mut packet in batch.packets_mut() {
                                    checkers
                                        .entry(source_port(packet.head()))
                                        .or_insert_with_key(|source| Checker::new(series(*source)))
                                        .check(packet.head());
                                    reflect(packet.head_mut());
                                }
                            }
                            socket.send(&mut batch).unwrap();
                        }
                        settle(&mut socket);
                        (checkers, socket.statistics().unwrap())
                    })
                })
                .collect();
            for number in 0..EACH {
                let frames: Vec<_> =
                    (0..FLOWS).map(|source| series(1000 + source).frame(number)).collect();
                raw.send_all(&frames).unwrap();
            }
            let checkers = check_flows(&mut raw, u64::from(FLOWS) * EACH, back);
            stop.store(true, Ordering::Relaxed);
            for checker in checkers.values() {
                assert!(checker.tally().is_perfect(EACH), "{:?}", checker.tally());
            }
            assert_eq!(checkers.len(), usize::from(FLOWS));
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let mut flows = 0;
        for (queue, (checkers, statistics)) in received.iter().enumerate() {
            assert!(!checkers.is_empty(), "queue {queue} had its part");
            flows += checkers.len();
            for checker in checkers.values() {
                assert!(checker.tally().is_perfect(EACH), "{:?}", checker.tally());
            }
            let expected = checkers.len() as u64 * EACH;
            assert_eq!((statistics.received, statistics.sent), (expected, expected));
            assert_eq!(port.counters().unwrap().queues[queue].redirected, expected);
        }
        assert_eq!(flows, usize::from(FLOWS), "each flow keeps to one queue");
        drop(port);
        let interface = near_interface();
        comes_home(&umem, &[(&interface, 0), (&interface, 1)]);
    });
}

#[test]
fn the_rest_goes_to_the_stack() {
    /// Older kernels charge more than 4 KiB for each datagram, however small: those of one kind have to fit
    /// into the receive buffer.
    const EACH: u8 = 40;
    const NEAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const FAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    let Some(lab) = Lab::for_test() else { return };
    lab.near.add_address(NEAR, 24).unwrap();
    lab.far.add_address(FAR, 24).unwrap();
    // No neighbours are set: ARP has to pass in both directions.
    let far = lab.far.netns().enter(|| UdpSocket::bind((FAR, 0)).unwrap());
    lab.enter(|| {
        for mode in [AttachMode::Native, AttachMode::Generic] {
            let mut port = near().attach(mode).open().unwrap();
            let umem = port.umem().clone();
            let mut socket = port.take_queue(0).unwrap();
            let mut batch = umem.batch(64);
            let stack = UdpSocket::bind((NEAR, 5000)).unwrap();
            let ours = UdpSocket::bind((NEAR, PORT)).unwrap();
            stack.set_read_timeout(Some(LIMIT)).unwrap();
            for number in 0..EACH {
                far.send_to(&[number], (NEAR, 5000)).unwrap();
                far.send_to(&[number, 1], (NEAR, PORT)).unwrap();
            }
            let mut buffer = [0; 64];
            for number in 0..EACH {
                let (length, from) = stack.recv_from(&mut buffer).unwrap_or_else(|error| {
                    panic!("{mode:?}, datagram {number}: {error}; {:?}", port.counters())
                });
                assert_eq!((&buffer[..length], from), (&[number][..], far.local_addr().unwrap()));
            }
            let mut received = 0;
            while received < EACH {
                assert!(socket.wait(Interest::READABLE, LIMIT).unwrap().readable());
                socket.recv(&mut batch).unwrap();
                for packet in batch.packets() {
                    assert_eq!(packet.head()[42..44], [received, 1]);
                    received += 1;
                }
                batch.clear();
            }
            ours.set_nonblocking(true).unwrap();
            assert!(ours.recv(&mut buffer).is_err(), "what the socket got, the stack did not");
            // ICMP: somebody at the far end says that nobody listens there.
            let asking = UdpSocket::bind((NEAR, 0)).unwrap();
            asking.connect((FAR, 9)).unwrap();
            asking.set_read_timeout(Some(LIMIT)).unwrap();
            asking.send(b"anybody there?").unwrap();
            let refused = asking.recv(&mut buffer).unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
            assert!(socket.wait(Interest::READABLE, Duration::ZERO).unwrap().timed_out());
            let counters = port.counters().unwrap().total;
            assert_eq!(counters.redirected, u64::from(EACH));
            assert!(counters.passed_no_rule > u64::from(EACH), "{counters:?}");
            drop((port, socket, batch));
            comes_home(&umem, &[(&near_interface(), 0)]);
        }
    });
}

#[test]
fn without_need_wakeup_traffic_flows_too() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    lab.enter(|| {
        let mut port = near().socket(SocketConfig::default().need_wakeup(false)).open().unwrap();
        let umem = port.umem().clone();
        let mut socket = port.take_queue(0).unwrap();
        assert!(!socket.mode().need_wakeup);
        let (there, back) = (to_near(&lab, 300), to_far(&lab, 300));
        raw.send_all(&frames(&there, 500)).unwrap();
        let mut checker = Checker::new(there);
        receive(&mut socket, &mut checker, 500, 64);
        assert!(checker.tally().is_perfect(500), "{:?}", checker.tally());
        send(&mut socket, &back, 0..500, 64);
        let mut checker = Checker::new(back);
        collect(&mut raw, &mut checker, 500);
        assert!(checker.tally().is_perfect(500), "{:?}", checker.tally());
        settle(&mut socket);
        adds_up(&umem);
        drop((port, socket));
        comes_home(&umem, &[(&near_interface(), 0)]);
    });
}

#[test]
fn sockets_of_one_direction() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    lab.enter(|| {
        let mut port = near().socket(SocketConfig::default().receive_only()).open().unwrap();
        let umem = port.umem().clone();
        let mut socket = port.take_queue(0).unwrap();
        let series = to_near(&lab, 100);
        raw.send_all(&frames(&series, 500)).unwrap();
        let mut checker = Checker::new(series);
        receive(&mut socket, &mut checker, 500, 64);
        assert!(checker.tally().is_perfect(500), "{:?}", checker.tally());
        let mut batch = umem.batch(4);
        batch.alloc(4);
        let refused = socket.send(&mut batch).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        assert_eq!(batch.len(), 4);
        assert!(socket.wait(Interest::BOTH, Duration::from_millis(20)).unwrap().timed_out());
        adds_up(&umem);
        drop((port, socket, batch));
        comes_home(&umem, &[(&near_interface(), 0)]);

        // One that only sends takes no frames for receiving.
        let interface = near_interface();
        let config = SocketConfig::default().send_only();
        let mut socket = Socket::open(&umem, &interface, 0, &config).unwrap();
        assert_eq!(umem.audit().free, umem.chunks());
        let series = to_far(&lab, 100);
        send(&mut socket, &series, 0..500, 64);
        let mut checker = Checker::new(series);
        collect(&mut raw, &mut checker, 500);
        assert!(checker.tally().is_perfect(500), "{:?}", checker.tally());
        let refused = socket.recv(&mut umem.batch(4)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        assert!(socket.wait(Interest::READABLE, Duration::from_millis(20)).unwrap().timed_out());
        settle(&mut socket);
        drop(socket);
        comes_home(&umem, &[(&interface, 0)]);
    });
}

#[test]
fn the_halves_work_on_two_threads() {
    const COUNT: u64 = 5000;
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    let sending = lab.raw().unwrap();
    lab.enter(|| {
        let mut port = near().open().unwrap();
        let umem = port.umem().clone();
        let mut socket = port.take_queue(0).unwrap();
        let there = to_near(&lab, 256);
        let mut run = |receiver: &mut xskit::Receiver, sender: &mut xskit::Sender| {
            let umem = umem.clone();
            let (give, take) = mpsc::sync_channel(64);
            let mut checker = Checker::new(there.clone());
            let seen = AtomicU64::new(0);
            thread::scope(|scope| {
                scope.spawn(|| {
                    // No more under way than the smallest buffer on the way holds.
                    for (number, frame) in (0..).zip(frames(&there, COUNT)) {
                        while number - seen.load(Ordering::Relaxed) >= 192 {
                            thread::yield_now();
                        }
                        sending.send(&frame).unwrap();
                    }
                });
                let checker = &mut checker;
                scope.spawn(move || {
                    while checker.tally().received() < COUNT {
                        assert!(receiver.wait(LIMIT).unwrap(), "{:?}", checker.tally());
                        let mut batch = umem.batch(64);
                        receiver.recv(&mut batch).unwrap();
                        for mut packet in batch.packets_mut() {
                            checker.check(packet.head());
                            reflect(packet.head_mut());
                        }
                        give.send(batch).unwrap();
                    }
                });
                scope.spawn(move || {
                    for mut batch in take {
                        while !batch.is_empty() {
                            if sender.send(&mut batch).unwrap() == 0 {
                                assert!(sender.wait(LIMIT).unwrap());
                            }
                        }
                    }
                });
                while seen.load(Ordering::Relaxed) < COUNT {
                    let arrived = raw.recv_each(LIMIT, |_| ()).unwrap();
                    assert!(arrived > 0, "{seen:?} came back");
                    seen.fetch_add(arrived as u64, Ordering::Relaxed);
                }
            });
            assert!(checker.tally().is_perfect(COUNT), "{:?}", checker.tally());
        };
        let (receiver, sender) = socket.split_mut();
        run(receiver, sender);
        settle(&mut socket);
        adds_up(&umem);
        let (mut receiver, mut sender) = socket.into_split();
        run(&mut receiver, &mut sender);
        // Either half may go first; what the other holds stays valid.
        drop(receiver);
        let mut batch = umem.batch(1);
        batch.alloc(1);
        for mut packet in batch.packets_mut() {
            packet.write(&to_far(&lab, 60).frame(0)).unwrap();
        }
        assert_eq!(sender.send(&mut batch).unwrap(), 1);
        assert!(raw.recv(LIMIT).unwrap().is_some());
        drop((port, sender, batch));
        comes_home(&umem, &[(&near_interface(), 0)]);
    });
}

#[test]
fn sockets_share_a_queue() {
    const COUNT: u64 = 2000;
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    lab.enter(|| {
        let mut port = near().open().unwrap();
        let umem = port.umem().clone();
        let mut first = port.take_queue(0).unwrap();
        // The second only sends; the first does both.
        let mut second = first.share_queue(&SocketConfig::default().send_only()).unwrap();
        assert_eq!((second.queue(), second.mode()), (first.queue(), first.mode()));
        adds_up(&umem);
        let there = to_near(&lab, 90);
        raw.send_all(&frames(&there, 500)).unwrap();
        let mut checker = Checker::new(there);
        receive(&mut first, &mut checker, 500, 64);
        assert!(checker.tally().is_perfect(500), "{:?}", checker.tally());

        // Both send at once, each its own series.
        let series = |seed| Numbered::new(lab.flow(PORT).reflected(), 100 + seed, seed as u64);
        let mut checkers = [Checker::new(series(0)), Checker::new(series(1))];
        // Before 6.18 the kernel may tell of a frame that it is sent before it has copied it, if another
        // socket of the queue sends meanwhile: there, one after the other.
        let (in_turns, turns) = (kernel() < (6, 18), &Mutex::new(()));
        let arrived = thread::scope(|scope| {
            for (seed, socket) in [&mut first, &mut second].into_iter().enumerate() {
                let series = series(seed);
                scope.spawn(move || {
                    let _turn = in_turns.then(|| turns.lock().unwrap());
                    send(socket, &series, 0..COUNT, 64);
                });
            }
            let mut arrived = 0;
            while arrived < 2 * COUNT {
                let now = raw.recv_each(LIMIT, |frame| {
                    checkers[frame.len() - 100].check(frame);
                });
                let now = now.unwrap();
                assert!(now > 0, "{arrived} arrived");
                arrived += now as u64;
            }
            arrived
        });
        assert_eq!(arrived, 2 * COUNT);
        for checker in &checkers {
            assert!(checker.tally().is_perfect(COUNT), "{:?}", checker.tally());
        }
        // Whichever member reaps serves all: one alone brings everything back.
        eventually("all completes", || {
            second.split_mut().1.reap().unwrap();
            let audit = umem.audit();
            audit.tx + audit.completion == 0
        });
        adds_up(&umem);
        let (one, two) = (first.statistics().unwrap(), second.statistics().unwrap());
        assert_eq!((one.sent, two.sent), (COUNT, COUNT));
        assert_eq!(one.completed + two.completed, 2 * COUNT);

        // The first goes, and with it its place in the map; the second, and the queue's rings, stay.
        drop(first);
        adds_up(&umem);
        let series = series(2);
        let mut checker = Checker::new(series.clone());
        send(&mut second, &series, 0..COUNT, 64);
        collect(&mut raw, &mut checker, COUNT);
        assert!(checker.tally().is_perfect(COUNT), "{:?}", checker.tally());
        adds_up(&umem);
        let refused = Socket::open(&umem, port.interface(), 0, &rings(64)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        // A third can still join it.
        let mut third = second.share_queue(&SocketConfig::default()).unwrap();
        third.join(port.program().socket_map()).unwrap();
        let there = to_near(&lab, 91);
        raw.send_all(&frames(&there, 500)).unwrap();
        let mut checker = Checker::new(there);
        receive(&mut third, &mut checker, 500, 64);
        assert!(checker.tally().is_perfect(500), "{:?}", checker.tally());
        adds_up(&umem);
        drop(port);
        drop(second);
        adds_up(&umem);
        drop(third);
        comes_home(&umem, &[(&near_interface(), 0)]);
    });
}

#[test]
fn the_program_stays_while_a_sharing_socket_lives() {
    let Some(lab) = Lab::for_test() else { return };
    lab.enter(|| {
        let mut port = near().open().unwrap();
        let mut first = port.take_queue(0).unwrap();
        let second = first.share_queue(&SocketConfig::default()).unwrap();
        drop((port, first));
        assert!(lab.near.xdp_program().unwrap().is_some(), "a socket of the port lives");
        drop(second);
        assert_eq!(lab.near.xdp_program().unwrap(), None);
    });
}

/// Where in memory each packet of the batch is.
fn places(batch: &xskit::Batch) -> Vec<*const u8> {
    batch.packets().map(|packet| packet.head().as_ptr()).collect()
}

#[test]
fn forwarding_between_devices_moves_descriptors() {
    const COUNT: u64 = 3000;
    if !require(Need::Bpf) {
        return;
    }
    let chain = Chain::new().unwrap();
    let mut raws = [RawPort::open(&chain.source).unwrap(), RawPort::open(&chain.sink).unwrap()];
    // To the sink, and back to the source.
    let series = [
        Numbered::new(chain.flow(PORT), 700, 1),
        Numbered::new(chain.flow(PORT).reflected(), 700, 2),
    ];
    chain.forwarder().enter(|| {
        let open = |name: &str, umem: Option<&xskit::Umem>| {
            let config = PortConfig::new(name)
                .rules(Rules::udp_port(PORT))
                .umem_config(UmemConfig::new(16384));
            umem.map_or(config.clone(), |umem| config.umem(umem)).open().unwrap()
        };
        let mut ingress = open("ingress0", None);
        let umem = ingress.umem().clone();
        let mut egress = open("egress0", Some(&umem));
        let mut sockets = [ingress.take_queue(0).unwrap(), egress.take_queue(0).unwrap()];
        let mut checkers = [Checker::new(series[0].clone()), Checker::new(series[1].clone())];
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let forwarder = scope.spawn(|| {
                let mut batches = [umem.batch(64), umem.batch(64)];
                while !stop.load(Ordering::Relaxed) {
                    for (from, to) in [(0, 1), (1, 0)] {
                        let batch = &mut batches[from];
                        if batch.is_empty() {
                            sockets[from].recv(batch).unwrap();
                        }
                        // By way of another batch, and still in the same frames.
                        let before = places(batch);
                        let mut other = umem.batch(64);
                        other.append(batch).unwrap();
                        assert_eq!(places(&other), before);
                        sockets[to].send(&mut other).unwrap();
                        batch.append(&mut other).unwrap();
                        let rest = before.len() - batch.len();
                        assert_eq!(places(batch), before[rest..]);
                    }
                }
                sockets.iter_mut().for_each(settle);
            });
            let [source, sink] = &mut raws;
            for number in 0..COUNT {
                source.send(&series[0].frame(number)).unwrap();
                sink.send(&series[1].frame(number)).unwrap();
            }
            collect(sink, &mut checkers[0], COUNT);
            collect(source, &mut checkers[1], COUNT);
            stop.store(true, Ordering::Relaxed);
            forwarder.join().unwrap();
        });
        for checker in &checkers {
            assert!(checker.tally().is_perfect(COUNT), "{:?}", checker.tally());
        }
        adds_up(&umem);
        let interfaces = [ingress.interface().clone(), egress.interface().clone()];
        drop((ingress, sockets));
        adds_up(&umem);
        drop(egress);
        comes_home(&umem, &[(&interfaces[0], 0), (&interfaces[1], 0)]);
    });
}

#[test]
fn a_map_of_the_users_own_is_joined() {
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    lab.enter(|| {
        // A program and its map, as if somebody else had loaded them.
        let interface = near_interface();
        let rules = Rules::udp_port(PORT);
        let options = ProgramOptions::default();
        let program = Program::attach(&interface, &rules, AttachMode::Native, &options).unwrap();
        let id = program.info().unwrap().id;
        let info = aya::programs::loaded_programs()
            .find_map(|info| info.ok().filter(|info| info.id() == id))
            .unwrap();
        let map = || {
            info.map_ids()
                .unwrap()
                .unwrap()
                .into_iter()
                .map(|id| MapData::from_id(id).unwrap())
                .find(|map| map.info().unwrap().map_type().unwrap() == aya::maps::MapType::XskMap)
                .unwrap()
        };
        let by_fd = SocketMap::from_fd(map().fd().as_fd().try_clone_to_owned().unwrap()).unwrap();
        let by_pin = with_mount("bpf", "/sys/fs/bpf", || {
            let path = "/sys/fs/bpf/sockets";
            map().pin(path).unwrap();
            SocketMap::from_pin(path).unwrap()
        });
        let umem = UmemConfig::new(2048).build().unwrap();
        for map in [&by_fd, &by_pin] {
            assert_eq!(map.sockets(), 64);
            let mut socket = Socket::open(&umem, &interface, 0, &rings(512)).unwrap();
            raw.send_all(&frames(&to_near(&lab, 60), 10)).unwrap();
            assert!(
                socket.wait(Interest::READABLE, MOMENT).unwrap().timed_out(),
                "it has not joined the map yet"
            );
            socket.join(map).unwrap();
            let series = to_near(&lab, 60);
            raw.send_all(&frames(&series, 300)).unwrap();
            let mut checker = Checker::new(series);
            receive(&mut socket, &mut checker, 300, 64);
            assert!(checker.tally().is_perfect(300), "{:?}", checker.tally());
            drop(socket);
            let before = program.counters().unwrap().total;
            raw.send_all(&frames(&to_near(&lab, 60), 10)).unwrap();
            eventually("it has left the map", || {
                let now = program.counters().unwrap().total;
                now.passed_no_socket == before.passed_no_socket + 10
            });
        }
        drop(program);
        comes_home(&umem, &[(&interface, 0)]);
    });
}

#[test]
fn wait_keeps_its_time_and_wakes_on_arrival() {
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    lab.enter(|| {
        let mut port = near().open().unwrap();
        let umem = port.umem().clone();
        let mut socket = port.take_queue(0).unwrap();
        for timeout in [0, 1, 30, 700] {
            let timeout = Duration::from_millis(timeout);
            let started = Instant::now();
            assert!(socket.wait(Interest::READABLE, timeout).unwrap().timed_out());
            let took = started.elapsed();
            assert!(took >= timeout && took < timeout + LIMIT, "{timeout:?} took {took:?}");
        }
        // Room to send is there at once, whatever the timeout.
        assert!(socket.wait(Interest::WRITABLE, None).unwrap().writable());
        assert!(socket.wait(Interest::BOTH, Duration::ZERO).unwrap().writable());

        let mut batch = umem.batch(64);
        for timeout in [Some(LIMIT), None, Some(Duration::MAX)] {
            let started = Instant::now();
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(100));
                    raw.send(&lab.flow(PORT).frame(b"wake up")).unwrap();
                });
                assert!(socket.wait(Interest::READABLE, timeout).unwrap().readable());
            });
            let took = started.elapsed();
            assert!(took >= Duration::from_millis(99) && took < LIMIT, "{took:?}");
            assert_eq!(socket.recv(&mut batch).unwrap(), 1);
            batch.clear();
        }
        // The halves wait as well.
        let (receiver, sender) = socket.split_mut();
        assert!(sender.wait(Duration::ZERO).unwrap());
        assert!(!receiver.wait(Duration::from_millis(5)).unwrap());
        raw.send(&lab.flow(PORT).frame(b"wake up")).unwrap();
        assert!(receiver.wait(LIMIT).unwrap());
        drop((port, socket, batch));
        comes_home(&umem, &[(&near_interface(), 0)]);
    });
}

#[allow(unsafe_code, reason = "signals to one thread are behind a feature of nix that is off")]
mod signals {
    use std::{mem::zeroed, ptr::null_mut};

    extern "C" fn nothing(_: libc::c_int) {}

    /// Makes SIGUSR1 interrupt system calls, without `SA_RESTART`, and do nothing else.
    pub(super) fn let_interrupt() {
        // SAFETY: all zeroes is a valid sigaction; the handler does nothing, at any time.
        let done = unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
            libc::sigaction(libc::SIGUSR1, &raw const action, null_mut())
        };
        assert_eq!(done, 0);
    }

    pub(super) fn this_thread() -> libc::pthread_t {
        // SAFETY: it only tells.
        unsafe { libc::pthread_self() }
    }

    /// Interrupts a thread, which has to be alive.
    pub(super) fn interrupt(thread: libc::pthread_t) {
        // SAFETY: the caller is joined by that thread before it ends.
        let done = unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
        assert_eq!(done, 0);
    }
}

#[test]
fn a_signal_does_not_end_wait() {
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    lab.enter(|| {
        signals::let_interrupt();
        let mut port = near().open().unwrap();
        let mut socket = port.take_queue(0).unwrap();
        let me = signals::this_thread();
        for (timeout, arrives) in [(Duration::from_millis(400), false), (LIMIT, true)] {
            let done = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    for turn in 0.. {
                        if done.load(Ordering::Relaxed) {
                            break;
                        }
                        signals::interrupt(me);
                        thread::sleep(Duration::from_millis(2));
                        if arrives && turn == 100 {
                            raw.send(&lab.flow(PORT).frame(b"wake up")).unwrap();
                        }
                    }
                });
                let started = Instant::now();
                let ready = socket.wait(Interest::READABLE, timeout).unwrap();
                done.store(true, Ordering::Relaxed);
                assert_eq!(ready.readable(), arrives);
                let took = started.elapsed();
                assert!(arrives || took >= timeout, "{took:?}");
                assert!(took < LIMIT, "{took:?}");
            });
        }
    });
}

#[test]
fn one_call_sends_a_whole_ring() {
    let Some(lab) = Lab::for_test_with(&LabConfig { need: Need::Namespaces, ..Default::default() })
    else {
        return;
    };
    let mut raw = lab.raw().unwrap();
    lab.enter(|| {
        let umem = UmemConfig::new(2048 + 64).build().unwrap();
        let interface = near_interface();
        let config = SocketConfig::default().send_only();
        let mut socket = Socket::open(&umem, &interface, 0, &config).unwrap();
        // What the kernel charges for a frame of 1514 bytes: its memory, and that of its skb.
        let buffer = getsockopt(&socket.as_fd(), sockopt::SndBuf).unwrap();
        assert!(buffer >= 2048 * 2304, "SO_SNDBUF is {buffer}");
        let series = to_far(&lab, 1514);
        let mut batch = umem.batch(2048);
        write(&mut batch, &series, &mut (0..2048));
        assert_eq!(socket.send(&mut batch).unwrap(), 2048);
        // No further call is made, neither `send` nor `wait`, but on kernels that publish late what they took
        // from the TX ring: a call that brings nothing to light may be the last there.
        if kernel() < (6, 17) {
            eventually("the kernel takes all", || {
                socket.send(&mut batch).unwrap();
                umem.audit().tx == 0
            });
        }
        let mut checker = Checker::new(series);
        collect(&mut raw, &mut checker, 2048);
        assert!(checker.tally().is_perfect(2048), "{:?}", checker.tally());
        settle(&mut socket);
        let statistics = socket.statistics().unwrap();
        assert_eq!((statistics.sent, statistics.tx_dropped), (2048, 0));
        assert!(statistics.wakeups_tx <= 2048, "{statistics:?}");
        adds_up(&umem);
        drop((socket, batch));
        comes_home(&umem, &[(&interface, 0)]);
    });
}

/// A socket of its own on the near end, with a program that redirects to it.
fn joined(umem: &xskit::Umem, mode: AttachMode, config: &SocketConfig) -> (Program, Socket) {
    let interface = near_interface();
    let rules = Rules::udp_port(PORT);
    let program = Program::attach(&interface, &rules, mode, &ProgramOptions::default()).unwrap();
    let mut socket = Socket::open(umem, &interface, 0, config).unwrap();
    socket.join(program.socket_map()).unwrap();
    (program, socket)
}

const MODES: [AttachMode; 2] = [AttachMode::Native, AttachMode::Generic];

/// How many packets the program has seen.
fn redirected(program: &Program) -> u64 {
    program.counters().unwrap().total.redirected
}

#[test]
fn a_full_rx_ring_is_counted_by_the_kernel() {
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    lab.enter(|| {
        for mode in MODES {
            let umem = UmemConfig::new(1024).build().unwrap();
            let config = rings(64).fill(ring(512));
            let (program, mut socket) = joined(&umem, mode, &config);
            let series = to_near(&lab, 333);
            raw.send_all(&frames(&series, 300)).unwrap();
            eventually("all have passed the program", || redirected(&program) == 300);
            let mut checker = Checker::new(series.clone());
            receive(&mut socket, &mut checker, 64, 64);
            assert!(socket.wait(Interest::READABLE, MOMENT).unwrap().timed_out());
            let kernel = socket.statistics().unwrap().kernel;
            assert_eq!(kernel.rx_ring_full, Some(300 - 64), "{mode:?} {kernel:?}");
            assert_eq!((kernel.rx_dropped, kernel.rx_fill_ring_empty_descs), (0, Some(0)));
            if let Some(errors) = program.counters().unwrap().redirect_errors {
                assert_eq!((errors.rx_ring_full, errors.total()), (300 - 64, 300 - 64));
            }
            adds_up(&umem);
            // It goes on as if nothing had been.
            let goes_on: Vec<_> = (300..360).map(|number| series.frame(number)).collect();
            raw.send_all(&goes_on).unwrap();
            receive(&mut socket, &mut checker, 60, 64);
            assert!(checker.tally().is_perfect(124), "{:?}", checker.tally());
            adds_up(&umem);
            drop((program, socket));
            comes_home(&umem, &[(&near_interface(), 0)]);
        }
    });
}

#[test]
fn an_empty_fill_ring_is_counted_by_the_kernel() {
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    lab.enter(|| {
        for mode in MODES {
            let umem = UmemConfig::new(64).build().unwrap();
            let (program, mut socket) = joined(&umem, mode, &rings(512));
            assert_eq!(umem.audit().fill, 64, "all there are");
            let series = to_near(&lab, 1514);
            raw.send_all(&frames(&series, 300)).unwrap();
            eventually("all have passed the program", || redirected(&program) == 300);
            assert_eq!((umem.audit().fill, umem.audit().rx), (0, 64), "{}", umem.audit());
            let mut checker = Checker::new(series.clone());
            receive(&mut socket, &mut checker, 64, 32);
            let kernel = socket.statistics().unwrap().kernel;
            assert_eq!(kernel.rx_fill_ring_empty_descs, Some(300 - 64), "{mode:?} {kernel:?}");
            // In copy mode both count.
            assert_eq!((kernel.rx_dropped, kernel.rx_ring_full), (300 - 64, Some(0)));
            if let Some(errors) = program.counters().unwrap().redirect_errors {
                assert_eq!((errors.fill_ring_empty, errors.total()), (300 - 64, 300 - 64));
            }
            adds_up(&umem);
            // The last frames are in a batch that is gone: `wait` sees that the ring lacks them.
            let goes_on: Vec<_> = (300..360).map(|number| series.frame(number)).collect();
            socket.wait(Interest::READABLE, Duration::ZERO).unwrap();
            assert_eq!(umem.audit().fill, 64, "{}", umem.audit());
            raw.send_all(&goes_on).unwrap();
            receive(&mut socket, &mut checker, 60, 64);
            assert!(checker.tally().is_perfect(124), "{:?}", checker.tally());
            adds_up(&umem);
            drop((program, socket));
            comes_home(&umem, &[(&near_interface(), 0)]);
        }
    });
}

#[test]
fn frames_longer_than_a_chunk_are_dropped_and_counted() {
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    lab.enter(|| {
        for mode in MODES {
            let umem =
                UmemConfig::new(512).chunk_size(ChunkSize::K2).headroom(1344).build().unwrap();
            let longest = umem.max_packet_len() as usize;
            assert_eq!(longest, 448);
            let (program, mut socket) = joined(&umem, mode, &rings(256));
            let series = to_near(&lab, longest);
            let mut checker = Checker::new(series.clone());
            for number in 0..20 {
                raw.send(&to_near(&lab, longest + 1).frame(number)).unwrap();
                raw.send(&series.frame(number)).unwrap();
            }
            receive(&mut socket, &mut checker, 20, 64);
            assert!(checker.tally().is_perfect(20), "{:?}", checker.tally());
            let kernel = socket.statistics().unwrap().kernel;
            assert_eq!(kernel.rx_dropped, 20, "{mode:?} {kernel:?}");
            assert_eq!((kernel.rx_ring_full, kernel.rx_fill_ring_empty_descs), (Some(0), Some(0)));
            if let Some(errors) = program.counters().unwrap().redirect_errors {
                assert_eq!((errors.too_long, errors.total()), (20, 20));
            }
            adds_up(&umem);
            drop((program, socket));
            comes_home(&umem, &[(&near_interface(), 0)]);
        }
    });
}

#[test]
fn headers_fit_into_the_headroom() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    lab.enter(|| {
        let mut port = near().umem_config(UmemConfig::default().headroom(64)).open().unwrap();
        let umem = port.umem().clone();
        let mut socket = port.take_queue(0).unwrap();
        raw.send(&lab.flow(PORT).frame(b"to be wrapped")).unwrap();
        let mut batch = umem.batch(4);
        assert!(socket.wait(Interest::READABLE, LIMIT).unwrap().readable());
        assert_eq!(socket.recv(&mut batch).unwrap(), 1);
        let mut wrapped = lab.flow(PORT).reflected().frame(&[]);
        wrapped.extend(lab.flow(PORT).frame(b"to be wrapped"));
        for mut packet in batch.packets_mut() {
            packet.grow_front(42).unwrap();
            packet.head_mut()[..42].copy_from_slice(&lab.flow(PORT).reflected().frame(&[]));
            assert_eq!(packet.grow_front(256 + 64).unwrap_err().possible, 256 + 64 - 42);
        }
        socket.send(&mut batch).unwrap();
        assert_eq!(raw.recv(LIMIT).unwrap(), Some(wrapped));
        settle(&mut socket);
        adds_up(&umem);
        drop((port, socket, batch));
        comes_home(&umem, &[(&near_interface(), 0)]);
    });
}

/// Sends to the near end until it is dropped.
struct Flood<'scope> {
    stop: &'scope AtomicBool,
}

impl<'scope> Flood<'scope> {
    fn start<'env>(
        scope: &'scope thread::Scope<'scope, 'env>,
        raw: &'scope RawPort,
        series: Numbered,
        stop: &'scope AtomicBool,
    ) -> Self {
        stop.store(false, Ordering::Relaxed);
        scope.spawn(move || {
            let frames = frames(&series, 64);
            while !stop.load(Ordering::Relaxed) {
                raw.send_all(&frames).unwrap();
            }
        });
        Self { stop }
    }
}

impl Drop for Flood<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[test]
fn what_a_closed_socket_held_comes_back_with_its_queue() {
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    let stop = AtomicBool::new(false);
    lab.enter(|| {
        let interface = near_interface();
        let umem = UmemConfig::new(1024).build().unwrap();
        // Of a socket that received nothing all of the Fill ring is the kernel's. Of the others below it is what
        // they happen to be about, from nothing to hundreds.
        drop(Socket::open(&umem, &interface, 0, &rings(256)).unwrap());
        assert_eq!(umem.audit().quarantine, 256);
        for turn in 0..40 {
            let mode = MODES[turn % 2];
            let rules = Rules::udp_port(PORT);
            let options = ProgramOptions::default();
            let program = Program::attach(&interface, &rules, mode, &options).unwrap();
            thread::scope(|scope| {
                let flood = Flood::start(scope, &raw, to_near(&lab, 100), &stop);
                // Closed in the middle of it: with packets in RX, in TX, and on their way.
                let mut socket = Socket::open(&umem, &interface, 0, &rings(256)).unwrap();
                socket.join(program.socket_map()).unwrap();
                let mut batch = umem.batch(64);
                for _ in 0..20 {
                    assert!(socket.wait(Interest::READABLE, LIMIT).unwrap().readable());
                    socket.recv(&mut batch).unwrap();
                    batch.packets_mut().for_each(|mut packet| reflect(packet.head_mut()));
                    socket.send(&mut batch).unwrap();
                }
                if turn % 4 < 2 {
                    drop(socket);
                    drop(batch);
                } else {
                    drop(batch);
                    drop(socket);
                }
                let audit = umem.audit();
                assert!(audit.is_complete(), "{audit}");
                // Its successor uses the same memory at once, still under fire.
                let mut socket = Socket::open(&umem, &interface, 0, &rings(256)).unwrap();
                let audit = umem.audit();
                assert_eq!((audit.free, audit.fill), (1024 - 256, 256), "{audit}");
                socket.join(program.socket_map()).unwrap();
                let mut batch = umem.batch(64);
                for _ in 0..5 {
                    assert!(socket.wait(Interest::READABLE, LIMIT).unwrap().readable());
                    socket.recv(&mut batch).unwrap();
                    batch.clear();
                }
                drop(flood);
            });
            drop(program);
            comes_home(&umem, &[(&interface, 0)]);
        }
    });
}

#[test]
fn a_mode_of_one_umem_suits_all_its_sockets() {
    // Different modes on two queues: the memory is registered once for each.
    let Some(lab) = Lab::for_test_with(&LabConfig {
        queues: 2,
        need: Need::Namespaces,
        ..LabConfig::default()
    }) else {
        return;
    };
    let mut raw = lab.raw().unwrap();
    lab.enter(|| {
        let interface = near_interface();
        let umem = UmemConfig::new(2048).build().unwrap();
        let open = |queue: u32, wakeup| {
            let config = rings(256).need_wakeup(wakeup);
            Socket::open(&umem, &interface, queue, &config).unwrap()
        };
        let mut sockets = [open(0, true), open(1, false)];
        for (index, socket) in sockets.iter_mut().enumerate() {
            assert_eq!(socket.mode().need_wakeup, index == 0);
            let series = to_far(&lab, 100 + index);
            send(socket, &series, 0..400, 64);
            let mut checker = Checker::new(series);
            collect(&mut raw, &mut checker, 400);
            assert!(checker.tally().is_perfect(400), "{:?}", checker.tally());
            settle(socket);
        }
        adds_up(&umem);
        // The first of a registration goes; those that share it, and those to come, are not bothered.
        let [first, mut second] = sockets;
        drop(first);
        let mut first = open(0, true);
        for socket in [&mut first, &mut second] {
            let series = to_far(&lab, 300);
            send(socket, &series, 0..400, 64);
            let mut checker = Checker::new(series);
            collect(&mut raw, &mut checker, 400);
            assert!(checker.tally().is_perfect(400), "{:?}", checker.tally());
            settle(socket);
        }
        drop((first, second));
        comes_home(&umem, &[(&interface, 0), (&interface, 1)]);
    });
}

#[test]
fn a_closed_socket_that_is_being_counted_is_not_in_the_way() {
    let Some(lab) = Lab::for_test() else { return };
    lab.enter(|| {
        let (umem, interface) = (UmemConfig::new(256).build().unwrap(), near_interface());
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            // More than there are processors: one of them is always stopped in the middle.
            for _ in 0..8 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        umem.audit();
                    }
                });
            }
            let config = rings(64).send_only();
            let opened: Vec<_> =
                (0..50).map(|_| Socket::open(&umem, &interface, 0, &config).map(drop)).collect();
            stop.store(true, Ordering::Relaxed);
            assert!(opened.iter().all(Result::is_ok), "{opened:?}");
        });
    });
}
