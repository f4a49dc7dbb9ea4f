//! Sockets, threads and packets to send, as the options want them.

use std::sync::Arc;

use xskit::{Socket, Umem};
use xskit_traffic::{Pacer, Rng, Timeline, capture};

use crate::{
    cli::{Options, Speed},
    cloned::Cloned,
    common::{Bytes, Failure, Opened, Stop, Work},
    fresh::{Fresh, Share},
    line::Line,
    outcome::Outcome,
    pace::{Begin, MOST_BEHIND, Pace},
    replay::Replay,
    written::Written,
};

/// A sender for each thread.
type Senders = Vec<Box<dyn Work>>;

/// Opens the interface, and makes what is to send on it.
pub(crate) fn open(
    options: &Options,
    stop: &Stop,
    outcome: &Arc<Outcome>,
) -> Result<(Opened, Senders), Failure> {
    let traffic = &options.traffic;
    // A part for each thread: more than there can be.
    let clones = match traffic.clone {
        Some(_) => 256 * Cloned::chunks(&traffic.size),
        None => 0,
    };
    let setup = options.setup()?;
    let (mut opened, sockets) =
        setup.open_with_clones(stop, u32::try_from(clones)?, |umem| fits(options, umem))?;
    let mut lines = Vec::new();
    for (mut socket, queue) in sockets.into_iter().flatten().zip(&mut opened.queues) {
        let more: Vec<Socket> = (1..traffic.threads)
            .map(|_| socket.share_queue(&setup.socket))
            .collect::<Result<_, _>>()?;
        queue.senders.extend(more.iter().map(Socket::statistics_reader));
        for socket in [socket].into_iter().chain(more) {
            let bytes = Arc::new(Bytes::default());
            queue.bytes_out.push(bytes.clone());
            lines.push(Line::new(socket, bytes, outcome.clone()));
        }
    }
    if lines.len() > 256 {
        return Err(format!("{} threads: at most 256", lines.len()).into());
    }
    let work = match &traffic.replay {
        Some(_) => replay(options, lines)?,
        None => generate(options, lines)?,
    };
    Ok((opened, work))
}

/// Whether the longest packet fits a frame.
fn fits(options: &Options, umem: &Umem) -> Result<(), Failure> {
    let room = room(umem);
    let most = options.traffic.size.most();
    if options.traffic.replay.is_none() && most > room {
        return Err(
            format!("--size: {most} bytes; a frame of --chunk-size has room for {room}").into()
        );
    }
    Ok(())
}

/// The longest packet that a frame has room for.
fn room(umem: &Umem) -> usize {
    let mut batch = umem.batch(1);
    batch.alloc(1);
    batch.packets_mut().next().map_or(0, |packet| packet.max_len())
}

fn generate(options: &Options, lines: Vec<Line>) -> Result<Senders, Failure> {
    let traffic = &options.traffic;
    let template = options.template()?;
    let threads = lines.len() as u64;
    let burst = options.burst(threads);
    let most = usize::try_from(burst)?;
    let mut seeds = traffic.seed.map_or_else(Rng::new, Rng::with_seed);
    let run = u16::from(seeds.u8(..)) << 8;
    let work = lines.into_iter().zip(0..).map(|(line, thread): (Line, u8)| {
        let share = Share { thread: thread.into(), threads };
        let left = options.count.map_or(u64::MAX, |count| share.of(count));
        let random = seeds.fork();
        let (sizes, template) = (traffic.size.clone(), template.clone());
        let begin = pace(options, burst, share);
        let work: Box<dyn Work> = if let Some(times) = traffic.clone {
            let (begin, times) = (Some(begin), times.get());
            Box::new(Cloned { line, begin, template, sizes, random, share, left, times, most })
        } else {
            let stream = run | u16::from(thread);
            let source = Fresh { template, sizes, random, share, stream, sequence: 0 };
            Box::new(Written::new(line, begin, most, left, source))
        };
        work
    });
    Ok(work.collect())
}

/// The pace, from the moment on at which the first packet may be sent.
fn pace(options: &Options, burst: u64, share: Share) -> Begin {
    let Some(rate) = options.traffic.rate else { return Box::new(|_| Pace::Flood) };
    let len = options.traffic.size.least();
    let late = u64::try_from(MOST_BEHIND.as_nanos()).unwrap_or(u64::MAX);
    Box::new(move |start| {
        let pacer = Pacer::new(rate, burst, start, late);
        Pace::Rate(pacer.part(share.thread, share.threads, len))
    })
}

fn replay(options: &Options, lines: Vec<Line>) -> Result<Senders, Failure> {
    let traffic = &options.traffic;
    let path = traffic.replay.as_deref().ok_or("no capture")?;
    let packets = capture::read(path)?;
    let Ok([line]) = <[Line; 1]>::try_from(lines) else {
        return Err("a capture is sent in its order, on one queue by one thread: --queues 0".into());
    };
    let most = usize::try_from(options.burst(1))?;
    let room = room(line.socket().umem());
    for (number, packet) in (1..).zip(&packets) {
        let len = packet.frame.len();
        if !(1..=room).contains(&len) {
            return Err(format!(
                "{}: packet {number} has {len} bytes; a frame of --chunk-size has room for {room}",
                path.display()
            )
            .into());
        }
    }
    if packets.is_empty() {
        return Err(format!("{}: no packets", path.display()).into());
    }
    let cut = packets.iter().filter(|packet| packet.cut).count();
    if cut > 0 {
        eprintln!("pktgen: {cut} packets were cut off when they were captured, and are sent so");
    }
    let all = traffic.loops.get().saturating_mul(packets.len() as u64);
    let left = options.count.unwrap_or(u64::MAX).min(all);
    let share = Share { thread: 0, threads: 1 };
    let begin = match (traffic.rate, traffic.speed) {
        (Some(_), _) => pace(options, options.burst(1), share),
        (None, Speed::Max) => Box::new(|_| Pace::Flood),
        (None, Speed::Times(times)) => {
            let captured: Vec<u64> = packets.iter().map(|packet| packet.time).collect();
            Box::new(move |start| Pace::Capture(Timeline::new(captured, times, start), 0))
        }
    };
    let source = Replay { packets, next: 0 };
    Ok(vec![Box::new(Written::new(line, begin, most, left, source))])
}
