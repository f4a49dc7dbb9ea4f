//! Sending one prepared frame many times.

use super::{Sender, Socket, reap::Reap, sender::receives_only};
use crate::{
    ErrorKind, Result, Step,
    umem::{Clones, to_u32},
};

impl Sender {
    /// As [`Socket::send_clones`].
    #[inline]
    pub fn send_clones(&mut self, clones: &mut Clones, count: usize) -> Result<usize> {
        let core = &*self.core;
        if !core.umem.is(clones.umem()) {
            return Err(core
                .error(
                    Step::Send,
                    ErrorKind::WrongUmem,
                    "the clones belong to another UMEM than the socket",
                )
                .hint("prepare them with `socket.umem().clones(…)`"));
        }
        let Some(tx) = &mut self.tx else {
            return Err(receives_only(core));
        };
        let mut slots = tx.reserve_up_to(count);
        let count = clones.send(&mut slots);
        clones.fly(&core.queue.clones);
        let cache = &mut self.cache;
        let taken = self.completion.with(
            &core.queue,
            || Reap::into_cache(core, cache).submitting(to_u32(count)),
            |ring, reap| {
                // What has completed by now is none of these; what completes from `submit` on may be.
                let taken = Reap::from(ring, reap);
                core.queue.clones.add(to_u32(count));
                taken
            },
        );
        slots.submit();
        self.needs = 1;
        core.tx.sent.add(count);
        self.completed(taken);
        self.wake(count > 0)?;
        Ok(count)
    }
}

impl Socket {
    /// Gives up to `count` [clones](Clones) to the kernel to send, as many as the TX ring has room for, packet
    /// after packet in turn; returns how many. The next call goes on where this one ended.
    ///
    /// Nothing is written or copied but descriptors, and nothing is counted per packet. Clones that completed
    /// are counted off with every [`send`](Self::send), `send_clones`, `wait` and
    /// [`reap`](Sender::reap), by whichever socket of the queue.
    ///
    /// It does not wait: 0 means that the ring is full, or `count` 0.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    #[doc(alias = "clone_skb")]
    #[inline]
    pub fn send_clones(&mut self, clones: &mut Clones, count: usize) -> Result<usize> {
        self.sender.send_clones(clones, count)
    }
}
