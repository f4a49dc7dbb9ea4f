//! How cargo is told to build with a sanitizer, by a stable toolchain.

use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo::target;

/// The compiler's flag for AddressSanitizer, which it calls unstable; its runtime comes with every
/// toolchain.
pub(crate) const ADDRESS: &str = "-Zsanitizer=address";

/// Lets cargo use unstable flags of the toolchain that it has, builds for the host as a target, so that
/// flags do not reach build scripts, and keeps what comes out apart from everything else.
pub(crate) fn apply(command: &mut Command, flags: &[&str], folder: &str) -> Result<()> {
    command
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_BUILD_TARGET", host()?)
        .env("CARGO_TARGET_DIR", target()?.join(folder))
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    Ok(())
}

/// The target that the compiler runs on.
pub(crate) fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot start rustc")?;
    let output = String::from_utf8(output.stdout).context("rustc speaks UTF-8")?;
    let host = output.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc says what it runs on")?.to_owned())
}
