//! What safe code can do to the crate's accounts, if it wants to. On the fake kernel.

use std::{
    mem,
    ptr::{self, NonNull},
    sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use xskit::{
    Batch, ErrorKind, Interest, Packet, PacketMut, Receiver, Result, RingSize, Sender, Socket,
    SocketConfig, Umem, UmemConfig, fake, ring::Desc, socket::StatisticsReader,
};

fn config() -> SocketConfig {
    let size = |entries| RingSize::new(entries).expect("a power of two");
    SocketConfig::default().rx(size(16)).tx(size(16)).fill(size(32)).completion(size(16))
}

#[track_caller]
fn assert_complete(umem: &Umem) {
    let audit = umem.audit();
    assert!(audit.is_complete(), "{audit}");
}

/// `count` packets to send, each of its number.
fn fill(batch: &mut Batch, count: usize) {
    assert_eq!(batch.alloc(count), count);
    for (number, mut packet) in batch.packets_mut().enumerate() {
        packet.write(&[u8::try_from(number).expect("few packets"); 60]).expect("60 bytes fit");
    }
}

#[test]
fn what_may_go_to_other_threads() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    send::<Socket>();
    send::<Receiver>();
    send::<Sender>();
    send::<Batch>();
    send::<PacketMut<'_>>();
    send::<Packet<'_>>();
    sync::<Packet<'_>>();
    send::<Umem>();
    sync::<Umem>();
    send::<fake::Kernel>();
    sync::<fake::Kernel>();
    send::<StatisticsReader>();
    sync::<StatisticsReader>();
}

/// Frames of one UMEM must not get into the rings of another's socket by way of an exchanged half.
#[test]
fn halves_exchanged_between_two_umems() -> Result<()> {
    let (ours, others) = (UmemConfig::new(64).build()?, UmemConfig::new(64).build()?);
    let (mut a, kernel_a) = fake::socket(&ours, &config())?;
    let (mut b, kernel_b) = fake::socket(&others, &config())?;
    // Completed frames of `ours` in the sender's cache, not in the batch.
    let mut batch = ours.batch(16);
    fill(&mut batch, 16);
    a.send(&mut batch)?;
    kernel_a.transmit(16);
    drop(batch);
    a.split_mut().1.reap()?;
    // All frames of `others` that are not with the kernel are in a batch.
    let mut held = others.batch(64);
    assert_eq!(held.alloc(64), 32);
    for mut packet in held.packets_mut() {
        packet.write(b"held").expect("4 bytes");
    }
    mem::swap(a.split_mut().0, b.split_mut().0);
    // `a` now receives as `b`.
    let mut taken = others.batch(32);
    for _ in 0..4 {
        while kernel_b.deliver(b"fresh") {}
        a.recv(&mut taken)?;
        a.wait(Interest::BOTH, Duration::ZERO)?.timed_out();
        assert_complete(&ours);
        assert_complete(&others);
    }
    assert!(held.packets().all(|packet| packet.head() == b"held"), "nobody wrote into our frames");
    assert_eq!(kernel_b.fill_level(), 0, "`others` has no frame left");
    let error = a.share_queue(&config()).expect_err("no socket of its own");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    // The descriptor level counts on each half's own accounts.
    let addresses: Vec<u64> = {
        let mut rings = b.rings();
        kernel_a.deliver(b"x");
        let mut rx = rings.rx().expect("it receives");
        let peeked = rx.peek(1);
        let addresses = peeked.iter().map(|desc| desc.addr).collect();
        peeked.release();
        addresses
    };
    assert_eq!((ours.audit().detached, others.audit().detached), (1, 0));
    // SAFETY: out of the RX ring just now.
    #[expect(unsafe_code, reason = "the descriptor level")]
    unsafe {
        xskit::ring::attach(&ours, &addresses);
    }
    drop((held, taken, a, b));
    for umem in [&ours, &others] {
        let audit = umem.audit();
        assert!(audit.is_complete() && audit.free + audit.quarantine == 64, "{audit}");
    }
    Ok(())
}

