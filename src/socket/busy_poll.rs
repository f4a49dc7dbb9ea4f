//! Busy polling: the thread that wants the packets runs the driver's receive loop.

use std::{fmt, io, os::fd::BorrowedFd, time::Duration};

use crate::{
    Error, ErrorKind, Step,
    sys::xsk::{self, BusyPollOption},
};

/// Busy polling of a socket: [`SocketConfig::busy_poll`](super::SocketConfig::busy_poll).
///
/// Receiving a packet takes work in two places: the driver's receive loop, which an interrupt starts on
/// whichever core it arrives at, and your thread. With busy polling your thread runs that loop from within
/// its own calls, so that both happen on one core, in one order, as often as you ask. `recv`, `send` and
/// `wait` then call the kernel every time, whatever its need_wakeup flags say, and count it as a wake-up.
///
/// It replaces interrupts only while these are held back: [`interface::Deferral`](crate::interface::Deferral)
/// does that. Without it, interrupts go on, and the two take turns. `wait` runs the loop once each time it
/// looks, and sleeps in `poll` in between, where the deferral's timer wakes it; a thread that must not sleep
/// calls `recv` again instead.
///
/// Where the driver does not give sockets the id of its NAPI instance (veth), there is nothing to poll: calls are
/// made, and bring nothing.
///
/// ```
/// use std::time::Duration;
/// use xskit::{SocketConfig, socket::BusyPoll};
///
/// let config = SocketConfig::default().busy_poll(BusyPoll::default());
/// let patient = BusyPoll::default().time(Duration::from_micros(50)).budget(16);
/// assert_eq!(patient.to_string(), "busy poll 50 µs, budget 16");
/// ```
///
/// # Errors
///
/// [`Socket::open`](super::Socket::open) fails with [`Unsupported`](ErrorKind::Unsupported) on a kernel
/// before 5.11 or without `CONFIG_NET_RX_BUSY_POLL`, with [`Permission`](ErrorKind::Permission) without
/// CAP_NET_ADMIN in the first user namespace, and with [`InvalidInput`](ErrorKind::InvalidInput) for
/// numbers out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct BusyPoll {
    time: Duration,
    budget: u32,
}

impl Default for BusyPoll {
    /// 20 microseconds, 64 packets.
    fn default() -> Self {
        Self { time: Duration::from_micros(20), budget: 64 }
    }
}

impl BusyPoll {
    /// How long the kernel may poll in a call that would otherwise block, from 1 microsecond to about 35
    /// minutes, in whole microseconds, rounded up. Calls of this crate never block, and make one round.
    #[doc(alias = "SO_BUSY_POLL")]
    pub fn time(mut self, time: Duration) -> Self {
        self.time = time;
        self
    }

    /// Packets that one round of the driver's receive loop takes at most: 1 to 65,535.
    #[doc(alias = "SO_BUSY_POLL_BUDGET")]
    pub fn budget(mut self, packets: u32) -> Self {
        self.budget = packets;
        self
    }

    fn micros(self) -> u128 {
        self.time.as_nanos().div_ceil(1000)
    }

    /// The numbers as the kernel takes them.
    fn checked(self) -> Result<(i32, i32), Error> {
        let micros = i32::try_from(self.micros()).ok().filter(|micros| *micros > 0);
        let micros = micros.ok_or_else(|| {
            Error::invalid("the time for busy polling is out of range")
                .hint("1 to 2,147,483,647 microseconds; leave `busy_poll` out to have none")
        })?;
        let budget = u16::try_from(self.budget).ok().filter(|budget| *budget > 0);
        let budget = budget.ok_or_else(|| {
            Error::invalid("the budget for busy polling is out of range")
                .hint("1 to 65,535 packets; 64 is usual")
        })?;
        Ok((micros, budget.into()))
    }

    /// Refuses numbers that the kernel would refuse.
    pub(super) fn check(self) -> Result<(), Error> {
        self.checked().map(|_| ())
    }

    /// Asks for it on a socket.
    pub(super) fn set(self, socket: BorrowedFd<'_>) -> Result<(), Error> {
        let (micros, budget) = self.checked()?;
        let options = [
            (BusyPollOption::Prefer, 1, "SO_PREFER_BUSY_POLL"),
            (BusyPollOption::Micros, micros, "SO_BUSY_POLL"),
            (BusyPollOption::Budget, budget, "SO_BUSY_POLL_BUDGET"),
        ];
        for (option, value, name) in options {
            xsk::set_busy_poll(socket, option, value).map_err(|source| refused(name, source))?;
        }
        Ok(())
    }
}

fn refused(option: &'static str, source: io::Error) -> Error {
    let error = Error::os(Step::SocketOption, format!("{option} cannot be set"), source);
    match error.kind() {
        ErrorKind::Permission => error.hint(
            "busy polling needs CAP_NET_ADMIN (that of a user namespace does not do): run as root, or \
             open the socket without `busy_poll`",
        ),
        ErrorKind::Unsupported => error.hint(
            "busy polling needs Linux 5.11 with CONFIG_NET_RX_BUSY_POLL; open the socket without \
             `busy_poll`",
        ),
        _ => error,
    }
}

impl fmt::Display for BusyPoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "busy poll {} µs, budget {}", self.micros(), self.budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_checked() {
        let with = |time, budget| BusyPoll::default().time(time).budget(budget).checked();
        assert_eq!(with(Duration::from_nanos(1), 1).unwrap(), (1, 1));
        assert_eq!(with(Duration::from_micros(20), 65_535).unwrap(), (20, 65_535));
        for (time, budget) in [
            (Duration::ZERO, 64),
            (Duration::MAX, 64),
            (Duration::from_micros(20), 0),
            (Duration::from_micros(20), 65_536),
        ] {
            let error = with(time, budget).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        }
    }

    #[test]
    fn a_refusal_says_what_it_takes() {
        let refusal = |errno| refused("SO_BUSY_POLL", io::Error::from_raw_os_error(errno));
        let old = refusal(libc::ENOPROTOOPT);
        assert_eq!(old.kind(), ErrorKind::Unsupported);
        assert!(old.to_string().contains("needs Linux 5.11"), "{old}");
        let unprivileged = refusal(libc::EPERM);
        assert_eq!(unprivileged.kind(), ErrorKind::Permission);
        assert!(unprivileged.to_string().contains("CAP_NET_ADMIN"), "{unprivileged}");
    }
}
