//! What a socket does when the kernel does not do what one hopes for. On the fake kernel.

use std::{
    thread,
    time::{Duration, Instant},
};

use nix::errno::Errno;
use xskit::{
    Batch, ErrorKind, Interest, Result, RingSize, Socket, SocketConfig, Step, Umem, UmemConfig,
    fake, ring::Desc, socket::BusyPoll,
};

const SHORT: Duration = Duration::from_millis(20);

fn config() -> SocketConfig {
    let size = |entries| RingSize::new(entries).expect("a power of two");
    SocketConfig::default().rx(size(16)).tx(size(16)).fill(size(32)).completion(size(16))
}

fn world() -> (Socket, fake::Kernel, Batch, Umem) {
    let umem = UmemConfig::new(64).headroom(32).build().expect("64 chunks");
    // Where the indices wrap soon.
    let (socket, kernel) =
        fake::socket_from(&umem, &config(), u32::MAX - 7).expect("a fake socket");
    (socket, kernel, umem.batch(16), umem)
}

/// `count` packets to send, each of its number.
fn fill(batch: &mut Batch, count: usize) {
    let before = batch.packet_count();
    assert_eq!(batch.alloc(count), count);
    for (number, mut packet) in batch.packets_mut().enumerate().skip(before) {
        packet.write(&[u8::try_from(number).expect("few packets"); 60]).expect("60 bytes fit");
    }
}

fn assert_complete(umem: &Umem) {
    let audit = umem.audit();
    assert!(audit.is_complete(), "{audit}");
}

#[test]
fn completions_come_back_whatever_their_offset() -> Result<()> {
    let (mut socket, kernel, mut batch, umem) = world();
    // With the headroom of 32 and some trimming, no address is its chunk's first.
    for _ in 0..20 {
        fill(&mut batch, 16);
        for mut packet in batch.packets_mut() {
            assert_eq!(packet.max_len(), 4096 - 32, "it begins where each packet begins");
            packet.trim_front(7).expect("60 bytes");
        }
        assert_eq!(socket.send(&mut batch)?, 16);
        assert_eq!(kernel.transmit(16).len(), 16);
        assert_complete(&umem);
    }
    socket.send(&mut batch)?;
    let statistics = socket.statistics()?;
    assert_eq!((statistics.sent, statistics.completed), (320, 320));
    drop((socket, batch));
    // All but what lay in the Fill ring, which nobody has seen the kernel give up.
    let audit = umem.audit();
    assert_eq!((audit.free, audit.quarantine), (32, 32), "{audit}");
    Ok(())
}

#[test]
fn descriptors_that_make_no_sense_are_lost_not_followed() -> Result<()> {
    let (mut socket, kernel, mut batch, umem) = world();
    let end = 64 * 4096;
    let nonsense = [
        Desc { addr: end, len: 1, options: 0 },
        Desc { addr: u64::MAX, len: 60, options: 0 },
        Desc { addr: 4096 * 3 + 4000, len: 97, options: 0 },
        Desc { addr: 0, len: u32::MAX, options: 0 },
    ];
    for (number, desc) in nonsense.into_iter().enumerate() {
        assert!(kernel.deliver(&[u8::try_from(number).expect("4"); 60]));
        assert!(kernel.deliver_nonsense(desc));
    }
    assert_eq!(socket.recv(&mut batch)?, 4);
    let firsts: Vec<u8> = batch.packets().map(|packet| packet.head()[0]).collect();
    assert_eq!(firsts, [0, 1, 2, 3], "the good ones, in order");
    assert_eq!(socket.statistics()?.lost, 4);
    assert_eq!(umem.audit().lost, 4);

    assert!(kernel.complete_nonsense(end) && kernel.complete_nonsense(u64::MAX));
    assert_eq!(socket.send(&mut batch)?, 4);
    assert_eq!(socket.statistics()?.lost, 6);
    kernel.transmit(4);
    socket.send(&mut batch)?;
    assert_eq!(socket.statistics()?.completed, 4);
    Ok(())
}

