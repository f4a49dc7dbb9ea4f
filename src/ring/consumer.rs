//! Our side of the RX and Completion rings.

use std::{fmt, io, os::fd::BorrowedFd};

use bytemuck::Pod;

use super::{Indices, RingMemory, RingSize};
use crate::{
    sync::Ordering,
    sys::{uapi::RingOffset, xsk::RingKind},
};

/// The consuming side of a ring, with its index and the other side's last seen one.
///
/// Padded like the [`Producer`](super::Producer).
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Consumer<T> {
    ring: RingMemory<T>,
    /// The next slot to read. Ahead of the shared index only inside `release`.
    next: u32,
    /// The producer's index when last read: slots up to there hold something.
    limit: u32,
}

impl<T: Pod> Consumer<T> {
    /// The consuming side of a socket's ring, mapped now.
    pub(crate) fn map(
        socket: BorrowedFd<'_>,
        kind: RingKind,
        size: RingSize,
        offsets: &RingOffset,
    ) -> io::Result<Self> {
        let ring = RingMemory::map(socket, kind, size, offsets)?;
        // SAFETY: a socket opens each of its rings once, so that there is no other consumer.
        Ok(unsafe { Self::new(ring) })
    }

    /// Takes the consuming side over where the ring stands.
    ///
    /// # Safety
    ///
    /// There is no other consumer on this ring for as long as this one lives.
    pub(crate) unsafe fn new(ring: RingMemory<T>) -> Self {
        let next = ring.indices().consumer().load(Ordering::Relaxed);
        let mut consumer = Self { ring, next, limit: next };
        consumer.look();
        consumer
    }

    #[inline]
    pub(crate) fn indices(&self) -> &Indices {
        self.ring.indices()
    }

    /// Our own index.
    pub(crate) fn position(&self) -> u32 {
        self.next
    }

    /// Looks at how many entries can be read by now.
    #[inline]
    fn look(&mut self) -> u32 {
        // Acquire: the slots that the producer publishes are read after its index.
        let producer = self.indices().producer().load(Ordering::Acquire);
        // A producer that claims to be behind us, or more than a ring ahead, is not believed: what the
        // slots held when it was last believed belongs to somebody else by now.
        let filled = producer.wrapping_sub(self.next);
        let filled = if filled <= self.indices().size() { filled } else { 0 };
        self.limit = self.next.wrapping_add(filled);
        filled
    }

    /// How many entries can be read: `wanted` or more where a fresh look finds as many.
    #[inline]
    pub(crate) fn available(&mut self, wanted: usize) -> u32 {
        let available = self.limit.wrapping_sub(self.next);
        if available as usize >= wanted { available } else { self.look() }
    }

    /// What lies in the ring, at the end.
    pub(crate) fn into_ready(mut self) -> Vec<T> {
        let ready = self.peek(usize::MAX);
        let (before, after) = ready.slices();
        let all = [before, after].concat();
        ready.release();
        all
    }

    /// See [`ConsumerRing::peek`].
    #[inline]
    pub(crate) fn peek(&mut self, count: usize) -> Peeked<'_, T> {
        let available = self.available(count);
        let count = u32::try_from(count.min(available as usize)).unwrap_or(available);
        Peeked { ring: self, count }
    }
}

/// Entries of a ring that can be read: nothing is given back before [`release`](Self::release).
#[must_use = "peeked entries are given back by `release`; dropping them leaves them in the ring"]
pub struct Peeked<'a, T> {
    ring: &'a mut Consumer<T>,
    count: u32,
}

impl<T: Pod> Peeked<'_, T> {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether these are as many as the ring has slots: no more can come before some are released.
    pub(crate) fn fill_the_ring(&self) -> bool {
        self.count == self.ring.indices().size()
    }

    /// The entries, before and after the wrap.
    #[inline]
    pub fn slices(&self) -> (&[T], &[T]) {
        // SAFETY: published by `Consumer::available`; not released before this guard is consumed.
        unsafe { self.ring.ring.slices(self.ring.next, self.count) }
    }

    /// The entry at a place, of those that there are.
    #[inline]
    pub(super) fn at(&self, place: u32) -> T {
        debug_assert!(place < self.count, "past what was peeked");
        // SAFETY: as in `slices`.
        unsafe { self.ring.ring.read(self.ring.next.wrapping_add(place)) }
    }

    /// The first `count` entries, where they lie in one.
    #[inline]
    pub(super) fn run(&self, count: u32) -> Option<&[T]> {
        debug_assert!(count <= self.count, "more than were peeked");
        // SAFETY: as in `slices`.
        unsafe { self.ring.ring.slice(self.ring.next, count) }
    }

    /// The entries one after the other.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let (before, after) = self.slices();
        before.iter().chain(after)
    }

    /// Gives the slots back to the kernel; returns how many.
    #[inline]
    pub fn release(self) -> usize {
        let count = self.len();
        self.release_first(count)
    }

    /// Gives back the first `count` slots, or all where there are fewer; the rest stays in the ring.
    #[inline]
    pub fn release_first(self, count: usize) -> usize {
        let count = u32::try_from(count).unwrap_or(u32::MAX).min(self.count);
        let next = self.ring.next.wrapping_add(count);
        self.ring.next = next;
        // Release: we have read the slots before the index lets the producer write them again.
        self.ring.indices().consumer().store(next, Ordering::Release);
        count as usize
    }
}

impl<T> fmt::Debug for Peeked<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peeked").field("count", &self.count).finish_non_exhaustive()
    }
}

/// The RX or Completion ring of a socket, for as long as the socket is borrowed.
pub struct ConsumerRing<'a, T> {
    ring: &'a mut Consumer<T>,
}

impl<'a, T: Pod> ConsumerRing<'a, T> {
    pub(crate) fn new(ring: &'a mut Consumer<T>) -> Self {
        Self { ring }
    }

    /// The number of slots.
    pub fn size(&self) -> usize {
        self.ring.indices().size() as usize
    }

    /// Looks at as many entries as there are, at most `count`, possibly none.
    #[doc(alias = "xsk_ring_cons__peek")]
    #[inline]
    pub fn peek(&mut self, count: usize) -> Peeked<'_, T> {
        self.ring.peek(count)
    }

    /// Looks at exactly `count` entries, or at none.
    pub fn peek_exact(&mut self, count: usize) -> Option<Peeked<'_, T>> {
        let peeked = self.peek(count);
        (peeked.len() == count).then_some(peeked)
    }
}

impl<T> fmt::Debug for ConsumerRing<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerRing").finish_non_exhaustive()
    }
}