/// Descriptors that the kernel refuses and does not complete, as some kernels do: off the account once we
/// say so, and the frames of packets that were still on their way at the end are not mistaken.
#[test]
fn refused_descriptors_are_no_frames() -> Result<()> {
    let umem = UmemConfig::new(64).build()?;
    let (mut socket, kernel) = fake::socket(&umem, &config())?;
    let mut rings = socket.rings();
    let mut tx = rings.tx().expect("it sends");
    let mut slots = tx.reserve(3).expect("an empty ring");
    let outside = Desc { addr: 1 << 62, len: 60, options: 0 };
    // SAFETY: they name no frame.
    #[expect(unsafe_code, reason = "the descriptor level")]
    unsafe {
        slots.write(&[outside; 3]);
    }
    slots.submit();
    drop(rings);
    assert!(kernel.transmit(3).is_empty());
    assert_eq!(socket.statistics()?.kernel.tx_invalid_descs, 3);
    let audit = umem.audit();
    assert_eq!((audit.tx, audit.sum()), (3, 64 + 3), "{audit}");
    socket.rings().refused(3);
    assert_complete(&umem);
    assert_eq!((umem.audit().tx, umem.audit().detached), (0, 0));

    let mut batch = umem.batch(8);
    fill(&mut batch, 8);
    socket.send(&mut batch)?;
    drop((batch, socket));
    let audit = umem.audit();
    assert_eq!((audit.free, audit.quarantine), (64 - 32 - 8, 32 + 8), "{audit}");
    Ok(())
}

/// More comes back than was given: counted as lost, and neither reception nor the end is harmed.
#[test]
fn more_nonsense_than_frames() -> Result<()> {
    let umem = UmemConfig::new(32).build()?;
    let (mut socket, kernel) = fake::socket(&umem, &config())?;
    let mut held = umem.batch(32);
    while kernel.deliver(b"x") {
        socket.recv(&mut held)?;
    }
    assert_eq!((held.len(), kernel.fill_level()), (32, 0));
    let mut batch = umem.batch(4);
    assert!(kernel.deliver_nonsense(Desc { addr: u64::MAX, len: 1, options: 0 }));
    assert_eq!(socket.recv(&mut batch)?, 0);
    assert!(kernel.complete_nonsense(u64::MAX));
    socket.send(&mut batch)?;
    assert_eq!(socket.statistics()?.lost, 2);
    drop(held);
    socket.recv(&mut batch)?;
    assert_eq!(kernel.fill_level(), 32, "reception goes on");
    drop((socket, batch));
    let audit = umem.audit();
    assert!(audit.free + audit.quarantine <= 32 && audit.quarantine >= 31, "{audit}");
    Ok(())
}

/// A descriptor too long for its chunk may name a chunk of ours: when it is found at the end, its frame must
/// not become free a second time.
#[test]
fn nonsense_left_in_the_ring_at_the_end_frees_nothing() -> Result<()> {
    let umem = UmemConfig::new(64).build()?;
    let (socket, kernel) = fake::socket(&umem, &config())?;
    let mut batch = umem.batch(64);
    assert_eq!(batch.alloc(64), 32);
    for address in 0..16 {
        assert!(kernel.deliver_nonsense(Desc { addr: address * 4096, len: 4097, options: 0 }));
    }
    drop(socket);
    assert_eq!((batch.alloc(64), umem.audit().lost), (0, 16));
    Ok(())
}

/// A look that fails has taken frames all the same.
#[test]
fn a_wait_that_fails_keeps_its_accounts() -> Result<()> {
    // Enough for a cache to keep 16 frames.
    let umem = UmemConfig::new(1024).build()?;
    let (mut socket, kernel) = fake::socket(&umem, &config())?;
    let mut batch = umem.batch(16);
    fill(&mut batch, 16);
    socket.send(&mut batch)?;
    drop(batch);
    let mut rest = umem.batch(1024);
    assert_eq!(rest.alloc(1024), 1024 - 32 - 16);
    let mut held = umem.batch(16);
    while held.room() > 0 && kernel.deliver(b"x") {
        socket.split_mut().0.recv(&mut held)?;
    }
    assert!(kernel.fill_level() < 32);
    kernel.transmit(16);
    kernel.set_needs_wakeup_rx(true);
    kernel.set_link(fake::Link::Down);
    let error = socket.wait(Interest::READABLE, Duration::ZERO).expect_err("the link is down");
    assert_eq!(error.kind(), ErrorKind::LinkDown);
    assert_complete(&umem);
    Ok(())
}

