//! Packets in and out, in zero-copy mode.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use xskit::{CopyMode, Interest, Interface, Socket, SocketConfig, UmemConfig};
use xskit_lab::{Checker, Numbered, RawPort};

use crate::{
    bench::{Bench, open, zero_copy},
    support::{
        LIMIT, MOMENT, adds_up, collect, comes_home, eventually, frames, receive, rings, send,
        settle, write,
    },
};

/// Fewer than the NIC's ring holds, so that none is lost before the socket is awake.
const COUNT: u64 = 200;

#[test]
fn receives() {
    let Some(bench) = Bench::for_test() else { return };
    let raw = bench.pair.raw().unwrap();
    let (port, mut socket) = open(zero_copy(&bench.pair.near));
    assert!(socket.mode().zero_copy, "{}", socket.mode());
    for length in [60, 64, 300, 1514] {
        let series = bench.to_near(length);
        let mut checker = Checker::new(series.clone());
        for size in [1, 7, 64] {
            let next = checker.tally().received();
            let numbers: Vec<_> = (next..next + COUNT).map(|number| series.frame(number)).collect();
            raw.send_all(&numbers).unwrap();
            receive(&mut socket, &mut checker, COUNT, size);
        }
        assert!(checker.tally().is_perfect(3 * COUNT), "{:?}", checker.tally());
    }
    adds_up(port.umem());
    let (umem, interface) = (port.umem().clone(), port.interface().clone());
    drop((port, socket));
    comes_home(&umem, &[(&interface, 0)]);
}

#[test]
fn sends() {
    let Some(bench) = Bench::for_test() else { return };
    let mut raw = bench.pair.raw().unwrap();
    let (port, mut socket) = open(zero_copy(&bench.pair.near));
    for length in [60, 64, 300, 1514] {
        let series = bench.to_far(length);
        let mut checker = Checker::new(series.clone());
        for size in [1, 7, 64] {
            let next = checker.tally().received();
            send(&mut socket, &series, next..next + COUNT, size);
            collect(&mut raw, &mut checker, COUNT);
        }
        assert!(checker.tally().is_perfect(3 * COUNT), "{:?}", checker.tally());
    }
    settle(&mut socket);
    let statistics = socket.statistics().unwrap();
    assert_eq!(statistics.tx_dropped, 0, "{statistics:?}");
    adds_up(port.umem());
    let (umem, interface) = (port.umem().clone(), port.interface().clone());
    drop((port, socket));
    comes_home(&umem, &[(&interface, 0)]);
}

#[test]
fn sends_to_a_socket_that_receives() {
    let Some(bench) = Bench::for_test() else { return };
    let (near_port, mut near) = open(zero_copy(&bench.pair.near));
    let (far_port, mut far) = open(zero_copy(&bench.pair.far));
    let series = bench.to_near(1000);
    let mut checker = Checker::new(series.clone());
    for _ in 0..20 {
        let next = checker.tally().received();
        send(&mut far, &series, next..next + COUNT, 32);
        receive(&mut near, &mut checker, COUNT, 32);
    }
    assert!(checker.tally().is_perfect(20 * COUNT), "{:?}", checker.tally());
    settle(&mut far);
    adds_up(near_port.umem());
    adds_up(far_port.umem());
}

/// The program passes what no rule matches, out of the UMEM's frames, and these come back.
#[test]
fn leaves_the_rest_to_the_stack() {
    let Some(bench) = Bench::for_test() else { return };
    let raw = bench.pair.raw().unwrap();
    let mut stack = RawPort::open(&bench.pair.near).unwrap();
    let (port, mut socket) = open(zero_copy(&bench.pair.near));
    let other = Numbered::new(bench.pair.flow(9), 500, 3);
    let (mut mine, series) = (Checker::new(bench.to_near(500)), bench.to_near(500));
    let mut theirs = Checker::new(other.clone());
    for number in 0..500 {
        raw.send_all(&[other.frame(number), series.frame(number)]).unwrap();
        receive(&mut socket, &mut mine, 1, 4);
        collect(&mut stack, &mut theirs, 1);
    }
    assert!(mine.tally().is_perfect(500), "{:?}", mine.tally());
    assert!(theirs.tally().is_perfect(500), "{:?}", theirs.tally());
    adds_up(port.umem());
}

