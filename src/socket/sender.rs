//! The sending half: TX and Completion.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use super::{
    Interest, Ready,
    core::Core,
    queue::Share,
    receiver::wrong_umem,
    wait::{self, Link, Look},
};
use crate::{
    Batch, ErrorKind, Result, Step,
    ring::{Consumer, Producer},
    sync::{Arc, Ordering, fence, lock},
    sys::uapi::Desc,
    umem::{self, Cache, Taken, TxTimestamp, to_u32},
};

/// The sending half of a [`Socket`](super::Socket): one thread sends packets with it while another
/// takes them with the [`Receiver`](super::Receiver).
#[repr(align(128))]
pub struct Sender {
    pub(super) tx: Option<Producer<Desc>>,
    pub(super) completion: Share<Consumer<u64>>,
    cache: Cache,
    /// The kernel was called and could not take all: it has to be called again.
    owes_kick: bool,
    /// Slots that the packet needs which `send` had no room for.
    needs: u32,
    link: Link,
    pub(super) core: Arc<Core>,
}

impl Sender {
    pub(super) fn new(
        core: Arc<Core>,
        tx: Option<Producer<Desc>>,
        completion: Share<Consumer<u64>>,
    ) -> Self {
        Self {
            tx,
            completion,
            cache: Cache::new(&core.umem),
            owes_kick: false,
            needs: 1,
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
        let Some(tx) = &mut self.tx else {
            return Err(core
                .error(Step::Send, ErrorKind::Unsupported, "the socket only receives")
                .hint("open it without `receive_only`"));
        };
        let mut slots = tx.reserve_up_to(to_u32(batch.len()));
        let most = core.mode.max_frames as usize;
        let count = batch.send(&mut slots, most).unwrap_or_else(|| {
            core.tx.refused.add(batch.recycle_refused(most));
            batch.send(&mut slots, most).unwrap_or(0)
        });
        // Counted before they can complete.
        let Taken { good, bad } = self.completion.with(&core.queue, |ring| {
            core.queue.sending.add(to_u32(count));
            reap(core, ring, Some(batch), &mut self.cache)
        });
        slots.submit();
        batch.sent(count);
        self.needs = to_u32(batch.first_frames());
        core.tx.sent.add(count);
        self.completed(good, bad);
        self.wake(count > 0)?;
        Ok(count)
    }

    /// Waits for room to send, at most that long (`None`: for ever); whether there is any.
    ///
    /// # Errors
    ///
    /// As [`Socket::wait`](super::Socket::wait).
    pub fn wait(&mut self, timeout: impl Into<Option<Duration>>) -> Result<bool> {
        let core = self.core.clone();
        let timeout = timeout.into();
        wait::possible(&core, Interest::WRITABLE, Interest::of(false, self.tx.is_some()), timeout)?;
        // Its own, so that `look` can borrow the rest.
        let mut link = std::mem::replace(&mut self.link, Link::new());
        let ready = wait::wait(&core, &mut link, Interest::WRITABLE, timeout, || self.look());
        self.link = link;
        ready.map(Ready::writable)
    }

    /// Takes completed frames back without sending anything, and pays a kick that is owed; returns how
    /// many frames have completed. `send` and `wait` do this too.
    ///
    /// # Errors
    ///
    /// As [`Socket::send`](super::Socket::send).
    pub fn reap(&mut self) -> Result<usize> {
        let core = &*self.core;
        let Taken { good, bad } =
            self.completion.with(&core.queue, |ring| reap(core, ring, None, &mut self.cache));
        self.completed(good, bad);
        self.wake(false)?;
        Ok(good)
    }

    /// As [`Socket::timestamps`](super::Socket::timestamps).
    pub fn timestamps(&mut self) -> Vec<TxTimestamp> {
        lock(&self.core.queue.timestamps).take()
    }

    /// Packets that lie in the TX ring, not taken by the kernel yet: by a look at the ring, so that there
    /// may be fewer by now.
    ///
    /// While there are any, a thread that waits for something else than this socket calls
    /// [`reap`](Self::reap) now and then, since the kernel may have to be called again for them.
    pub fn unsent(&self) -> usize {
        self.tx.as_ref().map_or(0, |tx| tx.indices().level() as usize)
    }

    /// Takes completed frames back, calls the kernel if it sleeps, and looks for room.
    pub(super) fn look(&mut self) -> Result<Look> {
        self.reap()?;
        let needs = self.needs;
        let Some(tx) = &mut self.tx else { return Ok(Look::default()) };
        let writable = tx.free(needs) >= needs;
        // `poll` says that there is room as soon as half of the ring is free.
        let crowded = !writable && needs > tx.indices().size() / 2;
        Ok(Look { ready: Ready { readable: false, writable }, owes_kick: self.owes_kick, crowded })
    }

    /// Frames that came back, not yet in the pool: for the other half to use.
    pub(super) fn cache_mut(&mut self) -> &mut Cache {
        &mut self.cache
    }

    fn completed(&self, good: usize, bad: usize) {
        let core = &self.core;
        core.tx.completed.add(good);
        if bad > 0 {
            core.tx.lost.add(bad);
            core.umem.counts().lose(to_u32(bad));
        }
        self.note_cache();
    }

    /// Publishes the number that `audit` adds up.
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
    fn wake(&mut self, submitted: bool) -> Result<()> {
        let Some(tx) = &self.tx else { return Ok(()) };
        let may_sleep = self.core.mode.need_wakeup;
        if submitted && may_sleep {
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
    fn kick(&mut self) -> Result<()> {
        let core = &*self.core;
        let Some(tx) = &self.tx else { return Ok(()) };
        self.owes_kick = false;
        let mut level = tx.indices().level();
        // In copy mode a call takes 32 packets or more, or drops one: this many calls are enough
        // while each makes progress.
        let calls = level + 1;
        for _ in 0..calls {
            core.tx.wakeups.add(1);
            let Err(error) = core.endpoint.kick_tx() else { return Ok(()) };
            match error.raw_os_error() {
                Some(libc::EBUSY) if !core.mode.zero_copy => core.tx.dropped.add(1),
                Some(libc::EINTR) => continue,
                Some(libc::EAGAIN | libc::ENOBUFS | libc::EBUSY) => {}
                _ => return Err(core.os_error(Step::Send, error)),
            }
            let before = level;
            level = tx.indices().level();
            if level == 0 {
                return Ok(());
            }
            if level == before {
                // The budget of what may be in flight, or the Completion ring, is full.
                let Taken { good, bad } = self
                    .completion
                    .with(&core.queue, |ring| reap(core, ring, None, &mut self.cache));
                self.completed(good, bad);
                if good == 0 {
                    break;
                }
            }
        }
        self.owes_kick = true;
        Ok(())
    }
}

/// Takes over all frames that the kernel has sent.
#[inline]
fn reap(
    core: &Core,
    ring: &mut Consumer<u64>,
    batch: Option<&mut Batch>,
    cache: &mut Cache,
) -> Taken {
    let completed = ring.peek(u32::MAX);
    if core.umem.has_tx_metadata() {
        core.umem.collect_timestamps(&completed, &core.queue.timestamps);
    }
    let taken = umem::complete(&core.umem, completed, batch, cache);
    core.queue.sending.sub(to_u32(taken.good + taken.bad));
    taken
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.give_out_fd()
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("interface", &self.core.interface)
            .field("queue", &self.core.queue_id)
            .finish_non_exhaustive()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.cache.flush(self.core.umem.pool());
        self.core.tx.cached.store(0, Ordering::Relaxed);
        self.completion.put(&self.core.queue);
    }
}
