//! Somebody with a veth pair of their own, on a thread in its namespace.

use std::{
    sync::mpsc::{Receiver, Sender as Channel, channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};
use xskit_lab::{Lab, Offload};
use xskit_report::{cpus, pin, prefer};

use super::{Job, Mode, Who, load::Load, packet, program::Attached};
use crate::{
    pair::pair,
    peer::{
        Peer, Place,
        libxdp::{BOOKS, LibXdp},
        xdp::Xdp,
        xdpilone::Xdpilone,
        xsk_rs::XskRs,
        xskit::Safe,
    },
    subject::{Cycle, LENGTH},
    sum::Sum,
    wake,
};

/// Slots of each ring.
const RING: u32 = 2048;

/// What a measurement comes to.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Packets a second.
    pub rate: f64,
    /// Nanoseconds of CPU time for each packet, in user space and in the kernel.
    pub user: f64,
    pub system: f64,
    /// System calls for each packet.
    pub calls: f64,
}

/// A thread that works when it is told to.
pub struct Worker {
    orders: Option<Channel<Duration>>,
    results: Receiver<Result<Rates>>,
    thread: Option<JoinHandle<()>>,
    load: Option<Load>,
    // Last: everything above is in its namespaces.
    _lab: Lab,
}

impl Worker {
    pub fn start(job: Job) -> Result<Self> {
        let lab = pair(1)?;
        let (orders, inbox) = channel();
        let (outbox, results) = channel();
        let (ready, opened) = channel();
        let (name, index) = (lab.near.name().to_owned(), lab.near.index());
        let flow = lab.flow(packet::PORT);
        if job.mode == Mode::Generic {
            // Else nothing fetches what the generator sends: without a native program this does.
            lab.near.set_offload(Offload::Gro, true)?;
        }
        if job.who == Who::Udp {
            // The stack takes only what is for an address of its own.
            lab.near.add_address(packet::NEAR, 24)?;
            lab.near.add_neighbour(packet::FAR, lab.far.mac())?;
        }
        let thread = lab.near.netns().spawn(move || {
            let work = || -> Result<(Attached, Box<dyn Work>)> {
                prefer();
                pin(cpus()[cpus().len() - 1])?;
                let attached = Attached::new(&name, &job)?;
                // Senders have all frames to send from.
                let [receives, sends] = job.cycle.sides();
                let (queue, frames, ring, batch) = (0, RING, RING, job.batch);
                let place =
                    Place { interface: name, index, queue, frames, ring, receives, sends, batch };
                let work = open(&job, &place, &attached, &flow)?;
                Ok((attached, work))
            };
            match work() {
                Err(error) => drop(ready.send(Err(error))),
                Ok((attached, mut work)) => {
                    ready.send(Ok(())).ok();
                    for length in inbox {
                        outbox.send(measure(&mut *work, length)).ok();
                    }
                    // Before the program.
                    drop(work);
                    drop(attached);
                }
            }
        });
        opened.recv().map_err(|_| anyhow!("the worker ended"))?.with_context(|| job.name())?;
        let load = (job.cycle != Cycle::Transmit).then(|| Load::start(&lab, job.sender));
        let load = load.transpose()?;
        Ok(Self { orders: Some(orders), results, thread: Some(thread), load, _lab: lab })
    }

    /// Works for that long.
    pub fn measure(&mut self, length: Duration) -> Result<Rates> {
        let _load = self.load.as_mut().map(Load::run);
        self.orders.as_ref().context("a worker at work")?.send(length)?;
        self.results.recv()?
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Ends the thread's loop.
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            if thread.join().is_err() {
                eprintln!("a worker panicked");
            }
        }
    }
}

/// A step of the work.
pub trait Work {
    /// Returns how many packets there were.
    fn step(&mut self) -> Result<u32>;

    /// System calls so far.
    fn calls(&self) -> u64;
}

