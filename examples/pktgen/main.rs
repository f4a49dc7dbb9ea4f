//! A packet generator and its receiver: `cargo run --release --example pktgen -- --help`.

mod cli;
mod clock;
mod cloned;
#[path = "../common/mod.rs"]
mod common;
mod fresh;
mod line;
mod outcome;
mod pace;
mod receive;
mod replay;
mod start;
mod written;

use std::{process::ExitCode, sync::Arc};

use clap::Parser;

use self::{
    cli::Options,
    common::{Failure, Stop, Work},
    outcome::{Asked, Outcome},
    receive::Receive,
};

fn main() -> ExitCode {
    common::exit(run(&Options::parse()))
}

fn run(options: &Options) -> Result<(), Failure> {
    options.check()?;
    let stop = Stop::on_signals()?;
    if options.receive { receive(options, &stop) } else { send(options, &stop) }
}

fn receive(options: &Options, stop: &Stop) -> Result<(), Failure> {
    let (opened, sockets) = options.setup()?.open(stop, |_| Ok(()))?;
    let outcome = Arc::new(Outcome::default());
    let size = usize::try_from(options.running.batch)?;
    let until = (options.count, options.running.spin);
    let work = sockets
        .into_iter()
        .flatten()
        .zip(&opened.queues)
        .map(|(socket, queue)| Receive::new(socket, size, queue, outcome.clone(), until))
        .collect();
    common::run(&opened, work, &options.running, stop)?;
    outcome.tell_received(options.expected.expect, options.running.json)
}

fn send(options: &Options, stop: &Stop) -> Result<(), Failure> {
    let outcome = Arc::new(Outcome::default());
    let (opened, work) = start::open(options, stop, &outcome)?;
    let threads = work.len() as u64;
    let asked = Asked { rate: options.traffic.rate, burst: options.burst(threads) };
    let work: Vec<Box<dyn Work>> = work;
    common::run(&opened, work, &options.running, stop)?;
    outcome.tell_sent(asked, options.running.json)
}
