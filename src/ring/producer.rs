//! Our side of the Fill and TX rings.

use std::{fmt, io, mem::MaybeUninit, os::fd::BorrowedFd};

use bytemuck::Pod;

use super::{Indices, Peeked, RingMemory, RingSize};
use crate::{
    sync::Ordering,
    sys::{uapi::RingOffset, xsk::RingKind},
};

/// The producing side of a ring, with its index and the other side's last seen one.
///
/// Padded to the pair of cache lines that the prefetcher fetches together, so that the two halves
/// of a socket, on two cores, do not share one.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Producer<T> {
    ring: RingMemory<T>,
    /// The next slot to write. Ahead of the shared index only inside `submit`.
    next: u32,
    /// One ring's length past the consumer's index when last read: slots up to there are free.
    limit: u32,
}

/// From so many entries on it pays to find out whether they lie in one, for the loop that the compiler makes of
/// it then: fewer are moved one by one.
const LONG: u32 = 8;

impl<T: Pod> Producer<T> {
    /// The producing side of a socket's ring, mapped now.
    pub(crate) fn map(
        socket: BorrowedFd<'_>,
        kind: RingKind,
        size: RingSize,
        offsets: &RingOffset,
    ) -> io::Result<Self> {
        let ring = RingMemory::map(socket, kind, size, offsets)?;
        // SAFETY: a socket opens each of its rings once, so that there is no other producer.
        Ok(unsafe { Self::new(ring) })
    }

    /// Takes the producing side over where the ring stands.
    ///
    /// # Safety
    ///
    /// There is no other producer on this ring for as long as this one lives.
    pub(crate) unsafe fn new(ring: RingMemory<T>) -> Self {
        let next = ring.indices().producer().load(Ordering::Relaxed);
        let mut producer = Self { ring, next, limit: next };
        producer.look();
        producer
    }

    #[inline]
    pub(crate) fn indices(&self) -> &Indices {
        self.ring.indices()
    }

    /// Our own index.
    pub(crate) fn position(&self) -> u32 {
        self.next
    }

    /// Looks at how many slots are free by now.
    #[inline]
    fn look(&mut self) -> u32 {
        // Acquire: what the consumer read from a slot, it read before it gave the slot back.
        let consumer = self.indices().consumer().load(Ordering::Acquire);
        // A consumer that claims to be ahead of us, or more than a ring behind, is not believed.
        let free = self.indices().size().saturating_sub(self.next.wrapping_sub(consumer));
        self.limit = self.next.wrapping_add(free);
        free
    }

    /// How many slots are free: `wanted` or more where a fresh look finds as many.
    #[inline]
    pub(crate) fn free(&mut self, wanted: usize) -> u32 {
        let free = self.limit.wrapping_sub(self.next);
        if free as usize >= wanted { free } else { self.look() }
    }

    /// Takes the last `count` entries back, from a consumer that has not begun to look.
    pub(crate) fn withdraw(&mut self, count: u32) {
        self.next = self.next.wrapping_sub(count);
        self.indices().producer().store(self.next, Ordering::Release);
    }

    /// What lies in the ring that the consumer has not taken, at the end.
    pub(crate) fn into_untaken(self) -> Vec<T> {
        let consumer = self.indices().consumer().load(Ordering::Acquire);
        let level = self.next.wrapping_sub(consumer);
        // As in `look`: a consumer that makes no sense is not believed.
        let level = if level <= self.indices().size() { level } else { 0 };
        // SAFETY: the last `level` slots before our index are ours or the consumer's to read; nobody
        // writes them any more, since the one producer is consumed here.
        let (before, after) = unsafe { self.ring.slices(self.next.wrapping_sub(level), level) };
        [before, after].concat()
    }

    /// See [`ProducerRing::reserve`].
    #[inline]
    pub(crate) fn reserve(&mut self, count: u32) -> Option<Reserved<'_, T>> {
        (self.free(count as usize) >= count).then_some(Reserved { ring: self, count, written: 0 })
    }

    /// See [`ProducerRing::reserve_up_to`].
    #[inline]
    pub(crate) fn reserve_up_to(&mut self, count: usize) -> Reserved<'_, T> {
        let free = self.free(count);
        let count = u32::try_from(count.min(free as usize)).unwrap_or(free);
        Reserved { ring: self, count, written: 0 }
    }
}

