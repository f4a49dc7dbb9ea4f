//! What every layer of a port counts, in one.

use std::fmt;

use crate::{Audit, Counters, QueueId, Statistics};

/// What every layer of a [`Port`](crate::Port) has counted: where did the packets go?
///
/// A packet's way in is told from left to right: the program [redirects](Counters) it or passes it on and says
/// why; a redirect can fail ([`redirect_errors`](Counters::redirect_errors)), or the kernel drops it on the
/// socket ([`KernelStatistics`](crate::socket::KernelStatistics)); else it lies in the
/// [RX ring](crate::socket::RingLevels::rx), or was [received](Statistics::received). Where reception stops,
/// [`frames`](Self::frames) shows who holds them all.
///
/// # Staleness
///
/// Each number is read at its own moment while packets flow, so that they need not add up. At rest they do.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// What the program did with packets, by queue.
    pub counters: Counters,
    /// The port's sockets that are still open, by queue. Those made with
    /// [`share_queue`](crate::Socket::share_queue) are not the port's.
    pub sockets: Vec<SocketSnapshot>,
    /// The frames of the UMEM, by place: of all ports on it, where it is shared.
    pub frames: Audit,
}

/// A socket in a [`Snapshot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketSnapshot {
    /// Its queue.
    pub queue: QueueId,
    /// What the kernel and the crate have counted on it, and what lies in its rings.
    pub statistics: Statistics,
}

impl fmt::Display for Snapshot {
    /// A few lines for a log: numbers that are 0 are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = &self.counters.total;
        let mut line = Line::new(f, "program")?;
        line.all(&[
            ("redirected", total.redirected),
            ("passed_no_socket", total.passed_no_socket),
            ("passed_no_rule", total.passed_no_rule),
            ("passed_malformed", total.passed_malformed),
            ("passed_too_deep", total.passed_too_deep),
            ("passed_fragment", total.passed_fragment),
        ])?;
        if let Some(errors) = &self.counters.redirect_errors {
            line.all(&[("redirect_errors", errors.total())])?;
        }
        for cpu in &self.counters.stack_cpus {
            write!(f, "\n{cpu}")?;
        }
        for SocketSnapshot { queue, statistics } in &self.sockets {
            let kernel = &statistics.kernel;
            let levels = &statistics.levels;
            writeln!(f)?;
            Line::new(f, &format!("queue {queue}"))?.all(&[
                ("received", statistics.received),
                ("sent", statistics.sent),
                ("completed", statistics.completed),
                ("rx_dropped", kernel.rx_dropped),
                ("rx_invalid_descs", kernel.rx_invalid_descs),
                ("tx_invalid_descs", kernel.tx_invalid_descs),
                ("rx_ring_full", kernel.rx_ring_full.unwrap_or(0)),
                ("rx_fill_ring_empty_descs", kernel.rx_fill_ring_empty_descs.unwrap_or(0)),
                ("tx_ring_empty_descs", kernel.tx_ring_empty_descs.unwrap_or(0)),
                ("tx_dropped", statistics.tx_dropped),
                ("tx_refused", statistics.tx_refused),
                ("lost", statistics.lost),
                ("wakeups_rx", statistics.wakeups_rx),
                ("spared", statistics.wakeups_spared_rx),
                ("wakeups_tx", statistics.wakeups_tx),
                ("spared", statistics.wakeups_spared_tx),
                ("in rx", levels.rx.into()),
                ("in tx", levels.tx.into()),
                ("in fill", levels.fill.into()),
                ("in completion", levels.completion.into()),
            ])?;
        }
        write!(f, "\n{}", self.frames)
    }
}

/// `what: name number, name number`
struct Line<'a, 'b> {
    f: &'a mut fmt::Formatter<'b>,
    separator: &'static str,
}

impl<'a, 'b> Line<'a, 'b> {
    fn new(f: &'a mut fmt::Formatter<'b>, what: &str) -> Result<Self, fmt::Error> {
        write!(f, "{what}:")?;
        Ok(Self { f, separator: "" })
    }

    fn all(&mut self, numbers: &[(&str, u64)]) -> fmt::Result {
        for (name, number) in numbers.iter().filter(|(_, number)| *number > 0) {
            write!(self.f, "{} {name} {number}", self.separator)?;
            self.separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_lines() {
        let mut snapshot = Snapshot::default();
        snapshot.counters.total.redirected = 7;
        snapshot.counters.total.passed_no_rule = 2;
        let mut statistics = Statistics { received: 5, ..Statistics::default() };
        statistics.levels.rx = 2;
        snapshot.sockets.push(SocketSnapshot { queue: QueueId::new(3), statistics });
        assert_eq!(
            snapshot.to_string(),
            format!(
                "program: redirected 7, passed_no_rule 2\nqueue 3: received 5, in rx 2\n{}",
                Audit::default()
            )
        );
    }
}