/// A socket that only sends has the whole queue: the driver receives into the UMEM's frames for the stack, and
/// needs some.
#[test]
fn the_stack_receives_beside_a_socket_that_only_sends() {
    let Some(bench) = Bench::for_test() else { return };
    let (mut raw, interface) = (bench.pair.raw().unwrap(), near(&bench));
    let umem = UmemConfig::new(512).build().unwrap();
    let config = rings(256).copy_mode(CopyMode::ZeroCopy).send_only();
    let mut socket = Socket::open(&umem, &interface, 0, &config).unwrap();
    let mut stack = RawPort::open(&bench.pair.near).unwrap();
    let (theirs, ours) = (bench.to_near(500), bench.to_far(500));
    let (mut arrived, mut sent) = (Checker::new(theirs.clone()), Checker::new(ours.clone()));
    for number in 0..1000 {
        raw.send_all(&[theirs.frame(number)]).unwrap();
        collect(&mut stack, &mut arrived, 1);
        send(&mut socket, &ours, [number].into_iter(), 1);
        collect(&mut raw, &mut sent, 1);
    }
    assert!(arrived.tally().is_perfect(1000), "{:?}", arrived.tally());
    assert!(sent.tally().is_perfect(1000), "{:?}", sent.tally());
    settle(&mut socket);
    let audit = umem.audit();
    assert!(audit.is_complete() && audit.fill == 256, "{audit}");
    drop(socket);
    comes_home(&umem, &[(&interface, 0)]);
}

/// Of few frames the driver gets half, and packets can be sent from the others.
#[test]
fn a_socket_that_only_sends_keeps_frames_to_send() {
    let Some(bench) = Bench::for_test() else { return };
    let umem = UmemConfig::new(64).build().unwrap();
    let config = rings(256).copy_mode(CopyMode::ZeroCopy).send_only();
    let mut socket = Socket::open(&umem, &near(&bench), 0, &config).unwrap();
    let mut raw = bench.pair.raw().unwrap();
    let (series, mut sent) = (bench.to_far(60), Checker::new(bench.to_far(60)));
    for first in [0, 16, 32, 48] {
        send(&mut socket, &series, first..first + 16, 16);
        collect(&mut raw, &mut sent, 16);
        settle(&mut socket);
    }
    let audit = umem.audit();
    assert!(audit.is_complete() && audit.fill == 32, "{audit}");
}

fn near(bench: &Bench) -> Interface {
    Interface::by_name(bench.pair.near.name()).unwrap()
}

/// Without the flag every call goes to the kernel; nothing may hang.
#[test]
fn without_need_wakeup() {
    let Some(bench) = Bench::for_test() else { return };
    let config = rings(256).copy_mode(CopyMode::ZeroCopy).need_wakeup(false);
    let (_near_port, mut near) = open(zero_copy(&bench.pair.near).socket(config.clone()));
    let (_far_port, mut far) = open(zero_copy(&bench.pair.far).socket(config));
    let series = bench.to_near(200);
    let mut checker = Checker::new(series.clone());
    for _ in 0..5 {
        let next = checker.tally().received();
        send(&mut far, &series, next..next + COUNT, 32);
        receive(&mut near, &mut checker, COUNT, 32);
    }
    assert!(checker.tally().is_perfect(5 * COUNT), "{:?}", checker.tally());
    settle(&mut far);
}

/// All frames are held, the driver has none left and sleeps; once there are some again, reception goes on.
#[test]
fn recovers_from_an_empty_fill_ring() {
    const FRAMES: u32 = 600;
    let Some(bench) = Bench::for_test() else { return };
    let raw = bench.pair.raw().unwrap();
    let umem = UmemConfig::new(FRAMES).build().unwrap();
    let (_port, mut socket) = open(zero_copy(&bench.pair.near).umem(&umem));
    let series = bench.to_near(100);
    let mut held = umem.batch(FRAMES as usize);
    for number in 0..u64::from(FRAMES) {
        raw.send(&series.frame(number)).unwrap();
        assert!(socket.wait(Interest::READABLE, LIMIT).unwrap().readable(), "{number}");
        socket.recv(&mut held).unwrap();
    }
    let audit = umem.audit();
    assert_eq!((audit.batch, audit.fill, audit.rx), (FRAMES, 0, 0), "{audit}");
    // Where the wire has no flow control these are lost.
    let first = u64::from(FRAMES);
    raw.send_all(&[series.frame(first), series.frame(first + 1)]).unwrap();
    assert!(socket.wait(Interest::READABLE, MOMENT).unwrap().timed_out());
    drop(held);
    let mut batch = umem.batch(64);
    socket.recv(&mut batch).unwrap();
    let mut checker = Checker::new(series.clone());
    for number in first + 2..first + 1000 {
        raw.send(&series.frame(number)).unwrap();
        let mut last = None;
        while last != Some(series.frame(number)) {
            assert!(socket.wait(Interest::READABLE, LIMIT).unwrap().readable(), "{number}");
            socket.recv(&mut batch).unwrap();
            for packet in batch.packets() {
                checker.check(packet.head());
                last = Some(packet.head().to_vec());
            }
            batch.clear();
        }
    }
    // QEMU delivers what waits in its own queues after what comes later.
    let tally = checker.tally();
    assert!((998..=1000).contains(&tally.received()), "{tally:?}");
    assert_eq!((tally.duplicate, tally.corrupted), (0, 0), "{tally:?}");
    adds_up(&umem);
}

