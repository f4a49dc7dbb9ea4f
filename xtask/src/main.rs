//! The project's own commands: `cargo xtask --help`.

mod ebpf;
mod load;

use clap::Parser;

#[derive(Parser)]
enum Command {
    BuildEbpf(ebpf::BuildEbpf),
    Load(load::Load),
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::BuildEbpf(args) => args.run(),
        Command::Load(args) => args.run(),
    }
}
