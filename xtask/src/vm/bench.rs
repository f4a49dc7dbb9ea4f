//! A benchmark of what only interfaces with zero-copy show.

use std::{collections::BTreeMap, fs};

use anyhow::{Context, Result, bail};

use super::{Guests, cases, cases::Case, kernels, programs, qemu::Host, skip, verdict};
use crate::cargo::{self, workspace};

/// What runs: a target of `benches/`, on two interfaces that `XSKIT_TEST_NICS` names.
static SHARED_QUEUE: Case = Case {
    harness: false,
    ..Case::new("shared-queue", "shared_queue", &["--bench", "shared_queue"], &[], cases::ZERO_COPY)
};

/// Runs it in a guest whose kernel has zero-copy in virtio_net; what it printed. `None` where there cannot be one,
/// which has been said.
pub(crate) fn bench(arguments: &[String]) -> Result<Option<String>> {
    let case = &SHARED_QUEUE;
    let skip = |why| skip(&format!("{} in a virtual machine", case.target), &why).map(|()| None);
    if let Err(why) = programs::check().and_then(|()| Host::new()) {
        return skip(why);
    }
    let (major, minor) = case.since;
    let kernel = match kernels::get(format!("{major}.{minor}+").parse()?) {
        Ok(kernel) => kernel,
        Err(why) => return skip(why),
    };
    let folder = cargo::target()?.join("vm");
    fs::create_dir_all(&folder)?;
    let build = folder.join("build");
    let build = build.to_str().context("cargo's folder is no text")?;
    // As fast as it is for users, but with everything in one file, which is small. Where it only has to run, as
    // tests are built, whose parts are there.
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let profile = if quick { &["--profile", "vm", "--features", "audit"][..] } else { &[] };
    let command = ["bench", "--no-run", "--package", "xskit", "--locked", "--target-dir", build];
    let target = ["--target", "x86_64-unknown-linux-gnu"];
    let command = [&command[..], &target, profile, case.build].concat();
    let environment =
        [("RUSTFLAGS", "-C target-feature=+crt-static"), ("CARGO_PROFILE_BENCH_STRIP", "true")];
    let built = cargo::build_in(workspace(), &command, &environment)?;
    let tests: BTreeMap<_, _> =
        built.into_iter().map(|binary| (binary.name, binary.path)).collect();
    let arguments = arguments.to_vec();
    let run = Guests { cases: vec![case], tests, arguments, folder }.boot(&kernel)?;
    let log = String::from_utf8_lossy(&fs::read(&run.console)?).into_owned();
    let output = verdict::output(&log, case.name).unwrap_or_default();
    if !run.verdict.is_good() {
        let why = run.verdict.fault.unwrap_or_else(|| run.verdict.outcomes[0].to_string());
        bail!(
            "{} in a virtual machine: {why}; see {}\n{output}",
            case.target,
            run.console.display()
        );
    }
    Ok(Some(output))
}
