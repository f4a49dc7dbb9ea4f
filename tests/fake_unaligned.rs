//! Chunks across the borders of pages: addresses are made plain when they arrive, and no frame is lost or
//! used twice, whatever is done to its packet. On the fake kernel.

use xskit::{
    ChunkSize, ErrorKind, Packet, Pages, Result, RingSize, SocketConfig, Umem, UmemConfig, fake,
    ring::Desc,
};

const SIZES: [u32; 5] = [2048, 2049, 3000, 4001, 4096];

fn config() -> SocketConfig {
    let size = |entries| RingSize::new(entries).expect("a power of two");
    SocketConfig::default().rx(size(32)).tx(size(16)).fill(size(64)).completion(size(32))
}

fn umem(bytes: u32, chunks: u32) -> Result<Umem> {
    UmemConfig::new(chunks).chunk_size(ChunkSize::unaligned(bytes)?).headroom(30).build()
}

fn byte(number: u32) -> u8 {
    u8::try_from(number % 256).expect("a byte")
}

/// An address as the kernel gives it.
fn at(base: u64, offset: u64) -> u64 {
    base | offset << 48
}

fn assert_complete(umem: &Umem) {
    let audit = umem.audit();
    assert!(audit.is_complete(), "{audit}");
}

#[test]
fn packets_go_round_and_round_whatever_is_done_to_them() -> Result<()> {
    for bytes in SIZES {
        let umem = umem(bytes, 131)?;
        let (mut socket, kernel) = fake::socket_from(&umem, &config(), u32::MAX - 7)?;
        let mut batch = umem.batch(16);
        let longest = umem.max_packet_len();
        assert_eq!(longest, bytes - 256 - 30);
        for round in 0..200_u32 {
            for number in 0..8 {
                let content: Vec<u8> = (0..longest).map(|at| byte(at + number + round)).collect();
                assert!(kernel.deliver(&content));
            }
            assert_eq!(socket.recv(&mut batch)?, 8);
            for (number, mut packet) in batch.packets_mut().enumerate() {
                let number = u32::try_from(number).expect("8");
                assert!(
                    packet
                        .head()
                        .iter()
                        .zip(0..)
                        .all(|(seen, at)| *seen == byte(at + number + round))
                );
                // As far to either side as there is, and at the very end of the chunk. The first byte of a
                // chunk of odd size is never sent.
                let (unused, all) = (bytes as usize % 2, 286);
                packet.grow_front(all - unused).expect("the kernel's 256 bytes and the headroom");
                assert_eq!(packet.grow_front(1).expect_err("another chunk").possible, 0);
                packet.trim_front(bytes as usize - unused - 60).expect("all but 60 bytes");
                assert_eq!(packet.max_len(), 60);
                packet.head_mut().fill(byte(number));
            }
            batch.retain(|packet| packet.head()[0] != 3);
            assert_eq!(socket.send(&mut batch)?, 7);
            let sent: Vec<Vec<u8>> =
                [0, 1, 2, 4, 5, 6, 7].iter().map(|number| vec![*number; 60]).collect();
            assert_eq!(kernel.transmit(16), sent);
            assert_complete(&umem);
        }
        assert_eq!(socket.statistics()?.lost, 0);
        drop((socket, batch));
        let audit = umem.audit();
        assert!(audit.is_complete() && audit.free + audit.quarantine == 131, "{audit}");
    }
    Ok(())
}

#[test]
fn packets_of_several_frames_too() -> Result<()> {
    for bytes in SIZES {
        let umem = umem(bytes, 200)?;
        let (mut socket, kernel) = fake::socket(&umem, &config().multi_buffer(true))?;
        let mut batch = umem.batch(16);
        for round in 0..100_u32 {
            let content: Vec<u8> = (0..9000_u32).map(|at| byte(at / 7 + round)).collect();
            assert!(kernel.deliver(&content));
            assert_eq!(socket.recv(&mut batch)?, 1);
            let whole = |packet: Packet<'_>| packet.frames().collect::<Vec<_>>().concat();
            assert_eq!(batch.packets().map(whole).collect::<Vec<_>>(), [content.as_slice()]);
            let mut built = batch.alloc_packet(9000).expect("room");
            built.write(&content).expect("fits");
            socket.send(&mut batch)?;
            assert_eq!(kernel.transmit(2), [content.as_slice(), &content]);
            assert_complete(&umem);
        }
    }
    Ok(())
}