/// What can never come is not waited for.
#[test]
fn nobody_waits_for_ever_for_a_ring_that_is_not_there() -> Result<()> {
    let umem = UmemConfig::new(64).build()?;
    let (mut listener, _kernel) = fake::socket(&umem, &config().receive_only())?;
    let error = listener.wait(Interest::WRITABLE, None).expect_err("no TX ring");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(listener.wait(Interest::BOTH, Duration::ZERO)?.timed_out());
    let (_receiver, mut sender) = listener.into_split();
    assert_eq!(sender.wait(None).expect_err("no TX ring").kind(), ErrorKind::Unsupported);
    let (mut speaker, _kernel) = fake::socket(&umem, &config().send_only())?;
    let error = speaker.wait(Interest::READABLE, None).expect_err("no RX ring");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let (mut receiver, _sender) = speaker.into_split();
    assert_eq!(receiver.wait(None).expect_err("no RX ring").kind(), ErrorKind::Unsupported);
    Ok(())
}

/// Two halves wait on one kernel: an event for one is not swallowed by the other.
#[test]
fn two_halves_wait_at_once() -> Result<()> {
    for _ in 0..20 {
        let umem = UmemConfig::new(64).build()?;
        let (mut socket, kernel) = fake::socket(&umem, &config())?;
        let mut batch = umem.batch(16);
        fill(&mut batch, 16);
        socket.send(&mut batch)?;
        drop(batch);
        let (mut receiver, mut sender) = socket.into_split();
        thread::scope(|scope| {
            let reads = scope.spawn(move || receiver.wait(Duration::from_secs(5)));
            let writes = scope.spawn(move || sender.wait(Duration::from_secs(5)));
            thread::sleep(Duration::from_millis(5));
            let started = Instant::now();
            kernel.deliver(b"x");
            kernel.transmit(16);
            assert!(reads.join().expect("no panic")?);
            assert!(writes.join().expect("no panic")?);
            assert!(started.elapsed() < Duration::from_millis(300), "{:?}", started.elapsed());
            Ok::<(), xskit::Error>(())
        })?;
    }
    Ok(())
}

/// A kernel that has let go of its frames reaches them no more, whatever its handle is asked to do.
#[test]
fn a_kernel_that_is_gone_touches_nothing() -> Result<()> {
    let umem = UmemConfig::new(64).build()?;
    let (socket, alive) = fake::socket(&umem, &config().rx(RingSize::new(32)?))?;
    // Closed, and its kernel goes on: these frames stay in quarantine whatever other kernels do.
    drop(socket);
    let (mut socket, gone) = fake::socket(&umem, &config())?;
    let mut batch = umem.batch(64);
    assert!(gone.deliver(b"in time"));
    socket.recv(&mut batch)?;
    gone.set_link(fake::Link::Gone);
    gone.set_link(fake::Link::Up);
    drop(socket);
    assert_eq!((umem.audit().free, umem.audit().quarantine), (31, 32));
    assert_eq!(batch.alloc(64), 31);
    for mut packet in batch.packets_mut().skip(1) {
        packet.write(&[7; 4096]).expect("a whole chunk");
    }
    for kernel in [&alive, &gone] {
        while kernel.deliver(&[8; 3000]) {}
        kernel.transmit(16);
    }
    let mut ours = batch.packets().skip(1);
    assert!(ours.all(|packet| packet.head() == [7; 4096]), "nobody wrote into our frames");
    assert_complete(&umem);
    Ok(())
}

/// Descriptors said to be refused that never were sent, as many as it takes for a count to wrap: no frame of
/// a batch is taken for one that the kernel has let go of.
#[test]
fn more_refused_than_were_sent() -> Result<()> {
    for sent in [0, 3] {
        for refused in [1, u32::MAX, 1 << 31] {
            let umem = UmemConfig::new(64).build()?;
            let (mut socket, kernel) = fake::socket(&umem, &config().send_only())?;
            let mut batch = umem.batch(8);
            fill(&mut batch, sent);
            socket.send(&mut batch)?;
            assert_eq!(kernel.take(8).len(), sent);
            for _ in 0..2 {
                socket.rings().refused(refused);
            }
            let mut held = umem.batch(64);
            assert_eq!(held.alloc(1), 1);
            held.packets_mut().for_each(|mut packet| packet.write(b"held").expect("4 bytes"));
            kernel.set_link(fake::Link::Gone);
            drop((socket, batch));
            held.alloc(64);
            for mut packet in held.packets_mut().skip(1) {
                packet.write(b"another").expect("7 bytes");
            }
            let first = held.packets().next().expect("the one from before");
            assert_eq!(first.head(), b"held", "nobody else has its frame: {sent}, {refused}");
            assert!(umem.audit().sum() <= 64, "{}", umem.audit());
        }
    }
    Ok(())
}

