//! `cargo xtask demo`: real packets through `l2fwd`, every one of them checked.

mod forwarder;
mod frames;
mod interrupt;
mod progress;
mod report;
mod transfer;

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use xskit_lab::{Chain, Need};

use self::{
    forwarder::Forwarder,
    interrupt::Interrupt,
    progress::Progress,
    report::{Report, Row},
};
use crate::cargo::{self, Elevation};

/// Frame sizes in bytes, Ethernet header included, checksum not.
const SIZES: [usize; 6] = [64, 128, 256, 512, 1024, 1514];

/// Forwards real packets between namespaces of its own, checks every one, and shows the rates.
///
/// Needs root (through sudo where the caller is not). Leaves nothing behind.
#[derive(Args)]
pub(crate) struct Demo {
    /// Where the XDP program runs.
    #[arg(long, value_enum, default_value_t = Mode::Native)]
    mode: Mode,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// A finished forwarder to use, instead of building the example `l2fwd`.
    #[arg(long, value_name = "PATH")]
    l2fwd: Option<PathBuf>,
}

/// Where the XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// In the driver.
    Native,
    /// In the kernel's generic receive path.
    Generic,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

impl Demo {
    pub(crate) fn run(self) -> Result<()> {
        let elevation = Elevation::find()?;
        let l2fwd = match &self.l2fwd {
            Some(path) => path.clone(),
            None => build_l2fwd()?,
        };
        match elevation {
            Elevation::Root => self.show(&l2fwd),
            Elevation::Sudo => self.again_as_root(elevation, &l2fwd),
        }
    }

    /// This binary once more, with privileges, for all but the build.
    fn again_as_root(&self, elevation: Elevation, l2fwd: &Path) -> Result<()> {
        let mut command = elevation.command(&env::current_exe()?);
        command.args(["demo", "--mode", self.mode.name(), "--l2fwd"]).arg(l2fwd);
        if self.json {
            command.arg("--json");
        }
        let status = command.status().context("cannot start sudo")?;
        // The elevated process has said what went wrong.
        std::process::exit(status.code().unwrap_or(1));
    }

    fn show(&self, l2fwd: &Path) -> Result<()> {
        if let Err(why) = xskit_lab::have(Need::Bpf) {
            bail!("the demo cannot run here: {why}");
        }
        let interrupt = Interrupt::catch()?;
        let progress = Progress::new(SIZES.len());
        let chain = Chain::new().context("make the namespaces and veth pairs")?;
        let mut forwarder = Forwarder::start(l2fwd, &chain, self.mode, &interrupt)?;

        let mut rows = Vec::new();
        for (seed, size) in (1..).zip(SIZES) {
            let step = progress.step(&format!("{size}-byte frames"), frames::DURATION_MS);
            let run = frames::run(&chain, size, seed, &mut forwarder, &interrupt, &step)?;
            rows.push(Row::new(size, &run));
        }
        let step = progress.step("100 MB over TCP", transfer::BYTES);
        let tcp = transfer::run(&chain, &mut forwarder, &interrupt, &step).map_err(|error| {
            // What went wrong before is likely the cause.
            let faults: Vec<_> = rows.iter().filter_map(Row::fault).collect();
            error.context([faults.as_slice(), &["TCP".to_owned()]].concat().join("\n"))
        })?;
        drop(step);
        let started = forwarder.started().clone();
        let audit_ok = forwarder.stop()?;
        drop(progress);

        let report = Report::new(&started, rows, tcp, audit_ok)?;
        if self.json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            println!("{report}");
        }
        let faults = report.faults(self.mode);
        if !faults.is_empty() {
            bail!("{}", faults.join("\n"));
        }
        Ok(())
    }
}

/// The example, as a user would run it.
fn build_l2fwd() -> Result<PathBuf> {
    cargo::build(&["build", "--release", "--package", "xskit", "--example", "l2fwd"])?
        .into_iter()
        .find(|binary| binary.name == "l2fwd")
        .map(|binary| binary.path)
        .context("cargo built no example `l2fwd`")
}