#[test]
fn descriptors_outside_a_chunk_are_lost_not_followed() -> Result<()> {
    let umem = umem(4001, 100)?;
    let (mut socket, kernel) = fake::socket(&umem, &config())?;
    let mut batch = umem.batch(16);
    let end = 100 * 4001;
    for desc in [
        Desc { addr: end, len: 1, options: 0 },
        Desc { addr: at(4001, 4000), len: 2, options: 0 },
        Desc { addr: at(end - 4001, 4001), len: 1, options: 0 },
        Desc { addr: u64::MAX, len: 1, options: 0 },
    ] {
        assert!(kernel.deliver(b"good"));
        assert!(kernel.deliver_nonsense(desc));
    }
    assert!(kernel.complete_nonsense(end) && kernel.complete_nonsense(at(2 * end, 0xffff)));
    assert_eq!(socket.recv(&mut batch)?, 4);
    assert!(batch.packets().all(|packet| packet.head() == b"good"));
    assert_eq!(socket.send(&mut batch)?, 4);
    assert_eq!(socket.statistics()?.lost, 6);
    Ok(())
}

#[test]
fn frames_at_the_descriptor_level_come_back_by_either_address() -> Result<()> {
    let umem = umem(3000, 64)?;
    let (mut socket, kernel) = fake::socket(&umem, &config().receive_only())?;
    for _ in 0..4 {
        assert!(kernel.deliver(b"x"));
    }
    let mut rings = socket.rings();
    let mut rx = rings.rx().expect("it receives");
    let received = rx.peek(4);
    let mut addresses: Vec<u64> = received.iter().map(|desc| desc.addr).collect();
    assert!(addresses.iter().all(|address| address >> 48 == 286), "where the packet begins");
    received.release();
    drop(rings);
    addresses[0] = (addresses[0] & 0xffff_ffff_ffff) + 286;
    // SAFETY: these frames came out of RX just now, and nobody else has them.
    #[allow(unsafe_code, reason = "the descriptor level")]
    unsafe {
        xskit::ring::attach(&umem, &addresses);
    }
    assert_complete(&umem);
    assert_eq!(umem.audit().detached, 0);
    Ok(())
}

#[test]
fn sizes_that_no_kernel_takes_are_refused_by_name() {
    for bytes in [0, 2047, 1 << 20] {
        let error = ChunkSize::unaligned(bytes).expect_err("out of range");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(&bytes.to_string()), "{error}");
    }
    let aligned = ChunkSize::new(3000).expect_err("no power of two");
    assert!(aligned.to_string().contains("unaligned"), "{aligned}");
    let size = ChunkSize::unaligned(2500).expect("fine");
    let config = UmemConfig::new(64).chunk_size(size);
    assert!(config.clone().headroom(2500 - 256 - 448).build().is_ok());
    assert!(config.clone().headroom(2500 - 256 - 447).build().is_err());
    assert!(config.pages(Pages::HugeOrTransparent).build().is_ok());
}

/// The kernel takes any address in a chunk for the chunk: so does the end of a socket.
#[test]
#[allow(unsafe_code, reason = "the descriptor level")]
fn addresses_on_fill_need_not_be_a_chunks_first() -> Result<()> {
    for unaligned in [false, true] {
        let umem = if unaligned { umem(3000, 64)? } else { UmemConfig::new(64).build()? };
        let (mut socket, kernel) = fake::socket(&umem, &config())?;
        while kernel.deliver(&[1; 60]) {}
        let mut rings = socket.rings();
        let mut all = rings.split_mut();
        let rx = all.rx.as_mut().expect("it receives");
        let packets = rx.peek(16);
        let mut slots = all.fill.reserve_up_to(16);
        // SAFETY: the frames came out of RX, and nobody else has them.
        unsafe { slots.write_peeked(&packets, |desc| desc.addr) };
        assert_eq!((slots.submit(), packets.release()), (16, 16));
        drop(rings);
        drop(socket);
        let (socket, _) = kernel.reopen(&umem, &config())?;
        drop(socket);
        let (_socket, _kernel) = kernel.reopen(&umem, &config().send_only())?;
        let mut batch = umem.batch(64);
        assert_eq!(batch.alloc(64), 64, "all are at home");
        for mut packet in batch.packets_mut() {
            packet.set_len(packet.max_len()).expect("that much");
            packet.head_mut().fill(2);
        }
        let (size, first) = (u64::from(umem.chunk_size().bytes()), u64::from(umem.headroom()));
        let mut addrs: Vec<_> = batch.packets().map(|packet| packet.addr()).collect();
        addrs.sort_unstable();
        assert_eq!(addrs, (0..64).map(|chunk| chunk * size + first).collect::<Vec<_>>());
        assert_complete(&umem);
    }
    Ok(())
}
