//! The receiving half: RX and Fill.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use super::{
    Interest, Ready, SocketConfig,
    core::Core,
    queue::Share,
    refill::Refill,
    sender::Sender,
    wait::{self, Link, Look, Wait},
};
use crate::{
    Batch, Error, ErrorKind, Result, Step,
    program::MapEntry,
    ring::{Consumer, Producer},
    sync::Arc,
    sys::uapi::Desc,
    umem::{Received, Taken, to_u32},
};

/// Receives in a row that find nothing before the link is asked for: a loop that spins without ever
/// waiting learns of a dead link too.
const IDLE_RECEIVES: u32 = 1 << 16;

/// The receiving half of a [`Socket`](super::Socket): one thread takes packets with it while another
/// sends with the [`Sender`](super::Sender).
#[repr(align(128))]
pub struct Receiver {
    pub(super) rx: Option<Consumer<Desc>>,
    pub(super) fill: Refill,
    idle: u32,
    /// The RX ring begins with the rest of a packet whose beginning was dropped.
    cut_off: bool,
    link: Link,
    /// The socket's place in the XSKMAP, given up first.
    pub(super) entry: Option<MapEntry>,
    pub(super) core: Arc<Core>,
}

impl Receiver {
    pub(super) fn new(
        core: Arc<Core>,
        rx: Option<Consumer<Desc>>,
        fill: Share<Producer<u64>>,
        config: &SocketConfig,
    ) -> Self {
        Self {
            rx,
            fill: Refill::new(fill, &core.umem, config),
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

    /// Receives, and refills from what the other half got back too, where both are in one hand.
    #[inline]
    pub(super) fn recv_with(
        &mut self,
        batch: &mut Batch,
        sender: Option<&mut Sender>,
    ) -> Result<usize> {
        let Self { rx, fill, core, .. } = self;
        let core: &Core = core;
        if !core.umem.is(batch.umem()) {
            return Err(wrong_umem(core, Step::Receive));
        }
        let Some(rx) = rx else { return Err(sends_only(core)) };
        if core.mode.multi_buffer || core.mode.busy_poll {
            return self.recv_packets(batch, sender);
        }
        let received = rx.peek(batch.room());
        let count = received.len();
        // Frames that the batch has to spare go first, which leaves it empty for those to come.
        let sleeps = fill.refill(core, count, Some(&mut *batch), sender);
        let bad = batch.receive(received);
        if bad > 0 || sleeps || count == 0 {
            return self.settle(Taken { good: count - bad, bad }, sleeps, Ok(()));
        }
        core.rx.received.add(count);
        core.rx.spared.add(usize::from(core.mode.need_wakeup));
        self.idle = 0;
        Ok(count)
    }

    /// As [`recv_with`](Self::recv_with), where packets may have several frames or the driver has to be
    /// called.
    #[inline(never)]
    fn recv_packets(&mut self, batch: &mut Batch, sender: Option<&mut Sender>) -> Result<usize> {
        let Self { rx, fill, cut_off, core, link, .. } = self;
        let Some(rx) = rx else { return Ok(0) };
        // Before the look at the ring: it brings packets.
        let driven = if core.mode.busy_poll { drive(core, link) } else { Ok(()) };
        let received = if core.mode.multi_buffer {
            receive_packets(core, rx, batch, cut_off)
        } else {
            let received = rx.peek(batch.room());
            let frames = received.len();
            let bad = batch.receive(received);
            Received { packets: frames - bad, frames, bad, oversized: false }
        };
        let Received { packets: good, frames, bad, .. } = received;
        let sleeps = fill.refill(core, frames, Some(&mut *batch), sender);
        batch.note();
        self.settle(Taken { good, bad }, sleeps, driven)
    }

    /// Counts what was received, and makes the calls that are due.
    #[inline(never)]
    fn settle(&mut self, taken: Taken, sleeps: bool, driven: Result<()>) -> Result<usize> {
        let Taken { good, bad } = taken;
        let core = &*self.core;
        core.rx.received.add(good);
        if bad > 0 {
            // Its frame may be with the device still.
            core.queue.doubt();
            core.rx.lost.add(bad);
            core.umem.counts().lose(to_u32(bad));
        }
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
        wait::wait(self, Interest::READABLE, timeout.into()).map(Ready::readable)
    }

    /// Gives the kernel frames, calls it if it sleeps, and says whether there are packets.
    pub(super) fn look_with(&mut self, sender: Option<&mut Sender>) -> Result<bool> {
        if self.core.mode.busy_poll && self.rx.is_some() {
            drive(&self.core, &mut self.link)?;
        }
        if self.fill.refill(&self.core, 0, None, sender) {
            self.wake(false)?;
        }
        Ok(self.rx.as_mut().is_some_and(|rx| rx.available(1) > 0))
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
        let received = batch.receive_packets(rx.peek(batch.room()), cut_off);
        all.frames += received.frames;
        all.bad += received.bad;
        core.rx.oversized.add(usize::from(received.oversized));
        // What follows packets that were dropped is for this call, too.
        if received.packets > 0 || received.frames == 0 {
            return Received { packets: received.packets, ..all };
        }
    }
}

#[cold]
fn sends_only(core: &Core) -> Error {
    core.error(Step::Receive, ErrorKind::Unsupported, "the socket only sends")
        .hint("open it without `send_only`")
}

#[cold]
pub(super) fn wrong_umem(core: &Core, step: Step) -> Error {
    core.error(step, ErrorKind::WrongUmem, "the batch belongs to another UMEM than the socket")
        .hint("make it with `socket.umem().batch(…)`; packets get from one UMEM to another by copying")
}

impl Wait for Receiver {
    fn core(&self) -> &Arc<Core> {
        &self.core
    }

    fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    fn can(&self) -> Interest {
        Interest::of(self.rx.is_some(), false)
    }

    fn look(&mut self, _: Interest) -> Result<Look> {
        let readable = self.look_with(None)?;
        Ok(Look { ready: Ready { readable, writable: false }, ..Look::default() })
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.give_out_fd()
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.debug("Receiver", f)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // No more packets are redirected here; only then are the rings given up.
        self.entry = None;
        self.fill.close(&self.core);
        self.core.leave_rx(self.rx.take());
    }
}