/// Slots of a ring that are free to write: nothing is published before [`submit`](Self::submit).
#[must_use = "reserved slots are published by `submit`; dropping them is a cancel"]
pub struct Reserved<'a, T> {
    ring: &'a mut Producer<T>,
    count: u32,
    written: u32,
}

impl<T: Pod> Reserved<'_, T> {
    /// How many slots are reserved, written or not.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether no slot was free.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many slots have been written.
    pub fn written(&self) -> usize {
        self.written as usize
    }

    /// Writes one descriptor into the next slot, if there is one left.
    ///
    /// # Safety
    ///
    /// As [`write`](Self::write).
    pub unsafe fn push(&mut self, value: T) -> bool {
        // SAFETY: the caller's word.
        unsafe { self.write(&[value]) == 1 }
    }

    /// Writes descriptors into the next slots, as many as are left; returns how many.
    ///
    /// # Safety
    ///
    /// Once submitted, the kernel reads from or writes into the chunk that each address names. The
    /// caller owns these chunks, no reference into them exists, and until they come back (through RX,
    /// or Completion) neither the caller nor any [`Batch`](crate::Batch) uses them. None is kept for
    /// [`Clones`](crate::Clones), and every address on Fill names a chunk, whichever byte of it. A descriptor
    /// on TX that the kernel refuses may come back or not, depending on the kernel; one that does not is taken off
    /// the account by [`Rings::refused`](crate::socket::Rings::refused) before the socket is closed, lest
    /// a frame be looked for that does not exist. What came out of a ring counts as the kernel's until the
    /// [`Rings`](crate::socket::Rings) are dropped: these must not be forgotten.
    #[inline]
    pub unsafe fn write(&mut self, values: &[T]) -> usize {
        let (before, after) = self.unwritten();
        let count = values.len().min(before.len() + after.len());
        let (first, second) = values[..count].split_at(count.min(before.len()));
        copy(first, before);
        if !second.is_empty() {
            copy(second, after);
        }
        // SAFETY: as many slots as we have just copied into.
        unsafe { self.assume_written(count) };
        count
    }

    /// As [`write`](Self::write), with what `make` makes of each.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline]
    pub unsafe fn write_from<S>(&mut self, from: &[S], mut make: impl FnMut(&S) -> T) -> usize {
        let count = self.room_for(from.len());
        let from = &from[..count as usize];
        match self.run(count) {
            Some(slots) => write_each(from, slots, make),
            None => (0..).zip(from).for_each(|(place, from)| self.put(place, make(from))),
        }
        // SAFETY: as many slots as we have just written.
        unsafe { self.assume_written(from.len()) };
        from.len()
    }

    /// As [`write_from`](Self::write_from), from ring to ring: descriptors are not put down in between.
    /// What was peeked is still to be [released](Peeked::release), after what it became has been submitted.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline]
    pub unsafe fn write_peeked<S: Pod>(
        &mut self,
        from: &Peeked<'_, S>,
        mut make: impl FnMut(&S) -> T,
    ) -> usize {
        let count = self.room_for(from.len());
        match self.run(count).zip(from.run(count)) {
            Some((slots, from)) => write_each(from, slots, make),
            None => (0..count).for_each(|place| self.put(place, make(&from.at(place)))),
        }
        // SAFETY: as many slots as we have just written.
        unsafe { self.assume_written(count as usize) };
        count as usize
    }

    /// The index of the next slot to write.
    #[inline]
    fn start(&self) -> u32 {
        self.ring.next.wrapping_add(self.written)
    }

    /// How many of that many entries there are slots for.
    #[inline]
    fn room_for(&self, entries: usize) -> u32 {
        let left = self.count - self.written;
        u32::try_from(entries.min(left as usize)).unwrap_or(left)
    }

    /// The next `count` slots to be written, where they lie in one and are worth a loop of their own.
    #[inline]
    fn run(&mut self, count: u32) -> Option<&mut [MaybeUninit<T>]> {
        debug_assert!(count <= self.count - self.written, "more than was reserved");
        if count < LONG {
            return None;
        }
        // SAFETY: as in `unwritten`.
        unsafe { self.ring.ring.slice_mut(self.start(), count) }
    }

    /// Writes the slot at a place, of those that have not been written.
    #[inline]
    fn put(&mut self, place: u32, value: T) {
        debug_assert!(place < self.count - self.written, "past what was reserved");
        // SAFETY: as in `unwritten`.
        unsafe { self.ring.ring.write(self.start().wrapping_add(place), value) };
    }

    /// The slots that have not been written yet, before and after the wrap.
    #[inline]
    pub(crate) fn unwritten(&mut self) -> (&mut [MaybeUninit<T>], &mut [MaybeUninit<T>]) {
        // SAFETY: free by `Producer::free` and not published before `submit`; no other slices to them
        // exist, as we are the one guard of the one producer and borrow ourselves mutably.
        unsafe { self.ring.ring.slices_mut(self.start(), self.count - self.written) }
    }

    /// Counts slots as written that were written through [`unwritten`](Self::unwritten).
    ///
    /// # Safety
    ///
    /// The first `count` of them were, under the terms of [`write`](Self::write).
    #[inline]
    pub(crate) unsafe fn assume_written(&mut self, count: usize) {
        debug_assert!(count <= self.len() - self.written(), "more than was reserved");
        self.written += u32::try_from(count).unwrap_or(0);
    }

    /// Publishes the slots that were written, and no others; returns how many.
    #[inline]
    pub fn submit(self) -> usize {
        let next = self.ring.next.wrapping_add(self.written);
        self.ring.next = next;
        // Release: the slots' contents, and the frames', are there before the index says so.
        self.ring.indices().producer().store(next, Ordering::Release);
        self.written as usize
    }
}

