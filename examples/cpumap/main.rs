//! Spreads the kernel's stack over CPUs: `cargo run --release --example cpumap -- --help`.

#[path = "../common/mod.rs"]
mod common;

use std::process::ExitCode;

use clap::Parser;

use self::common::{Failure, Setup, Stop, drop::RxDrop, receiving::ReceivingOptions};

/// Has the kernel's stack process packets on other CPUs than those that receive them.
///
/// What --udp-port, --rule and --all take goes to AF_XDP sockets, which drop it, as `rxdrop` does; the
/// rest, which may be everything, is redirected through a CPUMAP to the CPUs of --stack-cpus.
///
/// Once a second it tells for each of these CPUs how many packets the program redirected to it, how many its
/// queue took (enqueued) and had no room for (dropped), and how many its kernel thread took out for the
/// stack (processed); for each queue what `rxdrop` tells. What the kernel does not let us know is left out.
#[derive(Debug, Parser)]
#[command(name = "cpumap", version)]
struct Options {
    #[command(flatten)]
    receiving: ReceivingOptions,
}

impl Options {
    fn setup(&self) -> Result<Setup<'_>, Failure> {
        let Self { receiving } = self;
        if receiving.packets.stack_cpus().is_none() {
            return Err("which CPUs? --stack-cpus 2,3 spreads packets over those two".into());
        }
        Ok(receiving.setup(receiving.packets.rules_or_none()?, 1))
    }
}

fn main() -> ExitCode {
    common::exit(run(&Options::parse()))
}

fn run(options: &Options) -> Result<(), Failure> {
    let stop = Stop::on_signals()?;
    let (opened, sockets) = options.setup()?.open(&stop, |_| Ok(()))?;
    let work = RxDrop::on_all(sockets, &opened, &options.receiving.running)?;
    common::run(&opened, work, &options.receiving.running, &stop)
}
