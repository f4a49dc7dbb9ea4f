//! The project's own commands: `cargo xtask --help`.

mod bench;
mod cargo;
mod ci;
mod demo;
mod ebpf;
mod fuzz;
mod load;
mod mutants;
mod sanitize;
mod sanitizer;
mod test;
mod vm;

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
    Vm(vm::Vm),
    Ci(ci::Ci),
    BuildEbpf(ebpf::BuildEbpf),
    Load(load::Load),
    Bench(bench::Bench),
    Mutants(mutants::Mutants),
    Fuzz(fuzz::Fuzz),
    Sanitize(sanitize::Sanitize),
}

fn main() -> ExitCode {
    let result = match Xtask::parse().task {
        Task::Demo(demo) => demo.run(),
        Task::Test(test) => test.run(),
        Task::Vm(vm) => vm.run(),
        Task::Ci(ci) => ci.run(),
        Task::BuildEbpf(build) => build.run(),
        Task::Load(load) => load.run(),
        Task::Bench(bench) => bench.run(),
        Task::Mutants(mutants) => mutants.run(),
        Task::Fuzz(fuzz) => fuzz.run(),
        Task::Sanitize(sanitize) => sanitize.run(),
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
