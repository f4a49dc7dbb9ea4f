//! `scale`: whether a packet costs the same whatever the UMEM, the queues, and the age of the rings; what it
//! takes to start.
//!
//! More memory costs more, whoever uses it. So a plain pointer chase is measured in the same rounds: over as much
//! memory as the rings of all queues have, and what it costs more than with one queue is set apart; and over a list
//! of all frames. Free frames are used last in, first out, so that a large UMEM should cost no more: there nothing
//! is set apart.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::Args;
use xskit::{PortConfig, Rules, UmemConfig};
use xskit_report::{Comparison, Metric, Options, Plan, Report, Target, cpus, measure, pin, prefer};

use crate::{
    chase::Chase,
    pair::pair,
    peer::Place,
    subject::{Subject, receiver},
};

/// Slots of each ring.
const RING: u32 = 1024;
/// Packets in each step, unless batches are what is compared.
const BATCH: u32 = 64;
/// Packets of each measurement.
const PACKETS: u32 = 1 << 17;
/// How often each socket has its turn in it.
const TURNS: u32 = 16;
/// How much more a packet may cost than at the first.
const BOUND: f64 = 1.1;
/// Frames of the largest UMEM.
const MOST: u32 = 1 << 20;
/// Bytes that a packet takes of RX and Fill, and a frame of a list of free frames.
const ENTRIES: usize = 16 + 8;
const FRAME: usize = 8;
/// The names of the metrics.
const TIME: &str = "time";
const CHASE: &str = "pointer chase";
const APART: &str = "set apart";

/// Cost for each packet over UMEM sizes, queues, batches and ages of the rings; start-up
#[derive(Args)]
pub struct Scale {
    #[command(flatten)]
    options: Options,
    /// Frames of the largest UMEM, of 2048 bytes each
    #[arg(long, default_value_t = MOST, value_parser = clap::value_parser!(u32).range(4096..))]
    frames: u32,
    /// Queues at most
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    queues: u32,
}

/// Where the next socket goes: each on a queue of its own, since a queue is not free at once after a close.
struct Queues {
    interface: String,
    index: u32,
    next: u32,
}

impl Queues {
    fn open(&mut self, frames: u32, batch: u32) -> Result<Box<dyn Subject>> {
        let (interface, index, queue) = (self.interface.clone(), self.index, self.next);
        self.next += 1;
        let (receives, sends) = (true, false);
        receiver(&Place { interface, index, queue, frames, ring: RING, receives, sends, batch })
    }
}

impl Scale {
    pub fn run(self) -> Result<()> {
        let lab = pair(64)?;
        let (interface, index) = (lab.near.name().to_owned(), lab.near.index());
        let report = lab.enter(|| self.measure(Queues { interface, index, next: 0 }))?;
        Ok(report.print(&self.options)?)
    }

    fn measure(&self, mut queues: Queues) -> Result<Report> {
        prefer();
        pin(cpus()[0])?;
        let mut report = Report::new("scale");
        report.note("receiving through Socket + Batch, the kernel's side a script that counts in");
        report.note(start(&queues.interface)?);
        report.note(format!(
            "{CHASE}: loads, each after the one before, over {FRAME} bytes for each frame of the UMEM, or {ENTRIES} \
             for each packet in the rings of all queues; {APART}: the time without what the chase takes more than \
             with one queue. Free frames are used last in, first out: for UMEMs nothing is set apart.",
        ));
        report.add(self.sizes(&mut queues)?);
        report.add(self.queues(&mut queues)?);
        report.add(self.batches(&mut queues)?);
        report.add(self.ages(&mut queues)?);
        Ok(report)
    }

    fn sizes(&self, queues: &mut Queues) -> Result<Comparison> {
        let sizes =
            (12..=20).step_by(2).map(|power| 1 << power).filter(|size| *size <= self.frames);
        let mut rows = Vec::new();
        for size in sizes {
            let chase = Chase::new(size as usize * FRAME, FRAME);
            let socket = queues.open(size, BATCH)?;
            rows.push(Row::new(format!("{size} frames"), vec![(socket, chase)]));
        }
        self.beside_chase("UMEM", &names(&rows), rows)
    }

    fn queues(&self, queues: &mut Queues) -> Result<Comparison> {
        let counts = [1, 2, 4, 8, 16].into_iter().filter(|count| *count <= self.queues);
        let mut rows = Vec::new();
        for count in counts {
            let queue = |_| {
                let chase = Chase::new(RING as usize * ENTRIES, ENTRIES);
                Ok((queues.open(4096, BATCH)?, chase))
            };
            let sockets = (0..count).map(queue).collect::<Result<_>>()?;
            let plural = if count == 1 { "" } else { "s" };
            rows.push(Row::new(format!("{count} queue{plural}"), sockets));
        }
        let names = names(&rows);
        let comparison = self.beside_chase("queues, a UMEM each", &names, rows)?;
        let apart = Metric::lower(APART, "ns/packet");
        Ok(targets(comparison.apart(apart, TIME, CHASE, &names[0]), &names, APART))
    }