#[test]
fn a_batch_of_another_umem_stays_as_it_is() -> Result<()> {
    let (mut socket, kernel, _, umem) = world();
    let other = UmemConfig::new(8).build()?;
    let mut batch = other.batch(8);
    fill(&mut batch, 3);
    kernel.deliver(b"x");
    for (step, outcome) in
        [(Step::Send, socket.send(&mut batch)), (Step::Receive, socket.recv(&mut batch))]
    {
        let error = outcome.expect_err("the batch is another UMEM's");
        assert_eq!((error.step(), error.kind()), (step, ErrorKind::WrongUmem));
        assert_eq!(batch.packet_count(), 3);
    }
    let mut ours = umem.batch(8);
    assert_eq!(ours.append(&mut batch).expect_err("too").kind(), ErrorKind::WrongUmem);
    let routed = batch.route(&mut [ours], |_| 0);
    assert_eq!(routed.expect_err("too").kind(), ErrorKind::WrongUmem);
    assert_eq!(batch.packet_count(), 3);
    assert_complete(&other);
    Ok(())
}

#[test]
fn packets_without_bytes_are_recycled_not_sent() -> Result<()> {
    let (mut socket, kernel, mut batch, umem) = world();
    fill(&mut batch, 5);
    for mut packet in batch.packets_mut() {
        if packet.head()[0] % 2 == 1 {
            packet.set_len(0).expect("shrinks");
        }
    }
    assert_eq!(socket.send(&mut batch)?, 3);
    assert!(batch.is_empty());
    let firsts: Vec<u8> = kernel.transmit(16).iter().map(|packet| packet[0]).collect();
    assert_eq!(firsts, [0, 2, 4]);
    assert_eq!(socket.statistics()?.tx_refused, 2);
    assert_complete(&umem);
    // Nothing but empty packets: the batch is empty afterwards too, and no loop around it hangs.
    batch.alloc(4);
    assert_eq!(socket.send(&mut batch)?, 0);
    assert!(batch.is_empty());
    Ok(())
}

#[test]
fn what_does_not_fit_waits_in_order() -> Result<()> {
    let (mut socket, kernel, mut batch, umem) = world();
    fill(&mut batch, 16);
    assert_eq!(socket.send(&mut batch)?, 16);
    fill(&mut batch, 8);
    assert_eq!(socket.send(&mut batch)?, 0, "the ring is full");
    kernel.transmit(3);
    assert_eq!(socket.send(&mut batch)?, 3);
    assert_eq!(batch.packet_count(), 5);
    let seen: Vec<u8> = batch.packets().map(|packet| packet.head()[0]).collect();
    assert_eq!(seen, [3, 4, 5, 6, 7]);
    assert_complete(&umem);
    Ok(())
}

#[test]
fn calls_are_made_when_the_flag_asks_and_only_then() -> Result<()> {
    let (mut socket, kernel, mut batch, _) = world();
    fill(&mut batch, 1);
    kernel.set_needs_wakeup_tx(false);
    socket.send(&mut batch)?;
    assert_eq!(kernel.kicks().tx, 0, "the kernel is awake");
    // It falls asleep after we looked: the next call finds the flag, with nothing to send.
    kernel.set_needs_wakeup_tx(true);
    socket.send(&mut batch)?;
    assert_eq!(kernel.kicks().tx, 1);
    kernel.transmit(1);
    socket.send(&mut batch)?;
    assert_eq!(kernel.kicks().tx, 1, "there is nothing to send");
    // The same for the Fill ring, on receive.
    socket.recv(&mut batch)?;
    assert_eq!(kernel.kicks().rx, 0);
    kernel.set_needs_wakeup_rx(true);
    socket.recv(&mut batch)?;
    assert_eq!(kernel.kicks().rx, 1);
    Ok(())
}

#[test]
fn without_the_flag_every_send_calls() -> Result<()> {
    let umem = UmemConfig::new(64).build()?;
    let (mut socket, kernel) = fake::socket(&umem, &config().need_wakeup(false))?;
    kernel.set_needs_wakeup_tx(false);
    let mut batch = umem.batch(4);
    for calls in 1..=3 {
        fill(&mut batch, 1);
        socket.send(&mut batch)?;
        assert_eq!(kernel.kicks().tx, calls);
    }
    Ok(())
}

#[test]
fn a_call_that_took_part_is_repeated_at_once() -> Result<()> {
    let (mut socket, kernel, mut batch, umem) = world();
    // Five a call: four calls for sixteen, as the kernel answers EAGAIN with the rest still there.
    kernel.transmit_on_kick(5);
    fill(&mut batch, 16);
    assert_eq!(socket.send(&mut batch)?, 16);
    assert_eq!((kernel.sent().len(), kernel.kicks().tx), (16, 4));
    assert_complete(&umem);
    Ok(())
}

