//! What a receiver makes of the packets that arrive.

use hdrhistogram::Histogram;

use crate::{Arrival, Stamp, Stream};

/// Latencies are told apart up to here, in nanoseconds.
const HOUR: u64 = 3_600_000_000_000;

/// All that arrived, by stream.
#[derive(Clone, Debug)]
pub struct Account {
    /// Packets, stamped or not.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets without a stamp, which can only be counted.
    pub unstamped: u64,
    /// When the first packet and the last one arrived.
    pub between: Option<(u64, u64)>,
    streams: Vec<(u16, Stream)>,
    /// Where the last packet's stream is: usually the next one's too.
    last: usize,
    latency: Histogram<u64>,
}

/// How long packets were under way, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Packets that it was measured of.
    pub packets: u64,
    /// The shortest.
    pub least: u64,
    /// Of half of the packets it was less.
    pub median: u64,
    /// Of 90 percent.
    pub p90: u64,
    /// Of 99 percent.
    pub p99: u64,
    /// Of 99.9 percent.
    pub p999: u64,
    /// The longest.
    pub most: u64,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            packets: 0,
            bytes: 0,
            unstamped: 0,
            between: None,
            streams: Vec::new(),
            last: 0,
            latency: Histogram::new_with_max(HOUR, 3).expect("three digits are possible"),
        }
    }
}

impl Account {
    /// A packet of `len` bytes has arrived, beginning like this.
    pub fn arrived(&mut self, head: &[u8], len: usize, now: u64) {
        self.packets += 1;
        self.bytes += len as u64;
        self.between = Some((self.between.map_or(now, |(first, _)| first), now));
        let Some(stamp) = Stamp::find(head) else {
            self.unstamped += 1;
            return;
        };
        if self.sequence(stamp) != Arrival::Duplicate {
            self.latency.saturating_record(now.saturating_sub(stamp.time));
        }
    }

    fn sequence(&mut self, stamp: Stamp) -> Arrival {
        let is = |(stream, _): &(u16, Stream)| *stream == stamp.stream;
        if !self.streams.get(self.last).is_some_and(is) {
            let Some(known) = self.streams.iter().position(is) else {
                self.last = self.streams.len();
                self.streams.push((stamp.stream, Stream::new(stamp.sequence)));
                return Arrival::InOrder;
            };
            self.last = known;
        }
        self.streams[self.last].1.arrived(stamp.sequence)
    }

    /// The streams, by their number, in the order in which they were seen first.
    pub fn streams(&self) -> impl Iterator<Item = (u16, &Stream)> {
        self.streams.iter().map(|(number, stream)| (*number, stream))
    }

    /// The latency of stamped packets that were no duplicates, to three digits; `None` without any.
    pub fn latency(&self) -> Option<Latency> {
        (!self.latency.is_empty()).then(|| Latency {
            packets: self.latency.len(),
            least: self.latency.min(),
            median: self.latency.value_at_quantile(0.5),
            p90: self.latency.value_at_quantile(0.9),
            p99: self.latency.value_at_quantile(0.99),
            p999: self.latency.value_at_quantile(0.999),
            most: self.latency.max(),
        })
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;
    use crate::{Addresses, Flows, Template, Values};

    fn template() -> Template {
        let address = |text: &str| text.parse::<Addresses>().unwrap();
        let flows = Flows {
            source_mac: Values::one(1),
            destination_mac: Values::one(2),
            vlan: None,
            source: address("10.0.0.1"),
            destination: address("10.0.0.2"),
            source_port: Values::one(9),
            destination_port: Values::one(9),
        };
        Template::new(flows, true).unwrap()
    }

    #[test]
    fn streams_apart_and_latency_of_each_packet_once() {
        let template = template();
        let mut account = Account::default();
        let mut arrive = |stream, sequence, time, now| {
            let mut frame = [0; 60];
            let stamp = Stamp { stream, sequence, time };
            template.write(&mut frame, 0, &mut Rng::with_seed(0), stamp);
            account.arrived(&frame, 60, now);
        };
        for sequence in 0..100 {
            arrive(1, sequence, 1_000, 2_000);
            arrive(2, sequence * 2, 1_000, 1_000 + 100_000);
        }
        arrive(1, 5, 1_000, 1_000_000_000);
        arrive(1, 100, 5_000, 4_000);
        account.arrived(b"something else", 14, 5_000);
        assert_eq!((account.packets, account.bytes, account.unstamped), (203, 202 * 60 + 14, 1));
        assert_eq!(account.between, Some((2_000, 5_000)));
        let streams: Vec<_> = account
            .streams()
            .map(|(number, s)| (number, s.unique(), s.lost(), s.duplicates, s.reordered))
            .collect();
        assert_eq!(streams, [(1, 101, 0, 1, 0), (2, 100, 99, 0, 0)]);
        let latency = account.latency().unwrap();
        assert_eq!((latency.packets, latency.least), (201, 0), "clocks may be a little apart");
        assert!((999..=1001).contains(&latency.median), "{latency:?}");
        assert!((99_900..=100_100).contains(&latency.p99), "{latency:?}");
        assert_eq!(Account::default().latency(), None);
    }
}
