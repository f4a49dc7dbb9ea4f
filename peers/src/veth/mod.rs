//! `veth`: packets a second over veth pairs, in copy mode.

mod job;
mod load;
mod packet;
mod program;
mod worker;

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use xskit_report::{Comparison, Metric, Options, Report, Summary, Target, cpus, measure};

use crate::subject::Cycle;
use worker::Rates;
pub use {
    job::{Job, Mode, Sender, Who},
    worker::Worker,
};

/// Frames of one call that sends, as libxdp and the other crates leave it.
const BUDGET: u32 = 32;

/// The other peers with AF_XDP sockets.
const OTHERS: [&str; 4] =
    [Who::LibXdp.name(), Who::XskRs.name(), Who::Xdpilone.name(), Who::Xdp.name()];

/// Packets a second on a veth pair, with the CPU time and the system calls of each
#[derive(Args)]
pub struct Veth {
    #[command(flatten)]
    options: Options,
    /// Batches, in packets
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64, 256],
          value_parser = clap::value_parser!(u32).range(1..=256))]
    batches: Vec<u32>,
    /// How programs are attached
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Mode::Native, Mode::Generic])]
    modes: Vec<Mode>,
    /// Where the packets to receive come from
    #[arg(long, value_enum, default_value_t)]
    sender: Sender,
    /// Milliseconds of each measurement
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    milliseconds: u64,
}

impl Veth {
    pub fn run(self) -> Result<()> {
        let mut report = Report::new("veth").compiler(env!("PEERS_CC"));
        let from = match self.sender {
            Sender::Kernel => "an XDP program run in the kernel",
            Sender::User => "a user-space sender",
        };
        report.note(format!(
            "veth, copy mode, packets of 64 bytes from {from}; load on CPU {}, receivers and senders spin on \
             CPU {}, but for TPACKET_V3, which polls. CPU times are those of the receiver's or sender's thread. \
             Held back are interrupts with napi_defer_hard_irqs 2 and gro_flush_timeout 200 µs.",
            cpus()[0],
            cpus()[cpus().len() - 1],
        ));
        for &mode in &self.modes {
            for cycle in Cycle::ALL {
                for &batch in &self.batches {
                    report.add(self.compare_all(mode, cycle, batch)?);
                }
            }
        }
        if self.modes.contains(&Mode::Native) {
            if let Some(overall) = overall(report.comparisons()) {
                report.add(overall);
            }
            for cycle in Cycle::ALL {
                report.add(self.compare_settings(cycle)?);
            }
        }
        Ok(report.print(&self.options)?)
    }

    /// All peers.
    fn compare_all(&self, mode: Mode, cycle: Cycle, batch: u32) -> Result<Comparison> {
        let who = Who::ALL.into_iter().filter(|who| who.can(cycle));
        let jobs = who.map(|who| Job { mode, ..self.job(who, cycle, batch) }).collect();
        let table = format!("{}, {}", cycle.program(), mode.name());
        let title = format!("{table}, batches of {batch}");
        let comparison = self.compare(&title, jobs)?.in_table(&table, batch.to_string());
        Ok(targets(comparison, cycle, batch))
    }

    /// What an application can set, beside what xdpsock leaves as it is.
    fn compare_settings(&self, cycle: Cycle) -> Result<Comparison> {
        let job = |who, held_back, budget| {
            let batch = if cycle == Cycle::Transmit { 256 } else { 64 };
            Job { held_back, budget, ..self.job(who, cycle, batch) }
        };
        let mut jobs = vec![job(Who::LibXdp, false, None), job(Who::Xskit, false, None)];
        if cycle != Cycle::Receive {
            jobs.push(job(Who::Xskit, false, Some(BUDGET)));
        }
        if cycle != Cycle::Transmit {
            // Senders have no interrupts to hold back.
            let held_back = Who::ALL.into_iter().filter(|who| who.can(cycle));
            jobs.extend(held_back.map(|who| job(who, true, None)));
        }
        jobs.push(job(Who::Blocks, false, None));
        let title = format!("{}, settings, batches of {}", cycle.program(), jobs[0].batch);
        Ok(self.compare(&title, jobs)?.against(Who::LibXdp.name()).against(Who::Blocks.name()))
    }

    fn job(&self, who: Who, cycle: Cycle, batch: u32) -> Job {
        Job { sender: self.sender, ..Job::new(who, cycle, batch) }
    }

    fn compare(&self, title: &str, jobs: Vec<Job>) -> Result<Comparison> {
        let names: Vec<_> = jobs.iter().map(Job::name).collect();
        let workers = jobs.into_iter().map(Worker::start);
        let mut workers = workers.collect::<Result<Vec<_>>>()?;
        let length = self.options.length(Duration::from_millis(self.milliseconds));
        // The load and its receiver share the machine with whatever else runs there.
        let plan = self.options.plan(7).tolerating(0.05).without_repeats();
        let plan = plan.patient_for(Duration::from_secs(5));
        let metrics = [
            Metric::higher("rate", "Mpps").digits(3),
            Metric::lower("user", "ns/packet").digits(0).beside(),
            Metric::lower("system", "ns/packet").digits(0).beside(),
            Metric::lower("calls", "per packet").digits(3).beside(),
        ];
        measure(&plan, title, &names, &metrics, |worker| {
            let Rates { rate, user, system, calls } = workers[worker].measure(length)?;
            Ok(vec![rate / 1e6, user, system, calls])
        })
    }
}

/// xskit's rate by that of the best other AF_XDP peer, over all that has been measured.
fn overall(comparisons: &[Comparison]) -> Option<Comparison> {
    let ratio = |comparison: &Comparison| comparison.ratio(Who::Xskit.name(), &OTHERS, "rate");
    let ratios: Vec<f64> = comparisons.iter().filter_map(ratio).map(|ratio| ratio.median).collect();
    let median = (!ratios.is_empty()).then(|| Summary::of(&ratios).median)?;
    let (names, metrics) =
        ([Who::Xskit.name(), "best peer"], [Metric::higher("rate", "× best peer")]);
    let title = format!("median over the {} above", ratios.len());
    let overall = Comparison::counted(&title, &names, &metrics, vec![vec![median], vec![1.0]]);
    Some(overall.target(Target::new(names[0], [names[1]], "rate", 1.0)))
}

fn targets(comparison: Comparison, cycle: Cycle, batch: u32) -> Comparison {
    let xskit = Who::Xskit.name();
    let comparison =
        comparison.against(Who::LibXdp.name()).target(Target::new(xskit, OTHERS, "rate", 0.97));
    let c = [Who::LibXdp.name()];
    match (cycle, batch) {
        (Cycle::Transmit, 64) => comparison.target(Target::new(xskit, c, "calls", 0.5)),
        (Cycle::Transmit, 256) => comparison.target(Target::new(xskit, c, "calls", 0.125)),
        _ => comparison,
    }
}
