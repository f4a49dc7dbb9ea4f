//! The descriptor level: guards that are dropped or forgotten change nothing, frames given to the kernel are
//! its own.

use std::mem::forget;

use crate::{places::Place, world::World};

impl World {
    /// Takes guards on all four rings and lets go of them, by dropping or forgetting.
    pub(crate) fn guards(&mut self, (queue, member): (usize, usize), count: u8, forgets: bool) {
        let count = usize::from(count % 40);
        let (socket, _) = self.both(queue, member);
        let mut rings = socket.rings();
        if let Some(mut rx) = rings.rx() {
            let_go(rx.peek(count), forgets);
        }
        if let Some(mut tx) = rings.tx() {
            let_go(tx.reserve_up_to(count), forgets);
        }
        let_go(rings.fill().reserve_up_to(count), forgets);
        let_go(rings.completion().peek(count), forgets);
    }

    /// Gives frames that are plain addresses to the kernel to receive into, as many as there is room for.
    #[allow(unsafe_code, reason = "frames at the descriptor level are the caller's business")]
    pub(crate) fn fill(&mut self, (queue, member): (usize, usize)) {
        let detached = std::mem::take(&mut self.detached);
        let (socket, _) = self.both(queue, member);
        let mut rings = socket.rings();
        let mut fill = rings.fill();
        let mut slots = fill.reserve_up_to(detached.len());
        // SAFETY: the frames came out of `detach`, and those written are forgotten below.
        let written = unsafe { slots.write(&detached) };
        assert_eq!(slots.submit(), written);
        drop(rings);
        for address in &detached[..written] {
            self.places.moves(self.memory.chunk_at(*address), Place::Detached, Place::Within);
        }
        self.detached = detached[written..].to_vec();
    }
}

/// Today that is the same; were a guard to get a `Drop`, it must not be needed.
fn let_go<G>(guard: G, forgets: bool) {
    if forgets {
        forget(guard);
    }
}
