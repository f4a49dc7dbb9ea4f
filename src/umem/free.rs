//! Free frames: the pool that all share, and the cache that each half of a socket has.

use crate::sync::{AtomicU32, Mutex, Ordering, lock};

/// Frames that a cache takes from the pool at least, and leaves in itself when it overflows: an
/// exchange with the pool costs a lock, so it is paid once for this many.
const BULK: usize = 256;

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
        let len = AtomicU32::new(count(frames.len()));
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
        self.len.store(count(frames.len()), Ordering::Relaxed);
    }
}

fn count(frames: usize) -> u32 {
    u32::try_from(frames).unwrap_or(u32::MAX)
}

/// Free frames at hand without a lock, last in, first out, so that hot ones are used again.
#[derive(Debug)]
pub(crate) struct Cache {
    frames: Vec<u64>,
}

impl Cache {
    /// Room before the cache gives frames back to the pool.
    const CAPACITY: usize = 2 * BULK;

    pub(crate) fn new() -> Self {
        // A completion batch goes in whole before what is too much is given back.
        Self { frames: Vec::with_capacity(Self::CAPACITY + BULK) }
    }

    pub(crate) fn len(&self) -> u32 {
        count(self.frames.len())
    }

    /// The last `count` frames, or fewer, taken from the pool in bulk where the cache has too few.
    pub(crate) fn last(&mut self, count: usize, pool: &Pool) -> &[u64] {
        if self.frames.len() < count {
            let missing = count - self.frames.len();
            pool.take(missing.max(BULK), &mut self.frames);
        }
        &self.frames[self.frames.len() - count.min(self.frames.len())..]
    }

    /// Forgets the last `count` frames, which now lie elsewhere.
    pub(crate) fn drop_last(&mut self, count: usize) {
        self.frames.truncate(self.frames.len() - count);
    }

    /// The list itself, to add frames to. [`trim`](Self::trim) afterwards.
    pub(crate) fn frames_mut(&mut self) -> &mut Vec<u64> {
        &mut self.frames
    }

    /// Gives what is too much back to the pool, coldest first.
    pub(crate) fn trim(&mut self, pool: &Pool) {
        if self.frames.len() > Self::CAPACITY {
            let much = self.frames.len() - BULK;
            pool.put(&self.frames[..much]);
            self.frames.drain(..much);
        }
    }

    /// Gives everything back to the pool.
    pub(crate) fn flush(&mut self, pool: &Pool) {
        pool.put(&self.frames);
        self.frames.clear();
    }
}
