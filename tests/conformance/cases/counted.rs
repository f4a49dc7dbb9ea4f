//! Packets that find no place: dropped, and counted where they should be.

use std::time::Duration;

use xskit::{ChunkSize, Interest, Socket, UmemConfig};
use xskit_lab::Numbered;

use crate::{
    Case, Outcome,
    bench::{Bench, End, LENGTH, PACKETS, nothing_comes, receive, send, stream, windows},
    mode::Mode,
    support::{adds_up, eventually, ring, rings, settle},
};

pub(super) const CASES: &[Case] = &[
    ("packets_larger_than_the_chunk", too_large),
    ("a_full_rx_ring_is_counted", full_rx_ring),
    ("an_empty_fill_ring_is_counted", empty_fill_ring),
];

fn too_large(mode: &'static Mode) -> Outcome {
    let bench = Bench::with_mtu(mode, 3000);
    let mut from = bench.sender();
    let umem = UmemConfig::new(1024).chunk_size(ChunkSize::K2);
    let mut to = bench.receiver_of(umem, rings(512));
    let most = to.umem.max_packet_len() as usize;
    // Four lengths in turn, of which the second and the fourth do not fit.
    let lengths = [LENGTH, most + 1, most, 2500];
    for numbers in windows(0..PACKETS) {
        let packets: Vec<_> = numbers
            .iter()
            .zip(lengths.iter().cycle())
            .map(|(number, length)| bench.to_near(*length).frame(*number))
            .collect();
        send(&mut from.socket, &packets);
        receive(&mut to.socket, &packets.iter().step_by(2).cloned().collect::<Vec<_>>());
    }
    nothing_comes(&mut to.socket);
    settle(&mut from.socket);
    let kernel = to.socket.statistics().unwrap().kernel;
    assert_eq!(kernel.rx_dropped, PACKETS / 2, "{kernel:?}");
    assert_eq!((kernel.rx_ring_full, kernel.rx_fill_ring_empty_descs), (Some(0), Some(0)));
    from.close();
    to.close();
    Outcome::Passed
}

fn full_rx_ring(mode: &'static Mode) -> Outcome {
    const ROOM: u64 = 64;
    let bench = Bench::new(mode);
    let mut from = bench.sender();
    let mut to = bench.receiver_of(UmemConfig::new(1024), rings(512).rx(ring(64)));
    let series = bench.to_near(LENGTH);
    flood(&mut from, &to, &series);
    receive(&mut to.socket, &(0..ROOM).map(|number| series.frame(number)).collect::<Vec<_>>());
    nothing_comes(&mut to.socket);
    let kernel = to.socket.statistics().unwrap().kernel;
    assert_eq!(kernel.rx_ring_full, Some(PACKETS - ROOM), "{kernel:?}");
    assert_eq!((kernel.rx_dropped, kernel.rx_fill_ring_empty_descs), (0, Some(0)), "{kernel:?}");
    adds_up(&to.umem);
    // It goes on as if nothing had been.
    stream((&mut from.socket, &mut to.socket), &series, PACKETS..2 * PACKETS);
    from.close();
    to.close();
    Outcome::Passed
}

fn empty_fill_ring(mode: &'static Mode) -> Outcome {
    const ROOM: u32 = 64;
    let bench = Bench::new(mode);
    let mut from = bench.sender();
    // The kernel gets all frames that there are.
    let mut to = bench.receiver_of(UmemConfig::new(ROOM), rings(512));
    assert_eq!(to.umem.audit().fill, ROOM);
    let series = bench.to_near(LENGTH);
    flood(&mut from, &to, &series);
    let room = u64::from(ROOM);
    receive(&mut to.socket, &(0..room).map(|number| series.frame(number)).collect::<Vec<_>>());
    nothing_comes(&mut to.socket);
    let kernel = to.socket.statistics().unwrap().kernel;
    assert_eq!(kernel.rx_fill_ring_empty_descs, Some(PACKETS - room), "{kernel:?}");
    // In copy mode both count.
    assert_eq!((kernel.rx_dropped, kernel.rx_ring_full), (PACKETS - room, Some(0)), "{kernel:?}");
    adds_up(&to.umem);
    // It goes on as if nothing had been, as soon as the ring is filled again.
    for first in (PACKETS..2 * PACKETS).step_by(32) {
        stream((&mut from.socket, &mut to.socket), &series, first..first + 32);
        nothing_waits(&mut to.socket);
    }
    from.close();
    to.close();
    Outcome::Passed
}

/// Looks once, so that the Fill ring gets the frames of packets that are gone.
fn nothing_waits(socket: &mut Socket) {
    let ready = socket.wait(Interest::READABLE, Duration::ZERO).unwrap();
    assert!(ready.timed_out());
}

/// Sends all packets while nobody receives, and waits until all have passed the program.
fn flood(from: &mut End, to: &End, series: &Numbered) {
    for numbers in windows(0..PACKETS) {
        let packets: Vec<_> = numbers.iter().map(|number| series.frame(*number)).collect();
        send(&mut from.socket, &packets);
        let sent = numbers.last().map_or(0, |last| last + 1);
        eventually("all have passed the program", || to.redirected() == sent);
    }
    settle(&mut from.socket);
}
