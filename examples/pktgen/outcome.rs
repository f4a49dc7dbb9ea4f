//! What was sent, and what arrived: of all threads together, told at the end.

use std::{
    fmt::Write,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};
use xskit_traffic::{Account, Latency, Layer, Rate, Stream};

use crate::common::{Failure, report::print};

/// What one thread has sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// The first packet's time, and the last one's.
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// How often there was no room in the TX ring.
    pub(crate) ring_full: u64,
    /// Nanoseconds that were not made up for.
    pub(crate) behind: u64,
}

/// Shared by all threads, and changed once per batch or at their end.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    sent: Mutex<Vec<Sent>>,
    account: Mutex<Account>,
}

/// What was asked of the sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) rate: Option<Rate>,
    pub(crate) burst: u64,
}

impl Outcome {
    pub(crate) fn add_sent(&self, sent: &Sent) {
        lock(&self.sent).push(*sent);
    }

    /// Packets arrived; returns how many did so far.
    pub(crate) fn received<'a>(
        &self,
        packets: impl Iterator<Item = (&'a [u8], usize)>,
        now: u64,
    ) -> u64 {
        let mut account = lock(&self.account);
        for (head, len) in packets {
            account.arrived(head, len, now);
        }
        account.packets
    }

    /// Tells what was sent, beside what was asked for.
    pub(crate) fn tell_sent(&self, asked: Asked, json: bool) -> Result<(), Failure> {
        let sent = lock(&self.sent);
        let sum = |number: fn(&Sent) -> u64| sent.iter().map(number).sum::<u64>();
        let (packets, bytes) = (sum(|sent| sent.packets), sum(|sent| sent.bytes));
        let from = sent.iter().map(|sent| sent.from).min().unwrap_or(0);
        let to = sent.iter().map(|sent| sent.to).max().unwrap_or(0);
        let speed = Speed::new(packets, bytes, to - from);
        let (full, behind) = (sum(|sent| sent.ring_full), sum(|sent| sent.behind));
        if json {
            let Asked { rate, burst } = asked;
            let mut event = speed.json("sent", packets, bytes);
            event["asked"] = rate.map_or(Value::Null, |rate| rate.to_string().into());
            event["burst"] = burst.into();
            event["ring_full"] = full.into();
            event["behind_ns"] = behind.into();
            return print(&event.to_string());
        }
        let rate = asked.rate.map_or("as fast as possible".to_owned(), |rate| format!("{rate}"));
        print(&format!("asked: {rate}, bursts of {}", asked.burst))?;
        print(&format!("sent:  {packets} packets, {speed}"))?;
        print(&format!("the TX ring was full {full} times"))?;
        if behind > 0 {
            #[expect(clippy::cast_precision_loss, reason = "shown to three digits")]
            let seconds = behind as f64 / 1e9;
            print(&format!("too late to be made up for: {seconds:.3} s of all threads together"))?;
        }
        Ok(())
    }

    /// Tells what arrived, of so many packets of each stream if that is known.
    pub(crate) fn tell_received(&self, expect: Option<u64>, json: bool) -> Result<(), Failure> {
        let account = lock(&self.account);
        let span = account.between.map_or(0, |(first, last)| last - first);
        let speed = Speed::new(account.packets, account.bytes, span);
        if json {
            let mut event = speed.json("received", account.packets, account.bytes);
            event["unstamped"] = account.unstamped.into();
            let streams = account.streams();
            event["streams"] =
                streams.map(|(id, stream)| self::stream(id, stream, expect)).collect();
            event["latency_ns"] = account.latency().map_or(Value::Null, |latency| {
                let Latency { packets, least, median, p90, p99, p999, most } = latency;
                json!({
                    "packets": packets, "min": least, "p50": median, "p90": p90, "p99": p99,
                    "p99.9": p999, "max": most,
                })
            });
            return print(&event.to_string());
        }
        print(&format!("received: {} packets, {speed}", account.packets))?;
        if account.unstamped > 0 {
            print(&format!("without a number: {}", account.unstamped))?;
        }
        for (id, stream) in account.streams() {
            let mut line = format!(
                "stream {id:04x}: {} packets, {} lost between them, {} reordered (by {} at most), {} \
                 duplicates",
                stream.unique(),
                stream.lost(),
                stream.reordered,
                stream.most_behind,
                stream.duplicates
            );
            if stream.before_first() > 0 {
                write!(line, ", {} before the first that arrived", stream.before_first())?;
            }
            if stream.stale > 0 {
                write!(line, ", {} too late to tell", stream.stale)?;
            }
            if let Some(expect) = expect {
                write!(line, ", {} missing of {expect}", stream.missing_of(expect))?;
            }
            print(&line)?;
        }
        if let Some(latency) = account.latency() {
            let Latency { least, median, p90, p99, p999, most, .. } = latency;
            let [least, median, p90, p99, p999, most] =
                [least, median, p90, p99, p999, most].map(micros);
            print(&format!(
                "latency in µs: min {least}  50 % {median}  90 % {p90}  99 % {p99}  99.9 % {p999}  \
                 max {most}"
            ))?;
        }
        Ok(())
    }
}

fn stream(id: u16, stream: &Stream, expect: Option<u64>) -> Value {
    json!({
        "stream": id,
        "unique": stream.unique(),
        "lost": stream.lost(),
        "before_first": stream.before_first(),
        "reordered": stream.reordered,
        "most_behind": stream.most_behind,
        "duplicates": stream.duplicates,
        "stale": stream.stale,
        "missing": expect.map(|expect| stream.missing_of(expect)),
    })
}

fn micros(nanoseconds: u64) -> String {
    format!("{}.{}", nanoseconds / 1000, nanoseconds % 1000 / 100)
}

/// Packets and bits a second.
struct Speed {
    nanoseconds: u64,
    packets: f64,
    layer_one: f64,
    layer_two: f64,
}

impl Speed {
    fn new(packets: u64, bytes: u64, nanoseconds: u64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "rates to be looked at")]
        let rate = |count: u64| count as f64 * 1e9 / nanoseconds.max(1) as f64;
        Self {
            nanoseconds,
            packets: rate(packets),
            layer_one: rate(Layer::One.bits(packets, bytes)),
            layer_two: rate(Layer::Two.bits(packets, bytes)),
        }
    }

    fn json(&self, event: &str, packets: u64, bytes: u64) -> Value {
        let Self { nanoseconds, packets: pps, layer_one, layer_two } = self;
        json!({
            "event": event, "packets": packets, "bytes": bytes, "nanoseconds": nanoseconds,
            "pps": pps, "bps_l1": layer_one, "bps_l2": layer_two,
        })
    }
}

impl std::fmt::Display for Speed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { packets, layer_one, layer_two, .. } = self;
        write!(
            f,
            "{packets:.1} pps ({:.1} ns each), {:.3} Mbit/s on layer 1, {:.3} on layer 2",
            1e9 / packets.max(1e-9),
            layer_one / 1e6,
            layer_two / 1e6
        )
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
