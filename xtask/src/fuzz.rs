//! `cargo xtask fuzz`: programs for sockets and batches, guided by coverage.
//!
//! The target is built as cargo-fuzz would build it, but by the toolchain at hand: LLVM's coverage passes
//! need no nightly, AddressSanitizer needs to be let. `cargo fuzz run sockets` works as well.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::{
    cargo::{self, run, target, workspace},
    sanitizer,
};

/// The target's name, in `fuzz/fuzz_targets`.
const TARGET: &str = "sockets";

/// Bytes of a setup and 600 operations.
const LONGEST: usize = 601 * xskit_model::RECORD;

/// Coverage that libFuzzer is guided by, and addresses checked.
const FLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
    sanitizer::ADDRESS,
    "--cfg=fuzzing",
];

/// Looks for a program that xskit and the oracle disagree about.
#[derive(Args)]
pub(crate) struct Fuzz {
    /// How long, in seconds, once it is built.
    #[arg(long, default_value_t = 120)]
    seconds: u32,
    /// Prints the program in this file and runs it once: what a crash says.
    #[arg(long, value_name = "FILE", conflicts_with = "seconds")]
    replay: Option<PathBuf>,
    /// Replaces the committed corpus by the least that covers as much as all that was found so far.
    #[arg(long, conflicts_with_all = ["seconds", "replay"])]
    merge: bool,
}

impl Fuzz {
    pub(crate) fn run(self) -> Result<()> {
        let binary = build()?;
        let (seeds, found, crashes) = folders()?;
        if let Some(file) = self.replay {
            return replay(&binary, &file);
        }
        if self.merge {
            return merge(&binary, &seeds, &found);
        }
        let before = list(&crashes)?;
        let outcome = run(Command::new(&binary)
            .arg(format!("-max_total_time={}", self.seconds))
            .arg(format!("-max_len={LONGEST}"))
            .arg(format!("-artifact_prefix={}/", crashes.display()))
            // One program takes milliseconds; what hangs is a fault as well.
            .args(["-timeout=30", "-rss_limit_mb=2048", "-print_final_stats=1", "-len_control=0"])
            .args([&found, &seeds]));
        let new: Vec<_> =
            list(&crashes)?.into_iter().filter(|crash| !before.contains(crash)).collect();
        if let Some(crash) = new.first() {
            bail!(
                "a program fails: {}\nprint it and run it again: cargo xtask fuzz --replay {}",
                crash.display(),
                crash.display()
            );
        }
        outcome
    }
}

/// Builds the target; where it is.
fn build() -> Result<PathBuf> {
    let manifest = workspace().join("fuzz").join("Cargo.toml");
    let mut command = cargo::cargo(["build", "--release", "--locked", "--manifest-path"]);
    command.arg(manifest).args(["--bin", TARGET]);
    sanitizer::apply(&mut command, FLAGS, "fuzz")?;
    run(&mut command)?;
    Ok(target()?.join("fuzz").join(sanitizer::host()?).join("release").join(TARGET))
}

/// The committed corpus, what was found since, and where crashes go.
fn folders() -> Result<(PathBuf, PathBuf, PathBuf)> {
    let seeds = workspace().join("fuzz").join("corpus").join(TARGET);
    let found = target()?.join("fuzz").join("corpus").join(TARGET);
    let crashes = workspace().join("fuzz").join("artifacts").join(TARGET);
    for folder in [&seeds, &found, &crashes] {
        fs::create_dir_all(folder).with_context(|| format!("no {}", folder.display()))?;
    }
    Ok((seeds, found, crashes))
}

fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = folder
        .read_dir()?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    files.sort();
    Ok(files)
}

fn replay(binary: &Path, file: &Path) -> Result<()> {
    let bytes = fs::read(file).with_context(|| format!("no {}", file.display()))?;
    println!("{:#?}", xskit_model::Program::of(&bytes));
    run(Command::new(binary).arg(file).env("RUST_BACKTRACE", "1"))
        .with_context(|| format!("the program in {} fails", file.display()))?;
    println!("it runs without a fault");
    Ok(())
}

fn merge(binary: &Path, seeds: &Path, found: &Path) -> Result<()> {
    let least = found.with_file_name("least");
    if least.exists() {
        fs::remove_dir_all(&least)?;
    }
    fs::create_dir_all(&least)?;
    run(Command::new(binary)
        .args(["-merge=1", &format!("-max_len={LONGEST}")])
        .args([&least, seeds, found]))?;
    ensure!(!list(&least)?.is_empty(), "nothing was found yet: run it first");
    for seed in list(seeds)? {
        fs::remove_file(seed)?;
    }
    for program in list(&least)? {
        fs::copy(&program, seeds.join(program.file_name().context("a file")?))?;
    }
    println!("{} programs in {}", list(seeds)?.len(), seeds.display());
    Ok(())
}
