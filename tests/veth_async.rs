//! Sockets on tokio and a real kernel: no packet waits for a look at the link. Needs root; says so and
//! skips where it is not.

mod support;

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use support::{
    LIMIT, adds_up, comes_home, frames, near, near_interface, rings, to_far, to_near, write,
};
use tokio::{
    runtime::Builder,
    time::{interval, timeout},
};
use xskit::{AsyncReceiver, AsyncSender, AsyncSocket, ErrorKind, Umem, UmemConfig};
use xskit_lab::{Checker, Lab, Numbered};

/// Runs `work` where the near end is, on a runtime with a thread or two.
fn run<T: Send>(lab: &Lab, threads: usize, work: impl Future<Output = T> + Send) -> T {
    lab.enter(|| {
        let runtime = match threads {
            1 => Builder::new_current_thread().enable_all().build(),
            // Its threads are in the namespace of the one that makes them.
            _ => Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
        };
        runtime.unwrap().block_on(async { timeout(3 * LIMIT, work).await.unwrap() })
    })
}

/// Opens the near end's queue; the port, and its program, live as long as the socket.
fn open() -> (AsyncSocket, Umem) {
    let mut port = near().umem_config(UmemConfig::new(512)).socket(rings(64)).open().unwrap();
    let socket = port.take_queue(0).unwrap();
    (AsyncSocket::new(socket).unwrap(), port.umem().clone())
}

#[test]
fn each_ping_is_answered_at_once() {
    const ROUNDS: u64 = 500;
    let Some(lab) = Lab::for_test() else { return };
    let (series, answers) = (to_near(&lab, 100), to_far(&lab, 80));
    let mut raw = lab.raw().unwrap();
    let umem = run(&lab, 1, async {
        let (mut socket, umem) = open();
        let pinging = std::thread::spawn({
            let (series, mut checker) = (series.clone(), Checker::new(answers.clone()));
            move || {
                let started = Instant::now();
                for number in 0..ROUNDS {
                    raw.send(&series.frame(number)).unwrap();
                    support::collect(&mut raw, &mut checker, 1);
                }
                (started.elapsed(), checker.tally())
            }
        });
        let (mut batch, mut out) = (umem.batch(16), umem.batch(16));
        let mut checker = Checker::new(series);
        let mut content = Vec::new();
        while checker.tally().received() < ROUNDS {
            socket.recv(&mut batch).await.unwrap();
            for packet in batch.packets() {
                checker.check(packet.head());
                answers.write(checker.tally().received() - 1, &mut content);
                assert_eq!(out.alloc(1), 1);
                out.packets_mut().last().unwrap().write(&content).unwrap();
            }
            batch.clear();
            socket.send_all(&mut out).await.unwrap();
        }
        socket.flush().await.unwrap();
        adds_up(&umem);
        let (took, tally) = pinging.join().unwrap();
        assert!(tally.is_perfect(ROUNDS), "{tally:?}");
        // An event missed would cost half a second, whenever it happens.
        assert!(took < LIMIT, "{took:?}");
        umem
    });
    lab.enter(|| comes_home(&umem, &[(&near_interface(), 0)]));
}

async fn receive_all(
    mut receiver: AsyncReceiver,
    umem: Umem,
    mut checker: Checker,
    count: u64,
    progress: Arc<AtomicU64>,
) {
    let mut batch = umem.batch(32);
    while checker.tally().received() < count {
        receiver.recv(&mut batch).await.unwrap();
        for packet in batch.packets() {
            checker.check(packet.head());
        }
        batch.clear();
        progress.store(checker.tally().received(), Ordering::Release);
    }
    assert!(checker.tally().is_perfect(count), "{:?}", checker.tally());
}

async fn send_all(mut sender: AsyncSender, umem: Umem, series: Numbered, count: u64) {
    let mut batch = umem.batch(48);
    let mut numbers = 0..count;
    loop {
        write(&mut batch, &series, &mut numbers);
        if batch.is_empty() {
            return sender.flush().await.unwrap();
        }
        sender.send_all(&mut batch).await.unwrap();
    }
}

