//! Frames that the kernel may still reach after their socket was closed.

use super::{DeviceQueue, Umem, to_u32};

/// What the kernel held for one queue when its last socket closed.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) queue: DeviceQueue,
    /// Frames that lay in the Fill ring, by their chunks' addresses.
    pub(crate) known: Vec<u64>,
    /// The number of the others: the kernel does not say which it had taken.
    pub(crate) unknown: u32,
    /// Whether there may be more: then adopted memory is not freed, even where there is none of the others.
    pub(crate) doubtful: bool,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty() && self.unknown == 0 && !self.doubtful
    }
}

/// All that is held for closed sockets.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    held: Vec<Held>,
    /// Frames that the kernel has let go of, without our knowing which they are: found when all others
    /// are at home.
    stray: u32,
}

/// The number of frames held.
pub(super) fn frames(quarantine: &Quarantine) -> u32 {
    let held: usize =
        quarantine.held.iter().map(|held| held.known.len() + held.unknown as usize).sum();
    to_u32(held) + quarantine.stray
}

impl Quarantine {
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.stray == 0
    }

    pub(super) fn hold(&mut self, held: Held) {
        self.held.push(held);
    }

    /// Returns the frames that are free again, now that a queue has been bound anew. `elsewhere` are
    /// frames that its new socket has given to the kernel already.
    pub(super) fn queue_is_free(
        &mut self,
        umem: &Umem,
        queue: DeviceQueue,
        elsewhere: &[u64],
    ) -> Vec<u64> {
        let mut back = Vec::new();
        self.held.retain(|held| {
            let free = held.queue == queue;
            if free {
                back.extend_from_slice(&held.known);
                self.stray += held.unknown;
            }
            !free
        });
        self.find_strays(umem, elsewhere, &mut back);
        back
    }

    /// Strays are the frames that are nowhere else, once all that are not strays have been seen.
    fn find_strays(&mut self, umem: &Umem, elsewhere: &[u64], back: &mut Vec<u64>) {
        if self.stray == 0 {
            return;
        }
        let geometry = umem.geometry();
        let mut seen = vec![false; geometry.frames() as usize];
        let mut mark = |address: &u64| seen[geometry.chunk(*address)] = true;
        umem.pool().for_each(&mut mark);
        elsewhere.iter().for_each(&mut mark);
        back.iter().for_each(&mut mark);
        self.held.iter().flat_map(|held| &held.known).for_each(&mut mark);
        let missing = seen.iter().filter(|seen| !**seen).count();
        if missing == self.stray as usize {
            let strays = geometry.addresses().zip(seen).filter(|(_, seen)| !seen);
            back.extend(strays.map(|(address, _)| address));
            self.stray = 0;
        }
    }
}