/// A call that fails as if the interface were gone does not make it so: the kernel reaches its frames on.
#[test]
fn an_errno_is_not_the_end_of_a_device() -> Result<()> {
    let umem = UmemConfig::new(64).build()?;
    let (socket, kernel) = fake::socket(&umem, &config())?;
    kernel.refuse(fake::Call::KickRx, libc::ENXIO);
    drop(socket);
    let mut batch = umem.batch(64);
    batch.alloc(64);
    for mut packet in batch.packets_mut() {
        packet.write(&[7; 4096]).expect("a whole chunk");
    }
    while kernel.deliver(&[8; 3000]) {}
    assert!(batch.packets().all(|packet| packet.head() == [7; 4096]), "nobody wrote into ours");
    assert_complete(&umem);
    Ok(())
}

/// By an old handle a queue is bound again no more than by the newest one.
#[test]
fn a_queue_bound_again_by_a_handle_of_long_ago() -> Result<()> {
    let umem = UmemConfig::new(64).build()?;
    let (socket, oldest) = fake::socket(&umem, &config())?;
    drop(socket);
    let (socket, newer) = oldest.reopen(&umem, &config())?;
    let error = oldest.reopen(&umem, &config()).expect_err("the queue has a socket");
    assert_eq!(error.kind(), ErrorKind::Busy);
    drop(socket);
    let (_socket, _newest) = oldest.reopen(&umem, &config().send_only())?;
    let mut batch = umem.batch(64);
    batch.alloc(64);
    for mut packet in batch.packets_mut() {
        packet.write(&[7; 4096]).expect("a whole chunk");
    }
    while newer.deliver(&[8; 3000]) {}
    assert!(batch.packets().all(|packet| packet.head() == [7; 4096]), "nobody wrote into ours");
    assert_complete(&umem);
    Ok(())
}