#[test]
fn two_halves_in_two_tasks() {
    const PACKETS: u64 = 3200;
    let Some(lab) = Lab::for_test() else { return };
    let (series, answers) = (to_near(&lab, 100), to_far(&lab, 100));
    let packets = frames(&series, PACKETS);
    let (mut raw, other) = (lab.raw().unwrap(), lab.raw().unwrap());
    let umem = run(&lab, 2, async {
        let (socket, umem) = open();
        let (receiver, sender) = socket.into_split();
        let progress = Arc::new(AtomicU64::new(0));
        let receiving =
            receive_all(receiver, umem.clone(), Checker::new(series), PACKETS, progress.clone());
        let receiving = tokio::spawn(receiving);
        let sending = tokio::spawn(send_all(sender, umem.clone(), answers.clone(), PACKETS));
        let collecting = tokio::task::spawn_blocking(move || {
            let mut checker = Checker::new(answers);
            support::collect(&mut raw, &mut checker, PACKETS);
            checker.tally()
        });
        let far = tokio::task::spawn_blocking(move || {
            for (number, some) in (0..).zip(packets.chunks(32)) {
                // Never more than a ring ahead.
                support::eventually("packets are received", || {
                    progress.load(Ordering::Acquire) + 32 > number * 32
                });
                other.send_all(some).unwrap();
            }
        });
        far.await.unwrap();
        let tally = collecting.await.unwrap();
        assert!(tally.is_perfect(PACKETS), "{tally:?}");
        sending.await.unwrap();
        receiving.await.unwrap();
        umem
    });
    lab.enter(|| comes_home(&umem, &[(&near_interface(), 0)]));
}

#[test]
fn a_future_that_is_dropped_loses_no_packet() {
    const PACKETS: u64 = 100;
    let Some(lab) = Lab::for_test() else { return };
    let series = to_near(&lab, 100);
    let raw = lab.raw().unwrap();
    let packets = frames(&series, PACKETS);
    run(&lab, 2, async {
        let (mut socket, umem) = open();
        let sending = tokio::task::spawn_blocking(move || {
            for packet in packets {
                raw.send(&packet).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let mut batch = umem.batch(8);
        let mut checker = Checker::new(series);
        let mut dropped = 0;
        while checker.tally().received() < PACKETS {
            match timeout(Duration::from_millis(1), socket.recv(&mut batch)).await {
                Ok(received) => assert_eq!(received.unwrap(), batch.packet_count()),
                Err(_) => dropped += 1,
            }
            for packet in batch.packets() {
                checker.check(packet.head());
            }
            batch.clear();
        }
        assert!(checker.tally().is_perfect(checker.tally().received()), "{:?}", checker.tally());
        assert!(dropped > 0);
        sending.await.unwrap();
        adds_up(&umem);
    });
}

#[test]
fn a_link_that_goes_down_is_told_within_a_second() {
    let Some(lab) = Lab::for_test() else { return };
    run(&lab, 1, async {
        let (mut socket, umem) = open();
        let mut batch = umem.batch(8);
        assert!(timeout(Duration::from_millis(700), socket.recv(&mut batch)).await.is_err());
        lab.near.down().unwrap();
        let started = Instant::now();
        let error = socket.recv(&mut batch).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LinkDown, "{error}");
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());

        // The same for a task that does something else all the time.
        let mut tick = interval(Duration::from_millis(30));
        let started = Instant::now();
        let error = loop {
            tokio::select! {
                _ = tick.tick() => {}
                result = socket.recv(&mut batch) => break result.unwrap_err(),
            }
        };
        assert_eq!(error.kind(), ErrorKind::LinkDown, "{error}");
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    });
}

#[test]
fn a_deleted_interface_is_told_to_both_halves() {
    let Some(lab) = Lab::for_test() else { return };
    run(&lab, 2, async {
        let (socket, umem) = open();
        let (mut receiver, mut sender) = socket.into_split();
        let mut batch = umem.batch(8);
        lab.near.delete().unwrap();
        let error = receiver.recv(&mut batch).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LinkGone, "{error}");
        write(&mut batch, &to_far(&lab, 100), &mut (0..1));
        let error = sender.send_all(&mut batch).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LinkGone, "{error}");
        drop((receiver, sender, batch));
        adds_up(&umem);
    });
}
