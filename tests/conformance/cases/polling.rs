//! `poll` as the only call: for packets, for room, and in vain.

use std::{io::ErrorKind, time::Duration};

use nix::poll::PollFlags;
use xskit::{Interest, UmemConfig, ring::Desc};

use crate::{
    Case, Outcome,
    bench::{Bench, LENGTH, PACKETS, check, nothing_comes, poll_once, receive, send, windows},
    descriptors::{Frames, completed, drain, kick, submit, unsent, wait_completed},
    mode::Mode,
    support::{LIMIT, MOMENT, eventually, rings, settle},
};

pub(super) const CASES: &[Case] = &[
    ("receiving_by_poll", receiving_by_poll),
    ("sending_driven_by_poll_alone", sending_by_poll),
    ("poll_times_out_on_an_empty_rx_ring", empty_rx_ring),
    ("poll_times_out_on_a_tx_ring_that_cannot_drain", full_tx_ring),
];

fn receiving_by_poll(mode: &'static Mode) -> Outcome {
    let bench = Bench::new(mode);
    let (mut from, mut to) = (bench.sender(), bench.receiver());
    let series = bench.to_near(LENGTH);
    let mut batch = to.umem.batch(64);
    for numbers in windows(0..PACKETS) {
        let packets: Vec<_> = numbers.iter().map(|number| series.frame(*number)).collect();
        send(&mut from.socket, &packets);
        let mut expected = packets.iter();
        while expected.len() > 0 {
            let events = poll_once(&to.socket, PollFlags::POLLIN, LIMIT);
            assert_eq!(events, PollFlags::POLLIN, "{} missing", expected.len());
            assert!(to.socket.recv(&mut batch).unwrap() > 0, "poll said that there are packets");
            check(&mut batch, &mut expected);
        }
    }
    assert_eq!(poll_once(&to.socket, PollFlags::POLLIN, MOMENT), PollFlags::empty());
    settle(&mut from.socket);
    drop(batch);
    from.close();
    to.close();
    Outcome::Passed
}

fn sending_by_poll(mode: &'static Mode) -> Outcome {
    let bench = Bench::new(mode);
    let (mut from, mut to) = (bench.sender(), bench.receiver());
    let series = bench.to_near(LENGTH);
    for numbers in windows(0..PACKETS) {
        let packets: Vec<_> = numbers.iter().map(|number| series.frame(*number)).collect();
        let frames = Frames::new(&from.umem, &packets);
        let desc = |addr: &u64| Desc { addr: *addr, len: 64, options: 0 };
        submit(&mut from.socket, &frames.chunks.iter().map(desc).collect::<Vec<_>>());
        eventually("poll sends all", || {
            let events = poll_once(&from.socket, PollFlags::POLLOUT, LIMIT);
            assert_eq!(events, PollFlags::POLLOUT, "{:?}", from.socket.statistics());
            unsent(&mut from.socket) == 0
        });
        receive(&mut to.socket, &packets);
        wait_completed(&mut from.socket, frames.chunks.len());
        frames.attach();
    }
    nothing_comes(&mut to.socket);
    assert_eq!(from.socket.statistics().unwrap().wakeups_tx, 0);
    from.close();
    to.close();
    Outcome::Passed
}

fn empty_rx_ring(mode: &'static Mode) -> Outcome {
    let bench = Bench::new(mode);
    let mut to = bench.receiver();
    let started = std::time::Instant::now();
    assert_eq!(poll_once(&to.socket, PollFlags::POLLIN, MOMENT), PollFlags::empty());
    assert!(started.elapsed() >= MOMENT);
    let started = std::time::Instant::now();
    assert!(to.socket.wait(Interest::READABLE, MOMENT).unwrap().timed_out());
    assert!(started.elapsed() >= MOMENT);
    to.close();
    Outcome::Passed
}

/// The Completion ring is full, and nobody empties it: the kernel can take nothing out of the TX ring.
fn full_tx_ring(mode: &'static Mode) -> Outcome {
    const SIZE: u32 = 64;
    let bench = Bench::new(mode);
    let mut from = bench.sender_of(UmemConfig::new(256), rings(SIZE));
    let mut to = bench.receiver();
    let series = bench.to_near(LENGTH);
    let packets: Vec<_> = (0..2 * u64::from(SIZE)).map(|number| series.frame(number)).collect();
    let (first, second) = packets.split_at(SIZE as usize);
    let desc = |addr: &u64| Desc { addr: *addr, len: 64, options: 0 };

    let frames = Frames::new(&from.umem, first);
    submit(&mut from.socket, &frames.chunks.iter().map(desc).collect::<Vec<_>>());
    assert!(drain(&mut from.socket).is_empty(), "all are valid");
    receive(&mut to.socket, first);
    eventually("all complete", || from.umem.audit().completion == SIZE);

    let rest = Frames::new(&from.umem, second);
    submit(&mut from.socket, &rest.chunks.iter().map(desc).collect::<Vec<_>>());
    // Older kernels do nothing without saying so.
    let kicked = kick(&from.socket).map_err(|error| error.kind());
    assert!(matches!(kicked, Ok(()) | Err(ErrorKind::WouldBlock)), "{kicked:?}");
    let started = std::time::Instant::now();
    assert_eq!(poll_once(&from.socket, PollFlags::POLLOUT, MOMENT), PollFlags::empty());
    assert!(started.elapsed() >= MOMENT);
    assert_eq!(unsent(&mut from.socket), SIZE as usize);
    nothing_comes(&mut to.socket);

    // Emptied, it goes on.
    assert_eq!(completed(&mut from.socket).len(), SIZE as usize);
    frames.attach();
    eventually("poll finds room", || {
        let events = poll_once(&from.socket, PollFlags::POLLOUT, Duration::from_millis(1));
        events == PollFlags::POLLOUT && unsent(&mut from.socket) == 0
    });
    receive(&mut to.socket, second);
    wait_completed(&mut from.socket, SIZE as usize);
    rest.attach();
    from.close();
    to.close();
    Outcome::Passed
}
