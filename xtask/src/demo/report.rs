//! What the demo found, as a table and as JSON, and what of it is wrong.

use std::fmt;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use serde::Serialize;

use super::{Mode, forwarder::Started, frames::Run, transfer::Transfer};

/// The demo's result. Its JSON is a promise to scripts.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    kernel: String,
    mode: String,
    zero_copy: bool,
    rows: Vec<Row>,
    tcp: Tcp,
    audit_ok: bool,
}

/// Frames of one size.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    frame_size: usize,
    sent: u64,
    /// Arrived whole, each counted once.
    received: u64,
    /// Arrived, but not as one was sent.
    corrupted: u64,
    /// Arrived whole, but after a later one, or once more.
    reordered: u64,
    kpps: f64,
    #[serde(skip)]
    mbps: f64,
}

#[derive(Debug, Serialize)]
struct Tcp {
    bytes: u64,
    sha256_ok: bool,
    #[serde(skip)]
    mbps: f64,
}

impl Row {
    #[expect(clippy::cast_precision_loss, reason = "rates for people")]
    pub(super) fn new(frame_size: usize, run: &Run) -> Self {
        let pps = run.tally.received() as f64 / run.took.as_secs_f64();
        Self {
            frame_size,
            sent: run.sent,
            received: run.tally.received(),
            // Nothing else may flow: a frame that is not ours was one of ours once.
            corrupted: run.tally.corrupted + run.tally.foreign,
            reordered: run.tally.reordered + run.tally.duplicate,
            kpps: (pps / 100.0).round() / 10.0,
            mbps: pps * frame_size as f64 * 8.0 / 1e6,
        }
    }

    /// What is wrong with the row, in words.
    pub(super) fn fault(&self) -> Option<String> {
        let Self { frame_size, sent, received, corrupted, reordered, .. } = self;
        let clean = *sent > 0 && sent == received && *corrupted == 0 && *reordered == 0;
        (!clean).then(|| {
            format!(
                "{frame_size}-byte frames: {sent} sent, {received} received, {corrupted} corrupted, \
                 {reordered} out of order or twice"
            )
        })
    }
}

impl Report {
    #[expect(clippy::cast_precision_loss, reason = "rates for people")]
    pub(super) fn new(
        started: &Started,
        rows: Vec<Row>,
        tcp: Transfer,
        audit_ok: bool,
    ) -> Result<Self> {
        let first = started.ports.first().context("the forwarder named no ports")?;
        // Ports may differ: then no single mode is true.
        let alike = started.ports.iter().all(|port| port.mode == first.mode);
        Ok(Self {
            kernel: nix::sys::utsname::uname()?.release().to_string_lossy().into_owned(),
            mode: if alike { first.mode.clone() } else { "mixed".to_owned() },
            zero_copy: started.ports.iter().all(|port| port.zero_copy),
            rows,
            tcp: Tcp {
                bytes: tcp.bytes,
                sha256_ok: tcp.sha256_ok,
                mbps: tcp.bytes as f64 * 8.0 / tcp.took.as_secs_f64() / 1e6,
            },
            audit_ok,
        })
    }

    /// Everything that must not be, in words.
    pub(super) fn faults(&self, asked: Mode) -> Vec<String> {
        let mut faults: Vec<_> = self.rows.iter().filter_map(Row::fault).collect();
        if self.mode != asked.name() {
            faults.push(format!("asked for {} mode, got {}", asked.name(), self.mode));
        }
        if !self.tcp.sha256_ok {
            faults.push(format!("TCP: {} bytes arrived, with another SHA-256", self.tcp.bytes));
        }
        if !self.audit_ok {
            faults.push("the forwarder's UMEM audit does not add up".to_owned());
        }
        faults
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let copy = if self.zero_copy { "zero-copy" } else { "copy" };
        writeln!(f, "Linux {}, {} mode, {copy}", self.kernel, self.mode)?;
        let mut table = Table::new();
        table.load_preset(UTF8_FULL_CONDENSED);
        table.set_header(["frame", "sent", "received", "corrupted", "reordered", "kpps", "Mbit/s"]);
        for row in &self.rows {
            table.add_row([
                row.frame_size.to_string(),
                row.sent.to_string(),
                row.received.to_string(),
                row.corrupted.to_string(),
                row.reordered.to_string(),
                format!("{:.1}", row.kpps),
                format!("{:.0}", row.mbps),
            ]);
        }
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
        }
        writeln!(f, "{table}")?;
        let verdict = |ok| if ok { "ok" } else { "WRONG" };
        let Tcp { bytes, sha256_ok, mbps } = self.tcp;
        writeln!(f, "TCP: {bytes} bytes, {mbps:.0} Mbit/s, SHA-256 {}", verdict(sha256_ok))?;
        write!(f, "UMEM audit: {}", verdict(self.audit_ok))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use xskit_lab::Tally;

    use super::{super::forwarder::Port, *};

    fn report(tally: Tally) -> Report {
        let started =
            Started { ports: vec![Port { mode: "native".to_owned(), zero_copy: false }; 2] };
        let run = Run { sent: 10, tally, took: Duration::from_secs(1) };
        let tcp = Transfer { bytes: 5, sha256_ok: true, took: Duration::from_secs(1) };
        Report::new(&started, vec![Row::new(64, &run)], tcp, true).unwrap()
    }

    #[test]
    fn a_clean_run_has_no_faults_and_the_promised_json() {
        let report = report(Tally { good: 10, ..Tally::default() });
        assert!(report.faults(Mode::Native).is_empty());
        let mut json = serde_json::to_value(&report).unwrap();
        json["kernel"] = "K".into();
        assert_eq!(
            json,
            serde_json::json!({
                "kernel": "K", "mode": "native", "zero_copy": false,
                "rows": [{"frame_size": 64, "sent": 10, "received": 10, "corrupted": 0,
                          "reordered": 0, "kpps": 0.0}],
                "tcp": {"bytes": 5, "sha256_ok": true}, "audit_ok": true
            })
        );
    }

    #[test]
    fn each_fault_is_named() {
        let good = Tally { good: 10, ..Tally::default() };
        for tally in [
            Tally { good: 9, ..good },
            Tally { corrupted: 1, ..good },
            Tally { foreign: 1, ..good },
            Tally { good: 9, reordered: 1, ..good },
            Tally { duplicate: 1, ..good },
        ] {
            assert_eq!(report(tally).faults(Mode::Native).len(), 1, "{tally:?}");
        }
        assert_eq!(report(good).faults(Mode::Generic).len(), 1);
        let mut wrong = report(good);
        (wrong.audit_ok, wrong.tcp.sha256_ok) = (false, false);
        assert_eq!(wrong.faults(Mode::Native).len(), 2);
    }
}
