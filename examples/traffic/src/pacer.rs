//! When the next packets are due.

use crate::{Rate, SECOND};

/// Spaces bursts of packets evenly, so that the rate holds from the first packet on: each burst is due when
/// all that was sent before it has used its time up. Rounding never adds up, since due times are computed
/// from the start and not from one another.
///
/// What could not be sent in time is made up for, as far as it is [not too late](Self::new); the rest of the
/// delay moves the schedule, and [`behind`](Self::behind) tells by how much.
#[derive(Clone, Debug)]
pub struct Pacer {
    rate: Rate,
    /// Equal pacers that make up the rate together.
    parts: u64,
    burst: u64,
    /// Packets of the burst at hand that are not sent yet.
    open: u64,
    start: u64,
    /// Packets or bits sent.
    spent: u128,
    most_behind: u64,
    behind: u64,
}

impl Pacer {
    /// Bursts of that many packets at this rate, from `start` on. A burst is made up for if it is at most
    /// `most_behind` late. All times are nanoseconds of the same clock.
    ///
    /// # Panics
    ///
    /// If a burst has no packet.
    pub fn new(rate: Rate, burst: u64, start: u64, most_behind: u64) -> Self {
        assert!(burst > 0, "bursts of no packet");
        Self { rate, parts: 1, burst, open: 0, start, spent: 0, most_behind, behind: 0 }
    }

    /// That one of so many equal pacers that make up the rate together, their bursts evenly between one
    /// another. `len` is the usual length of a packet.
    ///
    /// # Panics
    ///
    /// If there is no such part.
    #[must_use]
    pub fn part(mut self, number: u64, parts: u64, len: usize) -> Self {
        assert!(number < parts, "part {number} of {parts}");
        let burst = u128::from(self.burst) * u128::from(self.rate.cost(len));
        self.start += self.time(burst * u128::from(number));
        self.parts = parts;
        self
    }

    /// When the next packet may be sent.
    pub fn due(&self) -> u64 {
        if self.open > 0 { 0 } else { self.start + self.time(self.spent) }
    }

    /// How many packets may be sent now.
    pub fn ready(&mut self, now: u64) -> u64 {
        let due = self.due();
        if self.open == 0 && now >= due {
            let too_late = (now - due).saturating_sub(self.most_behind);
            self.start += too_late;
            self.behind += too_late;
            self.open = self.burst;
        }
        self.open
    }

    /// A packet of this length is sent.
    ///
    /// # Panics
    ///
    /// If none was [ready](Self::ready).
    pub fn sent(&mut self, len: usize) {
        self.open = self.open.checked_sub(1).expect("a packet that is ready");
        self.spent += u128::from(self.rate.cost(len));
    }

    /// Nanoseconds that the schedule has moved, since the sender was too late.
    pub fn behind(&self) -> u64 {
        self.behind
    }

    /// The time that so many packets or bits take.
    fn time(&self, units: u128) -> u64 {
        let time = units * u128::from(self.parts) * SECOND;
        u64::try_from(time.div_ceil(self.rate.per_second().into())).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Layer;

    const A_SECOND: u64 = 1_000_000_000;

    #[test]
    fn packets_are_evenly_spaced() {
        let mut pacer = Pacer::new(Rate::Packets(3), 1, 100, A_SECOND);
        let mut times = Vec::new();
        for _ in 0..7 {
            let due = pacer.due();
            assert_eq!(pacer.ready(due - 1), 0);
            assert_eq!(pacer.ready(due), 1);
            pacer.sent(60);
            times.push(due - 100);
        }
        let expected = [0, 333_333_334, 666_666_667, A_SECOND, 1_333_333_334, 1_666_666_667];
        assert_eq!(times[..6], expected, "never early, and no rounding adds up");
        assert_eq!(times[6], 2 * A_SECOND);
    }

    #[test]
    fn a_short_delay_is_made_up_for_and_a_long_one_is_not() {
        let mut pacer = Pacer::new(Rate::Packets(1_000), 1, 0, 5_000_000);
        let mut drain = |now| {
            let mut sent = 0;
            while pacer.ready(now) > 0 {
                pacer.sent(60);
                sent += 1;
            }
            (sent, pacer.behind())
        };
        assert_eq!(drain(0), (1, 0));
        assert_eq!(drain(5_000_000), (5, 0));
        // 100 ms late: 5 ms of it and the packet due now.
        assert_eq!(drain(106_000_000), (6, 95_000_000));
        assert_eq!(drain(106_999_999), (0, 95_000_000));
        assert_eq!(drain(107_000_000), (1, 95_000_000));
    }

    #[test]
    fn a_burst_goes_on_where_it_was_interrupted() {
        let mut pacer = Pacer::new(Rate::Packets(1_000), 8, 0, A_SECOND);
        assert_eq!(pacer.ready(0), 8);
        (0..3).for_each(|_| pacer.sent(60));
        assert_eq!((pacer.ready(1), pacer.due()), (5, 0));
        (0..5).for_each(|_| pacer.sent(60));
        assert_eq!((pacer.ready(1), pacer.due()), (0, 8_000_000));
    }

    fn rates() -> impl Strategy<Value = Rate> {
        prop_oneof![
            (1..200_000_000_u64).prop_map(Rate::Packets),
            (1_000..400_000_000_000_u64).prop_map(|bits| Rate::Bits(bits, Layer::One)),
            (1_000..400_000_000_000_u64).prop_map(|bits| Rate::Bits(bits, Layer::Two)),
        ]
    }

    proptest! {
        /// Whatever the rate, the sizes and the steps of the clock: at no moment is more than a burst too
        /// much sent, and never less than the rate asks for.
        #[test]
        fn any_rate_is_kept_on_any_clock(
            rate in rates(),
            burst in 1..100_u64,
            start in 0..1_u64 << 60,
            parts in 1..9_u64,
            lens in proptest::collection::vec(14..9000_usize, 1..10),
            steps in proptest::collection::vec(0..3_000_u64, 1..60),
        ) {
            let mut pacers: Vec<Pacer> = (0..parts)
                .map(|part| Pacer::new(rate, burst, start, u64::MAX).part(part, parts, lens[0]))
                .collect();
            let last_start = pacers.iter().map(Pacer::due).max().expect("at least one");
            let longest = lens.iter().map(|len| rate.cost(*len)).max().expect("one");
            // The clock steps by up to three thousand bursts' time.
            let unit = u128::from(rate.cost(lens[0])) * SECOND / u128::from(rate.per_second());
            let mut now = start;
            let mut lens = lens.iter().cycle();
            let mut spent = 0;
            for step in steps {
                now += u64::try_from(u128::from(step) * unit / 8 + u128::from(step)).expect("small");
                for pacer in &mut pacers {
                    let mut most = 5_000;
                    while pacer.ready(now) > 0 && most > 0 {
                        let len = *lens.next().expect("endless");
                        pacer.sent(len);
                        spent += u128::from(rate.cost(len));
                        most -= 1;
                    }
                    prop_assume!(most > 0);
                }
                let allowed = |from: u64| {
                    u128::from(now.saturating_sub(from)) * u128::from(rate.per_second()) / SECOND
                };
                let slack = u128::from(burst * parts) * u128::from(longest);
                prop_assert!(spent <= allowed(start) + slack, "{spent} by {now}");
                prop_assert!(spent + u128::from(parts) >= allowed(last_start), "{spent} by {now}");
            }
            prop_assert!(pacers.iter().all(|pacer| pacer.behind() == 0));
        }
    }
}
