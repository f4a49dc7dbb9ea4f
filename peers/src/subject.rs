//! Peers at work, with the scripted kernel on the other side.

use std::{
    io,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use xskit::{ChunkSize, UmemConfig};

use crate::{
    across::{Work, across},
    cold::cold,
    kernel::{Idle, Kernel},
    peer::{
        Peer, Place,
        libxdp::{BOOKS, LibXdp, PLAIN, SLICES},
        xdp::Xdp,
        xdpilone::Xdpilone,
        xsk_rs::XskRs,
        xskit::{Descriptors, Opened, Safe},
    },
    sum::Sum,
};

/// Bytes of each packet that is sent.
pub const LENGTH: u32 = 64;

/// What goes round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cycle {
    /// Fill to RX: packets are received and dropped.
    Receive,
    /// TX to Completion: packets are sent.
    Transmit,
    /// Both: packets are forwarded.
    Forward,
}

impl Cycle {
    pub const ALL: [Self; 3] = [Self::Receive, Self::Transmit, Self::Forward];

    pub fn name(self) -> &'static str {
        match self {
            Self::Receive => "Fill → RX",
            Self::Transmit => "TX → Completion",
            Self::Forward => "l2fwd",
        }
    }

    /// The program that does nothing else.
    pub fn program(self) -> &'static str {
        match self {
            Self::Receive => "rxdrop",
            Self::Transmit => "txonly",
            Self::Forward => "l2fwd",
        }
    }

    /// Whether there is an RX ring, and a TX ring.
    pub fn sides(self) -> [bool; 2] {
        [self != Self::Transmit, self != Self::Receive]
    }
}

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Who {
    Script,
    LibXdp,
    LibXdpBooks,
    LibXdpSlices,
    XskitRings,
    XskitSafe,
    XskRs,
    Xdpilone,
    Xdp,
}

impl Who {
    pub const ALL: [Self; 9] = [
        Self::Script,
        Self::LibXdp,
        Self::LibXdpBooks,
        Self::LibXdpSlices,
        Self::XskitRings,
        Self::XskitSafe,
        Self::XskRs,
        Self::Xdpilone,
        Self::Xdp,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Script => "the script alone",
            Self::LibXdp => "libxdp in C",
            Self::LibXdpBooks => "libxdp in C, with books",
            Self::LibXdpSlices => "libxdp in C, slices",
            Self::XskitRings => "xskit, descriptors",
            Self::XskitSafe => "xskit, Socket + Batch",
            Self::XskRs => "xsk-rs",
            Self::Xdpilone => "xdpilone",
            Self::Xdp => "xdp",
        }
    }
}

/// A peer with its socket, and the kernel's side of it.
pub trait Subject {
    /// Runs that many steps, each after the script's. With `check`, what the peer saw is compared with what
    /// the script did.
    fn run(&mut self, steps: u32, check: bool) -> Result<(Duration, Sum)>;

    /// The same with the script on another CPU, which does so many packets at once and then waits for the peer:
    /// only the peer's time counts. As often as `turns` says.
    fn run_across(&mut self, cpu: usize, packets: u32, turns: u32) -> Result<(Duration, Sum)>;

    /// The same with a system call before each step: only the steps' time counts.
    fn run_cold(
        &mut self,
        steps: u32,
        call: &mut (dyn FnMut() -> Result<()> + Send),
    ) -> Result<(Duration, Sum)>;
}

/// Opens a socket for somebody.
pub fn open(who: Who, cycle: Cycle, place: &Place) -> Result<Box<dyn Subject>> {
    let Place { ring, .. } = *place;
    let kernel = |peer: &dyn AsFd| Kernel::new(peer.as_fd(), ring, cycle.sides());
    let batch = place.batch;
    Ok(match who {
        Who::Script => {
            let socket = LibXdp::<PLAIN>::open(place)?;
            let (script, idle) =
                (kernel(&socket)?, Idle::new(socket.as_fd(), ring, cycle.sides())?);
            Box::new(Driven { script, peer: Nobody { idle, _socket: socket }, cycle, batch })
        }
        Who::LibXdp => driven(LibXdp::<PLAIN>::open(place)?, kernel, cycle, batch)?,
        Who::LibXdpBooks => driven(LibXdp::<BOOKS>::open(place)?, kernel, cycle, batch)?,
        Who::LibXdpSlices => driven(LibXdp::<SLICES>::open(place)?, kernel, cycle, batch)?,
        Who::XskitRings => {
            let opened = Opened::open(place)?;
            Box::new(DrivenRings { script: kernel(&opened)?, opened, cycle, batch })
        }
        Who::XskitSafe => driven(Safe::open(place)?, kernel, cycle, batch)?,
        Who::XskRs => driven(XskRs::open(place)?, kernel, cycle, batch)?,
        Who::Xdpilone => driven(Xdpilone::open(place)?, kernel, cycle, batch)?,
        Who::Xdp => driven(Xdp::open(place)?, kernel, cycle, batch)?,
    })
}

/// xskit with chunks of 2048 bytes, receiving: for UMEMs of many chunks.
pub fn receiver(place: &Place) -> Result<Box<dyn Subject>> {
    let (cycle, size) = (Cycle::Receive, ChunkSize::K2);
    let peer = Safe::open_on(place, UmemConfig::new(place.frames).chunk_size(size))?;
    let script = Kernel::new(peer.as_fd(), place.ring, cycle.sides())?.chunks_of(size.bytes());
    Ok(Box::new(Driven { script, peer, cycle, batch: place.batch }))
}