#[test]
fn a_call_that_could_not_is_owed_and_paid() -> Result<()> {
    for errno in [Errno::EAGAIN, Errno::ENOBUFS] {
        let (mut socket, kernel, mut batch, umem) = world();
        kernel.refuse(fake::Call::KickTx, errno as i32);
        fill(&mut batch, 4);
        assert_eq!(socket.send(&mut batch)?, 4, "they are queued: {errno}");
        assert_eq!(kernel.kicks().tx, 1, "without progress it is not tried again at once");
        kernel.transmit_on_kick(16);
        // Waiting for packets pays it, though nothing is to be sent any more.
        assert!(socket.wait(Interest::READABLE, SHORT)?.timed_out());
        assert_eq!(kernel.sent().len(), 4, "{errno}");
        assert_complete(&umem);
    }
    Ok(())
}

#[test]
fn a_packet_that_the_kernel_drops_is_counted() -> Result<()> {
    let (mut socket, kernel, mut batch, umem) = world();
    kernel.transmit_on_kick(16);
    kernel.refuse(fake::Call::KickTx, Errno::EBUSY as i32);
    kernel.refuse(fake::Call::KickTx, Errno::EBUSY as i32);
    fill(&mut batch, 6);
    assert_eq!(socket.send(&mut batch)?, 6);
    let firsts: Vec<u8> = kernel.sent().iter().map(|packet| packet[0]).collect();
    assert_eq!(firsts, [2, 3, 4, 5], "the rest left with the same send");
    socket.send(&mut batch)?;
    let statistics = socket.statistics()?;
    assert_eq!((statistics.sent, statistics.tx_dropped, statistics.completed), (6, 2, 6));
    assert_complete(&umem);
    Ok(())
}

#[test]
fn an_error_of_a_call_loses_no_packet() -> Result<()> {
    let (mut socket, kernel, mut batch, umem) = world();
    kernel.set_link(fake::Link::Down);
    fill(&mut batch, 16);
    let error = socket.send(&mut batch).expect_err("the link is down");
    assert_eq!((error.step(), error.kind()), (Step::Send, ErrorKind::LinkDown));
    assert_eq!(error.interface(), Some("fake"));
    assert!(batch.is_empty(), "they were taken, and the batch says so");
    assert_complete(&umem);
    kernel.set_link(fake::Link::Up);
    kernel.transmit_on_kick(16);
    socket.send(&mut batch)?;
    assert_eq!(kernel.sent().len(), 16, "they leave once the link is back");
    Ok(())
}

#[test]
fn waiting_ends_within_a_second_when_the_link_dies() {
    for (link, kind) in
        [(fake::Link::Down, ErrorKind::LinkDown), (fake::Link::Gone, ErrorKind::LinkGone)]
    {
        let (mut socket, kernel, _, _) = world();
        let killer = thread::spawn(move || {
            thread::sleep(SHORT);
            kernel.set_link(link);
            Instant::now()
        });
        let error = socket.wait(Interest::READABLE, None).expect_err("the link died");
        let died = killer.join().expect("the thread only sleeps");
        assert_eq!((error.step(), error.kind()), (Step::Wait, kind));
        assert!(died.elapsed() < Duration::from_secs(1), "{:?}", died.elapsed());
    }
}

