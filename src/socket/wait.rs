//! Waiting for packets or for room, on a link that may die meanwhile.

use std::{
    io,
    time::{Duration, Instant},
};

use super::core::Core;
use crate::{Batch, ErrorKind, Result, Step, sync::Arc};

/// How long a dead link may go unnoticed: `poll` is silent when the interface goes down or is deleted,
/// so it is asked for this often.
pub(super) const LINK_CHECK: Duration = Duration::from_millis(500);

/// How soon a kick that the kernel could not follow is tried again.
const KICK_AGAIN: Duration = Duration::from_millis(1);

/// What to [`wait`](super::Socket::wait) for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    readable: bool,
    writable: bool,
}

impl Interest {
    /// Packets to receive.
    pub const READABLE: Self = Self { readable: true, writable: false };
    /// Room to send.
    pub const WRITABLE: Self = Self { readable: false, writable: true };
    /// Neither.
    pub(super) const NOTHING: Self = Self { readable: false, writable: false };
    /// Whichever comes first.
    pub const BOTH: Self = Self { readable: true, writable: true };

    /// What a loop that receives, changes and sends one batch waits for: room while the batch holds
    /// packets, packets once it is empty.
    pub fn for_batch(batch: &Batch) -> Self {
        if batch.is_empty() { Self::READABLE } else { Self::WRITABLE }
    }

    /// What a socket with these rings can wait for.
    pub(super) fn of(rx: bool, tx: bool) -> Self {
        Self { readable: rx, writable: tx }
    }

    /// Whether it includes packets to receive.
    pub fn is_readable(self) -> bool {
        self.readable
    }

    /// Whether it includes room to send.
    pub fn is_writable(self) -> bool {
        self.writable
    }
}

/// What [`wait`](super::Socket::wait) found: neither, if the time was up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    pub(super) readable: bool,
    pub(super) writable: bool,
}

impl Ready {
    /// There are packets to receive.
    pub fn readable(self) -> bool {
        self.readable
    }

    /// There is room to send.
    pub fn writable(self) -> bool {
        self.writable
    }

    /// The time was up before there was either.
    pub fn timed_out(self) -> bool {
        !self.readable && !self.writable
    }
}

/// What a look at the rings showed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    pub(super) ready: Ready,
    /// Packets lie in the TX ring that the kernel could not take when it was called.
    pub(super) owes_kick: bool,
    /// There is less room to send than it takes, but as much as `poll` waits for.
    pub(super) crowded: bool,
}

/// What can be waited for: a socket, or a half of one.
pub(super) trait Wait {
    fn core(&self) -> &Arc<Core>;

    fn link(&mut self) -> &mut Link;

    /// What it can be waited for.
    fn can(&self) -> Interest;

    /// Does what is owed to the kernel, and looks for what is of interest.
    fn look(&mut self, interest: Interest) -> Result<Look>;
}

/// Watches whether the link is there.
#[derive(Debug)]
pub(super) struct Link {
    checked: Instant,
}

impl Link {
    pub(super) fn new() -> Self {
        Self { checked: Instant::now() }
    }

    /// Asks, if it has not been for a while.
    pub(super) fn check_in_time(&mut self, core: &Core, step: Step, now: Instant) -> Result<()> {
        if now.duration_since(self.checked) < LINK_CHECK {
            return Ok(());
        }
        self.check(core, step)
    }

    /// When it has to be asked for again, from now.
    fn due_in(&self, now: Instant) -> Duration {
        LINK_CHECK.saturating_sub(now.duration_since(self.checked))
    }

    /// Asks.
    pub(super) fn check(&mut self, core: &Core, step: Step) -> Result<()> {
        self.checked = Instant::now();
        match core.endpoint.kick_rx() {
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV | libc::EBADF)
                ) =>
            {
                Err(core.os_error(step, error))
            }
            // ENOBUFS from a socket without RX ring, EAGAIN: the link is there.
            _ => Ok(()),
        }
    }
}

/// Refuses to wait for ever for what can never come.
pub(super) fn possible(waiting: &(impl Wait + ?Sized), interest: Interest) -> Result<()> {
    let (core, can) = (waiting.core(), waiting.can());
    if interest.readable && can.readable || interest.writable && can.writable {
        return Ok(());
    }
    let error = if interest.readable {
        core.error(Step::Wait, ErrorKind::Unsupported, "the socket only sends")
            .hint("wait for Interest::WRITABLE, or open it without `send_only`")
    } else {
        core.error(Step::Wait, ErrorKind::Unsupported, "the socket only receives")
            .hint("wait for Interest::READABLE, or open it without `receive_only`")
    };
    Err(error)
}

/// When the time is up. One too far away to be told is none.
#[derive(Clone, Copy)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    pub(super) fn after(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// How long to wait until then, or until the next turn is due anyway.
    pub(super) fn left(self) -> Duration {
        self.0.map_or(LINK_CHECK, |deadline| deadline.saturating_duration_since(Instant::now()))
    }
}

/// What came of one turn of waiting.
pub(super) struct Turn {
    /// What there is of interest.
    pub(super) ready: Ready,
    /// What `poll` is to wait for, if there is nothing.
    pub(super) events: Interest,
    /// When the next turn is due, whatever `poll` says.
    pub(super) pause: Duration,
}

/// Does what is owed to the kernel, looks for what is of interest, and whether the link is there.
pub(super) fn turn(waiting: &mut (impl Wait + ?Sized), interest: Interest) -> Result<Turn> {
    let Look { ready, owes_kick, crowded } = waiting.look(interest)?;
    let ready = Ready {
        readable: ready.readable && interest.readable,
        writable: ready.writable && interest.writable,
    };
    let mut pause = LINK_CHECK;
    if ready.timed_out() {
        let (now, core) = (Instant::now(), waiting.core().clone());
        waiting.link().check_in_time(&core, Step::Wait, now)?;
        pause = waiting.link().due_in(now);
    }
    // Of the last bit of room that is missing, no event tells.
    if owes_kick || crowded {
        pause = pause.min(KICK_AGAIN);
    }
    let events = Interest { writable: interest.writable && !crowded, ..interest };
    Ok(Turn { ready, events, pause })
}

/// Waits until there is something of interest, or the time is up.
pub(super) fn wait(
    waiting: &mut impl Wait,
    interest: Interest,
    timeout: Option<Duration>,
) -> Result<Ready> {
    if timeout.is_none() {
        possible(waiting, interest)?;
    }
    let deadline = Deadline::after(timeout);
    loop {
        let Turn { ready, events, pause } = turn(waiting, interest)?;
        if !ready.timed_out() {
            return Ok(ready);
        }
        let left = deadline.left();
        if left.is_zero() {
            return Ok(ready);
        }
        let core = waiting.core();
        match core.endpoint.poll(events, left.min(pause)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(core.os_error(Step::Wait, error)),
        }
    }
}
