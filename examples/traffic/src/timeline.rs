//! When captured packets are due.

/// Packets at the pace of their capture, or faster, over and over.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// Since the first packet, never going back.
    offsets: Vec<u64>,
    /// From one first packet to the next.
    period: u64,
    speed: f64,
    start: u64,
}

impl Timeline {
    /// Packets captured at these times, to be sent from `start` on, `speed` times as fast. A packet that was
    /// captured with an earlier time than the one before is due with it. All times are nanoseconds.
    ///
    /// # Panics
    ///
    /// If there is no packet, or if the speed is not above zero.
    pub fn new(captured: impl IntoIterator<Item = u64>, speed: f64, start: u64) -> Self {
        assert!(speed > 0.0, "at a speed of {speed} nothing is ever due");
        let mut offsets: Vec<u64> = Vec::new();
        let mut first = None;
        for time in captured {
            let offset = time.saturating_sub(*first.get_or_insert(time));
            offsets.push(offset.max(offsets.last().copied().unwrap_or(0)));
        }
        let last = *offsets.last().expect("at least one packet");
        // After the last one comes what usually comes between two.
        let period = last + last / (offsets.len() as u64 - 1).max(1);
        Self { offsets, period, speed, start }
    }

    /// When the packet of this number is due, the capture beginning anew after its last one.
    pub fn due(&self, number: u64) -> u64 {
        let packets = self.offsets.len() as u64;
        let (round, index) = (number / packets, number % packets);
        let index = usize::try_from(index).unwrap_or(0);
        let time = u128::from(round) * u128::from(self.period) + u128::from(self.offsets[index]);
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "exact to the nanosecond for a hundred days"
        )]
        let scaled = if (self.speed - 1.0).abs() < f64::EPSILON {
            u64::try_from(time).unwrap_or(u64::MAX)
        } else {
            (time as f64 / self.speed) as u64
        };
        self.start.saturating_add(scaled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_captured_twice_as_fast_and_over_again() {
        let captured = [1_000, 1_500, 1_400, 4_000];
        let own = Timeline::new(captured, 1.0, 10);
        let due: Vec<u64> = (0..6).map(|number| own.due(number)).collect();
        assert_eq!(due, [10, 510, 510, 3_010, 4_010, 4_510]);
        let fast = Timeline::new(captured, 2.0, 10);
        let due: Vec<u64> = (0..6).map(|number| fast.due(number)).collect();
        assert_eq!(due, [10, 260, 260, 1_510, 2_010, 2_260]);
        assert_eq!(Timeline::new([7], 1.0, 10).due(3), 10, "one packet has no pace");
    }
}