#[test]
fn short_waits_in_a_row_learn_of_a_dead_link_too() {
    let (mut socket, kernel, _, _) = world();
    kernel.set_link(fake::Link::Down);
    let started = Instant::now();
    let error = loop {
        match socket.wait(Interest::READABLE, Duration::from_millis(1)) {
            Ok(ready) => assert!(ready.timed_out() && started.elapsed() < Duration::from_secs(1)),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::LinkDown);
}

#[test]
fn a_receiver_that_spins_learns_of_a_dead_link() {
    let (mut socket, kernel, mut batch, _) = world();
    kernel.set_link(fake::Link::Gone);
    let error =
        (0..=65_536).find_map(|_| socket.recv(&mut batch).err()).expect("within 65,536 calls");
    assert_eq!((error.step(), error.kind()), (Step::Receive, ErrorKind::LinkGone));
}

#[test]
fn waiting_ends_with_a_packet_or_with_the_time() -> Result<()> {
    let (mut socket, kernel, mut batch, _) = world();
    let started = Instant::now();
    assert!(socket.wait(Interest::READABLE, SHORT)?.timed_out());
    assert!(started.elapsed() >= SHORT);
    assert!(socket.wait(Interest::READABLE, Duration::ZERO)?.timed_out());
    let sender = thread::spawn(move || {
        thread::sleep(SHORT);
        kernel.deliver(b"now")
    });
    let ready = socket.wait(Interest::READABLE, None)?;
    assert!(ready.readable() && !ready.writable());
    assert!(sender.join().expect("the thread only delivers"));
    assert_eq!(socket.recv(&mut batch)?, 1);
    assert!(socket.wait(Interest::BOTH, None)?.writable(), "the TX ring is empty");
    Ok(())
}

#[test]
fn receiving_goes_on_when_all_frames_were_held() -> Result<()> {
    let umem = UmemConfig::new(24).build()?;
    let (mut socket, kernel) = fake::socket(&umem, &config())?;
    let mut held = umem.batch(24);
    for _ in 0..24 {
        assert!(kernel.deliver(b"held"));
        socket.recv(&mut held)?;
    }
    assert!(!kernel.deliver(b"none left"));
    assert_eq!(kernel.fill_level(), 0);
    // The frames come back to the pool, and waiting alone brings them to the kernel.
    drop(held);
    assert!(socket.wait(Interest::READABLE, Duration::ZERO)?.timed_out());
    assert_eq!(kernel.fill_level(), 24);
    assert_complete(&umem);
    Ok(())
}

/// Packets that go through the two halves.
const PACKETS: u32 = 20_000;

#[test]
fn halves_on_two_threads() -> Result<()> {
    let umem = UmemConfig::new(256).build()?;
    let (socket, kernel) = fake::socket_from(&umem, &config(), u32::MAX - 100)?;
    let (mut receiver, mut sender) = socket.into_split();
    let (give, take) = std::sync::mpsc::sync_channel::<Batch>(4);
    let mut seen = 0;
    thread::scope(|scope| -> Result<()> {
        let umem = &umem;
        let receiving = scope.spawn(move || -> Result<()> {
            let mut count = 0;
            while count < PACKETS {
                let mut batch = umem.batch(8);
                receiver.wait(Duration::from_secs(5))?;
                count += u32::try_from(receiver.recv(&mut batch)?).expect("at most 8");
                give.send(batch).expect("the sender lives");
            }
            Ok(())
        });
        let sending = scope.spawn(move || -> Result<()> {
            for mut batch in take {
                while !batch.is_empty() {
                    if sender.send(&mut batch)? == 0 {
                        sender.wait(Duration::from_secs(5))?;
                    }
                }
            }
            Ok(())
        });
        let mut next = 0_u32;
        while seen < PACKETS {
            if next < PACKETS && kernel.deliver(&next.to_le_bytes()) {
                next += 1;
            }
            for packet in kernel.transmit(3) {
                assert_eq!(packet, seen.to_le_bytes());
                seen += 1;
            }
        }
        receiving.join().expect("no panic")?;
        sending.join().expect("no panic")
    })?;
    let audit = umem.audit();
    assert!(audit.is_complete(), "{audit}");
    assert_eq!(audit.free + audit.quarantine, 256, "{audit}");
    Ok(())
}

#[test]
fn one_direction_sockets_refuse_the_other() -> Result<()> {
    let umem = UmemConfig::new(64).build()?;
    let mut batch = umem.batch(4);
    let (mut listener, kernel) = fake::socket(&umem, &config().receive_only())?;
    assert!(kernel.deliver(b"x"));
    assert_eq!(listener.recv(&mut batch)?, 1);
    let error = listener.send(&mut batch).expect_err("no TX ring");
    assert_eq!((error.step(), error.kind()), (Step::Send, ErrorKind::Unsupported));
    assert_eq!(batch.packet_count(), 1);
    let (mut speaker, kernel) = fake::socket(&umem, &config().send_only())?;
    assert_eq!(kernel.fill_level(), 0, "it needs no frames to receive into");
    assert_eq!(speaker.recv(&mut batch).expect_err("no RX ring").kind(), ErrorKind::Unsupported);
    assert_eq!(speaker.send(&mut batch)?, 1);
    assert_eq!(kernel.transmit(4), [b"x"]);
    Ok(())
}

#[test]
fn busy_polling_calls_the_kernel_every_time() -> Result<()> {
    let umem = UmemConfig::new(64).build()?;
    let config = config().busy_poll(BusyPoll::default());
    let (mut socket, kernel) = fake::socket(&umem, &config)?;
    assert!(socket.mode().busy_poll);
    assert_eq!(socket.mode().to_string(), "copy, need_wakeup, busy poll");
    // The flags say that nobody has to be called.
    kernel.set_needs_wakeup_tx(false);
    kernel.set_needs_wakeup_rx(false);
    let mut batch = umem.batch(16);
    for round in 1..=5 {
        assert_eq!(socket.recv(&mut batch)?, 0);
        assert_eq!(socket.send(&mut batch)?, 0);
        assert_eq!((kernel.kicks().rx, kernel.kicks().tx), (round, round));
    }
    assert!(socket.wait(Interest::READABLE, Duration::ZERO)?.timed_out());
    assert_eq!((kernel.kicks().rx, kernel.kicks().tx), (6, 6));
    let (receiver, sender) = socket.split_mut();
    assert!(!receiver.wait(Duration::ZERO)?);
    sender.reap()?;
    assert_eq!((kernel.kicks().rx, kernel.kicks().tx), (7, 7));
    let statistics = socket.statistics()?;
    assert_eq!((statistics.wakeups_rx, statistics.wakeups_tx), (7, 7));

    // Packets first, then the bad news.
    kernel.deliver(b"the last one");
    kernel.set_link(fake::Link::Down);
    assert_eq!(socket.recv(&mut batch)?, 1);
    assert_eq!(socket.recv(&mut batch).unwrap_err().kind(), ErrorKind::LinkDown);
    assert_eq!(socket.send(&mut batch).unwrap_err().kind(), ErrorKind::LinkDown);
    drop(batch);
    assert_complete(&umem);
    Ok(())
}

#[test]
fn without_busy_polling_nobody_calls_a_kernel_that_is_awake() -> Result<()> {
    let (mut socket, kernel, mut batch, _umem) = world();
    assert!(!socket.mode().busy_poll);
    kernel.set_needs_wakeup_tx(false);
    for _ in 0..100 {
        socket.recv(&mut batch)?;
        socket.send(&mut batch)?;
    }
    assert_eq!((kernel.kicks().rx, kernel.kicks().tx), (0, 0));
    Ok(())
}

#[test]
fn wakeups_spared_and_levels_are_counted() -> Result<()> {
    let (mut socket, kernel, mut batch, umem) = world();
    // The kernel is awake.
    kernel.set_needs_wakeup_tx(false);
    for _ in 0..3 {
        kernel.deliver(b"in");
    }
    let levels = socket.statistics()?.levels;
    assert_eq!((levels.rx, levels.tx, levels.fill, levels.completion), (3, 0, 29, 0));
    assert_eq!(socket.recv(&mut batch)?, 3);
    assert_eq!(socket.recv(&mut batch)?, 0, "nothing to spare a call for");
    assert_eq!(socket.send(&mut batch)?, 3);
    let statistics = socket.statistics()?;
    assert_eq!((statistics.wakeups_rx, statistics.wakeups_tx), (0, 0));
    assert_eq!((statistics.wakeups_spared_rx, statistics.wakeups_spared_tx), (1, 1));
    let levels = statistics.levels;
    assert_eq!((levels.rx, levels.tx, levels.fill, levels.completion), (0, 3, 32, 0));
    kernel.transmit(3);
    assert_eq!(socket.statistics()?.levels.completion, 3);

    // It sleeps: what is called for is not spared.
    kernel.set_needs_wakeup_tx(true);
    kernel.set_needs_wakeup_rx(true);
    kernel.deliver(b"in");
    assert_eq!(socket.recv(&mut batch)?, 1);
    assert_eq!(socket.send(&mut batch)?, 1);
    let statistics = socket.statistics()?;
    assert_eq!((statistics.wakeups_rx, statistics.wakeups_tx), (1, 1));
    assert_eq!((statistics.wakeups_spared_rx, statistics.wakeups_spared_tx), (1, 1));
    drop((socket, batch));
    assert_complete(&umem);

    // Without need_wakeup there is no flag to spare anything.
    let umem = UmemConfig::new(64).build()?;
    let (mut socket, kernel) = fake::socket(&umem, &config().need_wakeup(false))?;
    let mut batch = umem.batch(16);
    kernel.deliver(b"in");
    assert_eq!(socket.recv(&mut batch)?, 1);
    assert_eq!(socket.send(&mut batch)?, 1);
    let statistics = socket.statistics()?;
    assert_eq!((statistics.wakeups_spared_rx, statistics.wakeups_spared_tx), (0, 0));
    Ok(())
}
