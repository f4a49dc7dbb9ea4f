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
    sync::{Arc, AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, lock},
    umem::{DeviceQueue, Flights, Held, Holder, Tally, Timestamps, Umem, to_u32},
};

/// What is common to all sockets of a queue; gone with the last of them.
pub(crate) struct Queue {
    pub(super) umem: Umem,
    pub(super) place: DeviceQueue,
    pub(super) fill_size: RingSize,
    pub(super) completion_size: RingSize,
    /// The Fill and the Completion ring, to look at; none at the end, since they keep the rings mapped.
    pub(super) fill_level: Option<Indices>,
    pub(super) completion_level: Option<Indices>,
    /// Frames given to the kernel to receive into, and not received by any member yet.
    pub(super) filled: Outstanding,
    /// Frames given to the kernel to send, and not completed yet.
    pub(super) sending: Outstanding,
    /// Clones that the kernel has; `sending` counts them too.
    pub(super) clones: Arc<Flights>,
    /// When packets were sent for which that was asked.
    pub(super) timestamps: Mutex<Timestamps>,
    /// The rings, while no sole socket has them.
    fill: Mutex<Option<Producer<u64>>>,
    completion: Mutex<Option<Consumer<u64>>>,
    /// Frames were taken off the account because somebody said that the kernel has not got them.
    doubtful: AtomicBool,
    /// Somebody else has seen the descriptor of a member, and may have put it into a map of theirs.
    exposed: AtomicBool,
    /// The socket on which the rings were made: it stays open as long as they are used.
    owner: Option<Endpoint>,
}

impl Queue {
    /// A queue with its rings, to be held by one socket for now.
    pub(crate) fn new(
        umem: &Umem,
        place: DeviceQueue,
        config: &SocketConfig,
        [fill, completion]: [&Indices; 2],
        owner: Endpoint,
    ) -> Arc<Self> {
        let queue = Arc::new(Self {
            umem: umem.clone(),
            place,
            fill_size: config.fill,
            completion_size: config.completion,
            fill_level: Some(fill.clone()),
            completion_level: Some(completion.clone()),
            filled: Outstanding::default(),
            sending: Outstanding::default(),
            clones: Arc::default(),
            timestamps: Mutex::new(Timestamps::new(config.completion.get())),
            fill: Mutex::default(),
            completion: Mutex::default(),
            doubtful: AtomicBool::new(false),
            exposed: AtomicBool::new(false),
            owner: Some(owner),
        });
        umem.counts().register(&queue);
        queue
    }

    /// Takes so many frames off those that are being sent, or all that are no clones; returns how many. Whoever
    /// calls it holds the Completion ring.
    pub(super) fn refuse(&self, descriptors: u32) -> u32 {
        let count = descriptors.min(self.sending.get().saturating_sub(self.clones.get()));
        self.sending.sub(count);
        self.doubt();
        count
    }

    /// From now on the kernel may have more frames than the account says.
    pub(super) fn doubt(&self) {
        self.doubtful.store(true, Ordering::Relaxed);
    }

    /// A member's descriptor is given out.
    pub(super) fn expose(&self) {
        self.exposed.store(true, Ordering::Relaxed);
    }

    /// Whether others may have a descriptor of a member.
    pub(super) fn is_exposed(&self) -> bool {
        self.exposed.load(Ordering::Relaxed)
    }

    /// Waits until what the kernel took from the Fill ring is what the ring says, where that can be known.
    fn settle(&self, owner: Option<&Endpoint>) -> bool {
        !self.is_exposed() && owner.is_some_and(Endpoint::finish_receiving)
    }
}

impl Holder for Queue {
    fn count(&self, tally: &mut Tally) {
        let completed = self.completion_level.as_ref().map_or(0, Indices::level);
        tally.fill += i64::from(self.filled.balance());
        let clones = i64::from(self.clones.get());
        let sending = i64::from(self.sending.balance()) - clones;
        let completed = i64::from(completed);
        // Which of the completed ones are clones is seen when they are taken.
        let completed = if clones > 0 { completed.min(sending.max(0)) } else { completed };
        tally.completion += completed;
        tally.tx += sending - completed;
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let umem = self.umem.clone();
        let owner = self.owner.take();
        // Asked before the rings are read: once it has let go, the kernel moves no index any more.
        let let_go = owner.as_ref().is_some_and(Endpoint::is_let_go);
        // Completed frames are ours already.
        let mut completed = lock(&self.completion).take().map_or(Vec::new(), Consumer::into_ready);
        let all = completed.len();
        self.sending.sub(to_u32(all));
        completed.retain(|address| !umem.geometry().holds_clone(*address));
        let never_sent = self.clones.land(all - completed.len());
        umem.counts().lose(to_u32(never_sent));
        umem.take_back(&completed);
        // What lies in the Fill ring the kernel may still take until the socket is closed. What it took
        // before, and what lay in TX rings, it may have finished meanwhile: of that only the number is
        // sure.
        let published = let_go || self.settle(owner.as_ref());
        let mut known = lock(&self.fill).take().map_or(Vec::new(), Producer::into_untaken);
        if !published {
            known.drain(..known.len().min(UNPUBLISHED));
        }
        // Whoever wrote them at the descriptor level may have named any byte of a chunk.
        let (known, nowhere) = umem.frames_of(&known);
        self.filled.sub(to_u32(nowhere));
        umem.counts().lose(to_u32(nowhere));
        let sending = self.sending.get().saturating_sub(self.clones.get());
        let held = self.filled.get().saturating_add(sending);
        let unknown = held.saturating_sub(to_u32(known.len()));
        umem.close_flights(&self.clones, self.place);
        // Held before it is closed: whoever binds the queue next finds them.
        let doubtful = self.doubtful.load(Ordering::Relaxed);
        umem.quarantine(Held { queue: self.place, known, unknown, doubtful });
        // Unmapped before it is closed: a mapped ring keeps the kernel's socket alive.
        self.fill_level = None;
        self.completion_level = None;
        drop(owner);
        if let_go {
            umem.queue_is_free(self.place, &[]);
        }
    }
}

