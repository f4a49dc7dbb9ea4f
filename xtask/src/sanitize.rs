//! `cargo xtask sanitize`: the tests under AddressSanitizer, and those on the fake kernel under valgrind's
//! memcheck, which sees what is read before it was written, too.

use std::{env, process::Command};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{
    cargo::{self, run, workspace},
    sanitizer,
};

/// Suites for AddressSanitizer: everything with `unsafe` in it is under them.
const SUITES: &[&str] = &["unit", "fake", "traffic", "lifecycle", "datapath"];

/// Tests for memcheck, which takes its time: none that measures it. Packets of several frames and unaligned
/// chunks are among the random programs.
const TESTS: &[&str] =
    &["fake_attack", "fake_kernel", "fake_loop", "fake_model", "fake_tx_metadata"];

/// Runs the tests with every access to memory checked.
#[derive(Args)]
pub(crate) struct Sanitize {
    /// Only one of the two.
    #[arg(long, value_enum)]
    only: Option<Tool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Tool {
    /// AddressSanitizer.
    Asan,
    /// Valgrind's memcheck.
    Memcheck,
}

impl Sanitize {
    pub(crate) fn run(self) -> Result<()> {
        let wanted = |tool| self.only.is_none_or(|only| only == tool);
        if wanted(Tool::Asan) {
            asan()?;
        }
        if wanted(Tool::Memcheck) {
            memcheck()?;
        }
        Ok(())
    }
}

/// Our own command for tests, with another build of them.
fn asan() -> Result<()> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("test").args(SUITES).current_dir(workspace());
    sanitizer::apply(&mut command, &[sanitizer::ADDRESS], "asan")?;
    // Leaks are looked for too, as by default. Fewer ports than a thousand in a row: each takes three times as
    // long as without.
    run(command
        .env("ASAN_OPTIONS", "detect_stack_use_after_return=1")
        .env("PROPTEST_CASES", "64")
        .env("XSKIT_LIFECYCLE_PORTS", "200"))
}

fn memcheck() -> Result<()> {
    ensure!(
        Command::new("valgrind")
            .arg("--version")
            .output()
            .is_ok_and(|output| output.status.success()),
        "there is no valgrind: Debian has it in the package of that name"
    );
    let mut build = vec!["test", "--package", "xskit", "--all-features", "--no-run"];
    build.extend(TESTS.iter().flat_map(|test| ["--test", *test]));
    for binary in cargo::build(&build)? {
        println!("\n== {} under memcheck ==", binary.name);
        run(Command::new("valgrind")
            .args(["--quiet", "--error-exitcode=1", "--leak-check=full"])
            .args(["--errors-for-leak-kinds=definite", "--show-leak-kinds=definite"])
            // It runs one thread at a time, and without this one that spins may have all turns.
            .arg("--fair-sched=yes")
            .arg(&binary.path)
            .arg("--test-threads=1")
            // It measures how soon a thread wakes up.
            .args(["--skip", "two_halves_wait_at_once"])
            .current_dir(&binary.package)
            .env("PROPTEST_CASES", "32"))
        .with_context(|| format!("memcheck on {}", binary.name))?;
    }
    Ok(())
}
