//! Where a ring's indices, flags and slots are, and who keeps them there.

use std::{any::Any, fmt, io, marker::PhantomData, mem, mem::MaybeUninit, os::fd::BorrowedFd};
use std::{ptr::NonNull, slice};

use super::{RingSize, watch::Watch};
use crate::{
    sync::{Arc, AtomicU32, Ordering},
    sys::{
        uapi::RingOffset,
        xsk::{self, RingKind},
    },
};

/// `XDP_RING_NEED_WAKEUP`: the kernel sleeps until it is called.
const NEED_WAKEUP: u32 = 1;

/// The two indices and the flags of a ring: what anybody may read at any time.
///
/// Pointers, and the owner of the memory behind them: a mapping, or the fake kernel's boxes.
#[derive(Clone)]
pub(crate) struct Indices {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    mask: u32,
    _keeper: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the pointers lead to atomics in memory that the keeper keeps; atomics may be used from any
// thread.
unsafe impl Send for Indices {}
// SAFETY: as above.
unsafe impl Sync for Indices {}

impl Indices {
    #[inline]
    pub(crate) fn size(&self) -> u32 {
        self.mask.wrapping_add(1)
    }

    #[inline]
    pub(super) fn producer(&self) -> &AtomicU32 {
        // SAFETY: points to a live atomic by the contract of `RingMemory::new`, and kept by the keeper.
        unsafe { self.producer.as_ref() }
    }

    #[inline]
    pub(super) fn consumer(&self) -> &AtomicU32 {
        // SAFETY: points to a live atomic by the contract of `RingMemory::new`, and kept by the keeper.
        unsafe { self.consumer.as_ref() }
    }

    #[inline]
    fn flags(&self) -> &AtomicU32 {
        // SAFETY: points to a live atomic by the contract of `RingMemory::new`, and kept by the keeper.
        unsafe { self.flags.as_ref() }
    }

    /// How many entries lie in the ring, by a look at both indices. Clamped to the size: indices that
    /// the other side wrote are input.
    #[inline]
    pub(crate) fn level(&self) -> u32 {
        let consumer = self.consumer().load(Ordering::Acquire);
        let producer = self.producer().load(Ordering::Acquire);
        producer.wrapping_sub(consumer).min(self.size())
    }

    /// Whether the kernel waits for a call before it looks at the ring again.
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.flags().load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }

    /// Sets or clears the flag that [`needs_wakeup`](Self::needs_wakeup) reads: the kernel's part.
    #[cfg(feature = "fake")]
    pub(crate) fn set_needs_wakeup(&self, on: bool) {
        self.flags().store(if on { NEED_WAKEUP } else { 0 }, Ordering::Relaxed);
    }
}

impl fmt::Debug for Indices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Indices")
            .field("size", &self.size())
            .field("producer", self.producer())
            .field("consumer", self.consumer())
            .finish_non_exhaustive()
    }
}

/// Where the parts of a ring begin in its mapping, and the mapping's length.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) producer: usize,
    pub(super) consumer: usize,
    pub(super) flags: usize,
    pub(super) slots: usize,
    pub(super) len: usize,
}

/// The kernel's layout is input: none, where a part is not aligned, does not lie in the mapping, or among the
/// slots.
pub(super) fn layout<T>(offsets: &RingOffset, size: RingSize) -> Option<Layout> {
    let at = |offset: u64, align: usize| {
        usize::try_from(offset).ok().filter(|offset| offset.is_multiple_of(align))
    };
    let slots = at(offsets.desc, 8)?;
    let index = |offset: u64| at(offset, 4).filter(|at| *at < slots);
    Some(Layout {
        producer: index(offsets.producer)?,
        consumer: index(offsets.consumer)?,
        flags: index(offsets.flags)?,
        slots,
        // A mapping has at most isize::MAX bytes; the kernel refuses a longer one.
        len: slots.checked_add(size.get() as usize * mem::size_of::<T>())?,
    })
}

/// A ring in shared memory: its indices and its slots.
#[derive(Clone, Debug)]
pub(crate) struct RingMemory<T> {
    indices: Indices,
    slots: NonNull<T>,
    watch: Watch,
    _slots: PhantomData<T>,
}

// SAFETY: the slots are plain memory that the indices' keeper keeps; who may touch which slot is
// decided by the indices, not by the thread.
unsafe impl<T: Send> Send for RingMemory<T> {}
// SAFETY: as above; slots are reached only through the unsafe functions below.
unsafe impl<T: Send> Sync for RingMemory<T> {}

impl<T: bytemuck::Pod> RingMemory<T> {
    /// # Safety
    ///
    /// The three atomics and `size` initialised slots are valid and suitably aligned for as long as the
    /// keeper lives, and nobody but the ring's two sides touches them meanwhile.
    pub(crate) unsafe fn new(
        producer: NonNull<AtomicU32>,
        consumer: NonNull<AtomicU32>,
        flags: NonNull<AtomicU32>,
        slots: NonNull<T>,
        size: RingSize,
        keeper: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let mask = size.get() - 1;
        let indices = Indices { producer, consumer, flags, mask, _keeper: keeper };
        Self { indices, slots, watch: Watch::new(size.get()), _slots: PhantomData }
    }

