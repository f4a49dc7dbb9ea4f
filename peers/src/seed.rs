//! `seed`: the experiments that this project grew out of, in user space: indices apart from each other, and
//! descriptors in batches.

use std::{
    cell::UnsafeCell,
    sync::{
        Barrier,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use clap::Args;
use xskit_report::{Comparison, Metric, Options, Report, cpus, measure, pin, prefer};

use crate::{
    pair::pair,
    peer::Place,
    subject::{Cycle, Who, open},
    veth,
};

/// Slots of a ring, and frames.
const RING: u32 = 1024;
/// Entries that go through a ring in one measurement.
const ENTRIES: u32 = 1 << 18;

/// What padding between indices brings, and what batches bring
#[derive(Args)]
pub struct Seed {
    #[command(flatten)]
    options: Options,
    /// Leave out sockets that share a queue in zero-copy mode, which a virtual machine shows
    #[arg(long)]
    no_vm: bool,
}

impl Seed {
    pub fn run(self) -> Result<()> {
        let mut report = Report::new("seed");
        report.add(self.indices()?);
        let lab = pair(6)?;
        let (name, index) = (lab.near.name().to_owned(), lab.near.index());
        for comparison in lab.enter(|| self.rings(&name, index))? {
            report.add(comparison);
        }
        for cycle in [Cycle::Forward, Cycle::Transmit] {
            report.add(self.veth(cycle)?);
        }
        let increases: Vec<String> = report.comparisons().iter().map(increase).collect();
        report.note(increases.join("\n"));
        if !self.no_vm {
            report.note(
                "Sockets that share a UMEM and a queue fall back to one descriptor at a time in zero-copy mode only, \
                 which no veth has: `shared_queue`, in a virtual machine.",
            );
        }
        Ok(report.print(&self.options)?)
    }

    /// A thread on each of two CPUs, and a ring between them.
    fn indices(&self) -> Result<Comparison> {
        let (packed, padded) = (Ring::<Packed>::new(), Ring::<Padded>::new());
        let entries = if self.options.quick { ENTRIES / 16 } else { ENTRIES };
        let plan = self
            .options
            .plan(15)
            .tolerating(0.05)
            .without_repeats()
            .patient_for(Duration::from_secs(15));
        let rate = |took: Duration| vec![f64::from(entries) / took.as_secs_f64() / 1e6];
        let names = ["packed", "padded"];
        let metrics = [Metric::higher("rate", "M/s")];
        let title = "indices in one cache line, or apart; one entry at a time";
        let comparison = measure(&plan, title, &names, &metrics, |subject| {
            let took = if subject == 0 { pass(&packed, entries) } else { pass(&padded, entries) };
            Ok::<_, anyhow::Error>(rate(took?))
        })?;
        Ok(comparison.against("packed"))
    }

    /// xskit's rings beside a scripted kernel.
    fn rings(&self, interface: &str, index: u32) -> Result<Vec<Comparison>> {
        prefer();
        pin(cpus()[0])?;
        let mut comparisons = Vec::new();
        let mut queue = 0;
        for cycle in [Cycle::Forward, Cycle::Transmit] {
            let mut subjects = Vec::new();
            for batch in [1, 64] {
                let [receives, sends] = cycle.sides();
                let frames = if receives { RING } else { 2 * batch };
                let interface = interface.to_owned();
                let ring = RING;
                let place = Place { interface, index, queue, frames, ring, receives, sends, batch };
                subjects.push((open(Who::XskitRings, cycle, &place)?, batch));
                queue += 1;
            }
            let plan = self.options.plan(21).patient_for(Duration::from_secs(5));
            let title = format!("{}, rings alone", cycle.program());
            let metrics = [Metric::higher("rate", "M/s")];
            let names = ["one at a time", "batches of 64"];
            let comparison = measure(&plan, &title, &names, &metrics, |subject| {
                let (subject, batch) = &mut subjects[subject];
                let (took, _) = subject.run(ENTRIES / 4 / *batch, false)?;
                Ok::<_, anyhow::Error>(vec![f64::from(ENTRIES / 4) / took.as_secs_f64() / 1e6])
            })?;
            comparisons.push(comparison.against("one at a time"));
        }
        Ok(comparisons)
    }

    /// The same through the kernel.
    fn veth(&self, cycle: Cycle) -> Result<Comparison> {
        let mut workers = Vec::new();
        for batch in [1, 64] {
            workers.push(veth::Worker::start(veth::Job::new(veth::Who::Xskit, cycle, batch))?);
        }
        let length = self.options.length(Duration::from_millis(200));
        let plan = self
            .options
            .plan(7)
            .tolerating(0.05)
            .without_repeats()
            .patient_for(Duration::from_secs(10));
        let title = format!("{}, veth", cycle.program());
        let names = ["one at a time", "batches of 64"];
        let metrics = [Metric::higher("rate", "M/s").digits(3)];
        let comparison = measure(&plan, &title, &names, &metrics, |worker| {
            Ok::<_, anyhow::Error>(vec![workers[worker].measure(length)?.rate / 1e6])
        })?;
        Ok(comparison.against("one at a time"))
    }
}

/// In per cent, as the seed printed it.
fn increase(comparison: &Comparison) -> String {
    let [before, after] = [&comparison.subjects()[0], &comparison.subjects()[1]];
    let rate = |subject: &str| comparison.summary(subject, "rate").median;
    let ratio = comparison.ratio(after, &[before], "rate").map_or(1.0, |ratio| ratio.median);
    format!(
        "{}: {before} {:.2} M/s, {after} {:.2} M/s, {:+.0} %",
        comparison.title(),
        rate(before),
        rate(after),
        100.0 * (ratio - 1.0)
    )
}

/// Where the two indices of a ring are.
trait Indices: Default + Sync {
    fn producer(&self) -> &AtomicU32;
    fn consumer(&self) -> &AtomicU32;
}

/// Side by side.
#[derive(Default)]
#[repr(C, align(128))]
struct Packed {
    producer: AtomicU32,
    consumer: AtomicU32,
}

/// As far apart as two lines that are fetched together.
#[derive(Default)]
#[repr(C)]
struct Padded {
    producer: Line,
    consumer: Line,
}

#[derive(Default)]
#[repr(C, align(128))]
struct Line(AtomicU32);

impl Indices for Packed {
    fn producer(&self) -> &AtomicU32 {
        &self.producer
    }

    fn consumer(&self) -> &AtomicU32 {
        &self.consumer
    }
}

impl Indices for Padded {
    fn producer(&self) -> &AtomicU32 {
        &self.producer.0
    }

    fn consumer(&self) -> &AtomicU32 {
        &self.consumer.0
    }
}

/// A ring as the kernel's, over plain memory.
struct Ring<I> {
    indices: I,
    slots: Box<[UnsafeCell<u64>]>,
}

// SAFETY: a slot is handed from the producer to the consumer and back by the indices.
unsafe impl<I: Sync> Sync for Ring<I> {}

impl<I: Indices> Ring<I> {
    fn new() -> Self {
        let slots = (0..RING).map(|_| UnsafeCell::new(0)).collect();
        Self { indices: I::default(), slots }
    }

    fn slot(&self, index: u32) -> *mut u64 {
        self.slots[(index & (RING - 1)) as usize].get()
    }
}

/// Passes entries from one CPU to another, each published by itself; how long that took.
fn pass<I: Indices>(ring: &Ring<I>, entries: u32) -> Result<Duration> {
    let (first, last) = (cpus()[0], cpus()[cpus().len() - 1]);
    let start = ring.indices.producer().load(Ordering::Relaxed);
    // Both are there before the first entry.
    let ready = &Barrier::new(2);
    thread::scope(|scope| {
        let consumer = scope.spawn(move || -> Result<u64> {
            prefer();
            let pinned = pin(last);
            ready.wait();
            pinned?;
            let mut sum = 0_u64;
            for index in (0..entries).map(|entry| start.wrapping_add(entry)) {
                while ring.indices.producer().load(Ordering::Acquire) == index {
                    std::hint::spin_loop();
                }
                // SAFETY: published by the index.
                sum = sum.wrapping_add(unsafe { *ring.slot(index) });
                ring.indices.consumer().store(index.wrapping_add(1), Ordering::Release);
            }
            Ok(sum)
        });
        let producer = scope.spawn(move || -> Result<Duration> {
            prefer();
            let pinned = pin(first);
            ready.wait();
            pinned?;
            let started = Instant::now();
            for index in (0..entries).map(|entry| start.wrapping_add(entry)) {
                let taken = || index.wrapping_sub(ring.indices.consumer().load(Ordering::Acquire));
                while taken() >= RING {
                    std::hint::spin_loop();
                }
                // SAFETY: given back by the index.
                unsafe { *ring.slot(index) = u64::from(index) };
                ring.indices.producer().store(index.wrapping_add(1), Ordering::Release);
            }
            while ring.indices.consumer().load(Ordering::Acquire) != start.wrapping_add(entries) {
                std::hint::spin_loop();
            }
            Ok(started.elapsed())
        });
        let took = producer.join().expect("the producer does not panic")?;
        let sum = consumer.join().expect("the consumer does not panic")?;
        std::hint::black_box(sum);
        Ok(took)
    })
}
