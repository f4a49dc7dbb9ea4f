//! What is asked for packets to send: timestamps that come back, requests that the kernel would choke on.
//! On the fake kernel, whose clock counts the packets that were stamped.

use xskit::{
    ChunkSize, ErrorKind, Result, RingSize, Socket, SocketConfig, Step, Umem, UmemConfig, fake,
    umem::{TxRequest, TxTimestamp},
};

fn config() -> SocketConfig {
    let size = |entries| RingSize::new(entries).expect("a power of two");
    SocketConfig::default().rx(size(16)).tx(size(16)).fill(size(32)).completion(size(16))
}

fn world(umem: UmemConfig) -> Result<(Socket, fake::Kernel, Umem)> {
    let umem = umem.headroom(32).tx_metadata(true).build()?;
    let (socket, kernel) = fake::socket_from(&umem, &config(), u32::MAX - 7)?;
    Ok((socket, kernel, umem))
}

fn stamp(id: u64, nanoseconds: u64) -> (u64, u64) {
    (id, nanoseconds)
}

fn taken(socket: &mut Socket) -> Vec<(u64, u64)> {
    let both = |TxTimestamp { id, nanoseconds }| (id, nanoseconds);
    socket.timestamps().into_iter().map(both).collect()
}

#[test]
fn timestamps_come_back_with_their_numbers() -> Result<()> {
    for size in [ChunkSize::K2, ChunkSize::K4, ChunkSize::unaligned(3001)?] {
        let (mut socket, kernel, umem) = world(UmemConfig::new(64).chunk_size(size))?;
        let mut batch = umem.batch(16);
        let mut clock = 0;
        // Frames are used again, with and without a request.
        for round in 0..50_u8 {
            batch.alloc(8);
            let front = usize::from(round % 33);
            let round = u64::from(round);
            for (number, mut packet) in (0..).zip(batch.packets_mut()) {
                packet.write(&[7; 60]).expect("fits");
                if (number + round) % 3 == 0 {
                    packet.request(TxRequest::new().timestamp(100 * round + number))?;
                }
                // Headers put before it and taken off after that do not matter.
                packet.grow_front(32).expect("the headroom");
                packet.trim_front(front).expect("92 bytes");
            }
            assert_eq!(socket.send(&mut batch)?, 8);
            assert!(taken(&mut socket).is_empty(), "not sent yet");
            let sent = kernel.transmit(16);
            assert!(sent.iter().all(|packet| packet[32 - front..] == [7; 60]));
            socket.split_mut().1.reap()?;
            let asked = (0..8).filter(|number| (number + round) % 3 == 0);
            let expected: Vec<_> = asked
                .map(|number| {
                    clock += 1;
                    stamp(100 * round + number, clock)
                })
                .collect();
            assert_eq!(taken(&mut socket), expected);
        }
        assert!(umem.audit().is_complete());
    }
    Ok(())
}

#[test]
fn a_request_goes_with_the_packet_not_with_the_frame() -> Result<()> {
    let umem = UmemConfig::new(1).tx_metadata(true).build()?;
    let (mut socket, kernel) = fake::socket(&umem, &config().send_only())?;
    let mut batch = umem.batch(1);
    batch.alloc(1);
    batch.packets_mut().for_each(|mut packet| {
        packet.write(&[1; 60]).expect("fits");
        packet.request(TxRequest::new().timestamp(1)).expect("metadata");
    });
    // Dropped, and its frame used again without a request; moved, and it stays.
    batch.clear();
    batch.alloc(1);
    batch.packets_mut().for_each(|mut packet| packet.write(&[2; 60]).expect("fits"));
    socket.send(&mut batch)?;
    kernel.transmit(1);
    socket.split_mut().1.reap()?;
    assert!(taken(&mut socket).is_empty());
    let mut other = umem.batch(1);
    socket.send(&mut other)?;
    assert_eq!(other.alloc(1), 1);
    other.packets_mut().for_each(|mut packet| {
        packet.write(&[3; 60]).expect("fits");
        packet.request(TxRequest::new().timestamp(3)).expect("metadata");
    });
    batch.append(&mut other)?;
    socket.send(&mut batch)?;
    kernel.transmit(1);
    socket.send(&mut batch)?;
    assert_eq!(taken(&mut socket), [stamp(3, 1)]);
    Ok(())
}

