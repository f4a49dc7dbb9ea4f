//! The program that measures.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::cargo::{self, Elevation, run, target, workspace};

/// Where a benchmark is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Package {
    /// `benches/NAME.rs`: xskit alone.
    Own,
    /// A command of the program in `peers/`: beside other libraries.
    Peers,
}

/// A benchmark that has been built.
pub(super) struct Program {
    path: PathBuf,
    /// The program's own command, where it has several.
    command: Option<String>,
}

impl Program {
    /// Builds it in release, as the caller.
    pub(super) fn build(package: Package, name: &str) -> Result<Self> {
        let (binaries, program, command) = match package {
            Package::Own => {
                // Not with all features: `audit` keeps a byte for each frame.
                let bench = ["bench", "--package", "xskit", "--locked"];
                (cargo::build(&[&bench[..], &["--no-run", "--bench", name]].concat())?, name, None)
            }
            Package::Peers => {
                let manifest = workspace().join("peers/Cargo.toml");
                let manifest = manifest.to_str().context("a path that is text")?;
                let folder = target()?.join("peers");
                let folder = folder.to_str().context("a path that is text")?;
                let build = ["build", "--release", "--locked", "--manifest-path", manifest];
                let build = [&build[..], &["--target-dir", folder]].concat();
                (cargo::build(&build)?, "xskit-peers", Some(name.to_owned()))
            }
        };
        let binary = binaries.into_iter().find(|binary| binary.name == program);
        let path = binary.with_context(|| format!("cargo built no {program}"))?.path;
        Ok(Self { path, command })
    }

    /// Runs it to its end, as root: most make network namespaces or load programs.
    pub(super) fn run(&self, arguments: &[String]) -> Result<()> {
        run(&mut self.command(arguments)?)
    }

    /// The same; what it printed.
    pub(super) fn output(&self, arguments: &[String]) -> Result<String> {
        let mut command = self.command(arguments)?;
        let output = command.stderr(Stdio::inherit()).output();
        let output = output.with_context(|| format!("cannot start {command:?}"))?;
        ensure!(output.status.success(), "{command:?}: {}", output.status);
        String::from_utf8(output.stdout).context("a report is text")
    }

    fn command(&self, arguments: &[String]) -> Result<Command> {
        let mut command = Elevation::find()?.command(&self.path);
        command.args(&self.command).args(arguments).current_dir(workspace());
        Ok(command)
    }
}
