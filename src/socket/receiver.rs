//! The receiving half: RX and Fill.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use super::{
    Interest, Ready,
    core::Core,
    queue::Share,
    wait::{self, Link, Look},
};
use crate::{
    Batch, Error, ErrorKind, Result, Step,
    program::MapEntry,
    ring::{Consumer, Producer},
    sync::{Arc, Ordering},
    sys::uapi::Desc,
    umem::{Cache, Received, Taken, to_u32},
};

/// Receives in a row that find nothing before the link is asked for: a loop that spins without ever
/// waiting learns of a dead link too.
const IDLE_RECEIVES: u32 = 1 << 16;

/// The receiving half of a [`Socket`](super::Socket): one thread takes packets with it while another
/// sends with the [`Sender`](super::Sender).
#[repr(align(128))]
pub struct Receiver {
    pub(super) rx: Option<Consumer<Desc>>,
    pub(super) fill: Share<Producer<u64>>,
    cache: Cache,
    /// Frames that the kernel shall have at most to receive into.
    target: u32,
    idle: u32,
    /// The RX ring begins with the rest of a packet whose beginning was dropped.
    cut_off: bool,
    pub(super) link: Link,
    /// The socket's place in the XSKMAP, given up first.
    pub(super) entry: Option<MapEntry>,
    pub(super) core: Arc<Core>,
}

impl Receiver {
    pub(super) fn new(
        core: Arc<Core>,
        rx: Option<Consumer<Desc>>,
        fill: Share<Producer<u64>>,
        target: u32,
    ) -> Self {
        Self {
            rx,
            fill,
            cache: Cache::new(&core.umem),
            target,
            idle: 0,
            cut_off: false,
            link: Link::new(),
            entry: None,
            core,
        }
    }

    /// As [`Socket::recv`](super::Socket::recv).
    #[inline]
    pub fn recv(&mut self, batch: &mut Batch) -> Result<usize> {
        self.recv_with(batch, None)
    }

    /// Receives, and refills from the other half's cache too, where both are in one hand.
    #[inline]
    pub(super) fn recv_with(
        &mut self,
        batch: &mut Batch,
        completed: Option<&mut Cache>,
    ) -> Result<usize> {
        let core = &*self.core;
        if !core.umem.is(batch.umem()) {
            return Err(wrong_umem(core, Step::Receive));
        }
        let Some(rx) = &mut self.rx else {
            return Err(core
                .error(Step::Receive, ErrorKind::Unsupported, "the socket only sends")
                .hint("open it without `send_only`"));
        };
        // Before the look at the ring: it brings packets.
        let driven = if core.mode.busy_poll { drive(core, &mut self.link) } else { Ok(()) };
        let Received { packets: good, frames, bad, .. } = if core.mode.multi_buffer {
            receive_packets(core, rx, batch, &mut self.cut_off)
        } else {
            let Taken { good, bad } = batch.receive(rx.peek(to_u32(batch.room())));
            Received { packets: good, frames: good + bad, bad, oversized: false }
        };
        core.rx.received.add(good);
        if bad > 0 {
            core.rx.lost.add(bad);
            core.umem.counts().lose(to_u32(bad));
        }
        let sleeps = self.refill(frames, Some(batch), completed);
        if sleeps {
            self.wake(good > 0)?;
        }
        if good > 0 {
            self.idle = 0;
            let Core { mode, rx, .. } = &*self.core;
            rx.spared.add(usize::from(mode.need_wakeup && !mode.busy_poll && !sleeps));
        } else {
            driven?;
            self.idle += 1;
            if self.idle == IDLE_RECEIVES {
                self.idle = 0;
                self.link.check(&self.core, Step::Receive)?;
            }
        }
        Ok(good)
    }

    /// Waits for packets, at most that long (`None`: for ever); whether there are any.
    ///
    /// # Errors
    ///
    /// As [`Socket::wait`](super::Socket::wait).
    pub fn wait(&mut self, timeout: impl Into<Option<Duration>>) -> Result<bool> {
        let core = self.core.clone();
        let timeout = timeout.into();
        wait::possible(&core, Interest::READABLE, Interest::of(self.rx.is_some(), false), timeout)?;
        // Its own, so that `look` can borrow the rest.
        let mut link = std::mem::replace(&mut self.link, Link::new());
        let ready = wait::wait(&core, &mut link, Interest::READABLE, timeout, || self.look(None));
        self.link = link;
        ready.map(Ready::readable)
    }

