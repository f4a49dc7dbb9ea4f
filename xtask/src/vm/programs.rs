//! The programs that do the work, and which Debian packages they come from.

use std::{env, path::PathBuf, process::Command};

use anyhow::{Context, Result, bail, ensure};

/// Each program and its package. dpkg and apt are on every Debian.
const PROGRAMS: [(&str, &str); 7] = [
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
    ("lz4", "lz4"),
];

/// Fails where one of them is missing, and says what to install.
pub(super) fn check() -> Result<()> {
    let missing: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, _)| find(program).is_err())
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    bail!("missing: apt-get install --no-install-recommends {}", missing.join(" "))
}

/// Where a program is.
pub(super) fn find(program: &str) -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join(program));
    found.into_iter().find(|path| path.is_file()).with_context(|| format!("no {program} in PATH"))
}

/// Runs a command to its end; what it printed is shown if it fails.
pub(super) fn quietly(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// What a command printed; an error with all of it if it fails.
pub(super) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text.into_owned())
}
