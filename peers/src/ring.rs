//! `ring`: nanoseconds for each descriptor, on the rings of sockets whose kernel's side is a script.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use xskit_lab::RawPort;
use xskit_report::{Comparison, Metric, Options, Report, Target, cpus, measure, pin, prefer};

use crate::{
    pair::pair,
    peer::Place,
    subject::{Cycle, Subject, Who, open},
};

/// Slots of each ring, and frames of those who receive.
const RING: u32 = 1024;
/// Packets of a turn where script and peer take turns on two CPUs.
const TURN: u32 = RING / 2;

/// A system call.
type Call<'a> = dyn FnMut() -> Result<()> + Send + 'a;

/// Nanoseconds for each descriptor
#[derive(Args)]
pub struct Ring {
    #[command(flatten)]
    options: Options,
    /// Batches, in packets: powers of two up to 256
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64, 256], value_parser = batch)]
    batches: Vec<u32>,
}

/// Any other does not go into a ring without a rest.
fn batch(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(batch) if batch.is_power_of_two() && batch <= 256 => Ok(batch),
        _ => Err("a power of two up to 256".to_owned()),
    }
}

/// What a comparison is about.
#[derive(Clone, Copy)]
struct Point {
    cycle: Cycle,
    batch: u32,
    way: Way,
}

/// How peer and script take turns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// On one CPU, one after the other.
    Alone,
    /// The script on this other CPU.
    Across(usize),
    /// On one CPU, with a system call before each step of the peer.
    Cold,
}

impl Ring {
    pub fn run(self) -> Result<()> {
        let queues = Who::ALL.len() * Cycle::ALL.len() * (2 * self.batches.len() + 1);
        let lab = pair(u32::try_from(queues)?)?;
        let (name, index) = (lab.near.name().to_owned(), lab.near.index());
        let (port, frame) = (RawPort::open(&lab.near)?, lab.flow(4242).reflected().frame(&[0; 22]));
        let mut send = || Ok(port.send(&frame)?);
        let report = lab.enter(|| self.measure(&name, index, &mut send))?;
        Ok(report.print(&self.options)?)
    }

    fn measure(&self, interface: &str, index: u32, call: &mut Call<'_>) -> Result<Report> {
        let cpus = cpus();
        prefer();
        pin(cpus[0])?;
        let mut report = Report::new("ring").compiler(env!("PEERS_CC"));
        report.note(
            "ns for each descriptor that goes round; net of what the scripted kernel takes, which is \
             measured in the same rounds. The script writes a whole batch before the peer starts.",
        );
        let other = cpus[1..].last().copied();
        if other.is_some() {
            report.note(format!(
                "On two CPUs the script writes {TURN} descriptors and then waits for the peer, whose time alone \
                 counts (the median of its turns); net of what a peer that only moves the indices takes.",
            ));
        } else {
            report.note("SKIPPED: the script on another CPU: there is one only.");
        }
        report.note(
            "After a system call (AF_PACKET sends a packet to the veth pair) only the step of the peer counts: the \
             median of them, net of one that only moves the indices.",
        );
        let ways = [Some(Way::Alone), other.map(Way::Across), Some(Way::Cold)];
        let mut queue = 0;
        for way in ways.into_iter().flatten() {
            // Calls for each packet are what a system call for each packet is about.
            let batches = if way == Way::Cold { &[1][..] } else { &self.batches };
            for cycle in Cycle::ALL {
                for &batch in batches {
                    let point = Point { cycle, batch, way };
                    let mut subjects = Vec::new();
                    for who in Who::ALL {
                        let place = point.place(interface.to_owned(), index, queue);
                        subjects.push(open(who, cycle, &place)?);
                        queue += 1;
                    }
                    report.add(self.compare(&mut subjects, point, call)?);
                }
            }
        }
        Ok(report)
    }

