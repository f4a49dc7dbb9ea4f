//! What the fake kernel can be told to do, and that it then behaves as the real one does.

use std::time::Duration;

use nix::errno::Errno;
use xskit::{
    Batch, ErrorKind, Interest, Result, RingSize, SocketConfig, Step, Umem, UmemConfig,
    fake::{self, Call, Link},
};

fn config() -> SocketConfig {
    let size = |entries| RingSize::new(entries).expect("a power of two");
    SocketConfig::default().rx(size(16)).tx(size(16)).fill(size(16)).completion(size(8))
}

/// `count` packets to send, each of its number.
fn fill(batch: &mut Batch, count: usize) {
    let before = batch.packet_count();
    assert_eq!(batch.alloc(count), count);
    for (number, mut packet) in batch.packets_mut().enumerate().skip(before) {
        packet.write(&[u8::try_from(number).expect("few packets"); 60]).expect("60 bytes fit");
    }
}

#[track_caller]
fn assert_complete(umem: &Umem) {
    let audit = umem.audit();
    assert!(audit.is_complete(), "{audit}");
}

/// Every errno that a wake-up can fail with: packets are queued all the same, once, and leave later.
#[test]
fn a_wake_up_that_fails_loses_nothing_whatever_the_errno() -> Result<()> {
    for errno in (1..=133).map(Errno::from_raw) {
        let umem = UmemConfig::new(64).build()?;
        let (mut socket, kernel) = fake::socket_from(&umem, &config(), u32::MAX - 2)?;
        let mut batch = umem.batch(8);
        fill(&mut batch, 4);
        kernel.refuse(Call::KickTx, errno as i32);
        let outcome = socket.send(&mut batch);
        match errno {
            Errno::EAGAIN | Errno::ENOBUFS | Errno::EBUSY | Errno::EINTR => {
                assert_eq!(outcome?, 4, "{errno}");
            }
            _ => {
                let error = outcome.expect_err("no errno that comes and goes");
                assert_eq!((error.step(), error.raw_os_error()), (Step::Send, Some(errno as i32)));
                let kind = match errno {
                    Errno::ENETDOWN => ErrorKind::LinkDown,
                    Errno::ENXIO | Errno::ENODEV => ErrorKind::LinkGone,
                    _ => error.kind(),
                };
                assert_eq!(error.kind(), kind, "{errno}");
            }
        }
        assert!(batch.is_empty(), "{errno}");
        assert_complete(&umem);
        // With EBUSY the first was dropped by the kernel, and completed.
        let dropped = u64::from(errno == Errno::EBUSY);
        assert_eq!(socket.statistics()?.tx_dropped, dropped, "{errno}");
        let firsts: Vec<u8> = kernel.transmit(8).iter().map(|packet| packet[0]).collect();
        assert_eq!(firsts, [0, 1, 2, 3][usize::from(errno == Errno::EBUSY)..], "{errno}");
        socket.send(&mut batch)?;
        assert_eq!(socket.statistics()?.completed, 4);
        assert_complete(&umem);
    }
    Ok(())
}

#[test]
fn other_calls_fail_too_and_say_which() -> Result<()> {
    let umem = UmemConfig::new(64).build()?;
    let (mut socket, kernel) = fake::socket(&umem, &config())?;
    let mut batch = umem.batch(8);
    // Interrupted is no error; whatever else stops `poll` is.
    kernel.refuse(Call::Poll, libc::EINTR);
    assert!(socket.wait(Interest::READABLE, Duration::from_millis(1))?.timed_out());
    kernel.refuse(Call::Poll, libc::ENOMEM);
    let error = socket.wait(Interest::READABLE, Duration::from_secs(10)).expect_err("told to");
    assert_eq!((error.step(), error.raw_os_error()), (Step::Wait, Some(libc::ENOMEM)));
    kernel.refuse(Call::Statistics, libc::EFAULT);
    let error = socket.statistics().expect_err("told to");
    assert_eq!((error.step(), error.raw_os_error()), (Step::Statistics, Some(libc::EFAULT)));
    assert_eq!(socket.statistics()?.received, 0, "once");
    // A Fill ring that needs a call, which is refused: what was received is not lost for it.
    assert!(kernel.deliver(b"x"));
    kernel.set_needs_wakeup_rx(true);
    for errno in [libc::EAGAIN, libc::ENOBUFS, libc::EBUSY, libc::EINTR] {
        kernel.refuse(Call::KickRx, errno);
        socket.recv(&mut batch)?;
    }
    assert_eq!((batch.packet_count(), kernel.kicks().rx), (1, 4));
    kernel.refuse(Call::KickRx, libc::ENETDOWN);
    assert_eq!(socket.recv(&mut batch).expect_err("told to").kind(), ErrorKind::LinkDown);
    assert_eq!(batch.packet_count(), 1);
    assert_complete(&umem);
    Ok(())
}

