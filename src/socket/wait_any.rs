//! Waiting for several sockets, or halves of sockets, at once.

use std::{fmt, time::Duration};

use super::{
    Interest, Ready, Receiver, Sender, Socket,
    endpoint::Endpoint,
    wait::{self, Deadline, Turn, Wait},
};
use crate::{Error, ErrorKind, Result, Step};

/// A socket, or a half of one, to [wait for](wait_any) together with others.
pub struct Waiting<'a> {
    inner: &'a mut dyn Wait,
    interest: Interest,
    ready: Ready,
    /// What `poll` is to wait for.
    events: Interest,
}

impl<'a> Waiting<'a> {
    /// Whatever `interest` names of a socket.
    pub fn socket(socket: &'a mut Socket, interest: Interest) -> Self {
        Self::new(socket, interest)
    }

    /// Packets to receive.
    pub fn receiver(receiver: &'a mut Receiver) -> Self {
        Self::new(receiver, Interest::READABLE)
    }

    /// Room to send.
    pub fn sender(sender: &'a mut Sender) -> Self {
        Self::new(sender, Interest::WRITABLE)
    }

    /// Nothing: but what was sent before is seen off meanwhile, since the kernel may have to be called again
    /// for it, and frames that complete are taken back. For a half that has nothing to send for now, while
    /// its thread waits for something else.
    pub fn reap(sender: &'a mut Sender) -> Self {
        Self::new(sender, Interest::NOTHING)
    }

    fn new(inner: &'a mut dyn Wait, interest: Interest) -> Self {
        Self { inner, interest, ready: Ready::default(), events: interest }
    }

    /// What the last wait found of it.
    pub fn ready(&self) -> Ready {
        self.ready
    }
}

impl fmt::Debug for Waiting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let core = self.inner.core();
        f.debug_struct("Waiting")
            .field("interface", &core.interface)
            .field("queue", &core.queue_id)
            .field("interest", &self.interest)
            .field("ready", &self.ready)
            .finish()
    }
}

/// Waits until one of several sockets has what is waited for, at most `timeout` (`None`: for ever); whether
/// one has. [`Waiting::ready`] says which, and of what: all that are ready at once.
///
/// For a thread with several sockets. The kernel is called for each as if it were waited for alone: the rings
/// and their [`need_wakeup`](super::need_wakeup) flags are looked at anew after every event, calls that are
/// owed are made, Fill rings are topped up, and links that die are noticed within a second. A set is made
/// for each wait: it costs nothing but the borrows.
///
/// ```
/// use std::time::Duration;
/// use xskit::{Interest, RingSize, SocketConfig, UmemConfig, fake};
/// use xskit::socket::{Waiting, wait_any};
///
/// let umem = UmemConfig::new(256).build()?;
/// let config = SocketConfig::default().fill(RingSize::new(64)?);
/// let (mut first, _) = fake::socket(&umem, &config)?;
/// let (mut second, kernel) = fake::socket(&umem, &config)?;
/// kernel.deliver(b"ping");
///
/// let mut set = [&mut first, &mut second].map(|one| Waiting::socket(one, Interest::READABLE));
/// assert!(wait_any(&mut set, Duration::from_secs(1))?);
/// assert_eq!(set.map(|one| one.ready().readable()), [false, true]);
/// # Ok::<(), xskit::Error>(())
/// ```
///
/// # Errors
///
/// As [`Socket::wait`], of the first socket that has one; [`InvalidInput`](ErrorKind::InvalidInput) for
/// waiting for nothing for ever.
#[doc(alias = "poll")]
pub fn wait_any(waiting: &mut [Waiting<'_>], timeout: impl Into<Option<Duration>>) -> Result<bool> {
    let timeout = timeout.into();
    if timeout.is_none() {
        possible(waiting)?;
    }
    let deadline = Deadline::after(timeout);
    loop {
        let (mut any, mut pause) = (false, None);
        for one in &mut *waiting {
            let Turn { ready, events, pause: its } = wait::turn(one.inner, one.interest)?;
            (one.ready, one.events) = (ready, events);
            any |= !ready.timed_out();
            pause = Some(pause.map_or(its, |pause: Duration| pause.min(its)));
        }
        let left = deadline.left();
        if any || left.is_zero() {
            return Ok(any);
        }
        let sockets = waiting.iter().map(|one| (&one.inner.core().endpoint, one.events));
        Endpoint::poll_any(sockets, pause.map_or(left, |pause| pause.min(left)))
            .map_err(|source| Error::os(Step::Wait, "the kernel refused", source))?;
    }
}

/// Refuses to wait for ever for what can never come.
fn possible(waiting: &[Waiting<'_>]) -> Result<()> {
    let mut outcome =
        Err(Error::new(Step::Wait, ErrorKind::InvalidInput, "nothing is waited for, and for ever")
            .hint("name a socket and what to wait for, or a timeout"));
    for one in waiting.iter().filter(|one| one.interest != Interest::NOTHING) {
        outcome = wait::possible(&*one.inner, one.interest);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}
