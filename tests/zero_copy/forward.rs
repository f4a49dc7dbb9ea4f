//! Forwarding, zero-copy to zero-copy to zero-copy: nothing is lost, changed or doubled.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use xskit::{Interest, Socket};
use xskit_lab::{Checker, Numbered};

use crate::{
    bench::{Bench, open, zero_copy},
    support::{LIMIT, PORT, adds_up, settle, write},
};

/// Frames on the way at most: fewer than each NIC's ring, which drops what does not fit.
const WINDOW: u64 = 192;

const COUNT: u64 = 100_000;

/// The near end sends back what it receives, addresses swapped, until it is told to stop.
fn reflect(socket: &mut Socket, stop: &AtomicBool) {
    let mut batch = socket.umem().batch(64);
    while !stop.load(Ordering::Relaxed) || !batch.is_empty() {
        socket.wait(Interest::for_batch(&batch), Duration::from_millis(100)).unwrap();
        if batch.is_empty() {
            socket.recv(&mut batch).unwrap();
            for mut packet in batch.packets_mut() {
                packet.head_mut()[..12].rotate_left(6);
            }
        }
        socket.send(&mut batch).unwrap();
    }
}

/// Sends from the far end, never more than the window ahead of what came back.
fn exchange(socket: &mut Socket, series: &Numbered, checker: &mut Checker, count: u64) {
    let (mut out, mut back) = (socket.umem().batch(64), socket.umem().batch(64));
    let mut next = 0;
    while checker.tally().received() < count {
        let free = (checker.tally().received() + WINDOW).min(count) - next;
        if out.is_empty() && free > 0 {
            let end = next + free.min(64);
            let mut numbers = next..end;
            write(&mut out, series, &mut numbers);
            next = numbers.start;
        }
        socket.send(&mut out).unwrap();
        let ready = socket.wait(Interest::READABLE, LIMIT).unwrap();
        assert!(ready.readable(), "{next} sent, {:?}, {:?}", checker.tally(), socket.statistics());
        socket.recv(&mut back).unwrap();
        for packet in back.packets() {
            checker.check(packet.head());
        }
        back.clear();
    }
}

#[test]
fn a_hundred_thousand_packets() {
    let Some(bench) = Bench::for_test() else { return };
    let (near_port, mut near) = open(zero_copy(&bench.pair.near));
    let (far_port, mut far) = open(zero_copy(&bench.pair.far));
    assert!(near.mode().zero_copy && far.mode().zero_copy, "{} {}", near.mode(), far.mode());
    let sent = bench.to_near(256);
    let mut checker = Checker::new(Numbered::new(bench.pair.flow(PORT).reflected(), 256, 1));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| reflect(&mut near, &stop));
        let exchanged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            exchange(&mut far, &sent, &mut checker, COUNT);
        }));
        stop.store(true, Ordering::Relaxed);
        exchanged.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(checker.tally().is_perfect(COUNT), "{:?}", checker.tally());
    settle(&mut near);
    settle(&mut far);
    for (port, socket) in [(&near_port, &near), (&far_port, &far)] {
        adds_up(port.umem());
        let statistics = socket.statistics().unwrap();
        assert_eq!((statistics.sent, statistics.received), (COUNT, COUNT), "{statistics:?}");
    }
}
