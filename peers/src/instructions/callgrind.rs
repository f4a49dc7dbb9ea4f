//! Counting.

use std::{
    env,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::subject::{Cycle, Who};

/// Instructions for each of that many packets, inside the function that is one step of the peer: ours,
/// what it calls, and no script.
pub fn count(who: Who, cycle: Cycle, batch: u32, packets: u32) -> Result<f64> {
    let argument = |value: clap::builder::PossibleValue| value.get_name().to_owned();
    let who_argument = argument(who.to_possible_value().context("a value")?);
    let cycle_argument = argument(cycle.to_possible_value().context("a value")?);
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no"])
        .arg(format!("--toggle-collect={}", step(who, cycle)))
        // No file that is left behind.
        .arg("--callgrind-out-file=/dev/stdout")
        .arg(env::current_exe()?)
        .args(["count", &who_argument, &cycle_argument, &batch.to_string()])
        .stdin(Stdio::null())
        .output()
        .context("valgrind, which counts, is not installed")?;
    let log = String::from_utf8_lossy(&output.stderr);
    // Without what valgrind says of itself.
    let said = log.lines().filter(|line| !line.starts_with("==")).collect::<Vec<_>>().join("; ");
    ensure!(output.status.success(), "{}, {}: {said}", who.name(), cycle.name());
    let text = String::from_utf8(output.stdout).context("callgrind's counts are text")?;
    let Some(total) = text.lines().find_map(|line| line.strip_prefix("totals: ")) else {
        bail!("callgrind printed no total: {said}");
    };
    let total: f64 = total.trim().parse().context("a number")?;
    ensure!(total > 0.0, "callgrind did not see {}", step(who, cycle));
    Ok(total / f64::from(packets))
}

/// The function that is one step, as callgrind names it.
fn step(who: Who, cycle: Cycle) -> String {
    let step = match cycle {
        Cycle::Receive => "receive",
        Cycle::Transmit => "transmit",
        Cycle::Forward => "forward",
    };
    match who {
        Who::LibXdp => format!("peer_{step}"),
        Who::LibXdpBooks => format!("peer_{step}_books"),
        Who::LibXdpSlices => format!("peer_{step}_slices"),
        Who::XskitRings => format!("*Descriptors*Peer*{step}*"),
        Who::XskitSafe => format!("*Safe*Peer*{step}*"),
        Who::Script | Who::XskRs | Who::Xdpilone | Who::Xdp => format!("*{who:?}*Peer*{step}*"),
    }
}
