//! The frame cache: forwarding with and without, one thread a queue, all on one UMEM.

mod crossing;
mod fake;
mod veth;

use std::{
    error::Error,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use xskit::{FrameCache, RingSize, SocketConfig, Umem, UmemConfig};
use xskit_report::{Metric, Options, Report, Series, measure};

/// The table of the series that gave the kernel its cache of skb heads, and its worst cases
#[derive(Parser)]
struct Cli {
    /// Leave the veth pair out, which takes privileges
    #[arg(long)]
    no_veth: bool,
    #[command(flatten)]
    options: Options,
}

/// What can go wrong in a thread.
type Failure = Box<dyn Error + Send + Sync>;

/// Frame sizes, in bytes, and numbers of threads: the columns of the series.
const POINTS: [(usize, usize); 6] = [(64, 42), (128, 20), (256, 8), (512, 4), (1024, 2), (1532, 1)];

/// Frames of a thread.
const FRAMES: usize = 1024;

/// Frames that one call moves.
const BATCH: usize = 64;

const RATE_NAME: &str = "rate";
const RATE: Metric = Metric::higher(RATE_NAME, "Kpps").digits(0);

/// Of the pool's lock, which is what a cache is to save.
const EXCHANGES: Metric = Metric::lower("pool", "per 1000").digits(2);

const WITHOUT: &str = "without cache";
const WITH: &str = "with cache";

fn main() -> Result<(), Failure> {
    let cli = Cli::parse();
    let options = &cli.options;
    let mut report = Report::new("cache");
    report.note(format!(
        "{BATCH} packets a call, {FRAMES} frames of a UMEM for each thread; with cache: the default one, \
         which goes by the size of the UMEM"
    ));
    report.add_series(fake::forwarding(options)?);
    report.add_series(crossing::worst_case(options)?);
    report.add(crossing::sizes(options)?);
    if !cli.no_veth {
        report.add_series(veth::forwarding(options)?);
    }
    report.print(options)?;
    Ok(())
}

/// A UMEM for so many threads.
fn umem(threads: usize) -> xskit::Result<Umem> {
    UmemConfig::new(u32::try_from(threads * FRAMES).unwrap_or(u32::MAX)).build()
}

/// A socket with small rings, and this cache or the default one.
fn config(cache: Option<FrameCache>) -> xskit::Result<SocketConfig> {
    let size = RingSize::new(256)?;
    let config = SocketConfig::default().rx(size).tx(size).fill(size).completion(size);
    Ok(match cache {
        Some(cache) => config.frame_cache(cache),
        None => config,
    })
}

/// What one thread does until it is told to stop; returns its packets.
type Job<'a> = Box<dyn FnOnce(&AtomicBool) -> Result<u64, Failure> + Send + 'a>;

/// Runs all jobs for that long, each in a thread: thousand packets a second, and exchanges with the pool
/// per thousand packets.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn run(umem: &Umem, length: Duration, jobs: Vec<Job<'_>>) -> Result<Vec<f64>, Failure> {
    let stop = &AtomicBool::new(false);
    let exchanges = umem.pool_exchanges();
    let started = Instant::now();
    let packets = thread::scope(|scope| {
        let threads: Vec<_> = jobs.into_iter().map(|job| scope.spawn(move || job(stop))).collect();
        thread::sleep(length);
        stop.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| "a thread panicked")?)
            .sum::<Result<u64, Failure>>()
    })?;
    let seconds = started.elapsed().as_secs_f64();
    let exchanges = (umem.pool_exchanges() - exchanges) as f64;
    Ok(vec![packets as f64 / seconds / 1e3, exchanges * 1e3 / packets.max(1) as f64])
}

/// A point of a series: both rows, measured in turns.
fn point(
    options: &Options,
    title: &str,
    mut run: impl FnMut(usize) -> Result<Vec<f64>, Failure>,
) -> Result<xskit_report::Comparison, Failure> {
    let plan = options.plan(7).patient_for(Duration::from_secs(4));
    measure(&plan, title, &[WITHOUT, WITH], &[RATE, EXCHANGES], &mut run)
        .map(|comparison| comparison.against(WITHOUT))
}

/// The caches of the two rows.
const CACHES: [Option<FrameCache>; 2] = [Some(FrameCache::NONE), None];

fn series(title: &str) -> Series {
    Series::new(title, RATE_NAME)
}
