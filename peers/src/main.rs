//! xskit beside libxdp and the other crates: `cargo xtask bench --list`.

mod across;
mod area;
mod chase;
mod cold;
mod instructions;
mod kernel;
mod latency;
mod pair;
mod peer;
mod ring;
mod scale;
mod seed;
mod subject;
mod sum;
mod veth;
mod wake;

use std::process::ExitCode;

use clap::Parser;

/// xskit beside libxdp and the other crates
#[derive(Parser)]
enum Peers {
    Ring(ring::Ring),
    Instructions(instructions::Instructions),
    Veth(veth::Veth),
    Seed(seed::Seed),
    Latency(latency::Latency),
    Scale(scale::Scale),
    /// What runs under callgrind
    #[command(hide = true)]
    Count(instructions::Count),
}

fn main() -> ExitCode {
    let result = match Peers::parse() {
        Peers::Ring(ring) => ring.run(),
        Peers::Instructions(instructions) => instructions.run(),
        Peers::Veth(veth) => veth.run(),
        Peers::Seed(seed) => seed.run(),
        Peers::Latency(latency) => latency.run(),
        Peers::Scale(scale) => scale.run(),
        Peers::Count(count) => count.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