fn measure(work: &mut dyn Work, length: Duration) -> Result<Rates> {
    // What lies in the queues from before does not count, nor how long the load takes to begin.
    let (begun, mut packets) = (Instant::now(), 0);
    while begun.elapsed() < length / 10 || (packets < 4096 && begun.elapsed() < length) {
        packets += work.step()?;
    }
    let (calls, usage, started) = (work.calls(), usage()?, Instant::now());
    let mut packets = 0_u64;
    while started.elapsed() < length {
        for _ in 0..16 {
            packets += u64::from(work.step()?);
        }
    }
    let took = started.elapsed().as_secs_f64();
    let now = self::usage()?;
    let each = |from: i64, to: i64| (to - from) as f64 * 1e3 / packets.max(1) as f64;
    Ok(Rates {
        rate: packets as f64 / took,
        user: each(usage.0, now.0),
        system: each(usage.1, now.1),
        calls: (work.calls() - calls) as f64 / packets.max(1) as f64,
    })
}

/// Microseconds of this thread, in user space and in the kernel.
fn usage() -> Result<(i64, i64)> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD)?;
    Ok((usage.user_time().num_microseconds(), usage.system_time().num_microseconds()))
}

fn open(
    job: &Job,
    place: &Place,
    attached: &Attached,
    flow: &xskit_lab::Flow,
) -> Result<Box<dyn Work>> {
    let Job { cycle, batch, .. } = *job;
    Ok(match job.who {
        Who::LibXdp => peer(LibXdp::<BOOKS>::open(place)?, attached, cycle, batch)?,
        Who::XskRs => peer(XskRs::open(place)?.kicking(), attached, cycle, batch)?,
        Who::Xdpilone => peer(Xdpilone::open(place)?.kicking(), attached, cycle, batch)?,
        Who::Xdp => peer(Xdp::open(place)?.kicking(), attached, cycle, batch)?,
        Who::Xskit => {
            let peer = Safe::open_with(place, job.budget)?;
            let entry = attached.join(&peer)?;
            Box::new(Own { _entry: entry, peer, cycle, batch })
        }
        Who::Blocks => packet::blocks(place, cycle, flow)?,
        Who::AfPacket => packet::packets(place, cycle, flow)?,
        Who::Udp => packet::datagrams(place, cycle)?,
    })
}

fn peer<P: Peer + std::os::fd::AsFd + 'static>(
    peer: P,
    attached: &Attached,
    cycle: Cycle,
    batch: u32,
) -> Result<Box<dyn Work>> {
    Ok(Box::new(Theirs { _entry: attached.join(&peer)?, peer, cycle, batch }))
}

/// A peer whose calls are ours to make, and counted.
struct Theirs<P> {
    _entry: Option<xskit::program::MapEntry>,
    peer: P,
    cycle: Cycle,
    batch: u32,
}

/// xskit, which counts by itself.
struct Own {
    _entry: Option<xskit::program::MapEntry>,
    peer: Safe,
    cycle: Cycle,
    batch: u32,
}

fn step(peer: &mut impl Peer, cycle: Cycle, batch: u32) -> Result<u32> {
    let mut sum = Sum::default();
    match cycle {
        Cycle::Receive => peer.receive(batch, &mut sum),
        Cycle::Transmit => peer.transmit(batch, LENGTH, &mut sum),
        Cycle::Forward => peer.forward(batch, &mut sum),
    }
}

impl<P: Peer> Work for Theirs<P> {
    fn step(&mut self) -> Result<u32> {
        step(&mut self.peer, self.cycle, self.batch)
    }

    fn calls(&self) -> u64 {
        wake::calls()
    }
}

impl Work for Own {
    fn step(&mut self) -> Result<u32> {
        step(&mut self.peer, self.cycle, self.batch)
    }

    fn calls(&self) -> u64 {
        let statistics = self.peer.socket.statistics();
        statistics.map_or(0, |statistics| statistics.wakeups_rx + statistics.wakeups_tx)
    }
}
