//! The calls that a socket makes to the fake kernel, and how they are made to fail.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};
#[cfg(feature = "tokio")]
use std::{os::fd::OwnedFd, sync::Arc};

use nix::{errno::Errno, unistd::read};

use super::{
    Kernel,
    receive::Incoming,
    state::{Member, State},
};
use crate::{Interest, sync::wait_while, sys::uapi::XdpStatistics};

/// A call that a socket makes to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Call {
    /// To look at the Fill ring, or to ask for the link (`recvfrom`).
    #[doc(alias = "recvfrom")]
    KickRx,
    /// To look at the TX ring (`sendto`).
    #[doc(alias = "sendto")]
    KickTx,
    /// To wait (`poll`).
    Poll,
    /// To read the kernel's counters (`getsockopt(XDP_STATISTICS)`).
    #[doc(alias = "XDP_STATISTICS")]
    Statistics,
}

/// How often the fake kernel was called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kicks {
    /// Calls to look at the Fill ring, or to ask for the link.
    pub rx: u64,
    /// Calls to look at the TX ring.
    pub tx: u64,
    /// Calls of `poll`.
    pub poll: u64,
}

impl Kernel {
    pub(crate) fn kick_tx(&self) -> io::Result<()> {
        let mut state = self.state();
        let member = &mut state.members[self.member];
        member.kicks.tx += 1;
        state.link?;
        let member = &mut state.members[self.member];
        let on_kick = member.on_kick;
        if let Some(errno) = member.refusal(Call::KickTx) {
            if errno == libc::EBUSY {
                let (_, frames) = state.take(self.member, 1);
                state.complete_flying(frames);
            }
            return Err(io::Error::from_raw_os_error(errno));
        }
        let Some(most) = on_kick else { return Ok(()) };
        let left = state.send(self.member, most);
        drop(state);
        self.wake();
        if left { Err(Errno::EAGAIN.into()) } else { Ok(()) }
    }

    pub(crate) fn kick_rx(&self) -> io::Result<()> {
        let mut state = self.state();
        state.members[self.member].kicks.rx += 1;
        state.link?;
        state.members[self.member].refused(Call::KickRx)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.state().is_gone()
    }

    pub(crate) fn statistics(&self) -> io::Result<XdpStatistics> {
        let member = &mut self.state().members[self.member];
        member.refused(Call::Statistics)?;
        Ok(member.statistics)
    }

    /// As the kernel's `poll` on a socket: level-triggered, silent about a dead link.
    pub(crate) fn poll(&self, interest: Interest, timeout: Duration) -> io::Result<bool> {
        let mut state = self.state();
        let member = &mut state.members[self.member];
        member.kicks.poll += 1;
        member.refused(Call::Poll)?;
        // What was signalled before the look at the rings needs no second look.
        read(&self.event, &mut [0; 8]).ok();
        let ready = |state: &State| state.members[self.member].ready(interest);
        let state = wait_while(&self.queue.changed, state, timeout, |state| !ready(state));
        Ok(ready(&state))
    }

    /// The queue's last socket is being closed: whatever is just coming in comes in.
    pub(crate) fn finish_receiving(&self) {
        let mut state = self.state();
        for member in 0..state.members.len() {
            for packet in std::mem::take(&mut state.members[member].at_close) {
                state.deliver(member, Incoming::new(&packet));
            }
        }
    }

    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn shared_fd(&self) -> &Arc<OwnedFd> {
        &self.event
    }
}

impl Member {
    fn refused(&mut self, call: Call) -> io::Result<()> {
        self.refusal(call).map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }
}
