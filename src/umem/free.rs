//! Free frames: the pool that all share, and the cache that each half of a socket has.

use super::{Batch, Held, Place, Taken, Umem, to_u32};
use crate::{
    ring::{Peeked, Producer, Reserved},
    sync::{AtomicU32, Mutex, Ordering, lock},
};

/// Frames that a cache takes from the pool at least, and leaves in itself when it overflows: an
/// exchange with the pool costs a lock, so it is paid once for this many. Fewer where the UMEM is small.
const BULK: usize = 256;

/// The share of a UMEM that one cache exchanges at once: a cache that nobody uses for a while must not
/// starve the others.
const SHARE: usize = 64;

/// All free frames that nobody has cached: last in, first out, exchanged in bulk.
#[derive(Debug)]
pub(crate) struct Pool {
    frames: Mutex<Vec<u64>>,
    /// The number of frames, readable without the lock.
    len: AtomicU32,
}

impl Pool {
    pub(super) fn new(addresses: impl DoubleEndedIterator<Item = u64>) -> Self {
        let frames: Vec<u64> = addresses.rev().collect();
        let len = AtomicU32::new(to_u32(frames.len()));
        Self { frames: Mutex::new(frames), len }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
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

    fn note(&self, frames: &[u64]) {
        self.len.store(to_u32(frames.len()), Ordering::Relaxed);
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

    /// Takes the last `frames` frames out, the hottest first.
    pub(super) fn pop(&mut self, frames: usize) -> impl ExactSizeIterator<Item = u64> {
        let rest = self.frames.len() - frames;
        self.frames.drain(rest..).rev()
    }

    /// Moves the last frames into the slots of a Fill ring, as many as fit.
    pub(crate) fn fill(&mut self, umem: &Umem, slots: &mut Reserved<'_, u64>) -> usize {
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

    /// Takes frames over that the kernel has sent, whatever offset in their chunk it names; returns how
    /// many it named that do not exist.
    #[inline]
    fn complete<const UNALIGNED: bool>(&mut self, umem: &Umem, completed: &[u64]) -> usize {
        let geometry = *umem.geometry();
        let start = self.frames.len();
        let mut fault = 0;
        self.frames.extend(completed.iter().map(|address| {
            fault |= geometry.address_fault::<UNALIGNED>(*address);
            geometry.base_in::<UNALIGNED>(*address)
        }));
        if fault >> 63 != 0 {
            self.frames.truncate(start);
            let real = completed.iter().filter(|address| geometry.holds(**address));
            self.frames.extend(real.map(|address| geometry.base(*address)));
        }
        let real = &self.frames[start..];
        umem.moved(real, Place::Tx, Place::Free);
        completed.len() - real.len()
    }
}

/// Free frames at hand without a lock, last in, first out, so that hot ones are used again.
#[derive(Debug)]
pub(crate) struct Cache {
    list: FreeList,
    bulk: usize,
}

impl Cache {
    pub(crate) fn new(umem: &Umem) -> Self {
        let bulk = (umem.chunks() as usize / SHARE).min(BULK);
        Self { list: FreeList::with_capacity(4 * bulk), bulk }
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// The frames as they are.
    pub(crate) fn list_mut(&mut self) -> &mut FreeList {
        &mut self.list
    }

    /// The frames, at least `wanted` where the pool has as many. It is asked in bulk.
    pub(crate) fn with(&mut self, wanted: usize, pool: &Pool) -> &mut FreeList {
        if self.list.len() < wanted {
            self.list.take_from(pool, (wanted - self.list.len()).max(self.bulk));
        }
        &mut self.list
    }

    /// Gives what is too much back to the pool, coldest first.
    pub(crate) fn trim(&mut self, pool: &Pool) {
        if self.list.len() > 2 * self.bulk {
            self.list.give_to(pool, self.list.len() - self.bulk);
        }
    }

    /// Gives everything back to the pool.
    pub(crate) fn flush(&mut self, pool: &Pool) {
        self.list.give_to(pool, self.list.len());
    }
}

/// Takes sent frames over from a Completion ring: into a batch's spare list where one is at hand and has
/// room, else into the cache. Returns how many came, and how many of them do not exist.
pub(crate) fn complete(
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
    let mut bad = 0;
    let mut room = batch.as_ref().map_or(0, |batch| batch.spare_room());
    let mut spare = batch.map(Batch::spare_mut);
    for completed in [before, after] {
        let (first, rest) = completed.split_at(room.min(completed.len()));
        if let Some(spare) = &mut spare {
            bad += spare.complete::<UNALIGNED>(umem, first);
        }
        bad += cache.list.complete::<UNALIGNED>(umem, rest);
        room -= first.len();
    }
    cache.trim(umem.pool());
    Taken { good: completed.release() - bad, bad }
}

/// Frames put into a Fill ring before its socket is bound: they come back if that fails.
#[derive(Debug)]
pub(crate) struct Prefilled<'a> {
    umem: &'a Umem,
    frames: Vec<u64>,
}

impl<'a> Prefilled<'a> {
    /// Up to `frames` frames from the pool. The kernel takes none before the socket is bound.
    pub(crate) fn new(umem: &'a Umem, ring: &mut Producer<u64>, frames: u32) -> Self {
        let mut slots = ring.reserve_up_to(frames);
        let mut list = FreeList::with_capacity(slots.len());
        list.take_from(umem.pool(), slots.len());
        let frames = list.frames.clone();
        list.fill(umem, &mut slots);
        slots.submit();
        Self { umem, frames }
    }

    pub(crate) fn frames(&self) -> &[u64] {
        &self.frames
    }

    /// The socket is bound, and will not be used: the frames are held until the kernel has let go.
    pub(crate) fn quarantine(mut self, ifindex: u32, queue: u32) {
        let known = std::mem::take(&mut self.frames);
        self.umem.quarantine(Held { ifindex, queue, known, unknown: 0 });
    }

    /// The socket is bound, and the frames are the kernel's; returns how many.
    pub(crate) fn keep(mut self) -> u32 {
        to_u32(std::mem::take(&mut self.frames).len())
    }
}

impl Drop for Prefilled<'_> {
    fn drop(&mut self) {
        self.umem.returned(&self.frames);
    }
}