#[test]
fn as_many_are_kept_as_the_completion_ring_has_entries() -> Result<()> {
    let (mut socket, kernel, umem) = world(UmemConfig::new(64))?;
    let mut batch = umem.batch(16);
    for number in 0..20 {
        batch.alloc(1);
        for mut packet in batch.packets_mut() {
            packet.write(&[0; 60]).expect("fits");
            packet.request(TxRequest::new().timestamp(number))?;
        }
        socket.send(&mut batch)?;
        kernel.transmit(1);
    }
    socket.send(&mut batch)?;
    let ids: Vec<u64> = socket.timestamps().into_iter().map(|stamp| stamp.id).collect();
    assert_eq!(ids, (4..20).collect::<Vec<_>>());
    assert_eq!(socket.statistics()?.timestamps_lost, 4);
    Ok(())
}

#[test]
fn nothing_grows_into_the_metadata() -> Result<()> {
    let (mut socket, kernel, umem) = world(UmemConfig::new(64))?;
    let mut batch = umem.batch(4);
    batch.alloc(1);
    assert!(kernel.deliver(&[5; 60]));
    socket.recv(&mut batch)?;
    for (mut packet, room) in batch.packets_mut().zip([32, 32 + 256 - 24]) {
        packet.set_len(60).expect("fits");
        let refused = packet.grow_front(room + 1).expect_err("the metadata is there");
        assert_eq!(refused.possible, room);
        packet.grow_front(room).expect("the headroom");
        packet.request(TxRequest::new().timestamp(room as u64))?;
    }
    assert_eq!(socket.send(&mut batch)?, 2);
    assert_eq!(kernel.transmit(2).len(), 2);
    socket.send(&mut batch)?;
    assert_eq!(taken(&mut socket), [stamp(32, 1), stamp(264, 2)]);
    assert_eq!(umem.batch(1).alloc_packet(4096 - 32 - 24).expect("one").frames().len(), 1);
    assert_eq!(umem.batch(2).alloc_packet(4096 - 32 - 23).expect("two").frames().len(), 2);
    Ok(())
}

#[test]
fn what_the_kernel_would_choke_on_is_refused_before() -> Result<()> {
    let (mut socket, kernel, umem) = world(UmemConfig::new(64))?;
    let mut batch = umem.batch(4);
    batch.alloc(2);
    for mut packet in batch.packets_mut() {
        packet.set_len(41).expect("fits");
        let request = TxRequest::new().checksum(34, 6);
        let error = packet.request(request).expect_err("the field ends at byte 42");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        packet.set_len(42).expect("fits");
        packet.request(request)?;
    }
    // Too short afterwards: not sent.
    batch.packets_mut().next().expect("two").set_len(41).expect("fits");
    assert_eq!(socket.send(&mut batch)?, 1);
    assert!(batch.is_empty());
    assert_eq!(socket.statistics()?.tx_refused, 1);
    kernel.transmit(4);

    // No launch time where nobody keeps it: the batch stays.
    assert!(!socket.mode().launch_time);
    batch.alloc(1);
    for mut packet in batch.packets_mut() {
        packet.write(&[0; 60]).expect("fits");
        packet.request(TxRequest::new().launch_time(1))?;
    }
    let error = socket.send(&mut batch).expect_err("no device");
    assert_eq!((error.step(), error.kind()), (Step::Send, ErrorKind::Unsupported));
    assert_eq!(batch.packet_count(), 1);

    // No metadata on a UMEM without.
    let plain = UmemConfig::new(8).build()?;
    let mut batch = plain.batch(1);
    batch.alloc(1);
    let mut packet = batch.packets_mut().next().expect("one");
    let error = packet.request(TxRequest::new().timestamp(1)).expect_err("no metadata");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("tx_metadata"), "{error}");
    Ok(())
}
