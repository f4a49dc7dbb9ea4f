//! What the fake kernel holds of a queue: its rings, and what each socket on it has.

use std::{
    collections::{HashMap, VecDeque},
    os::fd::OwnedFd,
};

use nix::errno::Errno;

use super::{Call, Kernel, Kicks};
use crate::{
    Interest,
    ring::{Consumer, Desc, Producer},
    sync::{Arc, Condvar, Mutex, Weak},
    sys::uapi::XdpStatistics,
    umem::Umem,
};

/// What calls say once the interface was deleted.
pub(super) const GONE: Errno = Errno::ENXIO;

/// A queue, as all of its sockets' kernels share it.
pub(super) struct Queue {
    pub(super) state: Mutex<State>,
    /// Its own, as an interface's: what one kernel lets go of, another may still hold.
    pub(super) number: u32,
    /// Where its rings' indices begin.
    pub(super) first: u32,
    /// Wakes whoever waits in `poll`: two halves may wait at once, each for its own.
    pub(super) changed: Condvar,
}

pub(super) struct State {
    pub(super) umem: Umem,
    pub(super) fill: Consumer<u64>,
    pub(super) completion: Producer<u64>,
    pub(super) multi_buffer: bool,
    /// Packets that got a timestamp: the fake kernel's clock.
    pub(super) stamped: u64,
    /// Frames taken from TX and not completed yet.
    pub(super) flying: VecDeque<u64>,
    pub(super) link: Result<(), Errno>,
    /// The sockets, in the order in which they were opened.
    pub(super) members: Vec<Member>,
    /// The same queue, bound again: this one is no more then.
    pub(super) again: Option<Arc<Queue>>,
}

/// One socket on the queue.
pub(super) struct Member {
    pub(super) rx: Option<Producer<Desc>>,
    pub(super) tx: Option<Consumer<Desc>>,
    pub(super) statistics: XdpStatistics,
    /// What the next calls fail with.
    pub(super) refusals: HashMap<Call, VecDeque<i32>>,
    /// Packets that a call to send takes, if it takes any by itself.
    pub(super) on_kick: Option<usize>,
    /// Packets that come in while the socket is being closed.
    pub(super) at_close: Vec<Vec<u8>>,
    pub(super) sent: Vec<Vec<u8>>,
    pub(super) kicks: Kicks,
    /// An eventfd; wakes whoever polls it.
    pub(super) event: Arc<OwnedFd>,
    /// What the socket calls it by: none is left once it is closed.
    pub(super) open: Weak<Kernel>,
}

impl Member {
    pub(super) fn new(
        rx: Option<Producer<Desc>>,
        tx: Option<Consumer<Desc>>,
        event: Arc<OwnedFd>,
    ) -> Self {
        if let Some(tx) = &tx {
            // As the kernel does: the first packets to send always need a call.
            tx.indices().set_needs_wakeup(true);
        }
        Self {
            rx,
            tx,
            statistics: XdpStatistics::default(),
            refusals: HashMap::new(),
            on_kick: None,
            at_close: Vec::new(),
            sent: Vec::new(),
            kicks: Kicks::default(),
            event,
            open: Weak::new(),
        }
    }

    /// Whether `poll` would say so.
    pub(super) fn ready(&self, interest: Interest) -> bool {
        let readable = self.rx.as_ref().is_some_and(|rx| rx.indices().level() > 0);
        let writable =
            self.tx.as_ref().is_some_and(|tx| tx.indices().level() <= tx.indices().size() / 2);
        interest.is_readable() && readable || interest.is_writable() && writable
    }

    /// What the next such call is to fail with.
    pub(super) fn refusal(&mut self, call: Call) -> Option<i32> {
        self.refusals.get_mut(&call)?.pop_front()
    }
}

impl State {
    /// Whether it has let go of the frames: they may be anybody's by now.
    pub(super) fn is_gone(&self) -> bool {
        self.link == Err(GONE)
    }

    /// Whether a socket on the queue is open.
    pub(super) fn is_bound(&self) -> bool {
        self.members.iter().any(|member| member.open.strong_count() > 0)
    }
}
