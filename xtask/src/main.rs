//! The project's own commands: `cargo xtask --help`.

mod cargo;
mod ci;
mod demo;
mod ebpf;
mod load;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Builds, shows and tests xskit.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Xtask {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    Demo(demo::Demo),
    Test(test::Test),
    Ci(ci::Ci),
    BuildEbpf(ebpf::BuildEbpf),
    Load(load::Load),
}

fn main() -> ExitCode {
    let result = match Xtask::parse().task {
        Task::Demo(demo) => demo.run(),
        Task::Test(test) => test.run(),
        Task::Ci(ci) => ci.run(),
        Task::BuildEbpf(build) => build.run(),
        Task::Load(load) => load.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Not `{error:?}`: a backtrace of ours says nothing about what failed.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
