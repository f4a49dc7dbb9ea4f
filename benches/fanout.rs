//! One thread receives, others work: frames that come back in their batch against frames freed to the pool
//!
//! On the fake kernel, so that nothing of a real one is measured. A round fills the RX ring, untimed; then
//! the receiving thread hands all of it to workers, a batch at a time, and waits until they are done with
//! it. What the workers do with a packet is next to nothing: it is the way of its frame that is measured.

use std::{
    error::Error,
    hint::black_box,
    process::ExitCode,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use xskit::{Batch, RingSize, Socket, SocketConfig, UmemConfig, fake};
use xskit_report::{Comparison, Metric, Options, Report, measure};

/// Of what is timed; filling the ring takes many times as long.
const LENGTH: Duration = Duration::from_millis(20);
const ROUNDS: usize = 7;
const PATIENCE: Duration = Duration::from_secs(12);
/// Packets in the RX ring at the start of a round.
const RING: u32 = 2048;
const BATCH: usize = 64;
/// Batches for each worker.
const DEPTH: usize = 4;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// What a worker does with the frames of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Into the batch's spare list, which goes back with the batch.
    Recycled,
    /// To the pool, which all threads share, before the batch goes back.
    Pool,
    /// A batch for each time: made by the receiving thread, dropped by the worker.
    Dropped,
}

fn main() -> ExitCode {
    xskit_report::run("fanout", "One thread receives, others work", run)
}

fn run(options: &Options) -> Result<()> {
    let mut report = Report::new("fanout");
    report.note(format!("batches of {BATCH}, {DEPTH} for each worker; threads are not pinned"));
    for workers in [1, 2, 4] {
        report.add(compare(options, workers)?);
    }
    report.print(options)?;
    Ok(())
}

fn compare(options: &Options, workers: usize) -> Result<Comparison> {
    let subjects =
        [("freed to the pool", Way::Pool), ("dropped", Way::Dropped), ("recycled", Way::Recycled)];
    let comparison = measure(
        &options.plan(ROUNDS).patient_for(PATIENCE),
        &format!("frames on their way back from {workers} workers"),
        &subjects.map(|(name, _)| name),
        &[Metric::lower("time per packet", "ns").digits(1)],
        |subject| {
            Ok::<_, Box<dyn Error + Send + Sync>>(vec![time(
                workers,
                subjects[subject].1,
                options.length(LENGTH),
            )?])
        },
    )?;
    Ok(comparison.against("freed to the pool"))
}

/// Nanoseconds for a packet.
fn time(workers: usize, way: Way, length: Duration) -> Result<f64> {
    let ring = RingSize::new(RING)?;
    let umem = UmemConfig::new(2 * RING + u32::try_from(2 * BATCH * DEPTH * workers)?).build()?;
    let config = SocketConfig::default().rx(ring).fill(ring).receive_only();
    let (mut socket, kernel) = fake::socket(&umem, &config)?;
    let batches = workers * DEPTH;
    let (home, empty) = sync_channel(batches);
    for _ in 0..batches {
        home.send(umem.batch(BATCH))?;
    }
    thread::scope(|scope| {
        let mut full = Vec::new();
        for _ in 0..workers {
            let (sender, waiting) = sync_channel(batches);
            full.push(sender);
            let home = home.clone();
            scope.spawn(move || work(&waiting, &home, way));
        }
        let (mut timed, mut packets) = (Duration::ZERO, 0);
        while timed < length {
            for _ in 0..RING {
                kernel.deliver(&[7; 64]);
            }
            let started = Instant::now();
            packets += round(&mut socket, &empty, &full, way)?;
            // All are home again.
            let returned: Vec<Batch> = empty.iter().take(batches).collect();
            timed += started.elapsed();
            for batch in returned {
                home.send(batch)?;
            }
        }
        #[allow(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
        Ok(timed.as_nanos() as f64 / packets as f64)
    })
}

/// Hands all that was received to the workers in turn; how many packets that were.
fn round(
    socket: &mut Socket,
    empty: &Receiver<Batch>,
    full: &[SyncSender<Batch>],
    way: Way,
) -> Result<usize> {
    let mut packets = 0;
    for worker in full.iter().cycle() {
        let mut batch = empty.recv()?;
        if way == Way::Dropped {
            batch = socket.umem().batch(BATCH);
        }
        let received = socket.recv(&mut batch)?;
        packets += received;
        worker.send(batch)?;
        if received == 0 {
            break;
        }
    }
    Ok(packets)
}

fn work(waiting: &Receiver<Batch>, home: &SyncSender<Batch>, way: Way) {
    while let Ok(mut batch) = waiting.recv() {
        for packet in batch.packets() {
            black_box(packet.head());
        }
        batch.clear();
        match way {
            Way::Recycled => {}
            Way::Pool => batch.release_spare(),
            // What goes back is a stand-in, which holds no frames.
            Way::Dropped => batch = batch.umem().batch(1),
        }
        if home.send(batch).is_err() {
            return;
        }
    }
}
