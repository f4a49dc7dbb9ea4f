//! Wake-ups that the kernel answers with an error that is none, for real: EBUSY, EAGAIN, ENOBUFS.
//!
//! From a call to send, ENOBUFS is what the kernel says where it has no memory for a packet, which the fake
//! kernel plays. From a call to receive it is the answer of every socket without an RX ring.

use std::{
    os::fd::{AsFd, AsRawFd},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, recv, send as kick, setsockopt, sockopt},
};
use xskit::{ErrorKind, Interest, Socket, Umem};
use xskit_lab::{Checker, Lab, LabConfig, XdpMode};

use crate::{
    after::nothing_is_left,
    bench::alone,
    full::{far_sleeps, far_wakes},
    support::{
        LIMIT, MOMENT, adds_up, collect, near_interface, rings, send, settle, to_far, write,
    },
};

fn open(umem: &Umem, config: &xskit::SocketConfig) -> Socket {
    Socket::open(umem, &near_interface(), 0, config).unwrap()
}

/// Frames go out, all of them.
#[track_caller]
fn all_arrive(lab: &Lab, socket: &mut Socket, count: u64) {
    let mut raw = lab.raw().unwrap();
    let series = to_far(lab, 200);
    let mut checker = Checker::new(series.clone());
    send(socket, &series, 0..count, 64);
    collect(&mut raw, &mut checker, count);
    assert!(checker.tally().is_perfect(count), "{:?}", checker.tally());
    settle(socket);
}

#[test]
fn ebusy_for_every_frame_while_the_peer_is_down() {
    alone(|| {
        nothing_is_left(&LabConfig::default(), |lab, umem| {
            let mut socket = open(umem, &rings(256));
            lab.far.down().unwrap();
            send(&mut socket, &to_far(lab, 200), 0..600, 64);
            settle(&mut socket);
            let statistics = socket.statistics().unwrap();
            assert_eq!((statistics.sent, statistics.completed), (600, 600));
            // Each of them is one call that was answered so.
            assert_eq!(statistics.tx_dropped, 600);
            assert!(statistics.wakeups_tx >= 600, "{statistics:?}");
            assert_eq!(statistics.kernel.tx_invalid_descs, 0);
            adds_up(umem);
            lab.far.up().unwrap();
            lab.near.wait_up(LIMIT).unwrap();
            all_arrive(lab, &mut socket, 600);
            assert_eq!(socket.statistics().unwrap().tx_dropped, 600);
            adds_up(umem);
        });
    });
}

#[test]
fn eagain_while_a_small_send_buffer_is_full() {
    alone(|| {
        nothing_is_left(&LabConfig::default(), |lab, umem| {
            let mut raw = lab.raw().unwrap();
            let mut socket = open(umem, &rings(64));
            // Few frames may be in flight, and the receiver keeps them.
            setsockopt(&socket.as_fd(), sockopt::SndBuf, &0).unwrap();
            far_sleeps(lab, Duration::from_secs(3));
            let series = to_far(lab, 1000);
            let mut batch = umem.batch(64);
            let mut numbers = 0..;
            write(&mut batch, &series, &mut (&mut numbers).take(1));
            socket.send(&mut batch).unwrap();
            thread::sleep(MOMENT);
            // The first frame was seen at once; from now on the receiver sleeps.
            let mut given = 1;
            let full = loop {
                write(&mut batch, &series, &mut numbers);
                given += socket.send(&mut batch).unwrap() as u64;
                if !batch.is_empty() {
                    break batch.len();
                }
            };
            let fd = socket.as_fd().as_raw_fd();
            assert_eq!(kick(fd, &[], MsgFlags::MSG_DONTWAIT), Err(Errno::EAGAIN));
            let before = socket.statistics().unwrap();
            let started = Instant::now();
            let ready = socket.wait(Interest::WRITABLE, Duration::from_millis(500)).unwrap();
            let took = started.elapsed();
            assert!(ready.timed_out(), "{ready:?} after {took:?}");
            assert!(took >= Duration::from_millis(500) && took < LIMIT, "{took:?}");
            let kicks = socket.statistics().unwrap().wakeups_tx - before.wakeups_tx;
            assert!((1..=1200).contains(&kicks), "{kicks} calls in {took:?}");
            assert_eq!(socket.send(&mut batch).unwrap(), 0, "{full} frames stay in the batch");
            adds_up(umem);
            // It wakes up: everything leaves, in order.
            far_wakes(lab);
            let mut checker = Checker::new(series);
            while !batch.is_empty() {
                assert!(socket.wait(Interest::WRITABLE, LIMIT).unwrap().writable());
                given += socket.send(&mut batch).unwrap() as u64;
            }
            settle(&mut socket);
            assert_eq!(socket.statistics().unwrap().tx_dropped, 0);
            collect(&mut raw, &mut checker, given);
            assert!(checker.tally().is_perfect(given), "{:?} of {given}", checker.tally());
            adds_up(umem);
            lab.far.detach_xdp(XdpMode::Native).unwrap();
        });
    });
}

/// A socket that waits asks by a call to receive, twice a second, whether its link is there.
#[test]
fn enobufs_from_a_socket_without_an_rx_ring() {
    alone(|| {
        nothing_is_left(&LabConfig::default(), |lab, umem| {
            let mut socket = open(umem, &rings(64).send_only());
            let fd = socket.as_fd().as_raw_fd();
            assert_eq!(recv(fd, &mut [], MsgFlags::MSG_DONTWAIT), Err(Errno::ENOBUFS));
            setsockopt(&socket.as_fd(), sockopt::SndBuf, &0).unwrap();
            far_sleeps(lab, Duration::from_secs(3));
            let mut batch = umem.batch(64);
            while batch.is_empty() {
                write(&mut batch, &to_far(lab, 1000), &mut (0..));
                socket.send(&mut batch).unwrap();
            }
            let ready = socket.wait(Interest::WRITABLE, Duration::from_millis(1200)).unwrap();
            assert!(ready.timed_out(), "{ready:?}");
            // It is the link that is asked for.
            lab.near.down().unwrap();
            let error = socket.wait(Interest::WRITABLE, LIMIT).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LinkDown, "{error}");
            lab.near.up().unwrap();
            far_wakes(lab);
            lab.near.wait_up(LIMIT).unwrap();
            lab.far.wait_up(LIMIT).unwrap();
            while !batch.is_empty() {
                assert!(socket.wait(Interest::WRITABLE, LIMIT).unwrap().writable());
                socket.send(&mut batch).unwrap();
            }
            settle(&mut socket);
            drop(batch);
            lab.far.detach_xdp(XdpMode::Native).unwrap();
            all_arrive(lab, &mut socket, 200);
        });
    });
}
