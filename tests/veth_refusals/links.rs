//! Links that end, or pause, while packets flow: what receiving, sending and waiting return.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use xskit::{Error, ErrorKind, Interest, Result, Socket, Step, Umem};
use xskit_lab::{Lab, Link, VethEnd};

use crate::bench::{
    Expected, PORT, SECOND, all_free, alone, nothing_attached, port, receives, sends, umem, works,
};

/// What a thread does with its socket, for ever.
type Loop = fn(&mut Socket) -> Result<()>;

/// Receives, and waits without a limit where there is nothing.
fn wait(socket: &mut Socket) -> Result<()> {
    let mut batch = socket.umem().batch(64);
    loop {
        assert!(socket.wait(Interest::READABLE, None)?.readable());
        socket.recv(&mut batch)?;
        batch.clear();
    }
}

/// Receives without ever waiting.
fn recv(socket: &mut Socket) -> Result<()> {
    let mut batch = socket.umem().batch(64);
    loop {
        socket.recv(&mut batch)?;
        batch.clear();
    }
}

/// Sends, and waits without a limit where there is no room.
fn send(socket: &mut Socket) -> Result<()> {
    let mut batch = socket.umem().batch(64);
    loop {
        let new = batch.alloc(64);
        let sent = batch.packet_count() - new;
        for mut packet in batch.packets_mut().skip(sent) {
            packet.write(&[0xff; 60]).unwrap();
        }
        socket.send(&mut batch)?;
        if !batch.is_empty() {
            let _room = socket.wait(Interest::for_batch(&batch), None)?;
        }
    }
}

/// Each with the step that its error names, and whether the far end is quiet meanwhile.
const LOOPS: [(Step, Loop, bool); 4] = [
    (Step::Wait, wait, false),
    (Step::Wait, wait, true),
    (Step::Receive, recv, false),
    (Step::Send, send, false),
];

/// Runs the loop on the socket while the far end sends, then `end`s it; returns the error, and how long
/// it took to come.
fn until(
    lab: &Lab,
    socket: &mut Socket,
    work: Loop,
    quiet: bool,
    end: impl FnOnce(),
) -> (Error, Duration) {
    let stop = AtomicBool::new(false);
    let far = lab.raw().unwrap();
    let frame = lab.flow(PORT).frame(b"traffic, in frames of more than 60 bytes");
    thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            while !quiet && !stop.load(Ordering::Relaxed) {
                // It fails once the link is down.
                drop(far.send(&frame));
                thread::sleep(Duration::from_micros(100));
            }
        });
        let worker = scope.spawn(|| {
            let error = work(socket).unwrap_err();
            (error, Instant::now())
        });
        thread::sleep(Duration::from_millis(200));
        assert!(!worker.is_finished(), "{:?}", worker.join());
        let ended = Instant::now();
        end();
        let (error, noticed) = worker.join().unwrap();
        stop.store(true, Ordering::Relaxed);
        traffic.join().unwrap();
        (error, noticed.saturating_duration_since(ended))
    })
}

fn expected<'a>(step: Step, kind: ErrorKind, errno: i32, says: &'a [&'a str]) -> Expected<'a> {
    let (interface, queue) = (Some("near0"), Some(0));
    Expected { step, kind, interface, queue, errno: Some(errno), says }
}

fn open(umem: &Umem) -> (xskit::Port, Socket) {
    let mut port = port(umem).open().unwrap();
    let socket = port.take_queue(0).unwrap();
    (port, socket)
}

#[track_caller]
fn in_time(took: Duration, error: &Error) {
    assert!(took < SECOND, "after {took:?}: {error}");
}

#[test]
fn set_down_and_up_while_traffic_runs() {
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let umem = umem();
            for (step, work, quiet) in LOOPS {
                let (port, mut socket) = open(&umem);
                let down = || lab.near.down().unwrap();
                let (error, took) = until(&lab, &mut socket, work, quiet, down);
                let says = &["the interface is down", "set it up"];
                expected(step, ErrorKind::LinkDown, libc::ENETDOWN, says).is(&error);
                in_time(took, &error);
                // It is still so.
                assert_eq!(
                    socket.wait(Interest::READABLE, SECOND).unwrap_err().kind(),
                    ErrorKind::LinkDown
                );
                // Up again, the same socket works, as the error says, and a new one does.
                lab.near.up().unwrap();
                lab.near.wait_up(SECOND).unwrap();
                lab.far.wait_up(SECOND).unwrap();
                sends(&lab, &mut socket, &mut lab.raw().unwrap());
                receives(&lab, &mut socket, &lab.raw().unwrap());
                drop((socket, port));
                nothing_attached(&lab);
                works(&lab, &umem, 0);
            }
        });
    });
}

/// A new pair with the names of the one that was deleted, in the same namespaces.
fn again(old: &Lab) -> Lab {
    let end = |link: &Link| VethEnd::new(link.netns(), link.name(), link.mac());
    let (near, far) = end(&old.near).join(&end(&old.far)).unwrap();
    for link in [&near, &far] {
        link.plain_packets().unwrap();
        link.up().unwrap();
    }
    near.wait_up(SECOND).unwrap();
    far.wait_up(SECOND).unwrap();
    Lab { near, far }
}

#[test]
fn deleted_while_traffic_runs() {
    alone(|| {
        let Some(mut lab) = Lab::for_test() else { return };
        for (step, work, quiet) in LOOPS {
            let new = lab.enter(|| {
                let umem = umem();
                let (port, mut socket) = open(&umem);
                let delete = || lab.near.delete().unwrap();
                let (error, took) = until(&lab, &mut socket, work, quiet, delete);
                in_time(took, &error);
                // On its way out an interface is set down first, which may be seen.
                let error = match error.kind() {
                    ErrorKind::LinkDown => work(&mut socket).unwrap_err(),
                    _ => error,
                };
                let says = &["the interface was deleted", "open a new one"];
                expected(step, ErrorKind::LinkGone, libc::ENXIO, says).is(&error);
                assert_eq!(
                    socket.wait(Interest::READABLE, None).unwrap_err().kind(),
                    ErrorKind::LinkGone
                );
                // Made again, it is another interface: the old socket stays dead, a new one works,
                // also before the old one is dropped.
                let new = again(&lab);
                assert_eq!(
                    socket.wait(Interest::READABLE, None).unwrap_err().kind(),
                    ErrorKind::LinkGone
                );
                let fresh = self::umem();
                works(&new, &fresh, 0);
                drop((socket, port));
                // Nobody will bind the old one's queue again: its frames are not held for that.
                all_free(&umem);
                works(&new, &umem, 0);
                new
            });
            lab = new;
        }
    });
}
