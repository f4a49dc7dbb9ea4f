//! The Fill and the Completion ring of a (device, queue).
//!
//! They belong to the queue, not to a socket. A sole socket holds them inline; sockets that share the
//! queue hold them together, each behind a lock that is taken once per batch.

use std::ops::{Deref, DerefMut};

use super::endpoint::Endpoint;
use crate::{
    ring::{Consumer, Indices, Producer},
    sync::{Arc, AtomicU32, Mutex, MutexGuard, Ordering, lock},
    sys::mapping::Mapping,
    umem::{Held, Holder, Tally, Umem},
};

/// What is common to all sockets of a queue; gone with the last of them.
pub(super) struct Queue {
    pub(super) ifindex: u32,
    pub(super) queue: u32,
    pub(super) umem: Umem,
    pub(super) fill: Indices,
    pub(super) completion: Indices,
    /// Frames given to the kernel to receive into, and not received by any member yet.
    pub(super) filled: Outstanding,
    /// Frames given to the kernel to send, and not completed yet.
    pub(super) sending: Outstanding,
    /// Frames that still lay in TX rings of members that are gone.
    pub(super) left: Mutex<Vec<u64>>,
    /// What is left when the last member goes: read once, at the end.
    pub(super) leftovers: Mutex<Box<dyn FnMut() -> Leftovers + Send>>,
    pub(super) _mappings: Vec<Mapping>,
    /// The socket that the two rings were made on: they live no longer than it.
    pub(super) _owner: Endpoint,
}

/// Frames that lie in the two rings, by address as the ring has it.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    pub(super) fill: Vec<u64>,
    pub(super) completed: Vec<u64>,
}

/// A count of frames that one thread at a time writes, once per batch, and anybody may read.
#[derive(Debug, Default)]
pub(super) struct Outstanding(AtomicU32);

impl Outstanding {
    pub(super) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Plain loads and stores: whoever writes holds the ring, by `&mut` or by its lock.
    #[inline]
    pub(super) fn add(&self, frames: u32) {
        self.0.store(self.get().wrapping_add(frames), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn sub(&self, frames: u32) {
        self.0.store(self.get().wrapping_sub(frames), Ordering::Relaxed);
    }
}
