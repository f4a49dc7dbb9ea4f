//! Forwards Ethernet frames over AF_XDP: `cargo run --release --example l2fwd -- --help`.

mod cli;
#[path = "../common/mod.rs"]
mod common;
mod connect;
mod path;

use std::process::ExitCode;

use clap::Parser;

use self::{
    cli::Options,
    common::{Failure, Stop},
};

fn main() -> ExitCode {
    common::exit(run(&Options::parse()))
}

fn run(options: &Options) -> Result<(), Failure> {
    let stop = Stop::on_signals()?;
    let (mut opened, sockets) = options.setup()?.open(&stop, |_| Ok(()))?;
    let paths = connect::connect(sockets, &mut opened, options)?;
    common::run(&opened, paths, &options.running, &stop)
}
