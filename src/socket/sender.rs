//! The sending half: TX and Completion.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use super::{
    Interest, Ready, SocketConfig,
    core::Core,
    queue::Share,
    reap::Reap,
    receiver::wrong_umem,
    wait::{self, Link, Look, Wait},
};
use crate::{
    Batch, Error, ErrorKind, Result, Step,
    ring::{Consumer, Producer, Reserved},
    sync::{Arc, Ordering, fence, lock},
    sys::uapi::Desc,
    umem::{Cache, Taken, TxTimestamp, to_u32},
};

/// The sending half of a [`Socket`](super::Socket): one thread sends packets with it while another
/// takes them with the [`Receiver`](super::Receiver).
#[repr(align(128))]
pub struct Sender {
    pub(super) tx: Option<Producer<Desc>>,
    pub(super) completion: Share<Consumer<u64>>,
    pub(super) cache: Cache,
    /// The kernel was called and could not take all: it has to be called again.
    owes_kick: bool,
    /// Slots that the packet needs which `send` had no room for.
    pub(super) needs: u32,
    /// What is submitted is seen by the kernel before its flag is read: a fence, where it changes that.
    has_fence: bool,
    link: Link,
    pub(super) core: Arc<Core>,
}

impl Sender {
    pub(super) fn new(
        core: Arc<Core>,
        tx: Option<Producer<Desc>>,
        completion: Share<Consumer<u64>>,
        config: &SocketConfig,
    ) -> Self {
        Self {
            tx,
            completion,
            cache: Cache::new(&core.umem, config.frame_cache, config.completion.get()),
            owes_kick: false,
            needs: 1,
            has_fence: core.mode.need_wakeup && core.endpoint.changes_flags(core.mode.zero_copy),
            link: Link::new(),
            core,
        }
    }

    /// As [`Socket::send`](super::Socket::send).
    #[inline]
    pub fn send(&mut self, batch: &mut Batch) -> Result<usize> {
        let core = &*self.core;
        if !core.umem.is(batch.umem()) {
            return Err(wrong_umem(core, Step::Send));
        }
        let plain = !batch.multi_buffer() && !core.umem.has_tx_metadata();
        if !plain {
            check(core, batch)?;
        }
        let Some(tx) = &mut self.tx else { return Err(receives_only(core)) };
        let mut slots = tx.reserve_up_to(batch.len());
        let sent = if plain {
            batch.send(&mut slots)
        } else {
            batch.send_packets(&mut slots, core.mode.max_frames as usize)
        };
        let count = match sent {
            Some(count) => count,
            None => send_others(core, batch, &mut slots),
        };
        let cache = &mut self.cache;
        let taken = self.completion.with(
            &core.queue,
            || Reap::into_cache(core, cache).submitting(to_u32(count)).into_batch(&mut *batch),
            Reap::from,
        );
        // Before the kernel can have them: from there, another socket of the queue may take them at once.
        batch.sent(count);
        slots.submit();
        self.needs = to_u32(batch.first_frames());
        core.tx.sent.add(count);
        self.completed(taken);
        self.wake(count > 0)?;
        Ok(count)
    }

    /// Waits for room to send, at most that long (`None`: for ever); whether there is any.
    ///
    /// # Errors
    ///
    /// As [`Socket::wait`](super::Socket::wait).
    pub fn wait(&mut self, timeout: impl Into<Option<Duration>>) -> Result<bool> {
        wait::wait(self, Interest::WRITABLE, timeout.into()).map(Ready::writable)
    }

    /// Takes completed frames back without sending anything, and pays a kick that is owed; returns how
    /// many frames have completed. `send` and `wait` do this too.
    ///
    /// # Errors
    ///
    /// As [`Socket::send`](super::Socket::send).
    pub fn reap(&mut self) -> Result<usize> {
        let completed = self.reap_into_cache();
        self.wake(false)?;
        Ok(completed)
    }

    /// Takes completed frames back; returns how many there were.
    fn reap_into_cache(&mut self) -> usize {
        let (core, cache) = (&*self.core, &mut self.cache);
        let taken = self.completion.with(&core.queue, || Reap::into_cache(core, cache), Reap::from);
        self.completed(taken);
        taken.good
    }

    /// As [`Socket::timestamps`](super::Socket::timestamps).
    pub fn timestamps(&mut self) -> Vec<TxTimestamp> {
        lock(&self.core.queue.timestamps).take()
    }

    /// Packets that lie in the TX ring, not taken by the kernel yet: by a look at the ring, so that there
    /// may be fewer by now.
    ///
    /// While there are any, the kernel may have to be called again for them: a thread that waits for
    /// something else waits for this half too ([`Waiting::reap`](super::Waiting::reap)), or calls
    /// [`reap`](Self::reap) now and then.
    pub fn unsent(&self) -> usize {
        self.tx.as_ref().map_or(0, |tx| tx.indices().level() as usize)
    }

