//! Packets of several frames: received whole, built, sent whole, refused. On the fake kernel.

use std::time::{Duration, Instant};

use xskit::{
    Batch, ErrorKind, Interest, Packet, Result, RingSize, Socket, SocketConfig, Step, Umem,
    UmemConfig, fake, ring::Desc,
};

/// What a frame holds of a received packet.
const PART: usize = 3840;

fn config() -> SocketConfig {
    let size = |entries| RingSize::new(entries).expect("a power of two");
    SocketConfig::default()
        .rx(size(32))
        .tx(size(16))
        .fill(size(64))
        .completion(size(32))
        .multi_buffer(true)
}

fn world() -> (Socket, fake::Kernel, Umem) {
    let umem = UmemConfig::new(256).build().expect("256 chunks");
    // Where the indices wrap soon, in the middle of packets.
    let (socket, kernel) = fake::socket_from(&umem, &config(), u32::MAX - 7).expect("a socket");
    (socket, kernel, umem)
}

/// A packet that no other resembles.
fn packet(number: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| u8::try_from((number * 31 + at * 7 + at / 251) % 256).expect("< 256"))
        .collect()
}

fn whole(packet: Packet<'_>) -> Vec<u8> {
    packet.frames().collect::<Vec<_>>().concat()
}

fn contents(batch: &Batch) -> Vec<Vec<u8>> {
    batch.packets().map(whole).collect()
}

fn assert_complete(umem: &Umem) {
    let audit = umem.audit();
    assert!(audit.is_complete(), "{audit}");
}

#[test]
fn packets_of_every_length_go_through_whole() -> Result<()> {
    let (mut socket, kernel, umem) = world();
    let mode = socket.mode();
    assert!(mode.multi_buffer);
    assert_eq!(mode.max_frames, 16, "18, but the TX ring has 16 slots");
    let mut batch = umem.batch(24);
    for (number, len) in
        [1, PART - 1, PART, PART + 1, 9000, 2 * PART, 16 * PART, 60].into_iter().enumerate()
    {
        let sent = packet(number, len);
        assert!(kernel.deliver(&sent));
        assert_eq!(socket.recv(&mut batch)?, 1, "{len}");
        assert_eq!((batch.packet_count(), batch.len()), (1, len.div_ceil(PART)));
        assert_eq!(batch.bytes(), len as u64);
        assert_eq!(contents(&batch), [sent.as_slice()]);
        assert_eq!(socket.send(&mut batch)?, len.div_ceil(PART));
        assert_eq!(kernel.transmit(2), [sent]);
        assert_eq!(kernel.tx_level(), 0);
        assert_complete(&umem);
    }
    assert_eq!(socket.statistics()?.received, 8, "packets, not frames");
    Ok(())
}

#[test]
fn a_batch_never_holds_a_part() -> Result<()> {
    // Every number of frames that fit, against packets of one to four frames.
    for capacity in 1..=12 {
        let (mut socket, kernel, umem) = world();
        let mut batch = umem.batch(capacity);
        let mut next = 0;
        let mut seen = 0;
        let mut dropped = 0;
        let frames = |number: usize| [1, 3, 2, 4, 1][number % 5];
        while next < 200 {
            while next < 200 && kernel.deliver(&packet(next, frames(next) * PART - 5)) {
                next += 1;
            }
            loop {
                let before = batch.packet_count();
                let received = socket.recv(&mut batch)?;
                assert_eq!(batch.packet_count(), before + received);
                assert!(batch.len() <= capacity);
                if batch.is_empty() {
                    break;
                }
                for packet_seen in batch.packets() {
                    while frames(seen) > capacity {
                        seen += 1;
                        dropped += 1;
                    }
                    assert_eq!(whole(packet_seen), packet(seen, frames(seen) * PART - 5));
                    seen += 1;
                }
                batch.clear();
            }
            assert_complete(&umem);
        }
        dropped += (seen..200).count() as u64;
        assert_eq!(socket.statistics()?.rx_oversized, dropped, "batches of {capacity}");
        assert_eq!(dropped, 200 / 5 * (0..5).filter(|n| frames(*n) > capacity).count() as u64);
    }
    Ok(())
}

#[test]
fn a_packet_that_does_not_fit_now_waits_in_the_ring() -> Result<()> {
    let (mut socket, kernel, umem) = world();
    let mut batch = umem.batch(4);
    for number in 0..3 {
        assert!(kernel.deliver(&packet(number, 2 * PART)));
    }
    assert_eq!(socket.recv(&mut batch)?, 2);
    batch.truncate(1);
    assert!(kernel.deliver(&packet(3, 3 * PART)));
    assert_eq!(socket.recv(&mut batch)?, 1);
    assert_eq!(contents(&batch), [packet(0, 2 * PART), packet(2, 2 * PART)]);
    batch.truncate(1);
    assert_eq!(socket.recv(&mut batch)?, 0, "there is room for two frames, it has three");
    batch.clear();
    assert_eq!(socket.recv(&mut batch)?, 1);
    assert_eq!(contents(&batch), [packet(3, 3 * PART)]);
    assert_eq!(socket.statistics()?.rx_oversized, 0);
    assert_complete(&umem);
    Ok(())
}

