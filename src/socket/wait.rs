//! Waiting for packets or for room, on a link that may die meanwhile.

use std::{
    io,
    time::{Duration, Instant},
};

use super::core::Core;
use crate::{Batch, ErrorKind, Result, Step};

/// How long a dead link may go unnoticed: `poll` is silent when the interface goes down or is deleted,
/// so it is asked for this often.
pub(super) const LINK_CHECK: Duration = Duration::from_millis(500);

/// How soon a kick that the kernel could not follow is tried again.
pub(super) const KICK_AGAIN: Duration = Duration::from_millis(1);

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
    #[cfg(feature = "tokio")]
    pub(super) fn due_in(&self, now: Instant) -> Duration {
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
pub(super) fn possible(
    core: &Core,
    interest: Interest,
    can: Interest,
    timeout: Option<Duration>,
) -> Result<()> {
    if timeout.is_some() || interest.readable && can.readable || interest.writable && can.writable {
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

/// Waits until `look` finds something, or the time is up.
pub(super) fn wait(
    core: &Core,
    link: &mut Link,
    interest: Interest,
    timeout: Option<Duration>,
    mut look: impl FnMut() -> Result<Look>,
) -> Result<Ready> {
    // A time too far away to be told is none.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let Look { ready, owes_kick, crowded } = look()?;
        if !ready.timed_out() {
            return Ok(ready);
        }
        let now = Instant::now();
        link.check_in_time(core, Step::Wait, now)?;
        let left = deadline.map_or(LINK_CHECK, |deadline| deadline.saturating_duration_since(now));
        if left.is_zero() {
            return Ok(ready);
        }
        let slice = left.min(if owes_kick || crowded { KICK_AGAIN } else { LINK_CHECK });
        let interest = Interest { writable: interest.writable && !crowded, ..interest };
        match core.endpoint.poll(interest, slice) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(core.os_error(Step::Wait, error)),
        }
    }
}
