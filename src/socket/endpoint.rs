//! The other side of a socket: the kernel, or the fake one. A cold choice, on the system-call path only.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

use super::Interest;
#[cfg(feature = "fake")]
use crate::fake;
use crate::{
    sync::Arc,
    sys::{self, uapi::XdpStatistics, xsk},
};

#[derive(Clone)]
pub(crate) enum Endpoint {
    Kernel(Arc<OwnedFd>),
    #[cfg(feature = "fake")]
    Fake(Arc<fake::Kernel>),
}

impl Endpoint {
    /// The descriptor, which stays open while this is held.
    #[cfg(feature = "tokio")]
    pub(super) fn shared_fd(&self) -> &Arc<OwnedFd> {
        match self {
            Self::Kernel(fd) => fd,
            #[cfg(feature = "fake")]
            Self::Fake(kernel) => kernel.shared_fd(),
        }
    }

    /// Whether the other side changes the flag beside the TX ring while the socket lives: in copy mode the
    /// kernel sets it once and for all.
    #[inline]
    pub(super) fn changes_flags(&self, zero_copy: bool) -> bool {
        match self {
            Self::Kernel(_) => zero_copy,
            #[cfg(feature = "fake")]
            Self::Fake(_) => true,
        }
    }

    /// Calls the kernel to look at the TX ring.
    pub(super) fn kick_tx(&self) -> io::Result<()> {
        match self {
            Self::Kernel(fd) => xsk::kick_tx(fd.as_fd()),
            #[cfg(feature = "fake")]
            Self::Fake(kernel) => kernel.kick_tx(),
        }
    }

    /// Calls the kernel to look at the Fill ring, and asks whether the link is there.
    pub(super) fn kick_rx(&self) -> io::Result<()> {
        match self {
            Self::Kernel(fd) => xsk::kick_rx(fd.as_fd()),
            #[cfg(feature = "fake")]
            Self::Fake(kernel) => kernel.kick_rx(),
        }
    }

    /// Whether the interface is gone, and the kernel has taken the socket off it: its queue is never bound
    /// again, and nobody reaches the frames in its rings any more.
    pub(super) fn is_let_go(&self) -> bool {
        match self {
            // Unbound is what the kernel says first. It holds the socket's lock until it has also waited for
            // whoever was receiving and stopped the driver, and counters are read under that lock.
            Self::Kernel(fd) => !xsk::is_bound(fd.as_fd()) && self.statistics().is_ok(),
            // What its calls are made to fail with says nothing of its frames.
            #[cfg(feature = "fake")]
            Self::Fake(kernel) => kernel.is_gone(),
        }
    }

    /// Waits until whoever in the kernel was just putting a packet into an RX ring of this socket has
    /// published which frames it took; whether it could be waited for. The socket is in no map any
    /// more.
    pub(super) fn finish_receiving(&self) -> bool {
        match self {
            // Packets are received under RCU, from their redirection to the publishing of both rings.
            Self::Kernel(_) => sys::wait_for_rcu().is_ok(),
            #[cfg(feature = "fake")]
            Self::Fake(kernel) => {
                kernel.finish_receiving();
                true
            }
        }
    }

    /// Waits for an event, at most `timeout`; whether there was one.
    pub(super) fn poll(&self, interest: Interest, timeout: Duration) -> io::Result<bool> {
        match self {
            Self::Kernel(fd) => poll_socket(fd.as_fd(), interest, timeout),
            #[cfg(feature = "fake")]
            Self::Fake(kernel) => kernel.poll(interest, timeout),
        }
    }

    /// Waits for an event on any of several, at most `timeout`.
    pub(super) fn poll_any<'a>(
        these: impl Iterator<Item = (&'a Self, Interest)> + Clone,
        timeout: Duration,
    ) -> io::Result<()> {
        #[cfg(feature = "fake")]
        if these.clone().any(|(one, _)| matches!(one, Self::Fake(_))) {
            // Fake kernels have no call for all of them: each gets a moment in turn.
            return these.clone().try_for_each(|(one, interest)| {
                one.poll(interest, timeout.min(Duration::from_millis(1))).map(drop)
            });
        }
        let mut fds: Vec<PollFd<'_>> =
            these.map(|(one, interest)| PollFd::new(one.as_fd(), flags(interest))).collect();
        match poll(&mut fds, whole_millis(timeout)) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    pub(super) fn statistics(&self) -> io::Result<(XdpStatistics, bool)> {
        match self {
            Self::Kernel(fd) => xsk::statistics(fd.as_fd()),
            #[cfg(feature = "fake")]
            Self::Fake(kernel) => Ok((kernel.statistics()?, true)),
        }
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Kernel(fd) => fd.as_fd(),
            #[cfg(feature = "fake")]
            Self::Fake(kernel) => kernel.event_fd(),
        }
    }
}

fn poll_socket(fd: BorrowedFd<'_>, interest: Interest, timeout: Duration) -> io::Result<bool> {
    Ok(poll(&mut [PollFd::new(fd, flags(interest))], whole_millis(timeout))? > 0)
}

fn flags(interest: Interest) -> PollFlags {
    let mut events = PollFlags::empty();
    events.set(PollFlags::POLLIN, interest.is_readable());
    events.set(PollFlags::POLLOUT, interest.is_writable());
    events
}

/// What `poll` takes: whole milliseconds, rounded up, since a shorter wait would spin on its remainder.
fn whole_millis(timeout: Duration) -> PollTimeout {
    let millis = timeout.as_micros().div_ceil(1000);
    i32::try_from(millis).ok().and_then(|millis| millis.try_into().ok()).unwrap_or(PollTimeout::MAX)
}
