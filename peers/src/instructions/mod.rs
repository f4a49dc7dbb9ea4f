//! `instructions`: user-space instructions for each packet, counted by callgrind.

mod callgrind;
mod disassembly;
mod table;

use anyhow::{Result, ensure};
use clap::Args;
use xskit_report::{Comparison, Metric, Options, Report, Target};

use crate::{
    pair::pair,
    peer::Place,
    subject::{Cycle, Who, open},
};
use table::Table;

/// Packets in each step: what a batch costs, what a packet does, and what targets are for.
const BATCHES: [u32; 3] = [1, 16, GATED];
const GATED: u32 = 64;
/// Slots of each ring, and frames of those who receive.
const RING: u32 = 1024;
/// Steps that are counted: every ring is gone round several times.
const STEPS: u32 = 256;

/// What is counted: libxdp keeps the books that a program needs.
const COUNTED: [Who; 4] = [Who::LibXdp, Who::LibXdpBooks, Who::XskitRings, Who::XskitSafe];

/// Instructions for each packet
#[derive(Args)]
pub struct Instructions {
    #[command(flatten)]
    options: Options,
    /// Fail where a count is more than 2 % above the committed one of this compiler
    #[arg(long)]
    check: bool,
    /// Write the counts of this compiler into the committed table
    #[arg(long, conflicts_with = "check")]
    write: bool,
}

/// What runs under callgrind.
#[derive(Args)]
pub struct Count {
    who: Who,
    cycle: Cycle,
    /// Packets in each step
    batch: u32,
}

impl Instructions {
    pub fn run(self) -> Result<()> {
        let mut report = Report::new("instructions").compiler(env!("PEERS_CC"));
        report.note(format!(
            "user-space instructions for each packet. A wide copy counts as one: read it beside the times \
             of `ring`. Targets are for batches of {GATED}.",
        ));
        for found in disassembly::check()? {
            report.note(found);
        }
        let mut counts = Vec::new();
        for batch in BATCHES {
            for cycle in Cycle::ALL {
                let mut values = Vec::new();
                for who in COUNTED {
                    let count = callgrind::count(who, cycle, batch, STEPS * batch)?;
                    counts.push((table::key(who, cycle, batch), count));
                    values.push(vec![count]);
                }
                report.add(compare(cycle, batch, values));
            }
        }
        report.print(&self.options)?;
        let mut table = Table::read()?;
        if self.write {
            table.set(&counts);
            table.write()?;
        }
        if self.check {
            table.check(&counts)?;
        }
        Ok(())
    }
}

fn compare(cycle: Cycle, batch: u32, values: Vec<Vec<f64>>) -> Comparison {
    let metrics = [Metric::lower("instructions", "per packet")];
    let [c, books] = [Who::LibXdp.name(), Who::LibXdpBooks.name()];
    let table = format!("batches of {batch}");
    let title = format!("{}, {table}", cycle.program());
    let comparison = Comparison::counted(&title, &COUNTED.map(Who::name), &metrics, values)
        .against(c)
        .in_table(&table, cycle.program());
    if batch != GATED {
        return comparison;
    }
    comparison
        .target(Target::new(Who::XskitSafe.name(), [books], "instructions", 0.9))
        .target(Target::new(Who::XskitRings.name(), [c], "instructions", 0.6))
}

impl Count {
    /// Goes round without being watched, and then as often as is counted.
    pub fn run(self) -> Result<()> {
        let Self { who, cycle, batch } = self;
        let lab = pair(1)?;
        let (interface, index) = (lab.near.name().to_owned(), lab.near.index());
        let [receives, sends] = cycle.sides();
        let frames = if receives { RING } else { 2 * batch };
        let (queue, ring) = (0, RING);
        let place = Place { interface, index, queue, frames, ring, receives, sends, batch };
        let sum = lab.enter(|| open(who, cycle, &place)?.run(STEPS, false))?.1;
        ensure!(sum.count == u64::from(STEPS * batch), "{} packets", sum.count);
        Ok(())
    }
}
