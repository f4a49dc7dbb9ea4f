//! `cargo xtask test`: the suites by name, each built as the caller and run with what it needs.

use std::{
    env,
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
    /// Nothing; models, in which all locks and atomics are loom's, so that no other test runs there.
    Loom,
}

struct Suite {
    name: &'static str,
    /// What follows `cargo test`.
    arguments: &'static [&'static str],
    needs: Needs,
    /// What else to build first, for tests that run it.
    also: &'static [&'static str],
    /// Set for its binaries, unless the caller has set it to something else.
    environment: Option<(&'static str, &'static str)>,
}

impl Suite {
    const fn new(name: &'static str, needs: Needs, arguments: &'static [&'static str]) -> Self {
        Self { name, arguments, needs, also: &[], environment: None }
    }

    /// What cargo is called with to build it.
    fn build(&self) -> Vec<&'static str> {
        if self.needs == Needs::Loom {
            let [flags, loom] = [&["--profile", "test"][..], &["--", "--cfg", "loom"]];
            return [&["rustc"], self.arguments, flags, loom].concat();
        }
        [&["test"], self.arguments, &["--no-run"]].concat()
    }
}

/// All suites, the quick ones first.
const SUITES: &[Suite] = &[
    Suite::new("unit", Needs::Nothing, &["--package", "xskit", "--lib", "--all-features"]),
    Suite::new("doc", Needs::Cargo, &["--package", "xskit", "--doc", "--all-features"]),
    Suite::new("loom", Needs::Loom, &["--package", "xskit", "--lib", "--all-features"]),
    // With all features a byte per frame says where it is.
    Suite::new(
        "fake",
        Needs::Nothing,
        &["--package", "xskit", "--test", "fake*", "--all-features"],
    ),
    // What `pktgen` is made of.
    Suite::new("generator", Needs::Nothing, &["--package", "xskit-traffic"]),
    Suite::new("lab", Needs::Root, &["--package", "xskit-lab"]),
    Suite::new(
        "program",
        Needs::Root,
        &["--package", "xskit", "--test", "program", "--all-features"],
    ),
    Suite::new(
        "cpumap",
        Needs::Root,
        &["--package", "xskit", "--test", "veth_cpumap*", "--all-features"],
    ),
    Suite::new(
        "interface",
        Needs::Root,
        &["--package", "xskit", "--test", "interface", "--all-features"],
    ),
    Suite::new(
        "refusals",
        Needs::Root,
        &["--package", "xskit", "--test", "veth_refusals", "--all-features"],
    ),
    Suite::new(
        "faults",
        Needs::Root,
        &["--package", "xskit", "--test", "veth_faults", "--all-features"],
    ),
    Suite::new(
        "traffic",
        Needs::Root,
        &["--package", "xskit", "--test", "veth_traffic", "--all-features"],
    ),
    Suite::new(
        "async",
        Needs::Root,
        &["--package", "xskit", "--test", "veth_async", "--all-features"],
    ),
    Suite {
        also: &["build", "--package", "xskit", "--example", "broker", "--all-features"],
        ..Suite::new(
            "broker",
            Needs::Root,
            &["--package", "xskit", "--test", "veth_broker", "--all-features"],
        )
    },
    Suite {
        also: &["build", "--package", "xskit", "--example", "restart", "--all-features"],
        ..Suite::new(
            "pinned",
            Needs::Root,
            &["--package", "xskit", "--test", "veth_pinned", "--all-features"],
        )
    },
    Suite::new(
        "datapath",
        Needs::Root,
        &["--package", "xskit", "--test", "veth_datapath", "--all-features"],
    ),
    Suite::new(
        "lifecycle",
        Needs::Root,
        &["--package", "xskit", "--test", "veth_lifecycle", "--all-features"],
    ),
    Suite::new(
        "control",
        Needs::Root,
        &["--package", "xskit", "--test", "veth_control", "--all-features"],
    ),
    Suite::new(
        "conformance",
        Needs::Root,
        &["--package", "xskit", "--test", "conformance", "--all-features"],
    ),
    Suite {
        environment: Some(("XSKIT_SOAK_SECONDS", "60")),
        ..Suite::new(
            "soak",
            Needs::Root,
            &["--package", "xskit", "--test", "veth_soak", "--all-features"],
        )
    },
    Suite {
        also: &["build", "--package", "xskit", "--examples", "--all-features"],
        ..Suite::new(
            "examples",
            Needs::Root,
            &["--package", "xskit", "--test", "examples", "--all-features"],
        )
    },
    // On interfaces that are lent; without them it says that it skips.
    Suite {
        also: &["build", "--package", "xskit", "--example", "l2fwd", "--all-features"],
        ..Suite::new(
            "zero_copy",
            Needs::Root,
            &["--package", "xskit", "--test", "zero_copy", "--all-features"],
        )
    },
    Suite::new("xtask", Needs::Nothing, &["--package", "xtask", "--package", "xskit-report"]),
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
        if suite.needs == Needs::Cargo {
            let arguments = [&["test"], suite.arguments].concat();
            return self.watch(cargo::cargo(arguments).arg("--").args(options));
        }
        if !suite.also.is_empty() {
            cargo::run(&mut cargo::cargo(suite.also))?;
        }
        let binaries = cargo::build(&suite.build())?;
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
                Needs::Nothing | Needs::Cargo | Needs::Loom => Command::new(&binary.path),
            };
            if suite.needs == Needs::Loom {
                command.args(["--skip", "tests::"]);
            }
            // What `cargo test` gives to a test.
            command.current_dir(&binary.package).env("CARGO_MANIFEST_DIR", &binary.package);
            if let Some((name, value)) = suite.environment {
                command.env(name, env::var_os(name).unwrap_or_else(|| value.into()));
            }
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
            error.contains("`vet`") && error.contains("traffic") && error.contains("unit"),
            "{error}"
        );
        assert_eq!(chosen(&[]).unwrap().len(), SUITES.len());
        assert_eq!(chosen(&["soak".to_owned()]).unwrap()[0].name, "soak");
    }

    #[test]
    fn every_test_file_is_in_one_suite() {
        for file in cargo::workspace().join("tests").read_dir().unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let name = path.file_stem().unwrap().to_str().unwrap();
            let matches = |pattern: &&&str| match pattern.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == **pattern,
            };
            let suites = SUITES.iter().flat_map(|suite| suite.arguments).filter(matches).count();
            assert_eq!(suites, 1, "{name}");
        }
    }

    #[test]
    fn the_harness_result_line_is_read() {
        let line =
            "test result: FAILED. 10 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out";
        assert_eq!(result_of(line), Some((10, 2, 1)));
        assert_eq!(result_of("test x ... ok"), None);
    }
}