    #[inline]
    pub(super) fn completed(&self, taken: Taken) {
        let core = &self.core;
        core.tx.completed.add(taken.good);
        if taken.bad > 0 {
            core.queue.doubt();
            core.tx.lost.add(taken.bad);
            core.umem.counts().lose(to_u32(taken.bad));
        }
    }

    /// Publishes the number that `audit` adds up.
    #[inline]
    pub(super) fn note_cache(&self) {
        let core = &self.core;
        let cached = to_u32(self.cache.len());
        core.tx.cached.store(cached, Ordering::Relaxed);
    }

    /// Calls the kernel if it sleeps and there is something for it to do.
    ///
    /// The flag is read on every call, also when nothing was submitted: the kernel has no fence
    /// between setting it and looking at the ring a last time, so that no fence of ours can prove that
    /// it was not set just after we looked.
    #[inline]
    pub(super) fn wake(&mut self, submitted: bool) -> Result<()> {
        let Some(tx) = &self.tx else { return Ok(()) };
        let may_sleep = self.core.mode.need_wakeup;
        if submitted && self.has_fence {
            // Hardening: the index that we have just published is seen before the flag is read.
            fence(Ordering::SeqCst);
        }
        if self.core.mode.busy_poll {
            // The driver's loop takes completed frames back too.
            return self.kick();
        }
        let sleeps = !may_sleep || tx.indices().needs_wakeup();
        if sleeps && (submitted || self.owes_kick || tx.indices().level() > 0) {
            return self.kick();
        }
        self.core.tx.spared.add(usize::from(submitted && !sleeps));
        Ok(())
    }

    /// Calls the kernel until it has taken all, or says that it cannot now.
    #[inline(never)]
    fn kick(&mut self) -> Result<()> {
        self.owes_kick = false;
        let mut level = self.unsent();
        // In copy mode a call takes 32 packets or more, or drops one: this many calls are enough
        // while each makes progress.
        let calls = level + 1;
        for _ in 0..calls {
            let core = &*self.core;
            core.tx.wakeups.add(1);
            let Err(error) = core.endpoint.kick_tx() else { return Ok(()) };
            match error.raw_os_error() {
                Some(libc::EBUSY) if !core.mode.zero_copy => core.tx.dropped.add(1),
                Some(libc::EINTR) => continue,
                Some(libc::EAGAIN | libc::ENOBUFS | libc::EBUSY) => {}
                _ => return Err(core.os_error(Step::Send, error)),
            }
            let before = level;
            level = self.unsent();
            if level == 0 {
                return Ok(());
            }
            // The budget of what may be in flight, or the Completion ring, is full.
            if level == before && self.reap_into_cache() == 0 {
                break;
            }
        }
        self.owes_kick = true;
        Ok(())
    }
}

/// Sends without the packets that the kernel would refuse.
#[cold]
fn send_others(core: &Core, batch: &mut Batch, slots: &mut Reserved<'_, Desc>) -> usize {
    let most = core.mode.max_frames as usize;
    core.tx.refused.add(batch.recycle_refused(most));
    batch.send_packets(slots, most).unwrap_or(0)
}

/// Whether the packets' kind can be sent at all.
#[inline(never)]
fn check(core: &Core, batch: &mut Batch) -> Result<()> {
    if batch.multi_buffer() && !core.mode.multi_buffer && batch.has_several_frames() {
        return Err(core
            .error(
                Step::Send,
                ErrorKind::Unsupported,
                "a packet of several frames, on a socket without multi-buffer",
            )
            .hint("open it with `SocketConfig::multi_buffer`"));
    }
    if core.umem.has_tx_metadata() && !core.mode.launch_time && batch.has_launch_time() {
        return Err(core
            .error(
                Step::Send,
                ErrorKind::Unsupported,
                "a launch time, which this kernel or device cannot keep",
            )
            .hint("`Mode::launch_time` says whether it can"));
    }
    Ok(())
}

#[cold]
pub(super) fn receives_only(core: &Core) -> Error {
    core.error(Step::Send, ErrorKind::Unsupported, "the socket only receives")
        .hint("open it without `receive_only`")
}

impl Wait for Sender {
    fn core(&self) -> &Arc<Core> {
        &self.core
    }

    fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    fn can(&self) -> Interest {
        Interest::of(false, self.tx.is_some())
    }

    fn look(&mut self, interest: Interest) -> Result<Look> {
        self.reap()?;
        let needs = self.needs;
        let Some(tx) = &mut self.tx else { return Ok(Look::default()) };
        let writable = tx.free(needs as usize) >= needs;
        // `poll` says that there is room as soon as half of the ring is free.
        let crowded = !writable && needs > tx.indices().size() / 2;
        // Of the TX ring, `poll` tells nothing then: its flag has to be read again.
        let unsent = interest == Interest::NOTHING && tx.indices().level() > 0;
        let owes_kick = self.owes_kick || unsent;
        Ok(Look { ready: Ready { readable: false, writable }, owes_kick, crowded })
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.give_out_fd()
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.debug("Sender", f)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.cache.flush(self.core.umem.pool());
        self.core.tx.cached.store(0, Ordering::Relaxed);
        self.completion.put(&self.core.queue);
    }
}
