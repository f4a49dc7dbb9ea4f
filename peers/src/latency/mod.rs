//! `latency`: a packet of 64 bytes there and back again, over a veth pair.

mod end;
mod pair;
mod waits;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use xskit_report::{Metric, Options, Report, cpus, measure};

use pair::{Burst, Pair};

/// Pings of each round, of each way: four of them are above p99.9.
const PINGS: usize = 4000;
/// A round gives up on undisturbed pings of a way after that, once it has as many in all.
const PATIENCE: Duration = Duration::from_millis(500);
/// Where packets go.
const PORT: u16 = 4242;

/// A ping-pong of 64-byte packets over veth: percentiles of the round trip
#[derive(Args)]
pub struct Latency {
    #[command(flatten)]
    options: Options,
}

/// How both ends wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Spinning,
    Polling,
    BusyPolling,
    Udp,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Spinning => "xskit, spinning",
            Self::Polling => "xskit, polling",
            Self::BusyPolling => "xskit, busy polling",
            Self::Udp => "UDP, blocking",
        }
    }

    /// Pings of a burst: a millisecond or two, which often passes between two slices of other work.
    fn burst(self) -> usize {
        match self {
            Self::Spinning | Self::BusyPolling => 200,
            Self::Polling | Self::Udp => 40,
        }
    }
}

impl Latency {
    pub fn run(self) -> Result<()> {
        let pings = if self.options.quick { PINGS / 10 } else { PINGS };
        let plan = self.options.plan(15).tolerating(f64::INFINITY);
        let mut report = Report::new("latency");
        report.note(format!(
            "Both ends spin or sleep on CPUs of their own, of {} in all; a veth pair has no NAPI id to poll busily \
             by. Pings run in bursts of a millisecond or two; those in which other work kept an end from running \
             are left out, as long as there are enough others: the last column says how many had to be taken. Behind \
             p50, p99 and p99.9 of a round stand {pings} pings, of which {}, {} and {} were slower; rounds: {}.",
            cpus().len(),
            pings / 2,
            pings / 100,
            pings / 1000,
            plan.rounds,
        ));
        let ways = [Way::Spinning, Way::Polling, Way::BusyPolling, Way::Udp];
        let mut pairs = Vec::new();
        for way in ways {
            pairs.push(Pair::start(way).with_context(|| way.name())?);
        }
        let metrics = [
            Metric::lower("p50", "µs"),
            Metric::lower("p99", "µs"),
            Metric::lower("p99.9", "µs"),
            Metric::lower("disturbed", "% of pings").digits(0).beside(),
        ];
        let names = ways.map(Way::name);
        let comparison = measure(&plan, "round trip", &names, &metrics, |pair| {
            let (mut times, disturbed) = round(&mut pairs[pair], ways[pair].burst(), pings)?;
            times.sort_unstable();
            let at = |part: f64| {
                let place = (part * (times.len() - 1) as f64).round() as usize;
                times[place].as_secs_f64() * 1e6
            };
            Ok::<_, anyhow::Error>(vec![at(0.5), at(0.99), at(0.999), disturbed])
        })?;
        report.add(comparison.against(Way::Udp.name()));
        Ok(report.print(&self.options)?)
    }
}

/// So many pings of the bursts that were disturbed least, and what part of them was disturbed, in per cent.
fn round(pair: &mut Pair, burst: usize, pings: usize) -> Result<(Vec<Duration>, f64)> {
    let (wanted, started) = (pings / burst, Instant::now());
    let mut bursts: Vec<Burst> = Vec::with_capacity(2 * wanted);
    let calm = |bursts: &[Burst]| bursts.iter().filter(|burst| burst.disturbed.is_zero()).count();
    let mut answered = pair.answered()?;
    while calm(&bursts) < wanted && (bursts.len() < wanted || started.elapsed() < PATIENCE) {
        bursts.push(answered.ping(burst)?);
    }
    bursts.sort_by_key(|burst| burst.disturbed);
    bursts.truncate(wanted);
    let disturbed = 100.0 * (wanted - calm(&bursts)) as f64 / wanted as f64;
    Ok((bursts.into_iter().flat_map(|burst| burst.times).collect(), disturbed))
}
