//! Links that end, pause or go elsewhere while packets flow: what receiving, sending and waiting return.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use xskit::{
    Error, ErrorKind, Interest, Result, Socket, Step, Umem,
    interface::{self, Deferral},
};
use xskit_lab::{Lab, LabConfig, Link, Netns, Offload, VethEnd};

use crate::{
    after::nothing_is_left,
    bench::{
        Expected, PATIENCE, PORT, all_free, alone, nothing_attached, port, receives, sends, umem,
        works,
    },
    support::attribute,
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

/// Half a second after the end, on a machine that does nothing else; never, if it is not looked for.
#[track_caller]
fn in_time(took: Duration, error: &Error) {
    assert!(took < PATIENCE, "after {took:?}: {error}");
}

fn bring_up(lab: &Lab) {
    lab.near.up().unwrap();
    lab.near.wait_up(PATIENCE).unwrap();
    lab.far.wait_up(PATIENCE).unwrap();
}

#[test]
fn set_down_and_up() {
    alone(|| {
        nothing_is_left(&LabConfig::default(), |lab, umem| {
            for (step, work, quiet) in LOOPS {
                let (port, mut socket) = open(umem);
                let down = || lab.near.down().unwrap();
                let (error, took) = until(lab, &mut socket, work, quiet, down);
                let says = &["the interface is down", "set it up"];
                expected(step, ErrorKind::LinkDown, libc::ENETDOWN, says).is(&error);
                in_time(took, &error);
                // It is still so.
                assert_eq!(
                    socket.wait(Interest::READABLE, PATIENCE).unwrap_err().kind(),
                    ErrorKind::LinkDown
                );
                // Up again, the same socket works, as the error says, and a new one does.
                bring_up(lab);
                sends(lab, &mut socket, &mut lab.raw().unwrap());
                receives(lab, &mut socket, &lab.raw().unwrap());
                drop((socket, port));
                nothing_attached(lab);
                works(lab, umem, 0);
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
    near.wait_up(PATIENCE).unwrap();
    far.wait_up(PATIENCE).unwrap();
    Lab { near, far }
}

/// On its way out an interface is set down first, which may be seen.
#[track_caller]
fn is_gone(error: Error, step: Step, socket: &mut Socket, work: Loop) {
    let error = match error.kind() {
        ErrorKind::LinkDown => work(socket).unwrap_err(),
        _ => error,
    };
    let says = &["the interface was deleted or moved", "open a new one"];
    expected(step, ErrorKind::LinkGone, libc::ENXIO, says).is(&error);
    stays_gone(socket);
}

#[track_caller]
fn stays_gone(socket: &mut Socket) {
    let error = socket.wait(Interest::READABLE, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LinkGone, "{error}");
}

#[test]
fn deleted() {
    alone(|| {
        nothing_is_left(&LabConfig::default(), |lab, umem| {
            for (step, work, quiet) in LOOPS {
                let (port, mut socket) = open(umem);
                let delete = || lab.near.delete().unwrap();
                let (error, took) = until(lab, &mut socket, work, quiet, delete);
                in_time(took, &error);
                is_gone(error, step, &mut socket, work);
                // Made again, it is another interface: the old socket stays dead, a new one works,
                // also before the old one is dropped.
                *lab = again(lab);
                stays_gone(&mut socket);
                works(lab, &self::umem(), 0);
                drop((socket, port));
                // Nobody will bind the old one's queue again: its frames are not held for that.
                all_free(umem);
                works(lab, umem, 0);
            }
        });
    });
}

#[test]
fn moved_to_another_namespace() {
    alone(|| {
        nothing_is_left(&LabConfig::default(), |lab, umem| {
            let home = lab.near.netns().clone();
            for (step, work, quiet) in LOOPS {
                let (old, mut socket) = open(umem);
                let elsewhere = Netns::new().unwrap();
                let mut near = None;
                let go = || near = Some(lab.near.clone().move_to(&elsewhere).unwrap());
                let (error, took) = until(lab, &mut socket, work, quiet, go);
                in_time(took, &error);
                is_gone(error, step, &mut socket, work);
                // Up over there, it has the program still: the old socket stays dead, a new one has to wait
                // for the old one's end.
                let there = Lab { near: near.unwrap(), far: lab.far.clone() };
                bring_up(&there);
                stays_gone(&mut socket);
                let fresh = self::umem();
                let error = there.enter(|| port(&fresh).open().unwrap_err());
                assert_eq!(
                    (error.step(), error.kind()),
                    (Step::AttachProgram, ErrorKind::Busy),
                    "{error}"
                );
                all_free(&fresh);
                drop((socket, old));
                nothing_attached(&there);
                // What a queue had when it was closed stays with it, until it is bound again in that namespace.
                there.enter(|| works(&there, &fresh, 0));
                *lab = Lab { near: there.near.move_to(&home).unwrap(), far: there.far };
                bring_up(lab);
                works(lab, umem, 0);
            }
        });
    });
}

#[test]
fn what_was_set_on_one_that_moved() {
    alone(|| {
        nothing_is_left(&LabConfig::default(), |lab, umem| {
            let home = lab.near.netns().clone();
            let elsewhere = Netns::new().unwrap();
            lab.near.set_offload(Offload::TxChecksum, true).unwrap();
            let config = port(umem).promiscuous(true).defer_interrupts(Deferral::default());
            let open = config.open().unwrap();
            let checksums = interface::Offload::TxChecksum.disable(open.interface()).unwrap();
            let near = lab.near.clone().move_to(&elsewhere).unwrap();
            let deferred = || attribute(&near, "napi_defer_hard_irqs");
            assert_eq!(deferred(), "2");
            drop(open);
            assert_eq!(deferred(), "0", "it comes back where the interface is now");
            assert!(!is_promiscuous(&near));
            // This is done by name and index, which nobody has there any more.
            assert_eq!(checksums.restore().unwrap_err().kind(), ErrorKind::LinkGone);
            assert!(!near.offload(Offload::TxChecksum).unwrap());
            *lab = Lab { near: near.move_to(&home).unwrap(), far: lab.far.clone() };
            bring_up(lab);
        });
    });
}

fn is_promiscuous(link: &Link) -> bool {
    const IFF_PROMISC: u32 = 0x100;
    let flags = attribute(link, "flags");
    u32::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap() & IFF_PROMISC != 0
}
