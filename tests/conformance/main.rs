//! The conformance suite: what the kernel's own AF_XDP tests assert, asserted of this crate on veth pairs.
//!
//! Each behaviour is a test of its own in each [mode](mode::MODES), in network namespaces of its own. At the
//! end a summary says per mode what passed, what was seen where kernels differ, and what this kernel or
//! device cannot do. Needs root; says so and skips where it is not.

mod bench;
mod bpf;
mod cases;
mod descriptors;
mod mode;
mod summary;
#[path = "../support/mod.rs"]
mod support;
mod whole;

use std::{process::ExitCode, thread};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use mode::{MODES, Mode};
use summary::Summary;
use xskit_lab::{Need, require};

/// What came of a case that did not fail.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// All as it has to be.
    Passed,
    /// The same, and this is what was seen where kernels differ.
    Saw(String),
    /// This kernel or device cannot do it, for this reason.
    CannotRun(String),
}

/// A behaviour: its name, and the test of it in a mode.
pub(crate) type Case = (&'static str, fn(&'static Mode) -> Outcome);

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They mostly wait.
    arguments.test_threads.get_or_insert(4);
    let summary = Summary::default();
    let trials = MODES
        .iter()
        .flat_map(|mode| cases::all().map(move |case| (mode, case)))
        .map(|(mode, case)| trial(mode, case, summary.clone()))
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        println!("{summary}");
    }
    conclusion.exit_code()
}

fn trial(mode: &'static Mode, (case, test): Case, summary: Summary) -> Trial {
    let name = format!("{}::{case}", mode.name);
    let thread_name = name.clone();
    Trial::ignorable_test(name, move || {
        // A thread of that name, so that skips and panics name the test.
        let run = move || {
            let test = || mode.lacks().map_or_else(|| test(mode), Outcome::CannotRun);
            require(Need::Bpf).then(test)
        };
        let thread = thread::Builder::new().name(thread_name).spawn(run)?;
        let outcome = thread.join();
        summary.add(mode.name, case, &outcome);
        match outcome {
            Ok(Some(Outcome::CannotRun(reason))) => Ok(Completion::ignored_with(reason)),
            Ok(_) => Ok(Completion::Completed),
            Err(panic) => Err(Failed::from(summary::message(&panic))),
        }
    })
}