#[test]
fn one_bad_descriptor_voids_its_packet() -> Result<()> {
    let (mut socket, kernel, umem) = world();
    let mut batch = umem.batch(32);
    let nonsense = [
        Desc { addr: 256 * 4096, len: 60, options: 0 },
        Desc { addr: 4096 + 4000, len: 97, options: 0 },
        Desc { addr: u64::MAX, len: 1, options: 0 },
    ];
    for (at, desc) in nonsense.into_iter().enumerate() {
        assert!(kernel.deliver(&packet(at, 9000)));
        assert!(kernel.deliver_broken(&packet(90, 9000), at, desc));
    }
    assert!(kernel.deliver(&packet(3, 60)));
    assert_eq!(socket.recv(&mut batch)?, 4);
    let lengths = [9000, 9000, 9000, 60].into_iter().enumerate();
    let expected: Vec<_> = lengths.map(|(number, len)| packet(number, len)).collect();
    assert_eq!(contents(&batch), expected);
    assert_eq!(socket.statistics()?.lost, 3, "the other frames of these packets are recycled");
    assert_eq!(umem.audit().lost, 3);
    assert_complete(&umem);
    Ok(())
}

#[test]
fn batches_are_cut_at_packets() -> Result<()> {
    let (mut socket, kernel, umem) = world();
    let mut batch = umem.batch(32);
    for number in 0..6 {
        assert!(kernel.deliver(&packet(number, if number % 2 == 0 { 9000 } else { 60 })));
    }
    assert_eq!(socket.recv(&mut batch)?, 6);
    assert_eq!(batch.len(), 12);
    let rest = batch.split_off(3);
    assert_eq!((batch.len(), rest.len()), (7, 5));
    let mut small = [umem.batch(4)];
    // Room for one of the two long ones.
    assert_eq!(batch.route(&mut small, |packet| usize::from(packet.len() < 100))?, 1);
    assert_eq!(contents(&small[0]), [packet(0, 9000)]);
    assert_eq!(contents(&batch), [packet(1, 60), packet(2, 9000)]);
    batch.retain(|packet| packet.len() > 100);
    assert_eq!(contents(&batch), [packet(2, 9000)]);
    let mut rest = rest;
    assert_eq!(batch.append(&mut rest)?, 3);
    assert_eq!(batch.packet_count(), 4);
    assert_complete(&umem);
    Ok(())
}

#[test]
fn packets_are_built_of_as_many_frames_as_they_take() -> Result<()> {
    let umem = UmemConfig::new(256).headroom(96).build()?;
    let (mut socket, kernel) = fake::socket(&umem, &config())?;
    let mut batch = umem.batch(16);
    for len in [0, 1, 4000, 4001, 8000, 9000, 64_000] {
        let content = packet(len, len);
        let mut built = batch.alloc_packet(len).expect("room");
        assert_eq!((built.len(), built.frames().len()), (len, len.div_ceil(4000).max(1)));
        built.write(&content).expect("the length it has");
        if len == 0 {
            batch.clear();
            continue;
        }
        socket.send(&mut batch)?;
        assert_eq!(kernel.transmit(1), [content]);
    }
    assert!(batch.alloc_packet(64_001).is_none(), "17 frames");
    assert!(batch.is_empty());
    assert!(umem.batch(300).alloc_packet(257 * 4000).is_none(), "more frames than there are");
    assert_complete(&umem);
    // A header is put before it, and bytes are taken off its end.
    let mut built = batch.alloc_packet(9000).expect("room");
    built.write(&packet(1, 9000)).expect("fits");
    built.grow_front(14).expect("the headroom");
    built.head_mut()[..14].fill(0xee);
    built.set_len(8990).expect("shorter");
    assert_eq!(built.len(), 8990);
    socket.send(&mut batch)?;
    let expected = [&[0xee; 14], &packet(1, 9000)[..8976]].concat();
    assert_eq!(kernel.transmit(1), [expected]);
    Ok(())
}

