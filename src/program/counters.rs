//! [`Counters`]: what became of the packets, as the program and the kernel's tracepoint saw it.

use aya::maps::{MapData, PerCpuArray};

use super::{cpumap::CpuCounters, errors};
use crate::error::Result;

/// One queue's counters in the BPF maps: a cache line per CPU.
pub(super) type Row = [u64; 8];

/// What the program did with the packets since it was attached: sums over all CPUs.
///
/// Exchanging rules keeps the counters.
///
/// # Staleness
///
/// A snapshot: the CPUs count on while it is taken, one queue after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// All queues together.
    pub total: QueueCounters,
    /// Each queue that has a place in the map of sockets, by its number.
    pub queues: Vec<QueueCounters>,
    /// The queues past the map of sockets, together.
    pub other_queues: QueueCounters,
    /// Redirects that failed, by cause; all queues together. `None` where the kernel's tracepoint
    /// `xdp_redirect_err` is out of reach: before Linux 5.13, or without CAP_PERFMON.
    pub redirect_errors: Option<RedirectErrors>,
    /// What became of the packets for the [`StackCpus`](super::StackCpus), in their order; these are among
    /// those that passed to the kernel's stack above. Empty without such CPUs.
    pub stack_cpus: Vec<CpuCounters>,
}

/// What the program did with the packets of one queue. Each packet counts in exactly one field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueCounters {
    /// A rule matched, and the packet was redirected to the queue's socket. Whether it arrived there
    /// the program cannot know: see [`Counters::redirect_errors`].
    pub redirected: u64,
    /// A rule matched, but the queue has no socket: passed to the kernel's stack.
    pub passed_no_socket: u64,
    /// No rule matched: passed.
    pub passed_no_rule: u64,
    /// No rule matched what could be read of a truncated or malformed packet: passed.
    pub passed_malformed: u64,
    /// More than two VLAN tags, or no rule matched and more than six IPv6 extension headers: passed.
    pub passed_too_deep: u64,
    /// No rule matched, as a fragment has no ports: passed.
    pub passed_fragment: u64,
}

/// Redirects that the kernel gave up after the program had returned; these packets are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedirectErrors {
    /// ENOBUFS: the socket's RX ring is full; the program that reads it is too slow.
    pub rx_ring_full: u64,
    /// ENOMEM: the Fill ring is empty.
    pub fill_ring_empty: u64,
    /// ENOSPC: longer than a chunk without its headroom.
    pub too_long: u64,
    /// EINVAL: the socket is bound to another queue or interface.
    pub wrong_queue: u64,
    /// ENXIO: the socket is not bound (any more).
    pub not_bound: u64,
    /// Any other errno.
    pub other: u64,
}

impl QueueCounters {
    /// All that passed to the kernel's stack.
    pub fn passed(&self) -> u64 {
        self.passed_no_socket
            + self.passed_no_rule
            + self.passed_malformed
            + self.passed_too_deep
            + self.passed_fragment
    }

    /// In the program's order.
    fn from_row(row: Row) -> Self {
        let [redirected, no_rule, malformed, too_deep, fragment, no_socket, ..] = row;
        Self {
            redirected,
            passed_no_socket: no_socket,
            passed_no_rule: no_rule,
            passed_malformed: malformed,
            passed_too_deep: too_deep,
            passed_fragment: fragment,
        }
    }
}

impl RedirectErrors {
    /// All failed redirects.
    pub fn total(&self) -> u64 {
        self.rx_ring_full
            + self.fill_ring_empty
            + self.too_long
            + self.wrong_queue
            + self.not_bound
            + self.other
    }

    /// In the program's order.
    fn from_row(row: Row) -> Self {
        let [rx_ring_full, fill_ring_empty, too_long, wrong_queue, not_bound, other, ..] = row;
        Self { rx_ring_full, fill_ring_empty, too_long, wrong_queue, not_bound, other }
    }
}

fn add(mut sum: Row, row: &Row) -> Row {
    for (sum, value) in sum.iter_mut().zip(row) {
        *sum += value;
    }
    sum
}

/// A row per queue, summed over the CPUs.
pub(super) fn rows(map: &PerCpuArray<MapData, Row>) -> impl Iterator<Item = Result<Row>> {
    map.iter().map(|values| {
        let values = values.map_err(|error| errors::map(error, "cannot read the counters"))?;
        Ok(values.iter().fold(Row::default(), add))
    })
}

pub(super) fn read(
    queues: &PerCpuArray<MapData, Row>,
    redirect_errors: Option<&PerCpuArray<MapData, Row>>,
) -> Result<Counters> {
    let by_queue = rows(queues).collect::<Result<Vec<Row>>>()?;
    let total = by_queue.iter().fold(Row::default(), add);
    let mut queues: Vec<_> = by_queue.into_iter().map(QueueCounters::from_row).collect();
    let redirect_errors = match redirect_errors {
        None => None,
        Some(map) => Some(RedirectErrors::from_row(
            rows(map)
                .try_fold(Row::default(), |sum, row| Ok::<_, crate::Error>(add(sum, &row?)))?,
        )),
    };
    Ok(Counters {
        total: QueueCounters::from_row(total),
        other_queues: queues.pop().unwrap_or_default(),
        queues,
        redirect_errors,
        stack_cpus: Vec::new(),
    })
}
