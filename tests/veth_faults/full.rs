//! Rings that stay full: a program that does not receive, a peer that does not take what is sent.
//!
//! `XSKIT_STUCK_SECONDS` says for how long; 2 by default, minutes where there is time.

use std::{
    env, thread,
    time::{Duration, Instant},
};

use xskit::{Interest, Umem};
use xskit_lab::{Checker, Lab, LabConfig, XdpAction, XdpMode};

use crate::{
    after::nothing_is_left,
    bench::alone_for,
    support::{
        adds_up, collect, eventually, frames, near, receive, ring, rings, send, set_attribute,
        settle, to_far, to_near, write,
    },
};

fn stuck() -> Duration {
    let seconds = env::var("XSKIT_STUCK_SECONDS");
    Duration::from_secs(seconds.map_or(2, |seconds| seconds.parse().expect("seconds")))
}

/// What a test may take beside.
const BESIDE: Duration = Duration::from_secs(60);

/// Makes the far end take frames and look at them only when its timer says so: until then they are in flight.
pub(crate) fn far_sleeps(lab: &Lab, time: Duration) {
    lab.far.attach_xdp(XdpAction::Pass, XdpMode::Native).unwrap();
    set_attribute(&lab.far, "gro_flush_timeout", &time.as_nanos().to_string());
    set_attribute(&lab.far, "napi_defer_hard_irqs", "1000000");
}

/// Lets it see all frames at once, from its next look on.
pub(crate) fn far_wakes(lab: &Lab) {
    set_attribute(&lab.far, "napi_defer_hard_irqs", "0");
    set_attribute(&lab.far, "gro_flush_timeout", "0");
}

#[test]
fn a_program_that_does_not_receive() {
    const RX: u64 = 64;
    alone_for(stuck() + BESIDE, || {
        nothing_is_left(&LabConfig::default(), |lab, umem| {
            let mut raw = lab.raw().unwrap();
            let config = rings(64).fill(ring(256));
            let mut port = near().umem(umem).socket(config).open().unwrap();
            let mut socket = port.take_queue(0).unwrap();
            let series = to_near(lab, 300);
            let ours = to_far(lab, 300);
            let mut checker = Checker::new(ours.clone());
            let mut number = 0;
            let end = Instant::now() + stuck();
            while Instant::now() < end {
                let packets: Vec<_> = (number..number + 32).map(|n| series.frame(n)).collect();
                raw.send_all(&packets).unwrap();
                // It sends all the same.
                send(&mut socket, &ours, number..number + 32, 32);
                collect(&mut raw, &mut checker, 32);
                number += 32;
                assert!(socket.wait(Interest::READABLE, Duration::ZERO).unwrap().readable());
                thread::sleep(Duration::from_millis(1));
            }
            assert!(checker.tally().is_perfect(number), "{:?}", checker.tally());
            settle(&mut socket);
            let mut checker = Checker::new(series.clone());
            eventually("all have been dropped but what the ring holds", || {
                socket.statistics().unwrap().kernel.rx_ring_full == Some(number - RX)
            });
            adds_up(umem);

            // The oldest are in the ring, and then it goes on as if nothing had been.
            receive(&mut socket, &mut checker, RX, 64);
            assert!(checker.tally().is_perfect(RX), "{:?}", checker.tally());
            let fresh = to_near(lab, 301);
            let mut checker = Checker::new(fresh.clone());
            for _ in 0..10 {
                raw.send_all(&frames(&fresh, RX)).unwrap();
                checker = Checker::new(fresh.clone());
                receive(&mut socket, &mut checker, RX, 64);
            }
            assert!(checker.tally().is_perfect(RX), "{:?}", checker.tally());
            let kernel = socket.statistics().unwrap().kernel;
            assert_eq!((kernel.rx_ring_full, kernel.rx_dropped), (Some(number - RX), 0));
            adds_up(umem);
        });
    });
}

/// Nothing is free any more: every frame is in a batch that waits, in the TX ring, or in flight.
#[track_caller]
fn everything_is_taken(umem: &Umem) {
    let mut batch = umem.batch(1);
    assert_eq!(batch.alloc(1), 0, "{}", umem.audit());
    adds_up(umem);
}

#[test]
fn a_sender_that_fills_everything() {
    alone_for(stuck() + BESIDE, || {
        nothing_is_left(&LabConfig::default(), |lab, umem| {
            let mut raw = lab.raw().unwrap();
            // The Completion ring is full before the TX ring is.
            let config = rings(256).completion(ring(64)).send_only();
            let mut port = near().umem(umem).socket(config).open().unwrap();
            let mut socket = port.take_queue(0).unwrap();
            // More than it takes to fill everything.
            far_sleeps(lab, stuck() + Duration::from_secs(3));
            let series = to_far(lab, 1000);
            let mut numbers = 0..;
            let mut waiting = Vec::new();
            let mut made = 0;
            loop {
                let mut batch = umem.batch(64);
                write(&mut batch, &series, &mut numbers);
                if batch.is_empty() {
                    break;
                }
                made += batch.packet_count() as u64;
                // In order: what did not fit before goes first.
                waiting.push(batch);
                while let Some(first) = waiting.first_mut() {
                    socket.send(first).unwrap();
                    if !first.is_empty() {
                        break;
                    }
                    waiting.remove(0);
                }
            }
            everything_is_taken(umem);
            assert!(made >= 512, "{made}");
            let before = socket.statistics().unwrap();
            assert_eq!(before.levels.tx, 256, "{before:?}");
            let started = Instant::now();
            let ready = socket.wait(Interest::WRITABLE, stuck()).unwrap();
            assert!(ready.timed_out(), "{ready:?}");
            let after = socket.statistics().unwrap();
            let calls = after.wakeups_tx - before.wakeups_tx;
            let bound = 2 * u64::try_from(started.elapsed().as_millis()).unwrap();
            assert!((1..bound).contains(&calls), "{calls} calls in {:?}", started.elapsed());
            assert_eq!((after.sent, after.tx_dropped), (before.sent, 0));
            everything_is_taken(umem);

            far_wakes(lab);
            for mut batch in waiting {
                while !batch.is_empty() {
                    assert!(socket.wait(Interest::WRITABLE, BESIDE).unwrap().writable());
                    socket.send(&mut batch).unwrap();
                }
            }
            settle(&mut socket);
            let mut checker = Checker::new(series);
            collect(&mut raw, &mut checker, made);
            assert!(checker.tally().is_perfect(made), "{:?} of {made}", checker.tally());
            assert_eq!(socket.statistics().unwrap().tx_dropped, 0);
            adds_up(umem);
            lab.far.detach_xdp(XdpMode::Native).unwrap();
        });
    });
}
