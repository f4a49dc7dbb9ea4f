//! `cargo xtask test`: the suites by name, each built as the caller and run with what it needs.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};

use crate::cargo::{self, Elevation};

/// What the binaries of a suite need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// Any user can run it.
    Nothing,
    /// Root, through sudo where the caller is not.
    Root,
    /// Doc tests: built and run by cargo in one go.
    Cargo,
}

struct Suite {
    name: &'static str,
    /// What follows `cargo test`.
    arguments: &'static [&'static str],
    needs: Needs,
}

/// All suites, the quick ones first.
const SUITES: &[Suite] = &[
    Suite {
        name: "unit",
        arguments: &["--package", "xskit", "--lib", "--all-features"],
        needs: Needs::Nothing,
    },
    Suite {
        name: "doc",
        arguments: &["--package", "xskit", "--doc", "--all-features"],
        needs: Needs::Cargo,
    },
    Suite {
        name: "fake",
        arguments: &["--package", "xskit", "--test", "fake*", "--all-features"],
        needs: Needs::Nothing,
    },
    Suite { name: "lab", arguments: &["--package", "xskit-lab"], needs: Needs::Root },
    Suite {
        name: "veth",
        arguments: &["--package", "xskit", "--test", "veth*", "--all-features"],
        needs: Needs::Root,
    },
    Suite { name: "xtask", arguments: &["--package", "xtask"], needs: Needs::Nothing },
];

/// Runs the tests: all suites, or those that are named.
#[derive(Args)]
pub(crate) struct Test {
    /// Suites to run (`--list` shows them); none means all.
    suites: Vec<String>,
    /// Only print the suites' names.
    #[arg(long)]
    list: bool,
    /// Only tests whose name contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
}

impl Test {
    pub(crate) fn run(self) -> Result<()> {
        if self.list {
            for suite in SUITES {
                println!("{}", suite.name);
            }
            return Ok(());
        }
        let suites = chosen(&self.suites)?;
        let options: Vec<&str> = self.filter.iter().map(String::as_str).collect();
        let outcomes: Vec<_> =
            suites.iter().map(|suite| (suite.name, Outcome::of(suite, &options))).collect();
        println!("\n{}", table(&outcomes));
        let failed: Vec<_> = outcomes
            .iter()
            .filter(|(_, outcome)| outcome.failure.is_some())
            .map(|(name, _)| *name)
            .collect();
        if !failed.is_empty() {
            bail!("failed: {}", failed.join(", "));
        }
        Ok(())
    }
}

fn chosen(names: &[String]) -> Result<Vec<&'static Suite>> {
    if names.is_empty() {
        return Ok(SUITES.iter().collect());
    }
    names
        .iter()
        .map(|name| {
            SUITES.iter().find(|suite| suite.name == name).with_context(|| {
                let known: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
                format!("no suite is called `{name}`; there are: {}", known.join(", "))
            })
        })
        .collect()
}

/// How a suite went.
#[derive(Debug, Default)]
struct Outcome {
    passed: u64,
    failed: u64,
    ignored: u64,
    skipped: u64,
    took: Duration,
    failure: Option<String>,
}

impl Outcome {
    fn of(suite: &Suite, options: &[&str]) -> Self {
        println!("\n== {} ==", suite.name);
        let started = Instant::now();
        let mut outcome = Self::default();
        if let Err(error) = outcome.run(suite, options) {
            let error = format!("{error:#}");
            eprintln!("{}: {error}", suite.name);
            outcome.failure = Some(error);
        }
        outcome.took = started.elapsed();
        outcome
    }

    fn run(&mut self, suite: &Suite, options: &[&str]) -> Result<()> {
        let arguments = [&["test"], suite.arguments].concat();
        if suite.needs == Needs::Cargo {
            return self.watch(cargo::cargo(arguments).arg("--").args(options));
        }
        let binaries = cargo::build(&[arguments.as_slice(), &["--no-run"]].concat())?;
        let mut failures = Vec::new();
        for binary in binaries {
            let mut command = match suite.needs {
                Needs::Root => match Elevation::find() {
                    Ok(elevation) => elevation.command(&binary.path),
                    Err(why) => {
                        // The tests skip what they may not do, aloud, or fail where they must not.
                        eprintln!("{}: {why}", suite.name);
                        Command::new(&binary.path)
                    }
                },
                Needs::Nothing | Needs::Cargo => Command::new(&binary.path),
            };
            // What `cargo test` gives to a test.
            command.current_dir(&binary.package).env("CARGO_MANIFEST_DIR", &binary.package);
            if self.watch(command.args(options)).is_err() {
                failures.push(binary.name);
            }
        }
        if !failures.is_empty() {
            bail!("{}", failures.join(", "));
        }
        Ok(())
    }

    /// Runs a test binary, shows what it prints, and counts.
    fn watch(&mut self, command: &mut Command) -> Result<()> {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let stderr = child.stderr.take().context("standard error was asked for")?;
        let stdout = child.stdout.take().context("standard output was asked for")?;
        let errors = thread::spawn(move || {
            let mut skipped = 0;
            echo(stderr, io::stderr(), |line| skipped += u64::from(line.starts_with("SKIPPED: ")))
                .map(|()| skipped)
        });
        echo(stdout, io::stdout(), |line| {
            if let Some((passed, failed, ignored)) = result_of(line) {
                self.passed += passed;
                self.failed += failed;
                self.ignored += ignored;
            }
        })?;
        self.skipped += errors.join().map_err(|_| anyhow::anyhow!("the echo panicked"))??;
        let status = child.wait()?;
        if !status.success() {
            bail!("{command:?}: {status}");
        }
        Ok(())
    }
}

/// Copies lines as they come, and shows each to `look`.
fn echo(from: impl Read, mut to: impl Write, mut look: impl FnMut(&str)) -> io::Result<()> {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
        look(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(())
}

/// The numbers in `test result: ok. 5 passed; 0 failed; 1 ignored; …`.
fn result_of(line: &str) -> Option<(u64, u64, u64)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut numbers =
        counts.split("; ").map_while(|count| count.split(' ').next()?.parse::<u64>().ok());
    Some((numbers.next()?, numbers.next()?, numbers.next()?))
}

fn table(outcomes: &[(&str, Outcome)]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header(["suite", "", "passed", "failed", "ignored", "skipped", "seconds"]);
    for (name, outcome) in outcomes {
        table.add_row([
            (*name).to_owned(),
            if outcome.failure.is_none() { "ok" } else { "FAILED" }.to_owned(),
            outcome.passed.to_string(),
            outcome.failed.to_string(),
            outcome.ignored.to_string(),
            outcome.skipped.to_string(),
            format!("{:.1}", outcome.took.as_secs_f64()),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_suite_is_answered_with_the_known_ones() {
        let error = chosen(&["vet".to_owned()]).err().unwrap().to_string();
        assert!(
            error.contains("`vet`") && error.contains("veth") && error.contains("unit"),
            "{error}"
        );
        assert_eq!(chosen(&[]).unwrap().len(), SUITES.len());
        assert_eq!(chosen(&["veth".to_owned()]).unwrap()[0].name, "veth");
    }

    #[test]
    fn the_harness_result_line_is_read() {
        let line =
            "test result: FAILED. 10 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out";
        assert_eq!(result_of(line), Some((10, 2, 1)));
        assert_eq!(result_of("test x ... ok"), None);
    }
}
