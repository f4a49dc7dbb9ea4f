//! How much a second.

use std::{fmt, str::FromStr};

use crate::Layer;

/// A rate that is asked for: `100kpps`, `1.5Mpps`, `10Gbps` (on layer 2), `10Gbps-l1` (on layer 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Packets a second.
    Packets(u64),
    /// Bits a second.
    Bits(u64, Layer),
}

impl Rate {
    /// Units a second.
    pub(crate) fn per_second(self) -> u64 {
        match self {
            Self::Packets(units) | Self::Bits(units, _) => units,
        }
    }

    /// What a packet of this many bytes costs of it.
    pub(crate) fn cost(self, len: usize) -> u64 {
        match self {
            Self::Packets(_) => 1,
            Self::Bits(_, layer) => layer.bits(1, len as u64),
        }
    }

    /// Packets of this many bytes that the rate allows in so many nanoseconds.
    pub fn packets_in(self, nanoseconds: u64, len: usize) -> u64 {
        let units = u128::from(self.per_second()) * u128::from(nanoseconds) / crate::SECOND;
        u64::try_from(units / u128::from(self.cost(len))).unwrap_or(u64::MAX)
    }
}

/// Makes a rate out of units a second.
type New = fn(u64) -> Rate;

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("{text}: a number with a unit, such as 100kpps, 1.5Mpps, 10Gbps or 10Gbps-l1")
        };
        let units: [(&str, New); 3] = [
            ("pps", Self::Packets),
            ("bps-l1", |bits| Self::Bits(bits, Layer::One)),
            ("bps", |bits| Self::Bits(bits, Layer::Two)),
        ];
        let (number, unit) = units
            .iter()
            .find_map(|(unit, new)| Some((text.strip_suffix(unit)?, new)))
            .ok_or_else(wrong)?;
        let scales = [("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)];
        let (number, scale) = scales
            .iter()
            .find_map(|(letter, scale)| Some((number.strip_suffix(letter)?, *scale)))
            .unwrap_or((number, 1));
        let rate = decimal(number, scale).ok_or_else(wrong)?;
        if rate == 0 {
            return Err(format!("{text}: nothing would ever be sent"));
        }
        Ok(unit(rate))
    }
}

/// A decimal number times `scale`, exactly: `1.5` times a thousand is 1500, and `1.0005` has too many digits.
fn decimal(text: &str, scale: u64) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) {
        return None;
    }
    let one = 10_u64.checked_pow(u32::try_from(part.len()).ok()?)?;
    let part = part.parse::<u64>().ok()?.checked_mul(scale)?;
    let whole = whole.parse::<u64>().ok()?.checked_mul(scale)?;
    if !part.is_multiple_of(one) {
        return None;
    }
    whole.checked_add(part / one)
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self {
            Self::Packets(_) => "pps",
            Self::Bits(_, Layer::One) => "bps-l1",
            Self::Bits(_, Layer::Two) => "bps",
        };
        let rate = self.per_second();
        let scales = [(1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k"), (1, "")];
        let fits = |(scale, _): &&(u64, &str)| rate.is_multiple_of(*scale);
        let (scale, letter) = scales.iter().find(fits).unwrap_or(&scales[3]);
        write!(f, "{}{letter}{unit}", rate / scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_by_their_text() {
        let good = [
            ("1pps", Rate::Packets(1)),
            ("100kpps", Rate::Packets(100_000)),
            ("1.5Mpps", Rate::Packets(1_500_000)),
            ("2.5Gbps", Rate::Bits(2_500_000_000, Layer::Two)),
            ("10Gbps-l1", Rate::Bits(10_000_000_000, Layer::One)),
            ("0.5kpps", Rate::Packets(500)),
        ];
        for (text, rate) in good {
            assert_eq!(text.parse::<Rate>(), Ok(rate), "{text}");
            assert_eq!(rate.to_string().parse::<Rate>(), Ok(rate), "{rate}");
        }
        for text in
            ["", "1", "pps", "0pps", "1.5pps", "-1pps", "1e3pps", ".pps", "1Tpps", "1,5kpps"]
        {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn packets_in_a_while() {
        assert_eq!(Rate::Packets(1_000).packets_in(1_000_000, 60), 1);
        assert_eq!(
            Rate::Bits(10_000_000_000, Layer::One).packets_in(1_000_000_000, 60),
            14_880_952
        );
    }
}