fn driven<P: Peer + AsFd + 'static>(
    peer: P,
    kernel: impl Fn(&dyn AsFd) -> io::Result<Kernel>,
    cycle: Cycle,
    batch: u32,
) -> Result<Box<dyn Subject>> {
    Ok(Box::new(Driven { script: kernel(&peer)?, peer, cycle, batch }))
}

/// A peer and its script.
struct Driven<P> {
    // Before the socket, whose rings it maps.
    script: Kernel,
    peer: P,
    cycle: Cycle,
    batch: u32,
}

impl<P: Peer> Subject for Driven<P> {
    fn run(&mut self, steps: u32, check: bool) -> Result<(Duration, Sum)> {
        drive(&mut self.script, &mut self.peer, (self.cycle, self.batch), steps, check)
    }

    fn run_across(&mut self, cpu: usize, packets: u32, turns: u32) -> Result<(Duration, Sum)> {
        let work = Work { cycle: self.cycle, batch: self.batch, packets, turns };
        across(&mut self.script, &mut self.peer, work, cpu)
    }

    fn run_cold(
        &mut self,
        steps: u32,
        call: &mut (dyn FnMut() -> Result<()> + Send),
    ) -> Result<(Duration, Sum)> {
        cold(&mut self.script, &mut self.peer, (self.cycle, self.batch), steps, call)
    }
}

/// As [`Driven`]: the rings are opened once for all steps.
struct DrivenRings {
    script: Kernel,
    opened: Opened,
    cycle: Cycle,
    batch: u32,
}

impl Subject for DrivenRings {
    fn run(&mut self, steps: u32, check: bool) -> Result<(Duration, Sum)> {
        let (mut rings, frames) = self.opened.rings();
        let mut peer = Descriptors::new(&mut rings, frames);
        drive(&mut self.script, &mut peer, (self.cycle, self.batch), steps, check)
    }

    fn run_across(&mut self, cpu: usize, packets: u32, turns: u32) -> Result<(Duration, Sum)> {
        let (mut rings, frames) = self.opened.rings();
        let mut peer = Descriptors::new(&mut rings, frames);
        let work = Work { cycle: self.cycle, batch: self.batch, packets, turns };
        across(&mut self.script, &mut peer, work, cpu)
    }

    fn run_cold(
        &mut self,
        steps: u32,
        call: &mut (dyn FnMut() -> Result<()> + Send),
    ) -> Result<(Duration, Sum)> {
        let (mut rings, frames) = self.opened.rings();
        let mut peer = Descriptors::new(&mut rings, frames);
        cold(&mut self.script, &mut peer, (self.cycle, self.batch), steps, call)
    }
}

/// A user who does nothing but move the indices.
struct Nobody {
    // Before the socket.
    idle: Idle,
    _socket: LibXdp<PLAIN>,
}

impl Peer for Nobody {
    #[inline(never)]
    fn receive(&mut self, batch: u32, _: &mut Sum) -> Result<u32> {
        self.idle.receive(batch);
        Ok(batch)
    }

    #[inline(never)]
    fn transmit(&mut self, batch: u32, _: u32, _: &mut Sum) -> Result<u32> {
        self.idle.transmit(batch);
        Ok(batch)
    }

    #[inline(never)]
    fn forward(&mut self, batch: u32, _: &mut Sum) -> Result<u32> {
        self.idle.forward(batch);
        Ok(batch)
    }
}

fn drive<P: Peer>(
    script: &mut Kernel,
    peer: &mut P,
    (cycle, batch): (Cycle, u32),
    steps: u32,
    check: bool,
) -> Result<(Duration, Sum)> {
    let mut sum = Sum::default();
    if check {
        let mut expected = Sum::default();
        for _ in 0..steps {
            script.transmit();
            ensure!(
                cycle == Cycle::Transmit || script.receive(batch) == batch,
                "frames to receive"
            );
            if cycle != Cycle::Transmit {
                expected.merge(script.received(batch));
            }
            ensure!(step(peer, cycle, batch, &mut sum)? == batch, "a whole batch");
            if cycle == Cycle::Transmit {
                expected.merge(script.to_transmit());
            }
        }
        ensure!(sum == expected, "{sum:?}, not {expected:?}");
        return Ok((Duration::ZERO, sum));
    }
    let started = Instant::now();
    match cycle {
        Cycle::Receive => {
            for _ in 0..steps {
                script.receive(batch);
                peer.receive(batch, &mut sum)?;
            }
        }
        Cycle::Transmit => {
            for _ in 0..steps {
                script.transmit();
                peer.transmit(batch, LENGTH, &mut sum)?;
            }
        }
        Cycle::Forward => {
            for _ in 0..steps {
                script.transmit();
                script.receive(batch);
                peer.forward(batch, &mut sum)?;
            }
        }
    }
    Ok((started.elapsed(), sum))
}

pub(crate) fn step<P: Peer>(peer: &mut P, cycle: Cycle, batch: u32, sum: &mut Sum) -> Result<u32> {
    match cycle {
        Cycle::Receive => peer.receive(batch, sum),
        Cycle::Transmit => peer.transmit(batch, LENGTH, sum),
        Cycle::Forward => peer.forward(batch, sum),
    }
}
