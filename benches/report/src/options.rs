//! What every benchmark's command line has, and what follows from it.

use std::time::Duration;

use clap::Args;

/// The common part of a benchmark's command line; `#[command(flatten)]` it.
#[derive(Args, Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub struct Options {
    /// Few short rounds: shows that everything runs, not how fast
    #[arg(long)]
    pub quick: bool,
    /// Undisturbed rounds to take the medians of
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// One JSON object instead of tables
    #[arg(long)]
    pub json: bool,
    /// Markdown tables, as docs/performance.md has them
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
    /// What `cargo bench` gives to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

/// How many rounds to measure.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Undisturbed rounds that are wanted.
    pub rounds: usize,
    /// Rounds that are made at most, to get these.
    pub attempts: usize,
    /// How often a disturbed measurement is repeated at once.
    pub repeats: usize,
    /// After this nothing is repeated, and no new round is begun once there are as many as are wanted, disturbed
    /// or not.
    pub patience: Duration,
    /// The part of a measurement's time that other work may take, before it counts as disturbed.
    pub tolerance: f64,
}

impl Options {
    /// As with `--quick` on the command line.
    pub fn quick() -> Self {
        Self { quick: true, ..Self::default() }
    }

    /// `rounds` rounds, or as many as the command line says; one with `--quick`.
    pub fn plan(&self, rounds: usize) -> Plan {
        let rounds = match (self.rounds, self.quick) {
            (Some(rounds), _) => rounds as usize,
            (None, true) => 1,
            (None, false) => rounds,
        };
        let attempts = if self.quick { rounds } else { 3 * rounds };
        Plan { rounds, attempts, repeats: 3, patience: Duration::from_secs(60), tolerance: 0.02 }
    }

    /// `usual`, or a tenth of it with `--quick`: for the length of one measurement.
    pub fn length(&self, usual: Duration) -> Duration {
        if self.quick { usual / 10 } else { usual }
    }
}

impl Plan {
    /// The same, with other work allowed to take that part of a measurement's time.
    #[must_use]
    pub fn tolerating(self, tolerance: f64) -> Self {
        Self { tolerance, ..self }
    }

    /// The same, without repeating a disturbed measurement at once: where one takes long.
    #[must_use]
    pub fn without_repeats(self) -> Self {
        Self { repeats: 0, ..self }
    }

    /// The same, giving up on undisturbed rounds after that time.
    #[must_use]
    pub fn patient_for(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }
}