    /// Maps a ring of a socket, whose size has been set.
    pub(crate) fn map(
        socket: BorrowedFd<'_>,
        kind: RingKind,
        size: RingSize,
        offsets: &RingOffset,
    ) -> io::Result<Self> {
        if cfg!(all(test, loom)) {
            // A model's atomics are no words that a kernel could share.
            return Err(io::ErrorKind::Unsupported.into());
        }
        let Some(Layout { producer, consumer, flags, slots, len }) = layout::<T>(offsets, size)
        else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a ring laid out as {offsets:?}"),
            ));
        };
        let mapping = xsk::map_ring(socket, kind, len)?;
        let start = mapping.start();
        // SAFETY: all four lie in the mapping and are aligned, by the check in `layout` and since a mapping
        // starts at a page; its bytes are initialised by the kernel, and any bytes are valid for the
        // slots. The mapping is kept by the keeper. The kernel is the ring's other side, and what the
        // mapping was made from is this one socket, which opens each of its rings once.
        Ok(unsafe {
            Self::new(
                start.add(producer).cast(),
                start.add(consumer).cast(),
                start.add(flags).cast(),
                start.add(slots).cast(),
                size,
                Arc::new(mapping),
            )
        })
    }

    #[inline]
    pub(crate) fn indices(&self) -> &Indices {
        &self.indices
    }

    /// The numbers of `count` slots from index `start` on.
    fn numbers(&self, start: u32, count: u32) -> impl Iterator<Item = u32> {
        let mask = self.indices.mask;
        (0..count).map(move |slot| start.wrapping_add(slot) & mask)
    }

    /// Where `count` slots from index `start` on lie: before and after the wrap.
    #[inline]
    fn spans(&self, start: u32, count: u32) -> [(NonNull<T>, usize); 2] {
        debug_assert!(count <= self.indices.size(), "more slots than there are");
        let first = start & self.indices.mask;
        let before = count.min(self.indices.size() - first);
        [(self.slot(start), before as usize), (self.slots, (count - before) as usize)]
    }

    /// Whether the ring's end lies between `count` slots from index `start` on.
    #[inline]
    fn wraps(&self, start: u32, count: u32) -> bool {
        // A ring has at most 2^31 slots, so that the sum fits.
        (start & self.indices.mask) + count > self.indices.size()
    }

    /// Where the slot of an index lies.
    #[inline]
    fn slot(&self, index: u32) -> NonNull<T> {
        // SAFETY: masked to the ring's slots.
        unsafe { self.slots.add((index & self.indices.mask) as usize) }
    }

    /// What is in the slot of an index.
    ///
    /// # Safety
    ///
    /// As for [`slices`](Self::slices), of this one slot.
    #[inline]
    pub(super) unsafe fn read(&self, index: u32) -> T {
        self.watch.read(self.numbers(index, 1));
        // SAFETY: within the ring by `slot`; published to us by the caller's word; mapped by the contract of
        // `new`.
        unsafe { self.slot(index).read() }
    }

    /// Puts something into the slot of an index.
    ///
    /// # Safety
    ///
    /// As for [`slices_mut`](Self::slices_mut), of this one slot.
    #[inline]
    pub(super) unsafe fn write(&self, index: u32, value: T) {
        self.watch.write(self.numbers(index, 1));
        // SAFETY: within the ring by `slot`; ours alone by the caller's word; mapped by the contract of `new`.
        unsafe { self.slot(index).write(value) }
    }

    /// As [`slices`](Self::slices), in one: `None` where the ring's end lies between.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline]
    pub(super) unsafe fn slice(&self, start: u32, count: u32) -> Option<&[T]> {
        if self.wraps(start, count) {
            return None;
        }
        self.watch.read(self.numbers(start, count));
        // SAFETY: within the ring, since it does not wrap; the rest as in `slices`.
        Some(unsafe { slice::from_raw_parts(self.slot(start).as_ptr(), count as usize) })
    }

    /// As [`slices_mut`](Self::slices_mut), in one: `None` where the ring's end lies between.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the slots are behind a pointer; the guard holds &mut")]
    pub(super) unsafe fn slice_mut(&self, start: u32, count: u32) -> Option<&mut [MaybeUninit<T>]> {
        if self.wraps(start, count) {
            return None;
        }
        self.watch.write(self.numbers(start, count));
        let at = self.slot(start).cast().as_ptr();
        // SAFETY: within the ring, since it does not wrap; the rest as in `slices_mut`.
        Some(unsafe { slice::from_raw_parts_mut(at, count as usize) })
    }

    /// `count` slots from index `start` on, to read.
    ///
    /// # Safety
    ///
    /// The consumer's side: the producer has published these slots, and they are not released before
    /// the slices are gone.
    #[inline]
    pub(super) unsafe fn slices(&self, start: u32, count: u32) -> (&[T], &[T]) {
        self.watch.read(self.numbers(start, count));
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
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the slots are behind a pointer; the guard holds &mut")]
    pub(super) unsafe fn slices_mut(
        &self,
        start: u32,
        count: u32,
    ) -> (&mut [MaybeUninit<T>], &mut [MaybeUninit<T>]) {
        self.watch.write(self.numbers(start, count));
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
