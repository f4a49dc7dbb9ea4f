//! Receives and drops packets over AF_XDP: `cargo run --release --example rxdrop -- --help`.

#[path = "../common/mod.rs"]
mod common;

use std::process::ExitCode;

use clap::Parser;

use self::common::{Failure, Stop, drop::RxDrop, receiving::ReceivingOptions};

/// Receives packets over AF_XDP and drops them: how fast does this machine receive?
///
/// Frames that are dropped go back to the queue's Fill ring, a batch at a time. Once a second it tells for
/// each queue: packets and bits (without preamble and checksum), and each counter of lost packets that
/// moved, by the name that the kernel or xskit gives it.
#[derive(Debug, Parser)]
#[command(name = "rxdrop", version)]
struct Options {
    #[command(flatten)]
    receiving: ReceivingOptions,
}

fn main() -> ExitCode {
    common::exit(run(&Options::parse()))
}

fn run(options: &Options) -> Result<(), Failure> {
    let stop = Stop::on_signals()?;
    let receiving = &options.receiving;
    let setup = receiving.setup(receiving.packets.rules()?, 1);
    let (opened, sockets) = setup.open(&stop, |_| Ok(()))?;
    let work = RxDrop::on_all(sockets, &opened, &receiving.running)?;
    common::run(&opened, work, &receiving.running, &stop)
}