/// Into the first of the slots, of which there are enough.
#[inline]
fn copy<T: Pod>(from: &[T], to: &mut [MaybeUninit<T>]) {
    // SAFETY: what is initialised may be looked at as what need not be.
    let from = unsafe { std::slice::from_raw_parts(from.as_ptr().cast(), from.len()) };
    to[..from.len()].copy_from_slice(from);
}

/// Into slots, of which there are as many.
#[inline]
fn write_each<S, T>(from: &[S], to: &mut [MaybeUninit<T>], mut make: impl FnMut(&S) -> T) {
    for (from, to) in from.iter().zip(to) {
        to.write(make(from));
    }
}

impl<T> fmt::Debug for Reserved<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserved")
            .field("count", &self.count)
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}

/// The Fill or TX ring of a socket, for as long as the socket is borrowed.
pub struct ProducerRing<'a, T> {
    ring: &'a mut Producer<T>,
}

impl<'a, T: Pod> ProducerRing<'a, T> {
    pub(crate) fn new(ring: &'a mut Producer<T>) -> Self {
        Self { ring }
    }

    /// The number of slots.
    pub fn size(&self) -> usize {
        self.ring.indices().size() as usize
    }

    /// Reserves exactly `count` slots, or none. With 63 free slots, asking for 64 gives `None`: see
    /// [`reserve_up_to`](Self::reserve_up_to).
    #[doc(alias = "xsk_ring_prod__reserve")]
    #[inline]
    pub fn reserve(&mut self, count: usize) -> Option<Reserved<'_, T>> {
        self.ring.reserve(u32::try_from(count).ok()?)
    }

    /// Reserves as many slots as are free, at most `count`, possibly none.
    #[doc(alias = "xsk_ring_prod__reserve")]
    #[inline]
    pub fn reserve_up_to(&mut self, count: usize) -> Reserved<'_, T> {
        self.ring.reserve_up_to(count)
    }

    /// Whether the kernel waits for a call before it looks at this ring again.
    #[doc(alias = "xsk_ring_prod__needs_wakeup")]
    pub fn needs_wakeup(&self) -> bool {
        self.ring.indices().needs_wakeup()
    }
}

impl<T> fmt::Debug for ProducerRing<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProducerRing").finish_non_exhaustive()
    }
}
