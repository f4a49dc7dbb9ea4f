//! A benchmark as a program.

use std::{fmt::Display, process::ExitCode};

use clap::{Args, Command, FromArgMatches};

use crate::Options;

/// Runs a benchmark whose command line has nothing but [`Options`]: its name, what it measures, and how.
pub fn run<E: Display>(
    name: &'static str,
    about: &'static str,
    measure: impl FnOnce(&Options) -> Result<(), E>,
) -> ExitCode {
    let matches = Options::augment_args(Command::new(name)).about(about).get_matches();
    let options = Options::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match measure(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}