/// Memory of the caller's is not freed while the kernel may have frames in it, whatever is said of them.
#[test]
fn adopted_memory_outlives_frames_said_to_be_refused() -> Result<()> {
    const BYTES: usize = 4 * 4096;
    #[repr(align(4096))]
    struct Pages(#[expect(dead_code, reason = "reached by its address")] [u8; BYTES]);
    /// Where the memory is that is there for ever: it is no leak for whoever looks for some. For the same
    /// reason its owner, which the UMEM must not drop, takes no memory.
    static KEPT: [AtomicPtr<u8>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    struct Owner;
    impl Drop for Owner {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }
    for (kept, refused) in KEPT.iter().zip([false, true]) {
        let start: NonNull<u8> = NonNull::from(Box::leak(Box::new(Pages([0; BYTES])))).cast();
        kept.store(start.as_ptr(), Ordering::Relaxed);
        let before = DROPPED.load(Ordering::Relaxed);
        // SAFETY: initialised, there for ever, and used by nobody else.
        #[expect(unsafe_code, reason = "memory of the caller's")]
        let umem = unsafe { UmemConfig::new(4).adopt(start, BYTES, Owner) }?;
        let (mut socket, kernel) = fake::socket(&umem, &config().send_only())?;
        let mut batch = umem.batch(8);
        fill(&mut batch, 3);
        socket.send(&mut batch)?;
        if refused {
            // In truth the kernel has it still.
            assert_eq!(kernel.take(8).len(), 3);
            socket.rings().refused(3);
        } else {
            assert_eq!(kernel.transmit(8).len(), 3);
        }
        drop((socket, kernel, batch, umem));
        assert_eq!(DROPPED.load(Ordering::Relaxed) == before, refused);
    }
    Ok(())
}

/// A frame that is sent and comes home by another socket of the queue, before the one that sent it has gone on.
/// Who finds nothing to do lets the others run: memcheck runs one thread at a time.
#[test]
fn frames_come_home_faster_than_they_are_sent() -> Result<()> {
    const PACKETS: usize = 20_000;
    let umem = UmemConfig::new(64).build()?;
    let (mut sends, kernel) = fake::socket(&umem, &config().send_only())?;
    let mut reaps = sends.share_queue(&config().send_only())?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if kernel.discard(1) == 0 {
                    thread::yield_now();
                }
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if reaps.split_mut().1.reap().expect("the link is up") == 0 {
                    thread::yield_now();
                }
            }
        });
        let mut batch = umem.batch(1);
        let mut sent = 0;
        while sent < PACKETS && !thread::panicking() {
            batch.alloc(1);
            batch.packets_mut().for_each(|mut packet| packet.write(b"x").expect("one byte"));
            match sends.send(&mut batch).expect("the link is up") {
                0 => thread::yield_now(),
                some => sent += some,
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_complete(&umem);
    Ok(())
}

/// A packet whose end has no room in the RX ring, as a device may leave it there: nothing could come in any
/// more, however large the batch.
#[test]
fn a_packet_without_end_does_not_block_the_ring() -> Result<()> {
    let umem = UmemConfig::new(64).build()?;
    let (mut socket, kernel) = fake::socket(&umem, &config().multi_buffer(true))?;
    let continued = Desc { addr: u64::MAX, len: 1, options: 1 };
    let mut batch = umem.batch(64);
    while kernel.deliver_nonsense(continued) {}
    assert_eq!(socket.recv(&mut batch)?, 0);
    assert_eq!((socket.statistics()?.lost, socket.statistics()?.rx_oversized), (16, 1));
    // Its end, and the next packet.
    assert!(kernel.deliver_nonsense(Desc { options: 0, ..continued }));
    assert!(kernel.deliver(b"the next one"));
    assert_eq!(socket.recv(&mut batch)?, 1);
    assert!(batch.packets().all(|packet| packet.head() == b"the next one"));
    assert_eq!(socket.statistics()?.lost, 17);
    Ok(())
}

/// However packets came into a batch, were cut, moved and lengthened: none grows past its chunk's end.
#[test]
fn no_packet_grows_past_its_chunk() -> Result<()> {
    const CHUNKS: u32 = 96;
    let umem = UmemConfig::new(CHUNKS).headroom(40).build()?;
    let (mut socket, kernel) = fake::socket_from(&umem, &config(), u32::MAX - 40)?;
    let mut batches = [umem.batch(16), umem.batch(16), umem.batch(5)];
    let mut random = 0x2545_f491_u32;
    // Xorshift: the test needs variety, not quality.
    let mut draw = |most: usize| {
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        random as usize % (most + 1)
    };
    for _ in 0..20_000 {
        let from = draw(2);
        let to = (from + 1 + draw(1)) % 3;
        let [batch, other] = batches.get_disjoint_mut([from, to]).expect("two of them");
        match draw(9) {
            0 => drop(batch.alloc(draw(4))),
            1 | 2 => {
                for _ in 0..draw(4) {
                    kernel.deliver(&vec![1; 1 + draw(3799)]);
                }
                socket.recv(batch)?;
            }
            3 => drop(batch.append(other)?),
            4 => batch.truncate(draw(16)),
            5 => batch.retain(|packet| packet.trim_front(draw(60)).is_err() || draw(3) > 0),
            6 => drop(batch.split_off(draw(16))),
            7 => {
                socket.send(batch)?;
                kernel.discard(usize::MAX);
            }
            8 => batch.clear(),
            _ => drop(batch.route(std::slice::from_mut(other), |_| draw(1))?),
        }
        // Not always: what is known of all packets of a batch may end with a look at one.
        if draw(2) > 0 {
            continue;
        }
        let touched = draw(16);
        for mut packet in batch.packets_mut().take(touched) {
            let most = packet.max_len();
            assert!(packet.set_len(most + 1).is_err(), "{most} bytes fit");
            packet.set_len(draw(most)).expect("not more than fit");
            let moved = packet.trim_front(draw(100)).or_else(|_| packet.grow_front(draw(80)));
            let most = packet.max_len();
            assert!(packet.set_len(most + 1).is_err(), "{most} bytes fit, {moved:?}");
            assert!(packet.head().len() <= most && most <= 4096, "{most}");
        }
    }
    drop((batches, socket));
    assert_complete(&umem);
    Ok(())
}
