//! Counts of frames by place.

use std::fmt;

use super::{Umem, quarantine, to_u32};
use crate::sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering, Weak, lock};

/// How many frames are in each place, each counted on its own.
///
/// Exact when traffic rests: then [`is_complete`](Self::is_complete) holds, or a frame was lost or
/// counted twice. While traffic flows, the places are read one after the other and need not add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Audit {
    /// All frames of the UMEM.
    pub total: u32,
    /// Free: in the pool, in sockets' caches, in batches' spare lists, kept for clones and not used.
    pub free: u32,
    /// In packets of batches.
    pub batch: u32,
    /// Given to the kernel to receive into: in a Fill ring or with the device.
    pub fill: u32,
    /// Received, in an RX ring.
    pub rx: u32,
    /// Given to the kernel to send: in a TX ring or with the device.
    pub tx: u32,
    /// Sent, in a Completion ring.
    pub completion: u32,
    /// Behind a descriptor or completion that the kernel returned and that made no sense.
    pub lost: u32,
    /// Of closed sockets: the kernel may still reach them. They come back when the same queue is bound
    /// again, in the network namespace in which it was: those of an interface that moved to another one stay
    /// until it is back.
    pub quarantine: u32,
    /// Handed to the user as plain addresses at the descriptor level.
    pub detached: u32,
    /// Of [`Clones`](super::Clones), each once however many clones of it the kernel has; of dropped ones as
    /// long as it has some. While it has, `completion` may count some of what is in `tx`.
    pub cloned: u32,
}

impl Audit {
    /// The sum over all places.
    pub fn sum(&self) -> u64 {
        [
            self.free,
            self.batch,
            self.fill,
            self.rx,
            self.tx,
            self.completion,
            self.lost,
            self.quarantine,
            self.detached,
            self.cloned,
        ]
        .into_iter()
        .map(u64::from)
        .sum()
    }

    /// Whether the places add up to the total: every frame is somewhere, and none in two places.
    pub fn is_complete(&self) -> bool {
        self.sum() == u64::from(self.total)
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            total,
            free,
            batch,
            fill,
            rx,
            tx,
            completion,
            lost,
            quarantine,
            detached,
            cloned,
        } = self;
        write!(
            f,
            "{total} frames: {free} free, {batch} in batches, {fill} fill, {rx} rx, {tx} tx, \
             {completion} completion, {lost} lost, {quarantine} quarantine, {detached} detached, {cloned} cloned"
        )?;
        if !self.is_complete() {
            write!(f, " (these add up to {})", self.sum())?;
        }
        Ok(())
    }
}

/// Sums while they are being added up: what one place holds can be known only as a difference, and
/// the two numbers are read at different moments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) free: i64,
    pub(crate) batch: i64,
    pub(crate) fill: i64,
    pub(crate) rx: i64,
    pub(crate) tx: i64,
    pub(crate) completion: i64,
}

/// Something that holds frames.
pub(crate) trait Holder: Send + Sync {
    /// Adds what it holds.
    fn count(&self, tally: &mut Tally);
}

/// All that holds frames of one UMEM, besides its pool and quarantine.
#[derive(Default)]
pub(crate) struct Counts {
    holders: Mutex<Holders>,
    lost: AtomicU32,
    detached: AtomicU32,
}

#[derive(Default)]
struct Holders {
    all: Vec<Weak<dyn Holder>>,
    /// At this many the dead are cleared away, which makes registering cheap on average.
    clear_at: usize,
}

impl Counts {
    pub(crate) fn register<H: Holder + 'static>(&self, holder: &Arc<H>) {
        let mut holders = lock(&self.holders);
        if holders.all.len() >= holders.clear_at {
            holders.all.retain(|holder| holder.strong_count() > 0);
            holders.clear_at = (2 * holders.all.len()).max(64);
        }
        let holder: Arc<dyn Holder> = holder.clone();
        holders.all.push(Arc::downgrade(&holder));
    }

    /// Frames behind descriptors that were refused. Apart, since this is a locked instruction, and the data path
    /// is to have none that does not always run.
    #[cold]
    #[inline(never)]
    pub(crate) fn lose(&self, frames: u32) {
        self.lost.fetch_add(frames, Ordering::Relaxed);
    }

    /// Frames handed to the user as addresses, or back.
    pub(crate) fn detach(&self, frames: i32) {
        self.detached.fetch_add(frames.cast_unsigned(), Ordering::Relaxed);
    }

    pub(super) fn audit(&self, umem: &Umem) -> Audit {
        // Collected first: dropping the last handle of a holder locks what its end needs.
        let holders: Vec<Arc<dyn Holder>> =
            lock(&self.holders).all.iter().filter_map(Weak::upgrade).collect();
        let mut tally = Tally { free: i64::from(umem.pool().len()), ..Tally::default() };
        for holder in &holders {
            holder.count(&mut tally);
        }
        let count = |value: i64| u32::try_from(value.max(0)).unwrap_or(u32::MAX);
        let quarantine = quarantine::frames(&lock(&umem.0.quarantine));
        let clones = lock(&umem.0.clones).counts();
        tally.free += i64::from(to_u32(clones.free));
        Audit {
            total: umem.chunks(),
            free: count(tally.free),
            batch: count(tally.batch),
            fill: count(tally.fill),
            rx: count(tally.rx),
            tx: count(tally.tx),
            completion: count(tally.completion),
            lost: self.lost.load(Ordering::Relaxed),
            quarantine: quarantine + to_u32(clones.quarantine),
            cloned: to_u32(clones.cloned),
            detached: count(i64::from(self.detached.load(Ordering::Relaxed).cast_signed())),
        }
    }
}

/// What one batch holds: packets' frames in the upper half, spare ones in the lower, so that one store
/// publishes both.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct BatchCount(AtomicU64);

impl BatchCount {
    #[inline]
    pub(super) fn set(&self, packets: usize, spare: usize) {
        self.0.store((packets as u64) << 32 | spare as u64, Ordering::Relaxed);
    }
}

impl Holder for BatchCount {
    fn count(&self, tally: &mut Tally) {
        let both = self.0.load(Ordering::Relaxed);
        tally.batch += (both >> 32).cast_signed();
        tally.free += (both & u64::from(u32::MAX)).cast_signed();
    }
}
