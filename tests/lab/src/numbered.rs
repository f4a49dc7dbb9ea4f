//! Numbered frames with a pattern that follows from their number, and the checker at the other end.

use crate::flow::Flow;

/// Bytes of the payload that hold the number, and the least that a pattern needs to be one.
const NUMBER: usize = 8;
const LEAST_PATTERN: usize = 2;

/// A series of frames of one length: the number is in the payload, and number and seed decide every
/// other byte of it.
#[derive(Clone, Debug)]
pub struct Numbered {
    flow: Flow,
    length: usize,
    seed: u64,
}

impl Numbered {
    /// Frames of `length` bytes, headers included.
    ///
    /// # Panics
    ///
    /// When the length leaves less than 10 bytes after the flow's headers.
    pub fn new(flow: Flow, length: usize, seed: u64) -> Self {
        let least = flow.header_len() + NUMBER + LEAST_PATTERN;
        assert!(length >= least, "frames of this flow have at least {least} bytes");
        Self { flow, length, seed }
    }

    /// The frame of this number.
    pub fn frame(&self, number: u64) -> Vec<u8> {
        let mut frame = Vec::new();
        self.write(number, &mut frame);
        frame
    }

    /// Like [`frame`](Self::frame), in place of what `frame` holds.
    pub fn write(&self, number: u64, frame: &mut Vec<u8>) {
        let mut payload = vec![0; self.length - self.flow.header_len()];
        let (head, pattern) = payload.split_at_mut(NUMBER);
        head.copy_from_slice(&number.to_be_bytes());
        let mut state = self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for bytes in pattern.chunks_mut(8) {
            let word = next(&mut state).to_be_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
        self.flow.write(&payload, frame);
    }

    /// The number that a frame of this length claims to have.
    fn number_in(&self, frame: &[u8]) -> Option<u64> {
        let at = self.flow.header_len();
        let bytes = frame.get(at..at + NUMBER)?;
        Some(u64::from_be_bytes(bytes.try_into().ok()?))
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): short, and no two numbers of a series share their pattern.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// What a frame turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Ours, whole, and after all those before it.
    Good,
    /// Ours, whole, but a later one was here first.
    Reordered,
    /// Ours, whole, but not for the first time.
    Duplicate,
    /// From our sender, but not as it was sent.
    Corrupted,
    /// Other Ethernet addresses or another EtherType: none of ours.
    Foreign,
}

/// How many frames turned out to be what. Each frame counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// See [`Verdict::Good`].
    pub good: u64,
    /// See [`Verdict::Reordered`].
    pub reordered: u64,
    /// See [`Verdict::Duplicate`].
    pub duplicate: u64,
    /// See [`Verdict::Corrupted`].
    pub corrupted: u64,
    /// See [`Verdict::Foreign`].
    pub foreign: u64,
}

impl Tally {
    /// Frames of the series that arrived whole, each counted once.
    pub fn received(&self) -> u64 {
        self.good + self.reordered
    }

    /// How many of `sent` never arrived whole.
    pub fn lost(&self, sent: u64) -> u64 {
        sent.saturating_sub(self.received())
    }

    /// Whether exactly the frames 0 to `sent` arrived, whole, once and in order, and nothing else.
    pub fn is_perfect(&self, sent: u64) -> bool {
        *self == Self { good: sent, ..Self::default() }
    }
}

/// Checks the frames of a series as they arrive, every byte of them.
#[derive(Debug)]
pub struct Checker {
    series: Numbered,
    tally: Tally,
    /// One bit for each number that was seen.
    seen: Vec<u64>,
    /// One more than the highest number that was seen.
    next: u64,
    /// The first 14 bytes of all frames of the series.
    ethernet: [u8; 14],
    expected: Vec<u8>,
}

impl Checker {
    /// A checker that has seen nothing yet.
    pub fn new(series: Numbered) -> Self {
        let mut expected = series.frame(0);
        let mut ethernet = [0; 14];
        ethernet.copy_from_slice(&expected[..14]);
        expected.clear();
        Self { series, tally: Tally::default(), seen: Vec::new(), next: 0, ethernet, expected }
    }

    /// Looks at one frame and counts it.
    pub fn check(&mut self, frame: &[u8]) -> Verdict {
        let verdict = self.judge(frame);
        *match verdict {
            Verdict::Good => &mut self.tally.good,
            Verdict::Reordered => &mut self.tally.reordered,
            Verdict::Duplicate => &mut self.tally.duplicate,
            Verdict::Corrupted => &mut self.tally.corrupted,
            Verdict::Foreign => &mut self.tally.foreign,
        } += 1;
        verdict
    }

    /// The counts so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    fn judge(&mut self, frame: &[u8]) -> Verdict {
        if frame.get(..self.ethernet.len()) != Some(self.ethernet.as_slice()) {
            return Verdict::Foreign;
        }
        let Some(number) = self.series.number_in(frame) else {
            return Verdict::Corrupted;
        };
        self.series.write(number, &mut self.expected);
        if frame != self.expected {
            return Verdict::Corrupted;
        }
        // A whole frame was really sent, so that its number is one that somebody has counted to.
        let word = usize::try_from(number / 64).expect("as many frames as memory has bits");
        let bit = number % 64;
        if self.seen.len() <= word {
            self.seen.resize(word + 1, 0);
        }
        if self.seen[word] & (1 << bit) != 0 {
            return Verdict::Duplicate;
        }
        self.seen[word] |= 1 << bit;
        if number < self.next {
            return Verdict::Reordered;
        }
        self.next = number + 1;
        Verdict::Good
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Protocol;

    fn series(length: usize) -> Numbered {
        let flow = Flow::new(
            Protocol::Udp,
            ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]),
            "198.18.0.1:1".parse().unwrap(),
            "198.18.0.2:2".parse().unwrap(),
        );
        Numbered::new(flow, length, 7)
    }

    #[test]
    fn every_kind_of_frame_is_told_apart() {
        let series = series(64);
        let mut checker = Checker::new(series.clone());
        assert_eq!(checker.check(&series.frame(0)), Verdict::Good);
        assert_eq!(checker.check(&series.frame(2)), Verdict::Good);
        assert_eq!(checker.check(&series.frame(1)), Verdict::Reordered);
        assert_eq!(checker.check(&series.frame(2)), Verdict::Duplicate);
        assert_eq!(checker.check(&[0; 64]), Verdict::Foreign);
        let tally = checker.tally();
        assert_eq!(tally.received(), 3);
        assert_eq!(tally.lost(5), 2);
        assert!(!tally.is_perfect(3));
    }

    #[test]
    fn a_change_of_any_byte_is_found() {
        let series = series(128);
        let good = series.frame(3);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            let expected = if at < 14 { Verdict::Foreign } else { Verdict::Corrupted };
            assert_eq!(Checker::new(series.clone()).check(&bad), expected, "byte {at}");
        }
        assert_eq!(Checker::new(series.clone()).check(&good[..127]), Verdict::Corrupted);
        assert_eq!(Checker::new(series).check(&good[..13]), Verdict::Foreign);
    }

    #[test]
    fn a_perfect_series_is_perfect() {
        let series = series(60);
        let mut checker = Checker::new(series.clone());
        for number in 0..200 {
            checker.check(&series.frame(number));
        }
        assert!(checker.tally().is_perfect(200));
    }
}
