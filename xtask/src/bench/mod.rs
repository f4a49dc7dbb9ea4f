//! `cargo xtask bench`: what is measured, by name, built in release and run with what it needs.

mod program;
mod record;

use std::fs;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{cargo::workspace, vm};
use program::{Package, Program};

/// What the program in `peers/` measures, beside other libraries.
const PEERS: &[(&str, &str)] = &[
    ("ring", "Nanoseconds for each descriptor, beside libxdp and other crates."),
    ("instructions", "User-space instructions for each packet, beside libxdp."),
    ("veth", "Packets a second on veth pairs, beside libxdp, other crates, AF_PACKET and UDP."),
    ("seed", "What padding between indices and what batches bring."),
    ("latency", "Ping-pong over a veth pair, beside UDP."),
    (
        "scale",
        "Cost for each packet over UMEM sizes, queues, batches and ages; what it takes to start.",
    ),
];

/// Measures: `cargo xtask bench --list` shows what
///
/// Whatever follows the name goes to the benchmark itself, such as `--quick`, `--json` and `--help`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Bench {
    /// What to measure
    #[arg(required_unless_present_any = ["list", "help", "record"])]
    name: Option<String>,
    /// Show what there is
    #[arg(long)]
    list: bool,
    /// Write the results into docs/performance.md; without a name those of all that run beside other libraries
    #[arg(long)]
    record: bool,
    /// Print help
    #[arg(short, long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// For the benchmark
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

impl Bench {
    pub(crate) fn run(self) -> Result<()> {
        let Self { name, list, record, arguments, .. } = self;
        let peers = PEERS.iter().map(|(name, about)| (*name, *about, Package::Peers));
        let own = own()?;
        let own = own.iter().map(|(name, about)| (name.as_str(), about.as_str(), Package::Own));
        let all: Vec<_> = peers.chain(own).collect();
        if list {
            for (name, about, _) in all {
                println!("{name:14} {about}");
            }
            return Ok(());
        }
        let Some(name) = name else {
            let peers: Vec<_> = PEERS.iter().map(|(name, _)| (*name, Package::Peers)).collect();
            return record::record(&peers, &arguments);
        };
        let Some((name, _, package)) = all.iter().find(|(one, _, _)| *one == name) else {
            let names: Vec<_> = all.iter().map(|(name, _, _)| *name).collect();
            bail!("no benchmark {name}: there are {}", names.join(", "));
        };
        if record {
            return record::record(&[(name, *package)], &arguments);
        }
        Program::build(*package, name)?.run(&arguments)?;
        if let Some(output) = in_a_guest(name, &arguments)? {
            print!("{output}");
        }
        Ok(())
    }
}

/// What a benchmark prints.
fn run(program: &Program, name: &str, arguments: &[String]) -> Result<String> {
    let output = program.output(arguments)?;
    Ok(match in_a_guest(name, arguments)? {
        Some(more) => format!("{output}\n{more}"),
        None => output,
    })
}

/// The part of a benchmark that takes a virtual machine, if it has one.
fn in_a_guest(name: &str, arguments: &[String]) -> Result<Option<String>> {
    let without = ["--no-vm", "--help", "-h"];
    if name != "seed" || arguments.iter().any(|argument| without.contains(&argument.as_str())) {
        return Ok(None);
    }
    vm::bench(arguments)
}

/// What `benches/` has, in order, and the first line of each.
fn own() -> Result<Vec<(String, String)>> {
    let folder = workspace().join("benches");
    let mut own = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let main = if path.is_dir() { path.join("main.rs") } else { path.clone() };
        if main.extension().is_some_and(|end| end == "rs") && main.is_file() {
            let text = fs::read_to_string(&main)?;
            let about = text.lines().next().unwrap_or_default().trim_start_matches("//!").trim();
            own.push((name.to_owned(), about.to_owned()));
        }
    }
    own.sort();
    Ok(own)
}
