//! Free frames: the pool that all share, and the lists in which somebody owns some.

use std::mem::MaybeUninit;

use super::{Batch, Cache, DeviceQueue, Held, Place, Taken, Umem, passes, to_u32};
use crate::{
    ring::{Peeked, Producer, Reserved},
    sync::{AtomicU32, AtomicU64, Mutex, Ordering, lock},
    sys::uapi::Desc,
};

/// All free frames that nobody has cached: last in, first out, exchanged in bulk.
#[derive(Debug)]
pub(crate) struct Pool {
    frames: Mutex<Vec<u64>>,
    /// The number of frames, readable without the lock.
    len: AtomicU32,
    /// How often frames were taken or given.
    exchanges: AtomicU64,
}

impl Pool {
    pub(super) fn new(addresses: impl DoubleEndedIterator<Item = u64>) -> Self {
        let frames: Vec<u64> = addresses.rev().collect();
        let len = AtomicU32::new(to_u32(frames.len()));
        Self { frames: Mutex::new(frames), len, exchanges: AtomicU64::new(0) }
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
    }

    pub(super) fn exchanges(&self) -> u64 {
        self.exchanges.load(Ordering::Relaxed)
    }

    /// Moves up to `count` frames to the end of `to`; returns how many.
    pub(crate) fn take(&self, count: usize, to: &mut Vec<u64>) -> usize {
        if count == 0 || self.len() == 0 {
            return 0;
        }
        let mut frames = lock(&self.frames);
        let rest = frames.len().saturating_sub(count);
        let taken = frames.len() - rest;
        to.extend_from_slice(&frames[rest..]);
        frames.truncate(rest);
        self.note(&frames);
        taken
    }

    /// Takes frames back.
    pub(crate) fn put(&self, back: &[u64]) {
        if back.is_empty() {
            return;
        }
        let mut frames = lock(&self.frames);
        // Never reallocates: made with room for every chunk, and no chunk is in it twice.
        frames.extend_from_slice(back);
        self.note(&frames);
    }

    /// Looks at every frame in the pool.
    pub(super) fn for_each(&self, look: impl FnMut(&u64)) {
        lock(&self.frames).iter().for_each(look);
    }

    /// Publishes the numbers, under the lock: no other thread changes them meanwhile.
    fn note(&self, frames: &[u64]) {
        self.len.store(to_u32(frames.len()), Ordering::Relaxed);
        self.exchanges.store(self.exchanges() + 1, Ordering::Relaxed);
    }
}

/// Free frames that somebody owns: a batch its spare ones, a cache what it holds. Each is the first
/// address of its chunk, and nobody else has it.
#[derive(Debug)]
pub(crate) struct FreeList {
    frames: Vec<u64>,
}

impl FreeList {
    pub(super) fn with_capacity(frames: usize) -> Self {
        Self { frames: Vec::with_capacity(frames) }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Takes up to `wanted` frames from the pool.
    pub(super) fn take_from(&mut self, pool: &Pool, wanted: usize) {
        pool.take(wanted, &mut self.frames);
    }

    /// Gives the first `frames` frames, the coldest, to the pool.
    pub(super) fn give_to(&mut self, pool: &Pool, frames: usize) {
        pool.put(&self.frames[..frames]);
        self.frames.drain(..frames);
    }

    /// Adds one frame, which the caller owns.
    pub(super) fn push(&mut self, base: u64) {
        self.frames.push(base);
    }

    /// Adds the frames of a batch's packets, which forgets them.
    pub(super) fn recycle(&mut self, umem: &Umem, descs: &[Desc]) {
        let geometry = umem.geometry();
        let write = |to: &mut [MaybeUninit<u64>]| geometry.write_bases(descs, to);
        // SAFETY: one for each descriptor is written.
        unsafe { passes::append(&mut self.frames, descs.len(), write) };
    }

    /// The last `frames` frames, the hottest at the end.
    #[inline]
    pub(super) fn last(&self, frames: usize) -> &[u64] {
        &self.frames[self.frames.len() - frames..]
    }

    /// The last `frames` frames are somebody else's now.
    #[inline]
    pub(super) fn forget_last(&mut self, frames: usize) {
        self.frames.truncate(self.frames.len() - frames);
    }

    /// Moves the last frames into the slots of a Fill ring, as many as fit.
    #[inline]
    pub(crate) fn fill(&mut self, umem: &Umem, slots: &mut Reserved<'_, u64>) -> usize {
        if self.frames.is_empty() {
            return 0;
        }
        let count = self.frames.len().min(slots.len() - slots.written());
        let rest = self.frames.len() - count;
        let frames = &self.frames[rest..];
        umem.moved(frames, Place::Free, Place::Fill);
        // SAFETY: this list owns the frames, which no batch has a reference into, and forgets them in
        // the next line.
        let written = unsafe { slots.write(frames) };
        debug_assert_eq!(written, count, "as many as there are slots");
        self.frames.truncate(rest);
        count
    }

    /// Takes frames over that the kernel has sent; returns how many it named that do not exist.
    #[inline]
    fn complete<const UNALIGNED: bool>(&mut self, umem: &Umem, completed: &[u64]) -> usize {
        if completed.is_empty() {
            return 0;
        }
        let start = self.frames.len();
        let bad = umem.chunks_of::<UNALIGNED>(completed, &mut self.frames);
        umem.moved(&self.frames[start..], Place::Tx, Place::Free);
        bad
    }
}

/// Takes sent frames over from a Completion ring: into a batch's spare list where one is at hand and has
/// room, else into the cache. Returns how many came, and how many of them do not exist.
#[inline]
pub(crate) fn complete(
    umem: &Umem,
    completed: Peeked<'_, u64>,
    batch: Option<&mut Batch>,
    cache: &mut Cache,
) -> Taken {
    if let Some(batch) = batch {
        let (before, after) = completed.slices();
        let plain = after.is_empty() && !umem.geometry().is_unaligned();
        if plain && before.len() <= batch.spare_room() && cache.keeps() {
            let bad = batch.spare_mut().complete::<false>(umem, before);
            return Taken { good: completed.release() - bad, bad };
        }
        return complete_anywhere(umem, completed, Some(batch), cache);
    }
    complete_anywhere(umem, completed, None, cache)
}

#[inline(never)]
fn complete_anywhere(
    umem: &Umem,
    completed: Peeked<'_, u64>,
    batch: Option<&mut Batch>,
    cache: &mut Cache,
) -> Taken {
    // Once for all of them, so that aligned chunks pay nothing for the others.
    if umem.geometry().is_unaligned() {
        complete_in::<true>(umem, completed, batch, cache)
    } else {
        complete_in::<false>(umem, completed, batch, cache)
    }
}

#[inline]
fn complete_in<const UNALIGNED: bool>(
    umem: &Umem,
    completed: Peeked<'_, u64>,
    batch: Option<&mut Batch>,
    cache: &mut Cache,
) -> Taken {
    let (before, after) = completed.slices();
    let mut home = Home::new(umem, batch, cache);
    home.take::<UNALIGNED>(before);
    home.take::<UNALIGNED>(after);
    let bad = home.close();
    Taken { good: completed.release() - bad, bad }
}

/// Where sent frames come home to: a batch's spare list where one is at hand and has room, else the cache.
pub(super) struct Home<'a> {
    umem: &'a Umem,
    spare: Option<&'a mut FreeList>,
    room: usize,
    cache: &'a mut Cache,
    bad: usize,
}

