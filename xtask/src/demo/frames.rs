//! One row of the demo: numbered frames of one size from source to sink.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use xskit_lab::{Chain, Checker, Numbered, RawPort, Tally};

use super::{forwarder::Forwarder, interrupt::Interrupt, progress::Step};

/// How long a row sends, in milliseconds.
pub(super) const DURATION_MS: u64 = 2_000;
/// Frames under way at most: fewer than the 256 that a veth queues for native XDP, so that none is
/// lost by design.
const WINDOW: u64 = 192;
/// Frames that are sent at once.
const BURST: u64 = 32;
/// When nothing has arrived for so long, what is under way is lost.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a row came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) sent: u64,
    pub(super) tally: Tally,
    pub(super) took: Duration,
}

/// Sends for [`DURATION_MS`], never more ahead of the sink than the window, and checks what arrives.
///
/// One thread does both: it has one core, the forwarder the other.
pub(super) fn run(
    chain: &Chain,
    size: usize,
    seed: u64,
    forwarder: &mut Forwarder,
    interrupt: &Interrupt,
    progress: &Step,
) -> Result<Run> {
    let source = RawPort::open(&chain.source).context("open the source")?;
    let mut sink = RawPort::open(&chain.sink).context("open the sink")?;
    let series = Numbered::new(chain.flow(9), size, seed);
    let mut checker = Checker::new(series.clone());
    let mut burst = vec![Vec::new(); usize::try_from(BURST)?];

    let started = Instant::now();
    let end = started + Duration::from_millis(DURATION_MS);
    let (mut sent, mut arrived, mut given_up) = (0, 0, 0);
    let mut last_arrival = started;
    loop {
        interrupt.check()?;
        let now = Instant::now();
        let sending = now < end;
        let under_way = sent - arrived - given_up;
        let room = under_way + BURST <= WINDOW;
        if sending && room {
            for frame in &mut burst {
                series.write(sent, frame);
                sent += 1;
            }
            source.send_all(&burst).context("send at the source")?;
        } else if !sending && under_way == 0 {
            break;
        }
        // With room left there is more to send; without, only an arrival makes some.
        let limit = if sending && room { Duration::ZERO } else { Duration::from_millis(100) };
        let count = sink
            .recv_each(limit, |frame| {
                checker.check(frame);
            })
            .context("receive at the sink")?;
        if count > 0 {
            // Too many arrivals show in the tally, and must not open the window further.
            arrived = (arrived + count as u64).min(sent - given_up);
            last_arrival = now;
            progress.at(elapsed_ms(started));
        } else if last_arrival.elapsed() > PATIENCE {
            forwarder.check()?;
            given_up = sent - arrived;
            last_arrival = now;
        }
    }
    let took = started.elapsed();
    // A frame too many would come now.
    sink.recv_each(Duration::from_millis(20), |frame| {
        checker.check(frame);
    })
    .context("receive at the sink")?;
    Ok(Run { sent, tally: checker.tally(), took })
}

fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
