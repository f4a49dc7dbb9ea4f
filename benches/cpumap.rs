//! The kernel's stack on the receiving CPU (`XDP_PASS`) against another CPU by a CPUMAP, under a flood
//!
//! What is measured is a veth's near end, where xskit's program runs. A generator on the far end sends
//! 64-byte UDP packets over IPv6 as fast as it can; their receive loop runs on the generator's CPU, as it
//! does on veth, and is the source CPU. The destination CPU is another one.

#[path = "cpumap/generator.rs"]
mod generator;
#[path = "cpumap/receiver.rs"]
mod receiver;

use std::{error::Error, process::ExitCode, time::Duration};

use xskit_lab::{Lab, LabConfig, Need};
use xskit_report::{Metric, Options, Report, measure};

use self::{
    generator::Generator,
    receiver::{Receiver, Stack},
};

/// How long one measurement takes.
const LENGTH: Duration = Duration::from_millis(300);
const ROUNDS: usize = 5;
/// Until then a round that other work disturbed is made again.
const PATIENCE: Duration = Duration::from_secs(15);
/// Packets a second for sockets, while the stack is flooded: far less than they can take.
const OWN_RATE: u32 = 20_000;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Who does what.
#[derive(Clone, Copy, Debug)]
struct Cpus {
    /// Generates, and receives.
    source: usize,
    /// The kernel's stack, where it is not the source.
    destination: usize,
    /// Reads the sockets' packets.
    reader: usize,
}

fn main() -> ExitCode {
    xskit_report::run("cpumap", "The kernel's stack on the receiving CPU against another one", run)
}

fn run(options: &Options) -> Result<()> {
    xskit_lab::have(Need::Bpf)?;
    let usable = xskit_report::cpus();
    let &[source, destination, ..] = usable.as_slice() else {
        return Err("it takes two CPUs: one to receive, another for the stack".into());
    };
    let reader = usable.get(2).copied().unwrap_or(destination);
    let cpus = Cpus { source, destination, reader };
    let lab = Lab::new(&LabConfig::default())?;
    receiver::prepare(&lab)?;
    let mut report = Report::new("cpumap");
    report.note(format!(
        "source CPU {source} generates and receives; destination CPU {destination}; the sockets' \
         packets are read on CPU {reader}"
    ));
    report.add(flood(options, &lab, cpus)?);
    report.add(mix(options, &lab, cpus)?);
    report.print(options)?;
    Ok(())
}

/// The series' own table.
fn flood(options: &Options, lab: &Lab, cpus: Cpus) -> Result<xskit_report::Comparison> {
    let subjects = [("XDP_PASS", Stack::Here), ("cpumap", Stack::There)];
    let comparison = measure(
        &options.plan(ROUNDS).patient_for(PATIENCE),
        "a flood for the stack: 64-byte UDP over IPv6",
        &subjects.map(|(name, _)| name),
        &[
            Metric::higher("source CPU receives", "kpps").digits(1),
            Metric::lower("dropped", "kpps").digits(1).beside(),
            Metric::higher("destination CPU receives", "kpps").digits(1).beside(),
            Metric::higher("stack delivers", "kpps").digits(1),
        ],
        |subject| -> Result<Vec<f64>> {
            let receiver = Receiver::open(lab, subjects[subject].1, cpus)?;
            let mut generator = Generator::open(lab)?;
            let before = receiver.counts()?;
            let sent = generator.run(options.length(LENGTH), cpus.source, true, 0)?;
            let counts = receiver.settled()?.since(&before);
            let rate = |count: u64| per_second(count, sent.elapsed);
            Ok(vec![
                rate(counts.to_stack),
                rate(counts.dropped),
                rate(counts.processed),
                rate(counts.delivered),
            ])
        },
    )?;
    Ok(comparison.against("XDP_PASS"))
}

/// Do sockets keep their rate while the stack is flooded?
fn mix(options: &Options, lab: &Lab, cpus: Cpus) -> Result<xskit_report::Comparison> {
    let subjects = [
        ("no flood", Stack::Here, false),
        ("flood, XDP_PASS", Stack::Here, true),
        ("flood, cpumap", Stack::There, true),
    ];
    let comparison = measure(
        &options.plan(ROUNDS).patient_for(PATIENCE),
        "packets for sockets, while the stack is flooded",
        &subjects.map(|(name, ..)| name),
        &[
            Metric::higher("sockets are sent", "kpps").digits(1).beside(),
            Metric::higher("sockets receive", "kpps").digits(1),
            Metric::lower("lost", "%").digits(2).beside(),
            Metric::higher("source CPU receives for the stack", "kpps").digits(1).beside(),
            Metric::lower("dropped", "kpps").digits(1).beside(),
            Metric::higher("destination CPU receives", "kpps").digits(1).beside(),
        ],
        |subject| -> Result<Vec<f64>> {
            let (_, stack, flood) = subjects[subject];
            let mut receiver = Receiver::open(lab, stack, cpus)?;
            let mut generator = Generator::open(lab)?;
            let before = receiver.counts()?;
            let reader = receiver.read(cpus.reader)?;
            let sent = generator.run(options.length(LENGTH), cpus.source, flood, OWN_RATE);
            let counts = receiver.settled();
            let received = reader.stop()?;
            let (sent, counts) = (sent?, counts?.since(&before));
            let rate = |count: u64| per_second(count, sent.elapsed);
            #[allow(clippy::cast_precision_loss, reason = "far fewer than 2^52 packets")]
            let lost = 100.0 * sent.own.saturating_sub(received) as f64 / sent.own.max(1) as f64;
            Ok(vec![
                rate(sent.own),
                rate(received),
                lost,
                rate(counts.to_stack),
                rate(counts.dropped),
                rate(counts.processed),
            ])
        },
    )?;
    Ok(comparison.against("no flood"))
}

/// In thousands.
#[allow(clippy::cast_precision_loss, reason = "far fewer than 2^52 packets")]
fn per_second(count: u64, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64() / 1000.0
}
