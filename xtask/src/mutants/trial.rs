//! Builds a test binary in the copy, and runs one test of it, or one case in a virtual machine.

use std::{
    env,
    io::Read,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use super::{faults::Target, tree::Tree};
use crate::cargo;

/// What runs a test.
pub(super) enum Trial {
    /// A test binary, and the folder of its package.
    Binary(PathBuf, PathBuf),
    /// `cargo xtask vm`, for the tests of this tree: what it calls a case is the test.
    Guest(PathBuf),
}

/// What a command says that may leave out what it cannot do.
const SKIPPED: &str = "SKIPPED: vm";

/// How a test ended.
struct Ended {
    success: bool,
    said: String,
}

impl Trial {
    pub(super) fn build(tree: &Tree, target: Target) -> Result<Self> {
        if target == Target::Vm {
            return Ok(Self::Guest(tree.root().to_owned()));
        }
        let mut built = cargo::build_in(tree.root(), &target.build(), &[])
            .with_context(|| format!("{target} cannot be built"))?;
        ensure!(built.len() == 1, "one test binary was expected, not {built:?}");
        let binary = built.remove(0);
        Ok(Self::Binary(binary.path, binary.package))
    }

    /// The test passes. That a guest's does, `cargo xtask vm` shows by itself, in minutes.
    pub(super) fn expect_pass(&self, test: &str) -> Result<()> {
        if matches!(self, Self::Guest(_)) {
            return Ok(());
        }
        let ended = self.run(test)?;
        ensure!(
            ended.success && ended.said.contains("test result: ok. 1 passed"),
            "{test} fails without a fault, or is not there:\n{}",
            ended.said
        );
        Ok(())
    }

    /// The test runs, fails, and says this; `false` where it cannot be run, and may be left out.
    pub(super) fn expect_failure(&self, test: &str, says: &str) -> Result<bool> {
        let ended = self.run(test)?;
        if ended.success && ended.said.contains(SKIPPED) {
            return Ok(false);
        }
        ensure!(ended.said.contains(self.was_run()), "{test} was not run:\n{}", ended.said);
        ensure!(!ended.success, "{test} passes");
        ensure!(
            ended.said.contains(says),
            "{test} fails, but does not say `{says}`:\n{}",
            ended.said
        );
        Ok(true)
    }

    fn was_run(&self) -> &'static str {
        match self {
            Self::Binary(..) => "running 1 test",
            Self::Guest(_) => ": boots, 1 case",
        }
    }

    /// Many times what the slowest of the tests takes.
    fn limit(&self) -> Duration {
        match self {
            Self::Binary(..) => Duration::from_secs(180),
            // It is built, too.
            Self::Guest(_) => Duration::from_secs(900),
        }
    }

    fn command(&self, test: &str) -> Result<Command> {
        Ok(match self {
            Self::Binary(binary, folder) => {
                let mut command = Command::new(binary);
                command.args(["--exact", test, "--test-threads", "1"]).current_dir(folder);
                command.env("CARGO_MANIFEST_DIR", folder);
                command
            }
            Self::Guest(tree) => {
                let mut command = Command::new(env::current_exe()?);
                command.args(["vm", "--kernel", "6.18+", "--case", test, "--tree"]).arg(tree);
                command
            }
        })
    }

    fn run(&self, test: &str) -> Result<Ended> {
        let mut child = self
            .command(test)?
            .env("RUST_BACKTRACE", "0")
            // What proptest finds is not to be kept, since the tree has no such fault, nor made small for long.
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
            .env("PROPTEST_MAX_SHRINK_TIME", "1000")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {test}"))?;
        let stdout = collect(child.stdout.take().context("standard output was asked for")?);
        let stderr = collect(child.stderr.take().context("standard error was asked for")?);
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if started.elapsed() > self.limit() {
                child.kill()?;
                child.wait()?;
                bail!("{test} hangs");
            }
            thread::sleep(Duration::from_millis(20));
        };
        let said = [stdout, stderr].map(|output| output.join().unwrap_or_default()).concat();
        Ok(Ended { success: status.success(), said })
    }
}

fn collect(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut all = Vec::new();
        // What could be read is what can be judged.
        from.read_to_end(&mut all).ok();
        String::from_utf8_lossy(&all).into_owned()
    })
}
