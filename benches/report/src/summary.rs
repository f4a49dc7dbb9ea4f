//! Many values as few.

use serde::Serialize;

/// What a list of values comes to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Half of the values are below it.
    pub median: f64,
    /// The least value.
    pub least: f64,
    /// The greatest value.
    pub most: f64,
    /// How far apart the ends of the middle half of the values are, as a part of the median.
    pub spread: f64,
}

impl Summary {
    /// Of at least one value.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (sorted.first(), sorted.last()) else {
            panic!("a summary of no values");
        };
        let median = quantile(&sorted, 0.5);
        let width = quantile(&sorted, 0.75) - quantile(&sorted, 0.25);
        let spread = if median == 0.0 { 0.0 } else { (width / median).abs() };
        Self { median, least: *least, most: *most, spread }
    }
}

/// Between the two values next to it, where it falls between two.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a place in a short list"
)]
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "sums and halves that are exact")]
mod tests {
    use super::*;

    #[test]
    fn of_one_of_two_of_many() {
        let one = Summary { median: 3.0, least: 3.0, most: 3.0, spread: 0.0 };
        assert_eq!(Summary::of(&[3.0]), one);
        assert_eq!(Summary::of(&[4.0, 2.0]).median, 3.0);
        let many = Summary::of(&[5.0, 1.0, 4.0, 2.0, 100.0]);
        assert_eq!((many.median, many.least, many.most), (4.0, 1.0, 100.0));
        // The middle half reaches from 2 to 5.
        assert!((many.spread - 0.75).abs() < 1e-12);
    }

    #[test]
    fn of_zeroes_has_no_spread() {
        assert_eq!(Summary::of(&[0.0, 0.0]).spread, 0.0);
    }
}
