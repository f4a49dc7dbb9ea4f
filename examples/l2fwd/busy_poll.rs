//! Busy polling: the application's calls run the driver's receive loop.

use std::os::fd::{AsFd, AsRawFd};

use nix::{
    setsockopt_impl, sockopt_impl,
    sys::socket::{MsgFlags, recv, setsockopt},
};
use xskit::Socket;

use crate::Failure;

sockopt_impl!(PreferBusyPoll, SetOnly, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, bool);
sockopt_impl!(BusyPoll, SetOnly, libc::SOL_SOCKET, libc::SO_BUSY_POLL, usize);
sockopt_impl!(BusyPollBudget, SetOnly, libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, usize);

/// Asks for it on a socket.
pub(crate) fn prefer(socket: &Socket, microseconds: usize, budget: usize) -> Result<(), Failure> {
    let failed = |option, error| {
        let (interface, queue) = (socket.interface(), socket.queue());
        format!("set {option} on queue {queue} of {interface}: {error}; it takes Linux 5.11")
    };
    setsockopt(socket, PreferBusyPoll, &true)
        .map_err(|error| failed("SO_PREFER_BUSY_POLL", error))?;
    setsockopt(socket, BusyPoll, &microseconds).map_err(|error| failed("SO_BUSY_POLL", error))?;
    setsockopt(socket, BusyPollBudget, &budget)
        .map_err(|error| failed("SO_BUSY_POLL_BUDGET", error))?;
    Ok(())
}

/// Runs the driver's receive loop: packets appear in the RX ring.
pub(crate) fn drive(socket: &impl AsFd) {
    // Whatever it says: if the link is dead, the next `wait` or `recv` knows it.
    recv(socket.as_fd().as_raw_fd(), &mut [], MsgFlags::MSG_DONTWAIT).ok();
}
