//! Queues of zero-copy sockets that were closed, which the kernel has to let go before the program is
//! detached.
//!
//! Closing such a socket only begins its end: the kernel takes the queue back from the driver on a thread of
//! its own, some 20 ms later. virtio_net adds queues when a program is attached, and forgets them when it is
//! detached, so that it cannot be told any more that the memory of a socket there is gone. It uses it, and the
//! kernel oopses (6.18, 7.3).

use std::{fmt, thread, time::Duration};

use nix::errno::Errno;

use crate::{
    interface::netlink::QueueWatch,
    sync::{Mutex, MutexGuard, lock},
};

const PAUSE: Duration = Duration::from_millis(2);

/// Pauses for a driver that has to stop its hardware: 10 s. They are counted, not timed: while a virtual
/// machine stands still its clock goes on, and the kernel does not.
const PATIENCE: u32 = 5000;

/// The same where somebody else may have a descriptor of the socket, which then does not end.
const PATIENCE_SHARED: u32 = 500;

/// The same where the kernel does not say whether there is a socket, as of an interface that is down: many
/// times what it takes.
const PATIENCE_UNTOLD: u32 = 250;

/// The queues of closed sockets, and what tells whether the kernel has let go.
#[derive(Default)]
pub(super) struct LettingGo(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// Opened while the sockets are, in their network namespace. None where the kernel does not tell
    /// (before 6.15): nothing is waited for there.
    watch: Option<QueueWatch>,
    closed: Vec<Closed>,
}

/// The queue of a socket that was closed.
struct Closed {
    ifindex: u32,
    queue: u32,
    patience: u32,
}

impl LettingGo {
    /// There is a zero-copy socket, whose end has to be waited for.
    pub(super) fn expect(&self) {
        let mut inner = self.inner();
        if inner.watch.is_none() {
            // Without an answer there is nothing to be waited for.
            inner.watch = QueueWatch::open().ok().flatten();
        }
    }

    /// A socket is about to be closed on this queue.
    pub(super) fn begin(&self, ifindex: u32, queue: u32, is_shared: bool) {
        let patience = if is_shared { PATIENCE_SHARED } else { PATIENCE };
        self.inner().closed.push(Closed { ifindex, queue, patience });
    }

    /// Waits for all of them, once all sockets are closed.
    pub(super) fn wait(&self) {
        let inner = self.inner();
        let Some(watch) = &inner.watch else { return };
        let mut pauses = 0;
        for closed in &inner.closed {
            while pauses < patience(watch, closed) {
                thread::sleep(PAUSE);
                pauses += 1;
            }
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }
}

/// How many pauses this queue is worth, by what the kernel says of it now.
fn patience(watch: &QueueWatch, closed: &Closed) -> u32 {
    match watch.has_socket(closed.ifindex, closed.queue) {
        Ok(true) => closed.patience,
        Ok(false) => 0,
        // An interface or a queue that is gone has none.
        Err(refusal) if matches!(refusal.errno, Errno::ENODEV | Errno::EINVAL) => 0,
        Err(_) => closed.patience.min(PATIENCE_UNTOLD),
    }
}

impl fmt::Debug for LettingGo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LettingGo").finish_non_exhaustive()
    }
}