    /// Gives the kernel frames, calls it if it sleeps, and looks for packets.
    pub(super) fn look(&mut self, completed: Option<&mut Cache>) -> Result<Look> {
        if self.core.mode.busy_poll && self.rx.is_some() {
            drive(&self.core, &mut self.link)?;
        }
        if self.refill(0, None, completed) {
            self.wake(false)?;
        }
        let readable = self.rx.as_mut().is_some_and(|rx| rx.available(1) > 0);
        Ok(Look { ready: Ready { readable, writable: false }, ..Look::default() })
    }

    /// Gives the kernel new frames for those received: the batch's spare ones first, then completed
    /// ones, then the cache's, then the pool's. Returns whether the kernel waits for a call.
    fn refill(
        &mut self,
        received: usize,
        batch: Option<&mut Batch>,
        completed: Option<&mut Cache>,
    ) -> bool {
        let Self { fill, cache, target, core, .. } = self;
        let (queue, umem) = (&*core.queue, &core.umem);
        let sleeps = fill.with(queue, |ring| {
            queue.filled.sub(to_u32(received));
            let missing = target.saturating_sub(queue.filled.get());
            if missing > 0 {
                let mut slots = ring.reserve_up_to(missing);
                if let Some(batch) = batch {
                    batch.spare_mut().fill(umem, &mut slots);
                    batch.note();
                }
                if let Some(completed) = completed {
                    completed.list_mut().fill(umem, &mut slots);
                }
                let rest = slots.len() - slots.written();
                if rest > 0 {
                    cache.with(rest, umem.pool()).fill(umem, &mut slots);
                }
                let filled = slots.submit();
                queue.filled.add(to_u32(filled));
            }
            ring.indices().needs_wakeup()
        });
        core.rx.cached.store(to_u32(cache.len()), Ordering::Relaxed);
        sleeps
    }

    #[cold]
    fn wake(&mut self, received: bool) -> Result<()> {
        self.core.rx.wakeups.add(1);
        match self.link.check(&self.core, Step::Receive) {
            // Packets first: the error comes again with the next call.
            Err(_) if received => Ok(()),
            outcome => outcome,
        }
    }
}

/// Has the driver's receive loop run, in busy polling.
#[cold]
fn drive(core: &Core, link: &mut Link) -> Result<()> {
    core.rx.wakeups.add(1);
    link.check(core, Step::Receive)
}

/// Takes whole packets of one or more frames out of the ring.
fn receive_packets(
    core: &Core,
    rx: &mut Consumer<Desc>,
    batch: &mut Batch,
    cut_off: &mut bool,
) -> Received {
    let mut all = Received::default();
    loop {
        let received = batch.receive_packets(rx.peek(to_u32(batch.room())), cut_off);
        all.frames += received.frames;
        all.bad += received.bad;
        core.rx.oversized.add(usize::from(received.oversized));
        // What follows packets that were dropped is for this call, too.
        if received.packets > 0 || received.frames == 0 {
            return Received { packets: received.packets, ..all };
        }
    }
}

pub(super) fn wrong_umem(core: &Core, step: Step) -> Error {
    core.error(step, ErrorKind::WrongUmem, "the batch belongs to another UMEM than the socket")
        .hint("make it with `socket.umem().batch(…)`; packets get from one UMEM to another by copying")
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.give_out_fd()
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("interface", &self.core.interface)
            .field("queue", &self.core.queue_id)
            .finish_non_exhaustive()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // No more packets are redirected here; only then are the rings given up.
        self.entry = None;
        self.cache.flush(self.core.umem.pool());
        self.core.rx.cached.store(0, Ordering::Relaxed);
        self.fill.put(&self.core.queue);
        self.core.leave_rx(self.rx.take());
    }
}