#[test]
fn never_half_of_a_packet_is_sent() -> Result<()> {
    let (mut socket, kernel, umem) = world();
    let mut batch = umem.batch(64);
    // 16 slots: five packets of three frames.
    for number in 0..8 {
        let mut built = batch.alloc_packet(9000).expect("room");
        built.write(&packet(number, 9000)).expect("fits");
    }
    assert_eq!(socket.send(&mut batch)?, 15);
    assert_eq!(socket.send(&mut batch)?, 0, "one slot is free, and three are needed");
    assert!(socket.wait(Interest::WRITABLE, Duration::ZERO)?.timed_out(), "no room for a packet");
    let expected: Vec<_> = (0..2).map(|number| packet(number, 9000)).collect();
    assert_eq!(kernel.transmit(2), expected);
    assert!(socket.wait(Interest::WRITABLE, Duration::ZERO)?.writable());
    assert_eq!(socket.send(&mut batch)?, 6);
    let expected: Vec<_> = (2..7).map(|number| packet(number, 9000)).collect();
    assert_eq!(kernel.transmit(9), expected);
    socket.send(&mut batch)?;
    assert!(batch.is_empty());
    assert_eq!(kernel.transmit(9), [packet(7, 9000)]);
    assert_complete(&umem);
    Ok(())
}

#[test]
fn waiting_for_room_for_the_largest_packet_does_not_spin() -> Result<()> {
    let (mut socket, kernel, umem) = world();
    let mut batch = umem.batch(64);
    for len in [60, 16 * 4096] {
        batch.alloc_packet(len).expect("room");
    }
    assert_eq!(socket.send(&mut batch)?, 1);
    let before = kernel.kicks().poll;
    let started = Instant::now();
    assert!(socket.wait(Interest::WRITABLE, Duration::from_millis(50))?.timed_out());
    assert!(started.elapsed() >= Duration::from_millis(50));
    assert!(kernel.kicks().poll - before <= 60, "about once a millisecond");
    assert_eq!(kernel.transmit(1).len(), 1);
    assert!(socket.wait(Interest::WRITABLE, Duration::from_secs(5))?.writable());
    assert_eq!(socket.send(&mut batch)?, 16);
    assert_complete(&umem);
    Ok(())
}

#[test]
fn packets_of_too_many_frames_are_recycled_not_sent() -> Result<()> {
    let (mut socket, kernel, umem) = world();
    let mut batch = umem.batch(64);
    for (number, len) in [9000, 17 * 4096, 60, 20 * 4096].into_iter().enumerate() {
        let mut built = batch.alloc_packet(len).expect("room");
        built.write(&packet(number, len)).expect("fits");
    }
    assert_eq!(socket.send(&mut batch)?, 4);
    assert!(batch.is_empty());
    assert_eq!(kernel.transmit(9), [packet(0, 9000), packet(2, 60)]);
    assert_eq!(socket.statistics()?.tx_refused, 2);
    // Likewise one of which a frame is empty.
    let mut built = batch.alloc_packet(9000).expect("room");
    built.set_len(8192).expect("the third frame has no bytes then");
    assert_eq!(socket.send(&mut batch)?, 0);
    assert!(batch.is_empty());
    assert_eq!(socket.statistics()?.tx_refused, 3);
    assert_complete(&umem);
    Ok(())
}

#[test]
fn sockets_without_it_refuse_such_packets() -> Result<()> {
    let umem = UmemConfig::new(256).build()?;
    let (mut socket, kernel) = fake::socket(&umem, &config().multi_buffer(false))?;
    let mode = socket.mode();
    assert_eq!((mode.multi_buffer, mode.max_frames), (false, 1));
    assert!(!kernel.deliver(&packet(0, 9000)), "longer than a frame");
    assert_eq!(socket.statistics()?.kernel.rx_dropped, 1);
    let mut batch = umem.batch(16);
    batch.alloc(1);
    batch.packets_mut().for_each(|mut packet| packet.write(b"short").expect("fits"));
    batch.alloc_packet(9000).expect("room");
    let error = socket.send(&mut batch).expect_err("three frames");
    assert_eq!((error.step(), error.kind()), (Step::Send, ErrorKind::Unsupported));
    assert!(error.to_string().contains("multi_buffer"), "{error}");
    assert_eq!(batch.packet_count(), 2, "the batch is as it was");
    // Without that packet it goes.
    batch.truncate(1);
    assert_eq!(socket.send(&mut batch)?, 1);
    assert_eq!(kernel.transmit(9), [b"short"]);
    Ok(())
}

#[test]
fn rings_with_too_little_room_drop_whole_packets() -> Result<()> {
    let (mut socket, kernel, umem) = world();
    let mut batch = umem.batch(64);
    let mut delivered = 0;
    while kernel.deliver(&packet(delivered, 9000)) {
        delivered += 1;
    }
    assert_eq!(delivered, 10, "32 slots");
    assert_eq!(socket.recv(&mut batch)?, 10);
    let expected: Vec<_> = (0..10).map(|number| packet(number, 9000)).collect();
    assert_eq!(contents(&batch), expected);
    assert_complete(&umem);
    Ok(())
}
