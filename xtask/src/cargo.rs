//! Runs cargo as the caller, finds what it built, and starts finished binaries with more privileges.

use std::{
    env,
    ffi::OsStr,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// What a finished binary must still see when sudo starts it.
const PRESERVED: &str = "XSKIT_TEST_REQUIRE,XSKIT_TEST_NICS,XSKIT_TEST_NICS_QUEUES,\
     XSKIT_TEST_NICS_COPY_ONLY,XSKIT_TEST_NICS_NO_RESET,XSKIT_SOAK_SECONDS,\
     XSKIT_LIFECYCLE_PORTS,XSKIT_STUCK_SECONDS,XSKIT_FAULTS_SEED,RUST_BACKTRACE,CARGO_MANIFEST_DIR,ASAN_OPTIONS";

/// The folder with the workspace's `Cargo.toml`.
pub(crate) fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace")
}

/// A cargo command, to be run in the workspace.
pub(crate) fn cargo<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(workspace());
    command
}

/// The folder in which cargo builds, wherever the caller has put it.
pub(crate) fn target() -> Result<PathBuf> {
    #[derive(Deserialize)]
    struct Metadata {
        target_directory: PathBuf,
    }
    let output = cargo(["metadata", "--format-version", "1", "--no-deps"])
        .output()
        .context("cargo metadata")?;
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    Ok(metadata.target_directory)
}

/// Runs a command to its end and fails when it does.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// An executable that cargo built, and the folder of its package.
#[derive(Debug)]
pub(crate) struct Binary {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) package: PathBuf,
}

/// Runs a cargo command that builds, and lists the executables that came out.
pub(crate) fn build(arguments: &[&str]) -> Result<Vec<Binary>> {
    build_in(workspace(), arguments, &[])
}

/// The same with these variables set, and in another folder: a copy of the workspace, built beside it.
pub(crate) fn build_in(
    folder: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Result<Vec<Binary>> {
    #[derive(Deserialize)]
    struct Message {
        reason: String,
        executable: Option<PathBuf>,
        manifest_path: Option<PathBuf>,
        target: Option<Target>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
    }

    let (command, arguments) = arguments.split_first().context("a cargo command")?;
    let mut command = cargo([command, "--message-format=json-render-diagnostics"]);
    command.args(arguments).current_dir(folder).stdout(Stdio::piped());
    command.envs(environment.iter().copied());
    if folder != workspace() {
        command.env("CARGO_TARGET_DIR", target()?);
    }
    let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    let stdout = child.stdout.take().context("cargo's output was asked for")?;
    let mut binaries = Vec::new();
    for line in BufReader::new(stdout).lines() {
        let message: Message = serde_json::from_str(&line?).context("cargo's messages are JSON")?;
        let ("compiler-artifact", Some(path)) = (message.reason.as_str(), message.executable)
        else {
            continue;
        };
        let (Some(target), Some(manifest)) = (message.target, message.manifest_path) else {
            continue;
        };
        let package = manifest.parent().context("a manifest is in a folder")?.to_owned();
        binaries.push(Binary { name: target.name, path, package });
    }
    let status = child.wait()?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(binaries)
}

/// How a binary can be started as root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elevation {
    /// We are root.
    Root,
    /// Through sudo.
    Sudo,
}

impl Elevation {
    /// Finds out.
    pub(crate) fn find() -> Result<Self> {
        if nix::unistd::geteuid().is_root() {
            return Ok(Self::Root);
        }
        let sudo = env::var_os("PATH").is_some_and(|path| {
            env::split_paths(&path).any(|folder| folder.join("sudo").is_file())
        });
        if !sudo {
            bail!(
                "this needs root (network namespaces, BPF programs), and there is no sudo: \
                 run the same command as root"
            );
        }
        Ok(Self::Sudo)
    }

    /// A command that starts `program` so.
    pub(crate) fn command(self, program: &Path) -> Command {
        match self {
            Self::Root => Command::new(program),
            Self::Sudo => {
                let mut command = Command::new("sudo");
                command.arg(format!("--preserve-env={PRESERVED}")).arg("--").arg(program);
                command
            }
        }
    }
}
