//! Hands received batches to worker threads: `cargo run --release --example fanout -- --help`.

#[path = "../common/mod.rs"]
mod common;
mod receive;
mod worker;

use std::{
    process::ExitCode,
    sync::{Arc, mpsc::sync_channel},
};

use clap::Parser;
use serde_json::json;
use xskit::Socket;

use self::{
    common::{Failure, Opened, Setup, Stop, Work, receiving::ReceivingOptions, report::print},
    receive::Receiving,
    worker::{Done, Worker},
};

/// Receives packets over AF_XDP on one thread for each queue, and has other threads work on them.
///
/// Whole batches go to the workers in turn, over a bounded queue for each, and come back empty: their frames
/// wait in the batch, from where the next `recv` gives them to the kernel. Nothing is locked, counted or
/// allocated for a packet, and the pool of free frames is not touched. A slow worker slows the receiving
/// thread down, once all batches are with workers. Packets of a batch keep their order; batches that go to
/// different workers do not.
///
/// The workers' job here is a checksum of each packet. Once a second it tells what `rxdrop` tells, and at
/// the end how many packets each worker had.
#[derive(Debug, Parser)]
#[command(name = "fanout", version)]
struct Options {
    /// Worker threads for each queue.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: u32,
    /// Batches for each worker: one to work on, the others waiting or on their way.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    depth: u32,
    /// Give the frames to the shared pool, and the receiving thread new batches, to see what that costs.
    #[arg(long)]
    through_pool: bool,
    #[command(flatten)]
    receiving: ReceivingOptions,
}

impl Options {
    fn setup(&self) -> Result<Setup<'_>, Failure> {
        Ok(self.receiving.setup(self.receiving.packets.rules()?, self.batches()))
    }

    /// With a queue: those of all workers.
    fn batches(&self) -> u32 {
        self.workers * self.depth
    }
}

fn main() -> ExitCode {
    common::exit(run(&Options::parse()))
}

fn run(options: &Options) -> Result<(), Failure> {
    let stop = Stop::on_signals()?;
    let (opened, sockets) = options.setup()?.open(&stop, |_| Ok(()))?;
    let mut done = Vec::new();
    let mut work: Vec<Box<dyn Work>> = Vec::new();
    for (index, socket) in sockets.into_iter().flatten().enumerate() {
        work.extend(fan(options, &opened, index, socket, &mut done)?);
    }
    let ended = common::run(&opened, work, &options.receiving.running, &stop);
    let packets: Vec<u64> = done.iter().map(|done| done.packets()).collect();
    if options.receiving.running.json {
        print(&json!({ "event": "workers", "packets": packets }).to_string())?;
    } else {
        for (worker, packets) in packets.iter().enumerate() {
            print(&format!("worker {worker}  {packets} packets"))?;
        }
    }
    ended
}

/// A queue's receiving thread and its workers, joined by queues.
fn fan(
    options: &Options,
    opened: &Opened,
    index: usize,
    socket: Socket,
    done: &mut Vec<Arc<Done>>,
) -> Result<Vec<Box<dyn Work>>, Failure> {
    let batches = usize::try_from(options.batches())?;
    let size = usize::try_from(options.receiving.running.batch)?;
    // Each has room for all batches, so that giving one away never waits; there are no more than these.
    let (home, empty) = sync_channel(batches);
    for _ in 0..batches {
        home.send(opened.umem.batch(size))?;
    }
    let mut work: Vec<Box<dyn Work>> = Vec::new();
    let mut workers = Vec::new();
    for _ in 0..options.workers {
        let (full, waiting) = sync_channel(batches);
        workers.push(full);
        let count = Arc::new(Done::default());
        done.push(count.clone());
        work.push(Box::new(Worker::new(waiting, home.clone(), count, options.through_pool)));
    }
    let bytes = opened.queues[index].bytes_in.clone();
    let spin = options.receiving.running.spin;
    work.insert(0, Box::new(Receiving::new(socket, empty, workers, bytes, spin)));
    Ok(work)
}
