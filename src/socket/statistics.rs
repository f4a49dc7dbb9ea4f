//! Numbers about a socket.

use std::fmt;

use super::{Receiver, Sender, Socket, core::Core};
use crate::{
    Error, Result, Step,
    ring::Indices,
    sync::{Arc, Weak, lock},
};

/// What happened on a socket since it was opened: what the kernel counted, and what we did.
///
/// Counters are never added up: in copy mode an empty Fill ring counts in two of the kernel's.
/// [`Port::snapshot`](crate::Port::snapshot) has them beside the program's and the UMEM's.
///
/// ```
/// # use xskit::{SocketConfig, UmemConfig, fake};
/// # let umem = UmemConfig::new(64).build()?;
/// # let config = SocketConfig::default().receive_only().fill(xskit::RingSize::new(32)?);
/// # let (mut socket, kernel) = fake::socket(&umem, &config)?;
/// # let mut batch = umem.batch(8);
/// kernel.deliver(b"a packet");
/// assert_eq!(socket.statistics()?.levels.rx, 1);
/// socket.recv(&mut batch)?;
/// let statistics = socket.statistics()?;
/// assert_eq!((statistics.received, statistics.levels.rx), (1, 0));
/// assert_eq!((statistics.wakeups_rx, statistics.wakeups_spared_rx), (0, 1));
/// # Ok::<(), xskit::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// The kernel's own counters.
    pub kernel: KernelStatistics,
    /// Packets received into batches.
    pub received: u64,
    /// Packets of more frames than the batch given to `recv`, or the RX ring, can ever hold: dropped.
    pub rx_oversized: u64,
    /// Frames given to the kernel to send. Counted at submission, not at completion.
    pub sent: u64,
    /// Frames that came back from the kernel after sending.
    pub completed: u64,
    /// Packets that the kernel dropped in copy mode when it was called to send (EBUSY). It completes
    /// their frames, and moves none of its counters.
    pub tx_dropped: u64,
    /// Packets with a frame without bytes, or with more frames than
    /// [`Mode::max_frames`](super::Mode::max_frames): not submitted, since the kernel would refuse them.
    pub tx_refused: u64,
    /// Times of sending that nobody took before the next ones came.
    pub timestamps_lost: u64,
    /// Descriptors and completions from the kernel that lie outside the UMEM, not followed. A packet of
    /// several frames is dropped whole for one such descriptor.
    pub lost: u64,
    /// System calls made to wake the receiving side. Those that only ask for the link, twice a second
    /// while somebody waits, are not counted.
    pub wakeups_rx: u64,
    /// System calls made to wake the sending side.
    pub wakeups_tx: u64,
    /// Batches received after which the kernel did not have to be called, as its need_wakeup flag said. In
    /// copy mode that is every one; without need_wakeup, and with busy polling, none.
    pub wakeups_spared_rx: u64,
    /// Batches given to the kernel to send without a call, as its need_wakeup flag said.
    pub wakeups_spared_tx: u64,
    /// What lies in the rings now.
    pub levels: RingLevels,
}

/// How many entries lie in each ring, by a look from outside: an instant, each ring at its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingLevels {
    /// Received packets that nobody has taken yet. Near the ring's size, the reader is too slow.
    pub rx: u32,
    /// Packets to send that the kernel has not taken yet.
    pub tx: u32,
    /// Free frames for the kernel to receive into. Near 0, it starves. It belongs to the queue.
    pub fill: u32,
    /// Sent frames that nobody has taken back yet. It belongs to the queue.
    pub completion: u32,
}