impl<'a> Home<'a> {
    #[inline]
    pub(super) fn new(umem: &'a Umem, batch: Option<&'a mut Batch>, cache: &'a mut Cache) -> Self {
        // Into the pool at once, where nothing is to be kept.
        let batch = batch.filter(|_| cache.keeps());
        let room = batch.as_ref().map_or(0, |batch| batch.spare_room());
        Self { umem, spare: batch.map(Batch::spare_mut), room, cache, bad: 0 }
    }

    #[inline]
    pub(super) fn take<const UNALIGNED: bool>(&mut self, completed: &[u64]) {
        let Self { umem, spare, room, cache, bad } = self;
        let (first, rest) = completed.split_at((*room).min(completed.len()));
        if let Some(spare) = spare {
            *bad += spare.complete::<UNALIGNED>(umem, first);
        }
        *bad += cache.list_mut().complete::<UNALIGNED>(umem, rest);
        *room -= first.len();
    }

    /// Gives the pool what is too much; returns how many addresses lead to no frame.
    #[inline]
    pub(super) fn close(self) -> usize {
        self.cache.trim(self.umem.pool());
        self.bad
    }
}

/// A Fill ring and the frames put into it before its socket is bound: they come back if that fails.
#[derive(Debug)]
pub(crate) struct Prefilled<'a> {
    umem: &'a Umem,
    ring: Option<Producer<u64>>,
    frames: Vec<u64>,
}

impl<'a> Prefilled<'a> {
    /// Up to `frames` frames from the pool. The kernel takes none before the socket is bound.
    pub(crate) fn new(umem: &'a Umem, mut ring: Producer<u64>, frames: u32) -> Self {
        let mut slots = ring.reserve_up_to(frames as usize);
        let mut list = FreeList::with_capacity(slots.len());
        list.take_from(umem.pool(), slots.len());
        let frames = list.frames.clone();
        list.fill(umem, &mut slots);
        slots.submit();
        Self { umem, ring: Some(ring), frames }
    }

    pub(crate) fn frames(&self) -> &[u64] {
        &self.frames
    }

    /// The socket is bound, and will not be used: the frames are held until the kernel has let go.
    pub(crate) fn quarantine(mut self, queue: DeviceQueue) {
        self.ring = None;
        let known = std::mem::take(&mut self.frames);
        self.umem.quarantine(Held { queue, known, unknown: 0, doubtful: false });
    }

    /// Takes them out again, where the kernel does not look at the ring.
    pub(crate) fn withdraw(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.withdraw(to_u32(self.frames.len()));
        }
        self.umem.returned(&self.frames);
        self.frames.clear();
    }

    /// The socket is bound, and the frames are the kernel's; returns the ring, and how many there are.
    pub(crate) fn keep(mut self) -> (Producer<u64>, u32) {
        let ring = self.ring.take().expect("it is given up at the end only");
        (ring, to_u32(std::mem::take(&mut self.frames).len()))
    }
}

impl Drop for Prefilled<'_> {
    fn drop(&mut self) {
        // Out of the ring, too: whoever handed the socket over may have it bound after all.
        self.withdraw();
    }
}
