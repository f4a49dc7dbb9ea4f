//! Where a ring's indices, flags and slots are.

use std::{marker::PhantomData, mem::MaybeUninit, ptr::NonNull, slice};

use super::RingSize;
use crate::sync::{AtomicU32, Ordering};

/// `XDP_RING_NEED_WAKEUP`: the kernel sleeps until it is called.
const NEED_WAKEUP: u32 = 1;

/// The two indices and the flags of a ring: what anybody may read at any time.
///
/// A plain struct of pointers: who owns the memory is decided elsewhere (a socket its mapping, the fake
/// kernel its boxes), and that owner outlives every copy of this.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Indices {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    mask: u32,
}

// SAFETY: the pointers lead to atomics in memory that outlives this (see `new`); atomics may be used
// from any thread.
unsafe impl Send for Indices {}
// SAFETY: as above.
unsafe impl Sync for Indices {}

impl Indices {
    pub(crate) fn size(&self) -> u32 {
        self.mask.wrapping_add(1)
    }

    pub(super) fn producer(&self) -> &AtomicU32 {
        // SAFETY: points to a live atomic by the contract of `RingMemory::new`.
        unsafe { self.producer.as_ref() }
    }

    pub(super) fn consumer(&self) -> &AtomicU32 {
        // SAFETY: points to a live atomic by the contract of `RingMemory::new`.
        unsafe { self.consumer.as_ref() }
    }

    fn flags(&self) -> &AtomicU32 {
        // SAFETY: points to a live atomic by the contract of `RingMemory::new`.
        unsafe { self.flags.as_ref() }
    }

    /// How many entries lie in the ring, by a look at both indices. Clamped to the size: indices that
    /// the other side wrote are input.
    pub(crate) fn level(&self) -> u32 {
        let consumer = self.consumer().load(Ordering::Acquire);
        let producer = self.producer().load(Ordering::Acquire);
        producer.wrapping_sub(consumer).min(self.size())
    }

    /// Whether the kernel waits for a call before it looks at the ring again.
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.flags().load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }

    /// Sets or clears the flag that [`needs_wakeup`](Self::needs_wakeup) reads: the kernel's part.
    pub(crate) fn set_needs_wakeup(&self, on: bool) {
        self.flags().store(if on { NEED_WAKEUP } else { 0 }, Ordering::Relaxed);
    }
}

/// A ring in shared memory: its indices and its slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingMemory<T> {
    indices: Indices,
    slots: NonNull<T>,
    _slots: PhantomData<T>,
}

// SAFETY: the slots are plain memory that outlives this (see `new`); who may touch which slot is
// decided by the indices, not by the thread.
unsafe impl<T: Send> Send for RingMemory<T> {}
// SAFETY: as above; slots are reached only through the unsafe functions below.
unsafe impl<T: Send> Sync for RingMemory<T> {}

impl<T: bytemuck::Pod> RingMemory<T> {
    /// # Safety
    ///
    /// The three atomics and `size` initialised slots are valid and suitably aligned for as long as this
    /// or any copy of it is used, and nobody but the ring's two sides touches them meanwhile.
    pub(crate) unsafe fn new(
        producer: NonNull<AtomicU32>,
        consumer: NonNull<AtomicU32>,
        flags: NonNull<AtomicU32>,
        slots: NonNull<T>,
        size: RingSize,
    ) -> Self {
        let mask = size.get() - 1;
        Self { indices: Indices { producer, consumer, flags, mask }, slots, _slots: PhantomData }
    }

    pub(crate) fn indices(&self) -> &Indices {
        &self.indices
    }

    /// Where `count` slots from index `start` on lie: before and after the wrap.
    fn spans(&self, start: u32, count: u32) -> [(NonNull<T>, usize); 2] {
        debug_assert!(count <= self.indices.size(), "more slots than there are");
        let first = start & self.indices.mask;
        let before = count.min(self.indices.size() - first);
        // SAFETY: `first` is masked to the ring, so that the sum stays within its slots.
        let at = unsafe { self.slots.add(first as usize) };
        [(at, before as usize), (self.slots, (count - before) as usize)]
    }

    /// `count` slots from index `start` on, to read.
    ///
    /// # Safety
    ///
    /// The consumer's side: the producer has published these slots, and they are not released before
    /// the slices are gone.
    pub(super) unsafe fn slices(&self, start: u32, count: u32) -> (&[T], &[T]) {
        let [(first, before), (second, after)] = self.spans(start, count);
        // SAFETY: within the ring by `spans`; published to us and not written again before release, by
        // the caller's word; mapped by the contract of `new`.
        unsafe {
            (
                slice::from_raw_parts(first.as_ptr(), before),
                slice::from_raw_parts(second.as_ptr(), after),
            )
        }
    }

    /// `count` slots from index `start` on, to write.
    ///
    /// # Safety
    ///
    /// The producer's side: these slots are free, are not published before the slices are gone, and
    /// no other slices to them exist.
    #[expect(clippy::mut_from_ref, reason = "the slots are behind a pointer; the guard holds &mut")]
    pub(super) unsafe fn slices_mut(
        &self,
        start: u32,
        count: u32,
    ) -> (&mut [MaybeUninit<T>], &mut [MaybeUninit<T>]) {
        let [(first, before), (second, after)] = self.spans(start, count);
        // SAFETY: within the ring by `spans`, and disjoint; ours alone until published, by the
        // caller's word; mapped by the contract of `new`.
        unsafe {
            (
                slice::from_raw_parts_mut(first.cast().as_ptr(), before),
                slice::from_raw_parts_mut(second.cast().as_ptr(), after),
            )
        }
    }
}
