//! Waiting for several sockets, and halves of sockets, at once, on the fake kernel.

use std::{thread, time::Duration};

use xskit::{
    Batch, ErrorKind, Interest, Ready, Result, RingSize, Socket, SocketConfig, Umem, UmemConfig,
    fake,
    socket::{Waiting, wait_any},
};

/// Nothing that is to happen takes so long.
const LIMIT: Duration = Duration::from_secs(10);
/// Long enough to see that nothing happens.
const MOMENT: Duration = Duration::from_millis(50);

fn config() -> Result<SocketConfig> {
    let size = RingSize::new(8)?;
    Ok(SocketConfig::default().rx(size).tx(size).fill(size).completion(size))
}

fn world() -> Result<(Umem, [(Socket, fake::Kernel); 3])> {
    let umem = UmemConfig::new(64).build()?;
    let open = || fake::socket(&umem, &config()?);
    let sockets = [open()?, open()?, open()?];
    Ok((umem, sockets))
}

fn packets(umem: &Umem, count: usize) -> Batch {
    let mut batch = umem.batch(count);
    assert_eq!(batch.alloc(count), count);
    batch.packets_mut().for_each(|mut packet| packet.write(&[7; 60]).expect("room"));
    batch
}

#[test]
fn all_that_are_ready_are_named() -> Result<()> {
    let (umem, [(mut a, first), (mut b, _), (mut c, third)]) = world()?;
    let wait = |a: &mut Socket, b: &mut Socket, c: &mut Socket| {
        let mut set = [a, b, c].map(|one| Waiting::socket(one, Interest::READABLE));
        let any = wait_any(&mut set, MOMENT)?;
        let ready = set.map(|one| one.ready());
        assert!(ready.iter().all(|ready| !ready.writable()), "nobody asked");
        assert_eq!(any, ready.iter().any(|ready| ready.readable()));
        Result::Ok(ready.map(Ready::readable))
    };
    assert_eq!(wait(&mut a, &mut b, &mut c)?, [false, false, false]);
    assert!(first.deliver(b"one") && third.deliver(b"three"));
    assert_eq!(wait(&mut a, &mut b, &mut c)?, [true, false, true]);
    let mut batch = umem.batch(8);
    assert_eq!(a.recv(&mut batch)?, 1);
    assert_eq!(wait(&mut a, &mut b, &mut c)?, [false, false, true]);
    Ok(())
}

#[test]
fn whichever_comes_first_ends_the_wait() -> Result<()> {
    let (umem, [(mut a, _), (b, second), (c, third)]) = world()?;
    let (_, mut sender) = b.into_split();
    let (mut receiver, _sender) = c.into_split();
    // No room to send there.
    let mut batch = packets(&umem, 8);
    assert_eq!(sender.send(&mut batch)?, 8);
    for (deliver, ready) in [(true, [false, false, true]), (false, [false, true, false])] {
        let event = || {
            thread::sleep(MOMENT);
            if deliver {
                assert!(third.deliver(b"three"));
            } else {
                second.transmit(8);
            }
        };
        let found = thread::scope(|scope| {
            scope.spawn(event);
            let mut set = [
                Waiting::socket(&mut a, Interest::READABLE),
                Waiting::sender(&mut sender),
                Waiting::receiver(&mut receiver),
            ];
            assert!(wait_any(&mut set, LIMIT)?);
            Result::Ok(set.map(|one| !one.ready().timed_out()))
        })?;
        assert_eq!(found, ready);
        receiver.recv(&mut batch)?;
    }
    Ok(())
}

/// A half that nothing is waited for: it never ends the wait, and what was sent is seen off.
#[test]
fn what_was_sent_is_seen_off_meanwhile() -> Result<()> {
    let (umem, [(mut a, kernel), (b, _), _]) = world()?;
    let (mut receiver, _sender) = b.into_split();
    assert_eq!(a.send(&mut packets(&umem, 4))?, 4);
    let (_, sender) = a.split_mut();
    assert_eq!(sender.unsent(), 4);
    let calls = kernel.kicks().tx;
    let mut set = [Waiting::receiver(&mut receiver), Waiting::reap(sender)];
    assert!(!wait_any(&mut set, MOMENT)?, "room to send is nothing to wait for");
    assert!(set.iter().all(|one| one.ready().timed_out()));
    assert!(kernel.kicks().tx > calls + 2, "called again as long as it sleeps");
    kernel.transmit(4);
    let (_, sender) = a.split_mut();
    let mut set = [Waiting::receiver(&mut receiver), Waiting::reap(sender)];
    assert!(!wait_any(&mut set, Duration::ZERO)?);
    assert_eq!(a.statistics()?.completed, 4);
    assert!(umem.audit().is_complete());
    Ok(())
}

#[test]
fn a_link_that_dies_ends_the_wait_of_all() -> Result<()> {
    let (_, [(mut a, _), (mut b, kernel), _]) = world()?;
    kernel.set_link(fake::Link::Down);
    let mut set = [&mut a, &mut b].map(|one| Waiting::socket(one, Interest::READABLE));
    let error = wait_any(&mut set, LIMIT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LinkDown, "{error}");
    Ok(())
}

#[test]
fn for_ever_is_for_what_can_come() -> Result<()> {
    let umem = UmemConfig::new(64).build()?;
    let (mut only_sends, _) = fake::socket(&umem, &config()?.send_only())?;
    let mut set = [Waiting::socket(&mut only_sends, Interest::READABLE)];
    assert_eq!(wait_any(&mut set, None).unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(!wait_any(&mut set, MOMENT)?);
    let (_, sender) = only_sends.split_mut();
    let error = wait_any(&mut [Waiting::reap(sender)], None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert_eq!(wait_any(&mut [], None).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(!wait_any(&mut [], MOMENT)?);
    // One that can is enough.
    let (mut both, kernel) = fake::socket(&umem, &config()?)?;
    assert!(kernel.deliver(b"one"));
    let mut set = [&mut only_sends, &mut both].map(|one| Waiting::socket(one, Interest::READABLE));
    assert!(wait_any(&mut set, None)?);
    Ok(())
}
