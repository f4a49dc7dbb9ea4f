//! Counters by name, and how much they moved.

use std::time::Instant;

use xskit::{
    Counters, Port, Statistics,
    program::{CpuCounters, QueueCounters, RedirectErrors},
};

use super::{Failure, Opened, Queue};

/// Counters by the names that the kernel and xskit give them. They are never added up: some packets
/// count in two.
pub(crate) type Named = Vec<(&'static str, u64)>;

/// All that can be known at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) queues: Vec<QueueSample>,
    /// Of each port, what the program counted outside the queues that are open.
    pub(crate) ports: Vec<Named>,
    /// What became of packets for the kernel's stack on CPUs of its own.
    pub(crate) cpus: Vec<CpuSample>,
}

/// What happened to packets for a CPU so far.
#[derive(Clone, Debug)]
pub(crate) struct CpuSample {
    /// Index of the port.
    pub(crate) port: usize,
    pub(crate) cpu: u32,
    pub(crate) named: Named,
}

/// What happened on a queue so far.
#[derive(Clone, Debug)]
pub(crate) struct QueueSample {
    pub(crate) at: Instant,
    pub(crate) received: Traffic,
    /// Given to the kernel to send.
    pub(crate) sent: Traffic,
    /// Of these, how many packets the kernel has sent.
    pub(crate) completed: u64,
    /// Packets that did not get on.
    pub(crate) losses: Named,
    /// The rest.
    pub(crate) others: Named,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

impl Sample {
    pub(crate) fn take(opened: &Opened) -> Result<Self, Failure> {
        let counters: Vec<Counters> =
            opened.ports.iter().map(Port::counters).collect::<Result<_, _>>()?;
        let queues = opened
            .queues
            .iter()
            .map(|queue| QueueSample::take(queue, &counters[queue.port]))
            .collect::<Result<_, _>>()?;
        let ports = counters
            .iter()
            .enumerate()
            .map(|(port, counters)| {
                let open = opened.queues.iter().filter(|queue| queue.port == port);
                outside(counters, open)
            })
            .collect();
        let cpus = counters
            .iter()
            .enumerate()
            .flat_map(|(port, counters)| counters.stack_cpus.iter().map(move |cpu| (port, cpu)))
            .map(|(port, cpu)| CpuSample { port, cpu: cpu.cpu, named: on_cpu(cpu) })
            .collect();
        Ok(Self { queues, ports, cpus })
    }
}

impl QueueSample {
    fn take(queue: &Queue, counters: &Counters) -> Result<Self, Failure> {
        // A socket that is closed already has no numbers any more.
        let mut sum = queue.socket.read()?.unwrap_or_default();
        for sender in &queue.senders {
            add_sender(&mut sum, &sender.read()?.unwrap_or_default());
        }
        let program = usize::try_from(queue.id.get())
            .ok()
            .and_then(|index| counters.queues.get(index))
            .copied()
            .unwrap_or_default();
        Ok(Self {
            at: Instant::now(),
            received: Traffic { packets: sum.received, bytes: queue.bytes_in.received() },
            sent: Traffic {
                packets: sum.sent,
                bytes: queue.bytes_out.iter().map(|bytes| bytes.sent()).sum(),
            },
            completed: sum.completed,
            losses: losses(&sum),
            others: others(&sum, &program),
        })
    }
}

/// A further socket that sends on the queue. The counters of receiving are the queue's, which the
/// first socket has told.
fn add_sender(sum: &mut Statistics, sender: &Statistics) {
    sum.sent += sender.sent;
    sum.completed += sender.completed;
    sum.tx_dropped += sender.tx_dropped;
    sum.tx_refused += sender.tx_refused;
    sum.lost += sender.lost;
    sum.wakeups_tx += sender.wakeups_tx;
    sum.kernel.tx_invalid_descs += sender.kernel.tx_invalid_descs;
    if let (Some(sum), Some(count)) =
        (&mut sum.kernel.tx_ring_empty_descs, sender.kernel.tx_ring_empty_descs)
    {
        *sum += count;
    }
}

fn losses(statistics: &Statistics) -> Named {
    let Statistics { kernel, tx_dropped, tx_refused, lost, .. } = statistics;
    let mut named = vec![
        ("rx_dropped", kernel.rx_dropped),
        ("rx_invalid_descs", kernel.rx_invalid_descs),
        ("tx_invalid_descs", kernel.tx_invalid_descs),
        ("tx_dropped", *tx_dropped),
        ("tx_refused", *tx_refused),
        ("lost", *lost),
    ];
    // Kernels before 5.9 have these not, which is something else than 0.
    let newer = [
        ("rx_ring_full", kernel.rx_ring_full),
        ("rx_fill_ring_empty_descs", kernel.rx_fill_ring_empty_descs),
    ];
    named.extend(newer.into_iter().filter_map(|(name, count)| Some((name, count?))));
    named
}

/// What says nothing about lost packets. An empty TX ring is how sending ends.
fn others(statistics: &Statistics, program: &QueueCounters) -> Named {
    let Statistics { kernel, wakeups_rx, wakeups_tx, .. } = statistics;
    let mut named = vec![
        ("redirected", program.redirected),
        ("wakeups_rx", *wakeups_rx),
        ("wakeups_tx", *wakeups_tx),
        ("passed_no_socket", program.passed_no_socket),
        ("passed_no_rule", program.passed_no_rule),
        ("passed_malformed", program.passed_malformed),
        ("passed_too_deep", program.passed_too_deep),
        ("passed_fragment", program.passed_fragment),
    ];
    named.extend(kernel.tx_ring_empty_descs.map(|count| ("tx_ring_empty_descs", count)));
    named
}

/// What the program counted for no queue in particular, and on queues that are not open.
fn outside<'a>(counters: &Counters, open: impl Iterator<Item = &'a Queue>) -> Named {
    let open: Vec<usize> = open.filter_map(|queue| usize::try_from(queue.id.get()).ok()).collect();
    let closed = counters.queues.iter().enumerate().filter(|(index, _)| !open.contains(index));
    let no_socket: u64 = closed
        .map(|(_, queue)| queue.passed_no_socket)
        .chain([counters.other_queues.passed_no_socket])
        .sum();
    let mut named = vec![("passed_no_socket_on_other_queues", no_socket)];
    if let Some(errors) = counters.redirect_errors {
        let RedirectErrors {
            rx_ring_full,
            fill_ring_empty,
            too_long,
            wrong_queue,
            not_bound,
            other,
            ..
        } = errors;
        named.extend([
            ("redirect_failed_rx_ring_full", rx_ring_full),
            ("redirect_failed_fill_ring_empty", fill_ring_empty),
            ("redirect_failed_too_long", too_long),
            ("redirect_failed_wrong_queue", wrong_queue),
            ("redirect_failed_not_bound", not_bound),
            ("redirect_failed_other", other),
        ]);
    }
    named
}

/// What the kernel does not let us know is absent, which is something else than 0.
fn on_cpu(cpu: &CpuCounters) -> Named {
    let mut named = vec![("redirected", cpu.redirected)];
    if let Some(queue) = &cpu.queue {
        named.extend([("enqueued", queue.enqueued), ("dropped", queue.dropped)]);
    }
    if let Some(thread) = &cpu.thread {
        named.extend([("processed", thread.processed), ("lost", thread.lost)]);
    }
    named
}

/// How much each counter moved. Both lists come from the same place, in the same order.
pub(crate) fn moved(now: &Named, before: &Named) -> Named {
    now.iter()
        .zip(before)
        .map(|((name, now), (_, before))| (*name, now.saturating_sub(*before)))
        .collect()
}

impl Traffic {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            packets: self.packets.saturating_sub(before.packets),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }
}