/// `XDP_STATISTICS`: the kernel's counters. `None` where the kernel has them not (before 5.9).
#[doc(alias = "xdp_statistics")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelStatistics {
    /// Packets dropped for other reasons than a full RX ring: longer than a frame; in copy mode also
    /// those for which the Fill ring was empty.
    pub rx_dropped: u64,
    /// Descriptors in the Fill ring that were invalid. Does not move in copy mode.
    pub rx_invalid_descs: u64,
    /// Descriptors in the TX ring that were invalid.
    pub tx_invalid_descs: u64,
    /// Packets dropped since the RX ring was full.
    pub rx_ring_full: Option<u64>,
    /// Attempts to take a frame from an empty Fill ring: in zero-copy mode a sign that the driver is
    /// starving, not a number of packets. It belongs to the queue, not to the socket.
    pub rx_fill_ring_empty_descs: Option<u64>,
    /// Attempts to take a packet from an empty TX ring.
    pub tx_ring_empty_descs: Option<u64>,
}

impl Socket {
    /// What happened since the socket was opened.
    ///
    /// # Errors
    ///
    /// If the kernel does not give its counters.
    #[doc(alias = "XDP_STATISTICS")]
    pub fn statistics(&self) -> Result<Statistics> {
        self.receiver.core.statistics()
    }

    /// Reads the socket's statistics from any thread, while others receive and send.
    pub fn statistics_reader(&self) -> StatisticsReader {
        StatisticsReader(Arc::downgrade(&self.receiver.core))
    }
}

/// Reads a socket's [`Statistics`] from any thread. It does not keep the socket open.
#[derive(Clone)]
pub struct StatisticsReader(Weak<Core>);

impl StatisticsReader {
    /// What happened since the socket was opened; `None` once it is closed.
    ///
    /// # Errors
    ///
    /// If the kernel does not give its counters.
    pub fn read(&self) -> Result<Option<Statistics>> {
        self.0.upgrade().map(|core| core.statistics()).transpose()
    }
}

impl fmt::Debug for StatisticsReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatisticsReader").finish_non_exhaustive()
    }
}

impl Receiver {
    /// As [`Socket::statistics`]: those of both halves.
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias = "XDP_STATISTICS")]
    pub fn statistics(&self) -> Result<Statistics> {
        self.core.statistics()
    }
}

impl Sender {
    /// As [`Socket::statistics`]: those of both halves.
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias = "XDP_STATISTICS")]
    pub fn statistics(&self) -> Result<Statistics> {
        self.core.statistics()
    }
}

impl Core {
    fn levels(&self) -> RingLevels {
        let level = |ring: &Option<Indices>| ring.as_ref().map_or(0, Indices::level);
        RingLevels {
            rx: level(&self.rx_level),
            tx: level(&self.tx_level),
            fill: level(&self.queue.fill_level),
            completion: level(&self.queue.completion_level),
        }
    }

    pub(super) fn statistics(&self) -> Result<Statistics> {
        let (kernel, complete) = self.endpoint.statistics().map_err(|source| {
            Error::os(Step::Statistics, "XDP_STATISTICS cannot be read", source)
                .on(&self.interface)
                .queue_is(self.queue_id)
        })?;
        let newer = |counter: u64| complete.then_some(counter);
        Ok(Statistics {
            kernel: KernelStatistics {
                rx_dropped: kernel.rx_dropped,
                rx_invalid_descs: kernel.rx_invalid_descs,
                tx_invalid_descs: kernel.tx_invalid_descs,
                rx_ring_full: newer(kernel.rx_ring_full),
                rx_fill_ring_empty_descs: newer(kernel.rx_fill_ring_empty_descs),
                tx_ring_empty_descs: newer(kernel.tx_ring_empty_descs),
            },
            received: self.rx.received.get(),
            rx_oversized: self.rx.oversized.get(),
            sent: self.tx.sent.get(),
            completed: self.tx.completed.get(),
            tx_dropped: self.tx.dropped.get(),
            tx_refused: self.tx.refused.get(),
            timestamps_lost: lock(&self.queue.timestamps).lost,
            lost: self.rx.lost.get() + self.tx.lost.get(),
            wakeups_rx: self.rx.wakeups.get(),
            wakeups_tx: self.tx.wakeups.get(),
            wakeups_spared_rx: self.rx.spared.get(),
            wakeups_spared_tx: self.tx.spared.get(),
            levels: self.levels(),
        })
    }
}
