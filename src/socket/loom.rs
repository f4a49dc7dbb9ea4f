//! A socket that sends and receives while the kernel falls asleep: every order in which the two can meet.
//! Run by `cargo xtask test loom`.
//!
//! As the real one, the kernel has no fence between setting the flag and its last look at the ring: it can
//! miss what was submitted while the flag was read as not set. That this happens is a part of the models;
//! the rule that it is made good by is that [every call reads the flag again](super::need_wakeup).

use ::loom::thread;

use super::*;
use crate::{
    RingSize, UmemConfig, fake,
    sync::{Ordering, fence, global, model},
};

/// More calls than it takes in any order.
const CALLS: usize = 10;

/// A socket with rings of one slot and the kernel behind it, awake.
fn world() -> (Umem, Socket, fake::Kernel) {
    let umem = UmemConfig::new(2).build().unwrap();
    let one = RingSize::new(1).unwrap();
    let config = SocketConfig::default().rx(one).tx(one).fill(one).completion(one);
    let (socket, kernel) = fake::socket_from(&umem, &config, u32::MAX).unwrap();
    kernel.set_needs_wakeup_tx(false);
    (umem, socket, kernel)
}

/// What happened besides the model: it synchronises nothing in it.
#[derive(Clone, Default)]
struct Notes {
    asleep: Arc<global::AtomicBool>,
    missed: Arc<global::AtomicU32>,
}

impl Notes {
    fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::Relaxed);
    }

    fn asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }

    /// In one order more, the kernel slept and had not been called.
    fn note_missed(&self, missed: bool) {
        self.missed.fetch_add(u32::from(missed), Ordering::Relaxed);
    }

    fn missed(&self) -> u32 {
        self.missed.load(Ordering::Relaxed)
    }
}

/// Sends a packet while the kernel falls asleep, with a fence of its own or without; returns in how many
/// orders `send` did not wake it, and a later call had to.
fn send_to_a_kernel_that_falls_asleep(fenced: bool) -> u32 {
    let notes = Notes::default();
    let all = notes.clone();
    model(Some(3), move || {
        notes.set_asleep(false);
        let (umem, mut socket, kernel) = world();
        kernel.transmit_on_kick(1);
        let driver = {
            let (kernel, notes) = (kernel.clone(), notes.clone());
            thread::spawn(move || {
                let mut sent = kernel.transmit(1).len();
                kernel.set_needs_wakeup_tx(true);
                if fenced {
                    fence(Ordering::SeqCst);
                }
                sent += kernel.transmit(1).len();
                notes.set_asleep(true);
                sent
            })
        };
        let mut batch = umem.batch(1);
        batch.alloc(1);
        batch.packets_mut().for_each(|mut packet| packet.write(b"x").unwrap());
        assert_eq!(socket.send(&mut batch).unwrap(), 1);
        let missed = notes.asleep() && socket.sender.core.tx.wakeups.get() == 0;
        let mut calls = 0;
        while socket.sender.unsent() > 0 {
            calls += 1;
            assert!(calls < CALLS, "nobody calls a kernel that sleeps");
            thread::yield_now();
            socket.sender.reap().unwrap();
        }
        let (by_itself, by_call) = (driver.join().unwrap(), kernel.sent().len());
        assert_eq!(by_itself + by_call, 1);
        notes.note_missed(missed && by_call > 0);
    });
    all.missed()
}

#[test]
fn a_kernel_that_falls_asleep_over_tx_is_called() {
    assert!(send_to_a_kernel_that_falls_asleep(false) > 0, "it can miss what `send` submits");
}

/// What our own fence is good for: with one on the kernel's side, too, `send` alone is enough.
#[test]
fn two_fences_miss_nothing() {
    assert_eq!(send_to_a_kernel_that_falls_asleep(true), 0);
}

#[test]
fn a_kernel_that_falls_asleep_over_fill_is_called() {
    let notes = Notes::default();
    let all = notes.clone();
    model(None, move || {
        notes.set_asleep(false);
        let (umem, mut socket, kernel) = world();
        // All frames are in use.
        let mut held = umem.batch(2);
        while held.room() > 0 {
            kernel.deliver(b"x");
            socket.recv(&mut held).unwrap();
        }
        let driver = {
            let (kernel, notes) = (kernel.clone(), notes.clone());
            thread::spawn(move || {
                kernel.set_needs_wakeup_rx(true);
                let delivered = kernel.deliver(b"y");
                notes.set_asleep(!delivered);
                delivered
            })
        };
        held.clear();
        let mut received = socket.recv(&mut held).unwrap();
        notes.note_missed(notes.asleep() && socket.receiver.core.rx.wakeups.get() == 0);
        let mut calls = 0;
        while received == 0 && socket.receiver.core.rx.wakeups.get() == 0 {
            calls += 1;
            assert!(calls < CALLS, "nobody calls a kernel that sleeps");
            thread::yield_now();
            received = socket.recv(&mut held).unwrap();
        }
        if !driver.join().unwrap() {
            assert!(kernel.deliver(b"y"), "the frames are there");
        }
        received += socket.recv(&mut held).unwrap();
        assert_eq!(received, 1);
    });
    assert!(all.missed() > 0, "it can miss what `recv` submits");
}