/// Several sockets on one queue: the kernel takes from their TX rings one descriptor at a time.
#[test]
fn sockets_share_a_queue() {
    let Some(bench) = Bench::for_test() else { return };
    let mut raw = bench.pair.raw().unwrap();
    let (port, mut first) = open(zero_copy(&bench.pair.near));
    let mut second = first.share_queue(&SocketConfig::default()).unwrap();
    assert!(second.mode().zero_copy, "{}", second.mode());
    let series = bench.to_far(400);
    let mut checker = Checker::new(series.clone());
    for round in 0..20 {
        let start = round * 2 * COUNT;
        send(&mut first, &series, start..start + COUNT, 32);
        send(&mut second, &series, start + COUNT..start + 2 * COUNT, 32);
        // The Completion ring that they share has no room for all of it at once.
        eventually("what was sent completes", || {
            first.split_mut().1.reap().unwrap();
            second.split_mut().1.reap().unwrap();
            let audit = port.umem().audit();
            audit.tx + audit.completion == 0
        });
        collect(&mut raw, &mut checker, 2 * COUNT);
    }
    let tally = checker.tally();
    assert_eq!(
        (tally.received(), tally.duplicate, tally.corrupted),
        (40 * COUNT, 0, 0),
        "{tally:?}"
    );
    raw.send_all(&frames(&bench.to_near(64), COUNT)).unwrap();
    receive(&mut first, &mut Checker::new(bench.to_near(64)), COUNT, 64);
    adds_up(port.umem());
}

/// The halves of a socket, on two threads, in both directions at once.
#[test]
fn halves_on_two_threads() {
    let Some(bench) = Bench::for_test() else { return };
    let mut raw = bench.pair.raw().unwrap();
    let (port, socket) = open(zero_copy(&bench.pair.near));
    let umem = port.umem();
    let (mut receiver, mut sender) = socket.into_split();
    let (inward, outward) = (bench.to_near(128), bench.to_far(128));
    let (mut inwards, mut outwards) = (Checker::new(inward.clone()), Checker::new(outward.clone()));
    let arrived = AtomicU64::new(0);
    thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let mut batch = umem.batch(32);
            while inwards.tally().received() < 10 * COUNT {
                assert!(receiver.wait(LIMIT).unwrap(), "{:?}", inwards.tally());
                receiver.recv(&mut batch).unwrap();
                batch.packets().for_each(|packet| {
                    inwards.check(packet.head());
                });
                batch.clear();
                arrived.store(inwards.tally().received(), Ordering::Relaxed);
            }
        });
        let mut batch = umem.batch(32);
        for round in 0..10 {
            let start = round * COUNT;
            let mut numbers = start..start + COUNT;
            raw.send_all(&numbers.clone().map(|number| inward.frame(number)).collect::<Vec<_>>())
                .unwrap();
            loop {
                write(&mut batch, &outward, &mut numbers);
                if batch.is_empty() {
                    break;
                }
                sender.send(&mut batch).unwrap();
                if !batch.is_empty() {
                    assert!(sender.wait(LIMIT).unwrap());
                }
            }
            collect(&mut raw, &mut outwards, COUNT);
            // The NIC's ring has room for one round.
            eventually("all arrive", || arrived.load(Ordering::Relaxed) == start + COUNT);
        }
        receiving.join().unwrap();
    });
    assert!(inwards.tally().is_perfect(10 * COUNT), "{:?}", inwards.tally());
    assert!(outwards.tally().is_perfect(10 * COUNT), "{:?}", outwards.tally());
    adds_up(port.umem());
}