    fn compare(
        &self,
        subjects: &mut [Box<dyn Subject>],
        point: Point,
        call: &mut Call<'_>,
    ) -> Result<Comparison> {
        let Point { batch, way, .. } = point;
        // Every frame goes round as often as any other, so that all sums come out the same.
        let round = 2 * RING / batch;
        if way == Way::Alone {
            check(subjects, 2 * round)?;
        }
        let rounds = match (way, batch, self.options.quick) {
            (_, _, true) => 2,
            (Way::Cold, ..) => 4,
            (_, 1, _) => 16,
            _ => 64,
        };
        let packets = rounds * 2 * RING;
        let plan = match way {
            Way::Alone => self.options.plan(41).patient_for(Duration::from_secs(6)),
            // Whatever else ran disturbed a turn or two, whose times do not count.
            Way::Across(_) | Way::Cold => self.options.plan(21).tolerating(f64::INFINITY),
        };
        let comparison = measure(
            &plan,
            &format!("{}, batches of {batch}", point.table()),
            &Who::ALL.map(Who::name),
            &[Metric::lower("gross", "ns").beside()],
            |number| {
                let subject = &mut subjects[number];
                let (took, sum) = match way {
                    Way::Alone => subject.run(rounds * round, false)?,
                    Way::Across(cpu) => subject.run_across(cpu, TURN, packets / TURN)?,
                    Way::Cold => subject.run_cold(rounds * round, call)?,
                };
                let who = Who::ALL[number];
                let (seen, expected) = (sum.count, u64::from(packets));
                ensure!(who == Who::Script || seen == expected, "{}: {seen} packets", who.name());
                Ok(vec![took.as_secs_f64() * 1e9 / f64::from(packets)])
            },
        )?;
        let net = Metric::lower("net", "ns");
        let comparison = comparison
            .net(net, "gross", Who::Script.name())
            .in_table(&point.table(), batch.to_string());
        let comparison = comparison.against(Who::LibXdp.name());
        Ok(if way == Way::Alone { targets(comparison, batch) } else { comparison })
    }
}

impl Point {
    fn place(self, interface: String, index: u32, queue: u32) -> Place {
        let [receives, sends] = self.cycle.sides();
        let batch = self.batch;
        // Those who only send have what two batches need, or two turns.
        let turns = matches!(self.way, Way::Across(_));
        let frames = if receives || turns { RING } else { 2 * batch };
        Place { interface, index, queue, frames, ring: RING, receives, sends, batch }
    }

    fn table(self) -> String {
        let way = match self.way {
            Way::Alone => "",
            Way::Across(_) => ", on two CPUs",
            Way::Cold => ", after a system call",
        };
        format!("{}{way}", self.cycle.name())
    }
}

/// Whether all see the same, and what the script did.
fn check(subjects: &mut [Box<dyn Subject>], steps: u32) -> Result<()> {
    let mut sums = Vec::new();
    for (subject, who) in subjects.iter_mut().zip(Who::ALL) {
        if who != Who::Script {
            sums.push((who, subject.run(steps, true)?.1));
        }
    }
    for (who, sum) in &sums {
        ensure!(*sum == sums[0].1, "{}: {sum:?}, not {:?}", who.name(), sums[0].1);
    }
    Ok(())
}

fn targets(comparison: Comparison, batch: u32) -> Comparison {
    let descriptors = match batch {
        1..16 => 1.0,
        16..64 => 0.75,
        _ => 0.6,
    };
    let [c, books] = [Who::LibXdp.name(), Who::LibXdpBooks.name()];
    let others = [Who::XskRs, Who::Xdpilone, Who::Xdp].map(Who::name);
    let safe = Who::XskitSafe.name();
    let comparison =
        comparison.target(Target::new(Who::XskitRings.name(), [c], "net", descriptors));
    if batch < 16 {
        return comparison;
    }
    comparison
        .target(Target::new(safe, [books], "net", 1.0))
        .target(Target::new(safe, others, "net", 0.5))
}
