//! What safe code can do to the crate's accounts, if it wants to. On the fake kernel.

use std::{
    mem, thread,
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
