//! Frames that come home: out of the Completion ring, to where they are used again.

use super::core::Core;
use crate::{
    Batch,
    ring::Consumer,
    sync::Ordering,
    umem::{self, Cache, Taken, to_u32},
};

/// Who takes sent frames over, and what is about to be submitted: it is counted before it can complete.
pub(super) struct Reap<'a> {
    core: &'a Core,
    submitting: u32,
    batch: Option<&'a mut Batch>,
    cache: &'a mut Cache,
}

impl<'a> Reap<'a> {
    /// Into the cache, while nothing is submitted.
    #[inline]
    pub(super) fn into_cache(core: &'a Core, cache: &'a mut Cache) -> Self {
        Self { core, submitting: 0, batch: None, cache }
    }

    /// While that many frames are submitted.
    #[inline]
    pub(super) fn submitting(self, frames: u32) -> Self {
        Self { submitting: frames, ..self }
    }

    /// Into the batch's spare list first.
    #[inline]
    pub(super) fn into_batch(self, batch: &'a mut Batch) -> Self {
        Self { batch: Some(batch), ..self }
    }

    /// Takes over all frames that the kernel has sent.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as `fill` in `refill`")]
    pub(super) fn from(ring: &mut Consumer<u64>, this: Self) -> Taken {
        let Self { core, submitting, batch, cache } = this;
        let completed = ring.peek(usize::MAX);
        let taken = if completed.is_empty() {
            Taken::default()
        } else {
            if core.umem.has_tx_metadata() {
                core.umem.collect_timestamps(&completed, &core.queue.timestamps);
            }
            let clones = &core.queue.clones;
            let cached = cache.len();
            let taken = if clones.get() == 0 {
                umem::complete(&core.umem, completed, batch, cache)
            } else {
                umem::complete_with_clones(&core.umem, clones, completed, batch, cache)
            };
            if cache.len() != cached {
                core.tx.cached.store(to_u32(cache.len()), Ordering::Relaxed);
            }
            taken
        };
        let completed = to_u32(taken.good + taken.bad);
        core.queue.sending.add(submitting.wrapping_sub(completed));
        taken
    }
}