    fn batches(&self, queues: &mut Queues) -> Result<Comparison> {
        let mut rows = Vec::new();
        for batch in [1, 4, 16, 64, 256] {
            let socket = queues.open(4096, batch)?;
            rows.push(Row { batch, ..Row::alone(format!("batches of {batch}"), socket) });
        }
        self.compare("batches", rows)
    }

    /// Two sockets alike, of which one has had 2^32 packets.
    fn ages(&self, queues: &mut Queues) -> Result<Comparison> {
        let (new, mut old) = (queues.open(4096, BATCH)?, queues.open(4096, BATCH)?);
        let steps = if self.options.quick { 1 << 16 } else { u32::MAX / BATCH + 1 };
        old.run(steps, false)?;
        let packets = u64::from(steps) * u64::from(BATCH);
        let rows = vec![
            Row::alone("new rings".to_owned(), new),
            Row::alone(format!("after {packets} packets"), old),
        ];
        let names = names(&rows);
        Ok(targets(self.compare("age", rows)?, &names, TIME))
    }

    /// Time alone.
    fn compare(&self, title: &str, mut rows: Vec<Row>) -> Result<Comparison> {
        let names = names(&rows);
        let metrics = [Metric::lower(TIME, "ns/packet")];
        let comparison = measure(&self.plan(), title, &names, &metrics, |number| {
            Ok::<_, anyhow::Error>(vec![rows[number].receive()?])
        })?;
        Ok(comparison.against(&names[0]))
    }

    /// Time, and that of the chase.
    fn beside_chase(
        &self,
        title: &str,
        names: &[String],
        mut rows: Vec<Row>,
    ) -> Result<Comparison> {
        let metrics =
            [Metric::lower(TIME, "ns/packet"), Metric::lower(CHASE, "ns/packet").beside()];
        let comparison = measure(&self.plan(), title, names, &metrics, |number| {
            let row = &mut rows[number];
            Ok::<_, anyhow::Error>(vec![row.receive()?, row.chase()])
        })?;
        Ok(targets(comparison.against(&names[0]), names, TIME))
    }

    fn plan(&self) -> Plan {
        self.options.plan(21).patient_for(Duration::from_secs(8))
    }
}

fn names(rows: &[Row]) -> Vec<String> {
    rows.iter().map(|row| row.name.clone()).collect()
}

fn targets(comparison: Comparison, names: &[String], metric: &str) -> Comparison {
    let target = |comparison: Comparison, name: &String| {
        comparison.target(Target::new(name, [&names[0]], metric, BOUND))
    };
    names[1..].iter().fold(comparison, target)
}

/// Sockets that packets come to in turns, so that each finds what the others left of the cache.
struct Row {
    name: String,
    sockets: Vec<Box<dyn Subject>>,
    /// As many as sockets, or none.
    chases: Vec<Chase>,
    batch: u32,
}

impl Row {
    fn new(name: String, sockets: Vec<(Box<dyn Subject>, Chase)>) -> Self {
        let (sockets, chases) = sockets.into_iter().unzip();
        Self { name, sockets, chases, batch: BATCH }
    }

    fn alone(name: String, socket: Box<dyn Subject>) -> Self {
        Self { name, sockets: vec![socket], chases: Vec::new(), batch: BATCH }
    }

    /// Steps of each turn of a socket.
    fn steps(&self) -> u32 {
        (PACKETS / self.batch / TURNS / self.sockets.len() as u32).max(1)
    }

    /// Nanoseconds for each packet.
    fn receive(&mut self) -> Result<f64> {
        let (steps, mut took, mut packets) = (self.steps(), Duration::ZERO, 0);
        for _ in 0..TURNS {
            for socket in &mut self.sockets {
                let (time, sum) = socket.run(steps, false)?;
                took += time;
                packets += sum.count;
            }
        }
        Ok(took.as_secs_f64() * 1e9 / packets as f64)
    }

    /// The same for the chases, in the same turns.
    fn chase(&mut self) -> f64 {
        let packets = self.steps() * self.batch;
        let mut took = Duration::ZERO;
        for _ in 0..TURNS {
            for chase in &mut self.chases {
                took += chase.run(packets);
            }
        }
        took.as_secs_f64() * 1e9 / (f64::from(packets * TURNS) * self.chases.len() as f64)
    }
}

/// How long a port takes to open, and how much memory beside that of its frames.
fn start(interface: &str) -> Result<String> {
    let before = resident()?;
    let started = Instant::now();
    let config = PortConfig::new(interface).rules(Rules::udp_port(4242)).queues([63]);
    let port = config.umem_config(UmemConfig::new(8192)).open()?;
    let took = started.elapsed();
    let memory = resident()?.saturating_sub(before);
    let frames = u64::from(port.umem().chunks()) * u64::from(port.umem().chunk_size().bytes());
    Ok(format!(
        "a port of one queue opens in {} ms; beside {} MiB of frames it takes {} KiB",
        took.as_millis(),
        frames >> 20,
        memory.saturating_sub(frames) >> 10,
    ))
}

/// Bytes of memory that this process has.
fn resident() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024)
}
