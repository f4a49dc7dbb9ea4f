//! The worst case: one thread only receives while another only sends, so that every frame crosses the
//! pool.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver as Channel, SyncSender, sync_channel},
    },
    time::Duration,
};

use xskit::{Batch, FrameCache, Receiver, Sender, Umem, fake};
use xskit_report::{Comparison, Options, Series, measure};

use crate::{
    BATCH, CACHES, EXCHANGES, FRAMES, Failure, Job, RATE, config, point, run, series, umem,
};

/// Batches on the way from one thread to the other.
const DEPTH: usize = 4;

/// The receiving half of one queue's socket and the sending half of another's.
struct Pair {
    umem: Umem,
    receiver: (Receiver, fake::Kernel),
    sender: (Sender, fake::Kernel),
}

impl Pair {
    fn new(cache: Option<FrameCache>) -> xskit::Result<Self> {
        let umem = umem(2)?;
        let config = config(cache)?;
        let (from, from_kernel) = fake::socket(&umem, &config.clone().receive_only())?;
        let (to, to_kernel) = fake::socket(&umem, &config.send_only())?;
        let (receiver, sender) = (from.into_split().0, to.into_split().1);
        Ok(Self { umem, receiver: (receiver, from_kernel), sender: (sender, to_kernel) })
    }

    fn run(&mut self, length: Duration, packet: &[u8]) -> Result<Vec<f64>, Failure> {
        let (there, arrivals) = sync_channel(DEPTH);
        let (back, returns) = sync_channel(DEPTH);
        for _ in 0..DEPTH {
            back.send(self.umem.batch(BATCH))?;
        }
        let jobs: Vec<Job<'_>> = vec![
            receive(&mut self.receiver, packet, returns, there),
            send(&mut self.sender, self.umem.batch(BATCH), arrivals, back),
        ];
        run(&self.umem, length, jobs)
    }
}

/// Receives, and hands each batch on.
fn receive<'a>(
    (receiver, kernel): &'a mut (Receiver, fake::Kernel),
    packet: &'a [u8],
    returns: Channel<Batch>,
    there: SyncSender<Batch>,
) -> Job<'a> {
    Box::new(move |stop: &AtomicBool| {
        while !stop.load(Ordering::Relaxed) {
            let Ok(mut batch) = returns.recv() else { break };
            kernel.deliver_many(packet, BATCH);
            receiver.recv(&mut batch)?;
            if there.send(batch).is_err() {
                break;
            }
        }
        // Those that are sent count.
        Ok(0)
    })
}

/// Sends from a batch of its own, so that the frames that come back stay on this side: they reach the
/// other one through the pool alone.
fn send(
    (sender, kernel): &mut (Sender, fake::Kernel),
    mut own: Batch,
    arrivals: Channel<Batch>,
    back: SyncSender<Batch>,
) -> Job<'_> {
    Box::new(move |_: &AtomicBool| {
        let mut packets = 0;
        for mut batch in arrivals {
            own.append(&mut batch)?;
            packets += sender.send(&mut own)? as u64;
            kernel.discard(usize::MAX);
            // The other thread has stopped.
            if back.send(batch).is_err() {
                break;
            }
        }
        Ok(packets)
    })
}

/// Both rows, for the shortest and the longest frames.
pub(crate) fn worst_case(options: &Options) -> Result<Series, Failure> {
    let mut series = series("one thread receives, another sends: every frame crosses the pool");
    let length = options.length(Duration::from_millis(100));
    for size in [64, 1532] {
        let mut rows =
            CACHES.iter().map(|cache| Pair::new(*cache)).collect::<Result<Vec<_>, _>>()?;
        let packet = vec![0x5a; size];
        series.add(point(options, &format!("{size}/2"), |row| rows[row].run(length, &packet))?);
    }
    Ok(series)
}

/// What sizes do in the worst case: where the default comes from.
pub(crate) fn sizes(options: &Options) -> Result<Comparison, Failure> {
    let mut names = Vec::new();
    let mut rows = Vec::new();
    let chunks = u32::try_from(2 * FRAMES)?;
    let default = ("the default".to_owned(), FrameCache::for_chunks(chunks));
    let kernels = ("64, 16, 32 as the kernel's".to_owned(), FrameCache::new(64).bulk(16).flush(32));
    let others = [0, 16, 128, 256, 512].map(|size| (size.to_string(), FrameCache::new(size)));
    for (name, cache) in [default, kernels].into_iter().chain(others) {
        names.push(name);
        rows.push(Pair::new(Some(cache))?);
    }
    let length = options.length(Duration::from_millis(50));
    let packet = [0x5a; 64];
    let plan = options.plan(7).patient_for(Duration::from_secs(6));
    let title = "the same by size of the cache, 64 bytes";
    measure(&plan, title, &names, &[RATE, EXCHANGES], |row| rows[row].run(length, &packet))
        .map(|comparison| comparison.against(&names[0]))
}
