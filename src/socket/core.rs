//! What the two halves of a socket have in common, and its end.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd},
};

use super::{Mode, endpoint::Endpoint, queue::Queue};
use crate::{
    Error, ErrorKind, QueueId, Step,
    program::Attachment,
    ring::{Consumer, Indices},
    sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering, lock},
    sys::uapi::Desc,
    umem::{DeviceQueue, Holder, Tally, Umem, to_u32},
};

/// One AF_XDP socket, as both halves see it. Fields are dropped from top to bottom: the rings are
/// unmapped before the socket is closed, and the program is detached after that.
pub(crate) struct Core {
    pub(super) umem: Umem,
    pub(super) interface: String,
    pub(super) queue_id: QueueId,
    pub(super) mode: Mode,
    pub(super) rx: RxCounters,
    pub(super) tx: TxCounters,
    /// The RX ring, to look at.
    pub(super) rx_level: Option<Indices>,
    /// The TX ring, to look at.
    pub(super) tx_level: Option<Indices>,
    /// The RX ring, once its half is gone.
    rx_left: Mutex<Option<Consumer<Desc>>>,
    pub(super) endpoint: Endpoint,
    pub(super) queue: Arc<Queue>,
    /// A share of the program's attachment: no program is detached under a socket.
    pub(super) attachment: Mutex<Option<Attachment>>,
}

/// Counted by the receiving half, once per batch.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct RxCounters {
    pub(super) received: Counter,
    pub(super) oversized: Counter,
    pub(super) lost: Counter,
    pub(super) wakeups: Counter,
    pub(super) spared: Counter,
    pub(super) cached: AtomicU32,
}

/// Counted by the sending half, once per batch.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct TxCounters {
    pub(super) sent: Counter,
    pub(super) completed: Counter,
    pub(super) dropped: Counter,
    pub(super) refused: Counter,
    pub(super) lost: Counter,
    pub(super) wakeups: Counter,
    pub(super) spared: Counter,
    pub(super) cached: AtomicU32,
}

/// A number that one thread counts up and anybody may read.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    /// A plain load and store: only one half counts.
    #[inline]
    pub(super) fn add(&self, count: usize) {
        self.0.store(self.get() + count as u64, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Core {
    pub(super) fn new(
        umem: &Umem,
        interface: &str,
        queue_id: QueueId,
        mode: Mode,
        [rx_level, tx_level]: [Option<Indices>; 2],
        endpoint: Endpoint,
        queue: Arc<Queue>,
    ) -> Arc<Self> {
        let core = Arc::new(Self {
            umem: umem.clone(),
            interface: interface.into(),
            queue_id,
            mode,
            rx: RxCounters::default(),
            tx: TxCounters::default(),
            rx_level,
            tx_level,
            rx_left: Mutex::default(),
            endpoint,
            queue,
            attachment: Mutex::default(),
        });
        umem.counts().register(&core);
        core
    }

    pub(super) fn leave_rx(&self, ring: Option<Consumer<Desc>>) {
        *lock(&self.rx_left) = ring;
    }

    /// The descriptor, for others to use.
    pub(super) fn give_out_fd(&self) -> BorrowedFd<'_> {
        self.queue.expose();
        self.endpoint.as_fd()
    }

    /// How a half of it shows itself.
    pub(super) fn debug(&self, half: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(half)
            .field("interface", &self.interface)
            .field("queue", &self.queue_id)
            .finish_non_exhaustive()
    }

    /// An error of this socket, found by us.
    pub(super) fn error(&self, step: Step, kind: ErrorKind, reason: &'static str) -> Error {
        Error::new(step, kind, reason).on(&self.interface).queue_is(self.queue_id)
    }

    /// An error of this socket, as the kernel reported it.
    pub(super) fn os_error(&self, step: Step, source: io::Error) -> Error {
        let error = match source.raw_os_error() {
            Some(libc::ENETDOWN) => Error::os(step, "the interface is down", source)
                .with_kind(ErrorKind::LinkDown)
                .hint("set it up; the socket works again then"),
            Some(libc::ENXIO | libc::ENODEV) => Error::os(
                step,
                "the interface was deleted or moved to another network namespace",
                source,
            )
            .with_kind(ErrorKind::LinkGone)
            .hint("this socket will not work again; open a new one"),
            _ => Error::os(step, "the kernel refused", source),
        };
        error.on(&self.interface).queue_is(self.queue_id)
    }
}

impl Holder for Core {
    fn count(&self, tally: &mut Tally) {
        let received = i64::from(self.rx_level.as_ref().map_or(0, Indices::level));
        tally.rx += received;
        tally.fill -= received;
        for cached in [&self.rx.cached, &self.tx.cached] {
            tally.free += i64::from(cached.load(Ordering::Relaxed));
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Received packets are ours, taken or not.
        let received = lock(&self.rx_left).take().map_or(Vec::new(), Consumer::into_ready);
        // As `recv` takes them: one that it would refuse leads to nobody's frame.
        let holds = |desc: &&Desc| self.umem.geometry().holds_packet(desc.addr, desc.len);
        let addresses: Vec<u64> = received.iter().filter(holds).map(|desc| desc.addr).collect();
        self.umem.counts().lose(to_u32(received.len() - addresses.len()));
        self.queue.filled.leave(to_u32(received.len()));
        self.umem.take_back(&addresses);
        self.rx_level = None;
        self.tx_level = None;
        if self.mode.zero_copy {
            if let Some(attachment) = lock(&self.attachment).as_ref() {
                let DeviceQueue { ifindex, queue, .. } = self.queue.place;
                attachment.zero_copy_ends(ifindex, queue, self.queue.is_exposed());
            }
        }
    }
}
