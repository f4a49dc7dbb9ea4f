//! One stream's sequence numbers: what is missing, out of order, or there twice.

/// A bit for each packet of the window.
const WORDS: usize = 1 << 10;

/// Packets this far behind the newest are still told apart: a power of two.
const WINDOW: u64 = 64 * WORDS as u64;

/// Before the first number, so that one may lie below it.
const ORIGIN: u64 = 1 << 32;

/// What a packet was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Newer than all before it.
    InOrder,
    /// Older than one before it, and not there yet (RFC 4737).
    Reordered,
    /// There already.
    Duplicate,
    /// So much older than another one that nothing more can be said.
    Stale,
}

/// What became of the packets of a stream.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Every number since `ORIGIN`: a bit for each of the newest ones, set if it arrived.
    seen: Box<[u64]>,
    lowest: u64,
    highest: u64,
    unique: u64,
    /// Packets that arrived after a newer one.
    pub reordered: u64,
    /// Packets that had arrived already.
    pub duplicates: u64,
    /// Packets more than 65535 numbers behind the newest, of which nothing more is known.
    pub stale: u64,
    /// By how many numbers a packet was behind the newest at most.
    pub most_behind: u64,
}

impl Stream {
    /// A stream of which this is the first packet that arrives.
    pub fn new(sequence: u32) -> Self {
        let first = ORIGIN + u64::from(sequence);
        let mut stream = Self {
            seen: vec![0; WORDS].into(),
            lowest: first,
            highest: first,
            unique: 1,
            reordered: 0,
            duplicates: 0,
            stale: 0,
            most_behind: 0,
        };
        stream.mark(first);
        stream
    }

    /// Another one arrives.
    pub fn arrived(&mut self, sequence: u32) -> Arrival {
        // Its number is the nearest to the highest that ends like this.
        #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
        let ahead = sequence.wrapping_sub(self.highest as u32).cast_signed();
        let Some(number) = self.highest.checked_add_signed(ahead.into()) else {
            self.stale += 1;
            return Arrival::Stale;
        };
        if number > self.highest {
            self.advance(number);
            self.mark(number);
            self.unique += 1;
            return Arrival::InOrder;
        }
        let behind = self.highest - number;
        if behind >= WINDOW {
            self.stale += 1;
            return Arrival::Stale;
        }
        if self.is_marked(number) {
            self.duplicates += 1;
            return Arrival::Duplicate;
        }
        self.mark(number);
        self.unique += 1;
        self.reordered += 1;
        self.most_behind = self.most_behind.max(behind);
        self.lowest = self.lowest.min(number);
        Arrival::Reordered
    }

    /// Packets that arrived, each once.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// Packets between the first and the last number that arrived that did not arrive.
    pub fn lost(&self) -> u64 {
        self.highest - self.lowest + 1 - self.unique
    }

    /// Packets before the first number that arrived: lost, or sent before anybody listened.
    pub fn before_first(&self) -> u64 {
        self.lowest.saturating_sub(ORIGIN)
    }

    /// Packets that did not arrive, of so many that were sent.
    pub fn missing_of(&self, sent: u64) -> u64 {
        sent.saturating_sub(self.unique)
    }

    /// Forgets what falls out of the window.
    fn advance(&mut self, number: u64) {
        if number - self.highest >= WINDOW {
            self.seen.fill(0);
        } else {
            for number in self.highest + 1..=number {
                let (word, bit) = place(number);
                self.seen[word] &= !bit;
            }
        }
        self.highest = number;
    }

    fn mark(&mut self, number: u64) {
        let (word, bit) = place(number);
        self.seen[word] |= bit;
    }

    fn is_marked(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.seen[word] & bit != 0
    }
}

fn place(number: u64) -> (usize, u64) {
    let word = usize::try_from(number % WINDOW / 64).unwrap_or(0);
    (word, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::{
        Arrival::{Duplicate, InOrder, Reordered},
        *,
    };

    #[test]
    fn each_kind_of_arrival() {
        let mut stream = Stream::new(2);
        let arrivals: Vec<Arrival> =
            [3, 5, 4, 4, 0, 2, 9].into_iter().map(|number| stream.arrived(number)).collect();
        assert_eq!(
            arrivals,
            [InOrder, InOrder, Reordered, Duplicate, Reordered, Duplicate, InOrder]
        );
        assert_eq!((stream.unique(), stream.lost(), stream.before_first()), (6, 4, 0));
        assert_eq!((stream.reordered, stream.duplicates, stream.most_behind), (2, 2, 5));
        assert_eq!(stream.missing_of(12), 6);
    }

    #[test]
    fn a_number_may_begin_anew() {
        let mut stream = Stream::new(u32::MAX - 1);
        for number in [u32::MAX, 1, 0, 2] {
            stream.arrived(number);
        }
        assert_eq!((stream.unique(), stream.lost(), stream.reordered), (5, 0, 1));
    }

    #[test]
    fn too_old_to_tell() {
        let mut stream = Stream::new(0);
        stream.arrived(65_536);
        assert_eq!(stream.arrived(0), Arrival::Stale);
        assert_eq!(stream.arrived(1), Arrival::Reordered);
        stream.arrived(10_000_000);
        assert_eq!(stream.arrived(9_999_999), Arrival::Reordered);
        assert_eq!((stream.stale, stream.unique()), (1, 5));
        assert_eq!(stream.lost(), 10_000_001 - 5);
    }

    proptest! {
        /// A stream in which packets are lost, doubled and moved: the account is exactly what was done to
        /// it, by the definitions applied to the whole list at once.
        #[test]
        fn exactly_what_was_injected(
            first in any::<u32>(),
            jumps in proptest::collection::vec((0..6_u32, 0..40_usize, 0..4_usize), 2..400),
        ) {
            let mut sent: Vec<u32> = Vec::new();
            let mut number = first;
            for (gap, move_by, copies) in jumps {
                number = number.wrapping_add(gap.saturating_sub(3));
                let at = sent.len().saturating_sub(move_by.saturating_sub(30));
                for _ in 0..=copies.saturating_sub(2) {
                    sent.insert(at, number);
                }
                number = number.wrapping_add(1);
            }
            let mut stream = Stream::new(sent[0]);
            for number in &sent[1..] {
                stream.arrived(*number);
            }
            // By the definitions, on numbers that do not begin anew.
            let plain: Vec<i64> = sent
                .iter()
                .map(|number| i64::from(number.wrapping_sub(first).cast_signed()))
                .collect();
            let unique: HashSet<i64> = plain.iter().copied().collect();
            let (mut reordered, mut newest, mut seen) = (0, i64::MIN, HashSet::new());
            for number in &plain {
                reordered += u64::from(*number < newest && !seen.contains(number));
                newest = newest.max(*number);
                seen.insert(*number);
            }
            let span = plain.iter().max().unwrap() - plain.iter().min().unwrap() + 1;
            prop_assert_eq!(stream.unique(), unique.len() as u64);
            prop_assert_eq!(stream.duplicates, (plain.len() - unique.len()) as u64);
            prop_assert_eq!(stream.lost(), span.cast_unsigned() - unique.len() as u64);
            prop_assert_eq!(stream.reordered, reordered);
            prop_assert_eq!(stream.stale, 0);
        }
    }
}
