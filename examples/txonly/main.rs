//! Sends the same frame over and over by AF_XDP: `cargo run --release --example txonly -- --help`.

#[path = "../common/mod.rs"]
mod common;
mod frame;
mod work;

use std::process::ExitCode;

use clap::Parser;
use xskit::Rules;

use self::{
    common::{
        Failure, Setup, Stop,
        cli::{MemoryOptions, RunOptions, SendRings, SocketOptions},
    },
    frame::Frame,
    work::TxOnly,
};

/// Sends one frame over and over by AF_XDP: how fast does this machine send?
///
/// The frame is a UDP datagram over IPv4 to the discard port (9), between addresses that are reserved for
/// benchmarks. It is written into the UMEM once, before the start, as one that is sent again need not be
/// written again.
///
/// Once a second it tells for each queue: packets and bits (without preamble and checksum) given to the
/// kernel to send, how many completed, and each counter of lost packets that moved, by the name that the
/// kernel or xskit gives it. Sending to several queues takes --queues, or an interface with several.
#[derive(Debug, Parser)]
#[command(name = "txonly", version)]
struct Options {
    /// The interfaces to send on.
    #[arg(required = true, value_name = "INTERFACE")]
    interfaces: Vec<String>,
    #[command(flatten)]
    frame: Frame,
    /// End after this many frames from each queue.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    #[command(flatten)]
    sockets: SocketOptions,
    #[command(flatten)]
    send: SendRings,
    #[command(flatten)]
    memory: MemoryOptions,
    #[command(flatten)]
    running: RunOptions,
}

impl Options {
    fn setup(&self) -> Setup<'_> {
        Setup {
            interfaces: &self.interfaces,
            rules: Rules::none(),
            packets: None,
            sockets: &self.sockets,
            socket: self.send.of(self.sockets.config(&self.running)).send_only(),
            batches: 1,
            memory: &self.memory,
            running: &self.running,
        }
    }
}

fn main() -> ExitCode {
    common::exit(run(&Options::parse()))
}

fn run(options: &Options) -> Result<(), Failure> {
    let stop = Stop::on_signals()?;
    let (mut opened, sockets) =
        options.setup().open(&stop, |umem| options.frame.write_everywhere(umem))?;
    let size = usize::try_from(options.running.batch)?;
    let work = sockets
        .into_iter()
        .flatten()
        .zip(&mut opened.queues)
        .map(|(socket, queue)| TxOnly::new(socket, size, options.frame.len(), options.count, queue))
        .collect();
    common::run(&opened, work, &options.running, &stop)
}
