//! `cargo xtask mutants`: deliberate faults, each of which a test has to catch.
//!
//! A test that finds nothing proves something only if it would have found something. Each fault of
//! [`faults`] is put into a copy of the tree, the test that has to catch it is built and run there, and has
//! to fail, and to say what it says for this reason. Without the fault the same test has to pass.

mod faults;
mod tree;
mod trial;

use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};

use self::{
    faults::{FAULTS, Fault, Target},
    tree::Tree,
    trial::Trial,
};

/// Shows that each deliberate fault is caught by the test that is there for it.
#[derive(Args)]
pub(crate) struct Mutants {
    /// Only faults whose name contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Only print the faults, and the tests that catch them.
    #[arg(long)]
    list: bool,
}

/// What became of a fault.
struct Outcome {
    fault: &'static Fault,
    /// Whether it could be tried, and how it went.
    result: Result<bool>,
    seconds: f64,
}

impl Mutants {
    pub(crate) fn run(self) -> Result<()> {
        let wanted = |fault: &&Fault| {
            self.filter.as_ref().is_none_or(|filter| fault.name.contains(filter.as_str()))
        };
        let faults: Vec<&'static Fault> = FAULTS.iter().filter(wanted).collect();
        if faults.is_empty() {
            bail!("no fault is called so: `cargo xtask mutants --list`");
        }
        if self.list {
            for fault in faults {
                println!("{}: {} ({})", fault.name, fault.test, fault.target);
            }
            return Ok(());
        }
        let tree = Tree::copy()?;
        // All of them first: one that no longer fits is seen at once.
        for fault in &faults {
            tree.check(fault)?;
        }
        let mut outcomes = Vec::new();
        for target in Target::ALL {
            let faults = faults.iter().copied().filter(|fault| fault.target == *target);
            try_target(&tree, *target, &faults.collect::<Vec<_>>(), &mut outcomes)?;
        }
        println!("\n{}", table(&outcomes));
        let missed = outcomes.iter().filter(|outcome| outcome.result.is_err()).count();
        if missed > 0 {
            bail!("{missed} of {} faults were not caught", outcomes.len());
        }
        Ok(())
    }
}

/// Tries the faults that tests of one target catch.
fn try_target(
    tree: &Tree,
    target: Target,
    faults: &[&'static Fault],
    outcomes: &mut Vec<Outcome>,
) -> Result<()> {
    if faults.is_empty() {
        return Ok(());
    }
    println!("{target}, without a fault");
    let trial = Trial::build(tree, target)?;
    let mut tests: Vec<_> = faults.iter().map(|fault| fault.test).collect();
    tests.sort_unstable();
    tests.dedup();
    for test in tests {
        trial.expect_pass(test)?;
    }
    for fault in faults {
        println!("{target}, {}", fault.name);
        let started = Instant::now();
        let applied = tree.apply(fault)?;
        let result = Trial::build(tree, target)
            .and_then(|trial| trial.expect_failure(fault.test, fault.says));
        applied.undo()?;
        if let Err(error) = &result {
            println!("{}: {error:#}", fault.name);
        }
        let seconds = started.elapsed().as_secs_f64();
        outcomes.push(Outcome { fault, result, seconds });
    }
    Ok(())
}

fn table(outcomes: &[Outcome]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header(["fault", "test", "", "seconds"]);
    for Outcome { fault, result, seconds } in outcomes {
        table.add_row([
            fault.name.to_owned(),
            fault.test.to_owned(),
            match result {
                Ok(true) => "caught",
                Ok(false) => "not tried",
                Err(_) => "MISSED",
            }
            .to_owned(),
            format!("{seconds:.1}"),
        ]);
    }
    if let Some(column) = table.column_mut(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
