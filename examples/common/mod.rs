//! What the tools among the examples have in common: options, ports on one UMEM, threads, and what is told.
#![allow(dead_code, reason = "each example uses a part of it")]

pub(crate) mod cli;
pub(crate) mod drop;
mod numbers;
pub(crate) mod receiving;
pub(crate) mod report;
mod run;
mod setup;
mod stop;
mod traffic;

use std::{process::ExitCode, time::Duration};

pub(crate) use self::{
    run::{Work, run},
    setup::{Opened, Queue, Setup},
    stop::Stop,
    traffic::Bytes,
};

/// Whatever goes wrong: it is only ever shown.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How long to wait before somebody may want the end.
pub(crate) const TURN: Duration = Duration::from_millis(100);

/// How long what is under way at the end may still take.
pub(crate) const LAST_CALL: Duration = Duration::from_millis(200);

/// The example's name, as its users call it.
const NAME: &str = env!("CARGO_CRATE_NAME");

/// How the process ends; says why, if it failed.
pub(crate) fn exit(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{NAME}: {failure}");
            ExitCode::FAILURE
        }
    }
}
