//! What a batch knows of its packets and does with the frames of those that were dropped. On the fake kernel.

use xskit::{Batch, Result, RingSize, Socket, SocketConfig, Umem, UmemConfig, fake};

const HEADROOM: u32 = 64;

fn world() -> Result<(Socket, fake::Kernel, Umem)> {
    let umem = UmemConfig::new(64).headroom(HEADROOM).build()?;
    let ring = RingSize::new(32)?;
    let config = SocketConfig::default().rx(ring).tx(ring).fill(ring).completion(ring);
    let (socket, kernel) = fake::socket(&umem, &config)?;
    Ok((socket, kernel, umem))
}

fn received(socket: &mut Socket, kernel: &fake::Kernel, batch: &mut Batch) -> Result<()> {
    for _ in 0..5 {
        assert!(kernel.deliver(&[1; 60]));
    }
    assert_eq!(socket.recv(batch)?, 5);
    Ok(())
}

/// Each packet can become as long as its chunk allows, whatever the batch thinks, and not longer.
fn check_lengths(batch: &mut Batch) {
    for mut packet in batch.packets_mut() {
        let most = packet.max_len();
        packet.set_len(most + 1).expect_err("past its chunk");
        packet.set_len(most).expect("to its chunk's end");
        packet.set_len(60).expect("shorter");
    }
}

/// Takes a different number of bytes off the front of each.
fn trim(batch: &mut Batch) {
    for (number, mut packet) in batch.packets_mut().enumerate() {
        packet.trim_front(number + 1).expect("60 bytes");
        let most = packet.max_len();
        packet.set_len(most + 1).expect_err("past its chunk, in the same round");
        packet.set_len(60).expect("there is room");
    }
}

#[test]
fn no_packet_grows_past_its_chunk() -> Result<()> {
    let (mut socket, kernel, umem) = world()?;
    let mut batch = umem.batch(32);
    // Packets to send begin after the headroom, received ones 256 bytes later.
    assert_eq!(batch.alloc(5), 5);
    check_lengths(&mut batch);
    batch.packets_mut().for_each(|mut packet| packet.set_len(60).expect("60 bytes fit"));
    trim(&mut batch);
    check_lengths(&mut batch);
    received(&mut socket, &kernel, &mut batch)?;
    check_lengths(&mut batch);

    // What comes from other batches brings its own limits.
    for trimmed in [false, true] {
        let (mut sent, mut got) = (umem.batch(8), umem.batch(8));
        assert_eq!(sent.alloc(3), 3);
        sent.packets_mut().for_each(|mut packet| packet.set_len(60).expect("60 bytes fit"));
        received(&mut socket, &kernel, &mut got)?;
        if trimmed {
            trim(&mut got);
        }
        sent.append(&mut got)?;
        check_lengths(&mut sent);
        let mut rest = sent.split_off(4);
        assert_eq!((sent.packet_count(), rest.packet_count()), (4, 4));
        check_lengths(&mut rest);
        check_lengths(&mut sent);
        let mut target = [umem.batch(8)];
        assert_eq!(target[0].alloc(1), 1);
        sent.route(&mut target, |packet| {
            packet.trim_front(2).expect("60 bytes");
            usize::from(packet.len() % 2 == 1)
        })?;
        check_lengths(&mut sent);
        check_lengths(&mut target[0]);
    }

    // A batch that has been emptied starts anew.
    batch.clear();
    assert_eq!(batch.alloc(5), 5);
    check_lengths(&mut batch);
    assert!(umem.audit().is_complete());
    Ok(())
}

/// A packet whose length was moved in the same round as its front.
#[test]
fn a_trimmed_packet_knows_its_room() -> Result<()> {
    let umem = UmemConfig::new(1).build()?;
    let mut batch = umem.batch(1);
    assert_eq!(batch.alloc(1), 1);
    for mut packet in batch.packets_mut() {
        packet.set_len(4096).expect("the whole chunk");
        packet.trim_front(1000).expect("it has as many");
        packet.set_len(4096).expect_err("past its chunk");
        packet.set_len(3096).expect("to its chunk's end");
    }
    for mut packet in batch.packets_mut() {
        packet.set_len(3097).expect_err("past its chunk");
        packet.grow_front(1000).expect("back to its beginning");
        packet.set_len(4096).expect("the whole chunk");
    }
    Ok(())
}

#[test]
fn dropped_packets_feed_the_fill_ring() -> Result<()> {
    let (mut socket, kernel, umem) = world()?;
    let mut batch = umem.batch(16);
    for count in [16, 3, 16, 1, 9, 16, 2] {
        for _ in 0..count {
            assert!(kernel.deliver(&[1; 60]), "the kernel has frames");
        }
        assert_eq!(socket.recv(&mut batch)?, count);
        assert_eq!(socket.statistics()?.levels.fill, 32, "as many as it shall have");
        batch.clear();
        let audit = umem.audit();
        assert_eq!((audit.free, audit.batch, audit.fill), (32, 0, 32), "{audit}");
    }
    Ok(())
}

/// Frames of dropped packets are found by all who look for free ones.
#[test]
fn dropped_packets_are_spare_frames() -> Result<()> {
    let dropped = || -> Result<(Socket, Batch, Umem)> {
        let (mut socket, kernel, umem) = world()?;
        let mut batch = umem.batch(32);
        // All frames that are not in the Fill ring: the pool is empty.
        while batch.room() > 0 && kernel.deliver(&[1; 60]) {
            socket.recv(&mut batch)?;
        }
        assert_eq!(batch.len(), 32);
        batch.clear();
        Ok((socket, batch, umem))
    };

    let (_socket, mut batch, _umem) = dropped()?;
    assert_eq!(batch.alloc(32), 32);

    let (_socket, mut batch, _umem) = dropped()?;
    assert!(batch.alloc_packet(4 * 4000).is_some());

    let (_socket, mut batch, umem) = dropped()?;
    batch.release_spare();
    assert_eq!(umem.batch(32).alloc(32), 32);

    let (_socket, batch, umem) = dropped()?;
    drop(batch);
    assert_eq!(umem.batch(32).alloc(32), 32);

    let (_socket, mut batch, umem) = dropped()?;
    assert_eq!(xskit::ring::detach(&mut batch).len(), 32);
    assert_eq!(umem.audit().detached, 32);
    Ok(())
}

/// The default cache of a small UMEM has no frames; what comes back stays with the batch all the same.
#[test]
fn a_small_umem_is_not_asked_with_every_batch() -> Result<()> {
    let umem = UmemConfig::new(8).build()?;
    let (mut socket, kernel) = fake::socket(&umem, &SocketConfig::default().send_only())?;
    let mut batch = umem.batch(4);
    let mut settled = 0;
    for round in 0..100 {
        assert_eq!(batch.alloc(4), 4);
        batch.packets_mut().for_each(|mut packet| packet.set_len(60).expect("60 bytes fit"));
        assert_eq!(socket.send(&mut batch)?, 4);
        kernel.discard(usize::MAX);
        if round == 10 {
            settled = umem.pool_exchanges();
        }
    }
    assert_eq!(umem.pool_exchanges(), settled);
    Ok(())
}