/// Frames that the kernel may have taken from the Fill ring and put into an RX ring, where we found them,
/// before it publishes that it took them, where it could not be waited for: what one round of a driver's
/// receive loop brings, and one of the kernel's test runs.
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
    ///
    /// `act` is a function and no closure, and gets what `argument` makes: both are used in two places, in
    /// one of which they are to become one with the code of the caller.
    #[inline]
    pub(super) fn with<A, T>(
        &mut self,
        queue: &Queue,
        argument: impl FnOnce() -> A,
        act: impl FnOnce(&mut R, A) -> T,
    ) -> T {
        match self {
            Self::Sole(ring) => act(ring, argument()),
            Self::Common => with_common(queue, argument(), act),
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

/// Apart, so that the code of sole sockets has no lock in it.
#[inline(never)]
fn with_common<R: QueueRing, A, T>(
    queue: &Queue,
    argument: A,
    act: impl FnOnce(&mut R, A) -> T,
) -> T {
    act(&mut Locked(lock(R::place(queue))), argument)
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
pub(super) struct Outstanding {
    count: AtomicU32,
    /// To be taken off `count`: what closing members found in their RX rings. They do not hold the ring,
    /// and must not wait for it either, since their thread may hold it by another socket.
    left: AtomicU32,
}

impl Outstanding {
    /// How many there are: none, where more came back than were given.
    #[inline]
    pub(super) fn get(&self) -> u32 {
        self.balance().max(0).cast_unsigned()
    }

    /// As [`get`](Self::get), but below zero where more came back than were given: the kernel returned
    /// descriptors behind which there is no frame.
    #[inline]
    fn balance(&self) -> i32 {
        self.balance_of(self.count.load(Ordering::Relaxed))
    }

    /// The same with this count.
    #[inline]
    fn balance_of(&self, count: u32) -> i32 {
        count.wrapping_sub(self.left.load(Ordering::Relaxed)).cast_signed()
    }

    /// Takes frames off that came back, and gives as many as there are fewer than `target` then to `refill`,
    /// which says how many it gave.
    #[inline]
    pub(super) fn exchange(&self, back: u32, target: u32, refill: impl FnOnce(u32) -> u32) {
        let count = self.count.load(Ordering::Relaxed).wrapping_sub(back);
        let balance = self.balance_of(count).max(0).cast_unsigned();
        let filled = if balance < target { refill(target - balance) } else { 0 };
        self.count.store(count.wrapping_add(filled), Ordering::Relaxed);
    }

    /// A plain load and store: whoever changes it holds the ring, inline or by its lock.
    #[inline]
    pub(super) fn add(&self, frames: u32) {
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count.wrapping_add(frames), Ordering::Relaxed);
    }

    /// As [`add`](Self::add).
    #[inline]
    pub(super) fn sub(&self, frames: u32) {
        self.add(frames.wrapping_neg());
    }

    /// Takes frames off without holding the ring: at the end of a member.
    pub(super) fn leave(&self, frames: u32) {
        self.left.fetch_add(frames, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A member closes while another counts: neither's change is lost.
    #[test]
    fn a_count_survives_a_member_that_leaves() {
        let count = Outstanding::default();
        count.add(100_000);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..50_000).for_each(|_| count.leave(1)));
            for _ in 0..100_000 {
                count.add(2);
                count.sub(2);
            }
        });
        assert_eq!(count.get(), 50_000);
    }

    /// The kernel sends on while a socket closes, between the looks at its TX ring and at the Completion
    /// ring: what it sent is at home, and not in quarantine as well.
    #[cfg(feature = "fake")]
    #[test]
    fn a_frame_that_is_sent_meanwhile_is_not_held_twice() -> crate::Result<()> {
        let umem = crate::UmemConfig::new(64).build()?;
        let size = RingSize::new(16)?;
        let config = SocketConfig::default().tx(size).fill(size);
        let (mut socket, kernel) = crate::fake::socket(&umem, &config)?;
        let mut batch = umem.batch(16);
        batch.alloc(10);
        for mut packet in batch.packets_mut() {
            packet.set_len(60).expect("60 bytes fit");
        }
        socket.send(&mut batch)?;
        let (receiver, sender) = socket.into_split();
        let queue = receiver.core.queue.clone();
        drop((receiver, sender));
        kernel.transmit(3);
        drop((queue, batch));
        let audit = umem.audit();
        assert_eq!((audit.free, audit.quarantine), (64 - 16 - 7, 16 + 7), "{audit}");
        Ok(())
    }

    #[test]
    fn more_back_than_given_is_none() {
        let count = Outstanding::default();
        count.add(1);
        count.sub(3);
        assert_eq!((count.get(), count.balance()), (0, -2));
        count.add(5);
        assert_eq!(count.get(), 3);
    }
}
