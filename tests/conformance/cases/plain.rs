//! Packets from one end to the other, in chunks, rings and budgets of several sizes.

use xskit::{ChunkSize, SocketConfig, UmemConfig, ring::Desc};

use crate::{
    Case, Outcome,
    bench::{Bench, LENGTH, PACKETS, nothing_comes, receive, send, stream},
    descriptors::{Frames, completed, default_budget, drain, kick, submit, unsent, wait_completed},
    mode::Mode,
    support::{ring, rings, settle},
};

pub(super) const CASES: &[Case] = &[
    ("send_and_receive_with_chunks_of_4096", |mode| chunks(mode, ChunkSize::K4)),
    ("send_and_receive_with_chunks_of_2048", |mode| chunks(mode, ChunkSize::K2)),
    ("a_single_packet", a_single_packet),
    ("headroom_on_both_sides", headroom),
    ("the_smallest_rings", the_smallest_rings),
    ("one_wakeup_sends_the_default_budget", one_wakeup),
];

fn chunks(mode: &'static Mode, size: ChunkSize) -> Outcome {
    let bench = Bench::new(mode);
    let umem = || UmemConfig::new(1024).chunk_size(size);
    let mut from = bench.sender_of(umem(), rings(512));
    let mut to = bench.receiver_of(umem(), rings(512));
    stream((&mut from.socket, &mut to.socket), &bench.to_near(LENGTH), 0..PACKETS);
    nothing_comes(&mut to.socket);
    let (sent, received) = (from.socket.statistics().unwrap(), to.socket.statistics().unwrap());
    assert_eq!((sent.sent, sent.completed, received.received), (PACKETS, PACKETS, PACKETS));
    assert_eq!((sent.tx_dropped, sent.kernel.tx_invalid_descs), (0, 0), "{sent:?}");
    assert_eq!((received.kernel.rx_dropped, received.kernel.rx_ring_full), (0, Some(0)));
    from.close();
    to.close();
    Outcome::Passed
}

fn a_single_packet(mode: &'static Mode) -> Outcome {
    let bench = Bench::new(mode);
    let (mut from, mut to) = (bench.sender(), bench.receiver());
    stream((&mut from.socket, &mut to.socket), &bench.to_near(LENGTH), 0..1);
    nothing_comes(&mut to.socket);
    from.close();
    to.close();
    Outcome::Passed
}

/// None, some and the most; `receive` looks at where each packet lies.
fn headroom(mode: &'static Mode) -> Outcome {
    let bench = Bench::new(mode);
    for (size, headroom) in
        [(ChunkSize::K4, 64), (ChunkSize::K4, 3392), (ChunkSize::K2, 13), (ChunkSize::K2, 1344)]
    {
        let umem = || UmemConfig::new(1024).chunk_size(size).headroom(headroom);
        let mut from = bench.sender_of(umem(), rings(512));
        let mut to = bench.receiver_of(umem(), rings(512));
        stream((&mut from.socket, &mut to.socket), &bench.to_near(LENGTH), 0..PACKETS);
        nothing_comes(&mut to.socket);
        from.close();
        to.close();
    }
    Outcome::Passed
}

/// Rings of one entry: each packet has to be taken before the next.
fn the_smallest_rings(mode: &'static Mode) -> Outcome {
    let bench = Bench::new(mode);
    let mut from = bench.sender_of(UmemConfig::new(4), rings(1));
    let mut to = bench.receiver_of(UmemConfig::new(4), rings(1));
    let series = bench.to_near(LENGTH);
    for number in 0..PACKETS / 8 {
        let packets = [series.frame(number)];
        send(&mut from.socket, &packets);
        receive(&mut to.socket, &packets);
    }
    settle(&mut from.socket);
    from.close();
    to.close();
    Outcome::Passed
}

fn one_wakeup(mode: &'static Mode) -> Outcome {
    const MORE_THAN_BUDGET: usize = 33;
    let bench = Bench::new(mode);
    let config = SocketConfig::default().tx(ring(64));
    let mut from = bench.sender_of(UmemConfig::new(64), config);
    let mut to = bench.receiver();
    let budget = default_budget(&from.socket).unwrap();
    let series = bench.to_near(LENGTH);
    let packets: Vec<_> = (0..33).map(|number| series.frame(number)).collect();
    let frames = Frames::new(&from.umem, &packets);
    let desc = |addr: &u64| Desc { addr: *addr, len: 64, options: 0 };
    submit(&mut from.socket, &frames.chunks.iter().map(desc).collect::<Vec<_>>());
    assert_eq!(unsent(&mut from.socket), MORE_THAN_BUDGET, "nobody has called the kernel");
    let error = kick(&from.socket).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    let moved = MORE_THAN_BUDGET - unsent(&mut from.socket);
    receive(&mut to.socket, &packets[..budget as usize]);
    nothing_comes(&mut to.socket);
    assert!(drain(&mut from.socket).is_empty(), "all are valid");
    receive(&mut to.socket, &packets[budget as usize..]);
    wait_completed(&mut from.socket, MORE_THAN_BUDGET);
    assert!(completed(&mut from.socket).is_empty());
    frames.attach();
    from.close();
    to.close();
    // Kernels before 6.17 publish what they took from the ring when they look at it the next time.
    assert!(moved == budget as usize || moved == 0, "the consumer has moved by {moved}");
    Outcome::Saw(format!("{budget} packets were sent, and the consumer had moved by {moved}"))
}
