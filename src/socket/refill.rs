//! The Fill ring's supply: new frames for the kernel to receive into, in turn for those that it brought.

use super::{Sender, SocketConfig, core::Core, queue::Share};
use crate::{
    Batch,
    ring::{Producer, Reserved},
    sync::Ordering,
    umem::{Cache, Umem, to_u32},
};

/// The Fill ring, and where frames for it come from.
pub(super) struct Refill {
    pub(super) ring: Share<Producer<u64>>,
    cache: Cache,
    /// Frames that the kernel shall have at most to receive into.
    target: u32,
}

impl Refill {
    pub(super) fn new(ring: Share<Producer<u64>>, umem: &Umem, config: &SocketConfig) -> Self {
        let cache = Cache::new(umem, config.frame_cache, config.fill.get());
        Self { ring, cache, target: config.fill_target() }
    }

    /// Gives the kernel new frames for those received: the batch's spare ones first, then those that
    /// `sender` got back, then the cache's, then the pool's. Returns whether the kernel waits for a call.
    #[inline]
    pub(super) fn refill(
        &mut self,
        core: &Core,
        received: usize,
        batch: Option<&mut Batch>,
        sender: Option<&mut Sender>,
    ) -> bool {
        let Self { ring, cache, target } = self;
        let supply = || Supply { core, target: *target, received, batch, sender, cache };
        ring.with(&core.queue, supply, fill)
    }

    /// Gives up everything, at the end.
    pub(super) fn close(&mut self, core: &Core) {
        self.cache.flush(core.umem.pool());
        core.rx.cached.store(0, Ordering::Relaxed);
        self.ring.put(&core.queue);
    }
}

/// What goes into the ring.
struct Supply<'a> {
    core: &'a Core,
    target: u32,
    received: usize,
    batch: Option<&'a mut Batch>,
    sender: Option<&'a mut Sender>,
    cache: &'a mut Cache,
}

/// As [`Refill::refill`], with the ring at hand.
#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "used where the ring is inline and where it is shared: a call otherwise"
)]
fn fill(ring: &mut Producer<u64>, supply: Supply<'_>) -> bool {
    let Supply { core, target, received, batch, sender, cache } = supply;
    core.queue.filled.exchange(to_u32(received), target, |missing| {
        let mut slots = ring.reserve_up_to(missing as usize);
        if let Some(batch) = batch {
            batch.fill(&mut slots);
        }
        if slots.written() < slots.len() {
            let sender = sender.filter(|sender| sender.cache.len() > 0);
            if sender.is_some() || cache.len() > 0 || core.umem.pool().len() > 0 {
                fill_from_caches(core, &mut slots, sender, cache);
            }
        }
        to_u32(slots.submit())
    });
    ring.indices().needs_wakeup()
}

/// What the batch had too little for.
#[inline(never)]
fn fill_from_caches(
    core: &Core,
    slots: &mut Reserved<'_, u64>,
    sender: Option<&mut Sender>,
    cache: &mut Cache,
) {
    let umem = &core.umem;
    if let Some(sender) = sender {
        sender.cache.list_mut().fill(umem, slots);
        sender.note_cache();
    }
    let rest = slots.len() - slots.written();
    if rest > 0 {
        cache.with(rest, umem.pool()).fill(umem, slots);
        core.rx.cached.store(to_u32(cache.len()), Ordering::Relaxed);
    }
}
