//! The Fill and the Completion ring of a (device, queue).
//!
//! They belong to the queue, not to a socket. A sole socket holds them inline; sockets that share the
//! queue hold them together, each behind a lock that is taken once per batch.

use std::{
    mem,
    ops::{Deref, DerefMut},
};

use super::{SocketConfig, endpoint::Endpoint};
use crate::{
    ring::{Consumer, Indices, Producer, RingSize},
    sync::{Arc, AtomicU32, Mutex, MutexGuard, Ordering, lock},
    umem::{Held, Holder, Tally, Timestamps, Umem, to_u32},
};

/// What is common to all sockets of a queue; gone with the last of them.
pub(crate) struct Queue {
    pub(super) umem: Umem,
    pub(super) ifindex: u32,
    pub(super) id: u32,
    pub(super) fill_size: RingSize,
    pub(super) completion_size: RingSize,
    /// The Completion ring, to look at; none at the end, since it keeps the ring mapped.
    completion_level: Option<Indices>,
    /// Frames given to the kernel to receive into, and not received by any member yet.
    pub(super) filled: Outstanding,
    /// Frames given to the kernel to send, and not completed yet.
    pub(super) sending: Outstanding,
    /// When packets were sent for which that was asked.
    pub(super) timestamps: Mutex<Timestamps>,
    /// The rings, while no sole socket has them.
    fill: Mutex<Option<Producer<u64>>>,
    completion: Mutex<Option<Consumer<u64>>>,
    /// The socket on which the rings were made: it stays open as long as they are used.
    owner: Option<Endpoint>,
}

impl Queue {
    /// A queue with its rings, to be held by one socket for now.
    pub(crate) fn new(
        umem: &Umem,
        (ifindex, id): (u32, u32),
        config: &SocketConfig,
        completion: &Consumer<u64>,
        owner: Endpoint,
    ) -> Arc<Self> {
        let queue = Arc::new(Self {
            umem: umem.clone(),
            ifindex,
            id,
            fill_size: config.fill,
            completion_size: config.completion,
            completion_level: Some(completion.indices().clone()),
            filled: Outstanding::default(),
            sending: Outstanding::default(),
            timestamps: Mutex::new(Timestamps::new(config.completion.get())),
            fill: Mutex::default(),
            completion: Mutex::default(),
            owner: Some(owner),
        });
        umem.counts().register(&queue);
        queue
    }
}

impl Holder for Queue {
    fn count(&self, tally: &mut Tally) {
        let completed = self.completion_level.as_ref().map_or(0, Indices::level);
        tally.fill += i64::from(self.filled.get());
        tally.completion += i64::from(completed);
        tally.tx += i64::from(self.sending.get()) - i64::from(completed);
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let (umem, geometry) = (self.umem.clone(), *self.umem.geometry());
        let owner = self.owner.take();
        // Asked before the rings are read: once it has let go, the kernel moves no index any more.
        let let_go = owner.as_ref().is_some_and(Endpoint::is_let_go);
        // Completed frames are ours already.
        let completed = lock(&self.completion).take().map_or(Vec::new(), Consumer::into_ready);
        let home: Vec<u64> = completed
            .iter()
            .filter(|address| geometry.holds(**address))
            .map(|address| geometry.base(*address))
            .collect();
        umem.counts().lose(to_u32(completed.len() - home.len()));
        self.sending.sub(to_u32(completed.len()));
        umem.returned(&home);
        // What lies in the Fill ring the kernel may still take until the socket is closed. What it took
        // before, and what lay in TX rings, it may have finished meanwhile: of that only the number is
        // sure.
        let mut known = lock(&self.fill).take().map_or(Vec::new(), Producer::into_untaken);
        if !let_go {
            known.drain(..known.len().min(UNPUBLISHED));
        }
        let held = self.filled.get().saturating_add(self.sending.get());
        let unknown = held.saturating_sub(to_u32(known.len()));
        // Unmapped before it is closed: a mapped ring keeps the kernel's socket alive.
        self.completion_level = None;
        drop(owner);
        umem.quarantine(Held { ifindex: self.ifindex, queue: self.id, known, unknown });
        if let_go {
            umem.queue_is_free(self.ifindex, self.id, &[]);
        }
    }
}

/// Frames that the kernel may have taken from the Fill ring and put into an RX ring, where we found them,
/// before it publishes that it took them: what one round of a driver's receive loop brings, and one of the
/// kernel's test runs.
const UNPUBLISHED: usize = 256;

/// A ring that a queue can hold for several sockets.
pub(super) trait QueueRing: Sized {
    fn place(queue: &Queue) -> &Mutex<Option<Self>>;
}

impl QueueRing for Producer<u64> {
    fn place(queue: &Queue) -> &Mutex<Option<Self>> {
        &queue.fill
    }
}

impl QueueRing for Consumer<u64> {
    fn place(queue: &Queue) -> &Mutex<Option<Self>> {
        &queue.completion
    }
}

/// One of a queue's two rings, as a half of a socket holds it.
#[derive(Debug)]
pub(super) enum Share<R> {
    /// Inline, by the queue's one socket.
    Sole(R),
    /// In the queue, behind its lock, together with others.
    Common,
}

impl<R: QueueRing> Share<R> {
    /// Uses the ring: at no cost for the queue's one socket, behind the lock for others.
    #[inline]
    pub(super) fn with<T>(&mut self, queue: &Queue, act: impl FnOnce(&mut R) -> T) -> T {
        match self {
            Self::Sole(ring) => act(ring),
            Self::Common => act(&mut Locked(lock(R::place(queue)))),
        }
    }

    /// Puts the ring into the queue: to be shared, or left at the end.
    pub(super) fn put(&mut self, queue: &Queue) {
        if let Self::Sole(ring) = mem::replace(self, Self::Common) {
            *lock(R::place(queue)) = Some(ring);
        }
    }

    /// The ring, for as long as it is borrowed.
    pub(super) fn borrow<'a>(&'a mut self, queue: &'a Queue) -> Box<dyn DerefMut<Target = R> + 'a> {
        match self {
            Self::Sole(ring) => Box::new(ring),
            Self::Common => Box::new(Locked(lock(R::place(queue)))),
        }
    }
}

/// A ring behind the queue's lock.
struct Locked<'a, R>(MutexGuard<'a, Option<R>>);

impl<R> Deref for Locked<'_, R> {
    type Target = R;

    fn deref(&self) -> &R {
        self.0.as_ref().expect("shared rings are in the queue")
    }
}

impl<R> DerefMut for Locked<'_, R> {
    fn deref_mut(&mut self) -> &mut R {
        self.0.as_mut().expect("shared rings are in the queue")
    }
}

/// A count of frames that one thread at a time changes, once per batch, and anybody may read.
#[derive(Debug, Default)]
pub(super) struct Outstanding(AtomicU32);

impl Outstanding {
    pub(super) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// A plain load and store: whoever changes it holds the ring, inline or by its lock.
    #[inline]
    pub(super) fn add(&self, frames: u32) {
        self.0.store(self.get().wrapping_add(frames), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn sub(&self, frames: u32) {
        self.0.store(self.get().wrapping_sub(frames), Ordering::Relaxed);
    }
}