/// As the real kernel, it sends nothing that it could not complete.
#[test]
fn a_full_completion_ring_holds_packets_back() -> Result<()> {
    let umem = UmemConfig::new(64).build()?;
    let (mut socket, kernel) = fake::socket_from(&umem, &config(), u32::MAX - 3)?;
    let mut batch = umem.batch(16);
    fill(&mut batch, 16);
    socket.send(&mut batch)?;
    assert_eq!(kernel.take(16).len(), 8, "the Completion ring's 8, counting what is not completed");
    assert_eq!((kernel.take(16).len(), kernel.tx_level()), (0, 8));
    assert_eq!(kernel.complete(16), 8);
    assert_eq!(kernel.take(16).len(), 0, "nobody has taken them back");
    // A call to send takes them back as soon as it makes no progress without.
    kernel.transmit_on_kick(16);
    assert_eq!(socket.send(&mut batch)?, 0);
    assert_eq!((kernel.sent().len(), kernel.tx_level()), (8, 0));
    assert_complete(&umem);
    Ok(())
}

#[test]
fn sockets_share_a_queue() -> Result<()> {
    let umem = UmemConfig::new(64).build()?;
    let (mut first, kernel) = fake::socket_from(&umem, &config(), u32::MAX - 5)?;
    let mut second = first.share_queue(&config())?;
    let kernels = kernel.of_queue();
    assert_eq!(kernels.len(), 2);
    let mut batch = umem.batch(16);
    // Each has packets of its own, out of frames that both give.
    for round in 0..20_u8 {
        assert!(kernels[0].deliver(&[round]) && kernels[1].deliver(&[100 + round]));
        assert_eq!(first.recv(&mut batch)?, 1);
        assert_eq!(second.recv(&mut batch)?, 1);
        let seen: Vec<u8> = batch.packets().map(|packet| packet.head()[0]).collect();
        assert_eq!(seen, [round, 100 + round]);
        let mut rest = batch.split_off(1);
        assert_eq!((first.send(&mut rest)?, second.send(&mut batch)?), (1, 1));
        assert_eq!(kernels[0].transmit(8), [[100 + round]]);
        assert_eq!(kernels[1].transmit(8), [[round]]);
        assert_complete(&umem);
    }
    // The queue lives on with the second.
    drop(first);
    assert!(kernels[1].deliver(b"x"));
    assert_eq!(second.recv(&mut batch)?, 1);
    let busy = kernel.reopen(&umem, &config()).expect_err("it is bound").kind();
    assert_eq!(busy, ErrorKind::Busy);
    drop((second, batch));
    assert_complete(&umem);
    let audit = umem.audit();
    assert_eq!((audit.free, audit.quarantine), (48, 16), "{audit}");
    let (socket, _) = kernel.reopen(&umem, &config())?;
    let audit = umem.audit();
    assert_eq!((audit.free, audit.fill, audit.quarantine), (48, 16, 0), "{audit}");
    drop(socket);
    Ok(())
}

/// What comes in while the socket closes is not known to be at home, and is found when the queue is bound
/// again; the frames that the closed socket's kernel had are then out of its reach.
#[test]
fn a_packet_that_comes_in_at_the_end() -> Result<()> {
    let umem = UmemConfig::new(32).build()?;
    let (mut socket, kernel) = fake::socket_from(&umem, &config(), u32::MAX - 5)?;
    let mut batch = umem.batch(8);
    fill(&mut batch, 3);
    socket.send(&mut batch)?;
    assert_eq!(kernel.take(2).len(), 2);
    assert!(kernel.deliver(b"in time"));
    kernel.deliver_at_close(b"too late");
    drop((socket, batch));
    let audit = umem.audit();
    assert!(audit.is_complete(), "{audit}");
    assert_eq!((audit.free, audit.quarantine), (32 - 16 - 3 + 1, 15 + 3), "{audit}");
    assert_eq!(kernel.fill_level(), 14, "the kernel took one more than the socket has seen");
    let (_socket, again) = kernel.reopen(&umem, &config())?;
    let audit = umem.audit();
    // Its Fill ring got the 14 that were free by then; those held back came free with the bind.
    assert_eq!((audit.free, audit.fill, audit.quarantine), (18, 14, 0), "{audit}");
    assert!(!kernel.deliver(b"much too late") && kernel.transmit(1).is_empty());
    assert_eq!(kernel.complete(2), 0);
    kernel.set_link(Link::Up);
    assert!(again.deliver(b"fresh"));
    Ok(())
}
