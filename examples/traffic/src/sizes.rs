//! How long packets are.

use std::str::FromStr;

use fastrand::Rng;

use crate::Values;

/// A simple IMIX: 7 of 60 bytes, 4 of 590, one of 1514 (64, 594 and 1518 with the check sequence).
const IMIX: &str = "60:7,590:4,1514:1";

/// A mix repeats after at most so many packets.
const MOST: u64 = 10_000;

/// Bytes of a packet without its check sequence: `60`, `60-1514` in turn, `60~1514` drawn, `imix`, or a mix
/// by weights such as `60:7,590:4,1514:1`, each size as evenly between the others as can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// One, or a range.
    Values(Values),
    /// A mix, in the order in which it is sent.
    Mix(Vec<u16>),
}

impl Sizes {
    /// The size of the packet of that number.
    pub fn size(&self, number: u64, random: &mut Rng) -> usize {
        match self {
            Self::Values(values) => {
                usize::try_from(values.value(number, random)).unwrap_or(usize::MAX)
            }
            Self::Mix(sizes) => {
                let index = number % sizes.len() as u64;
                sizes[usize::try_from(index).unwrap_or(0)].into()
            }
        }
    }

    /// The shortest.
    pub fn least(&self) -> usize {
        match self {
            Self::Values(values) => usize::try_from(values.first()).unwrap_or(usize::MAX),
            Self::Mix(sizes) => sizes.iter().copied().min().unwrap_or(0).into(),
        }
    }

    /// The longest.
    pub fn most(&self) -> usize {
        match self {
            Self::Values(values) => usize::try_from(values.last()).unwrap_or(usize::MAX),
            Self::Mix(sizes) => sizes.iter().copied().max().unwrap_or(0).into(),
        }
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "imix" {
            return IMIX.parse();
        }
        if !text.contains(':') {
            return Ok(Self::Values(Values::parse(text, |text| Ok(size(text)?.into()))?));
        }
        let parts: Vec<(u16, u64)> = text
            .split(',')
            .map(|part| {
                let (bytes, weight) =
                    part.split_once(':').ok_or_else(|| format!("{part}: a size and its weight"))?;
                let weight = weight.parse().map_err(|error| format!("{part}: {error}"))?;
                Ok((size(bytes)?, weight))
            })
            .collect::<Result<_, String>>()?;
        let all = parts.iter().try_fold(0_u64, |sum, (_, weight)| sum.checked_add(*weight));
        let all = all.filter(|all| (1..=MOST).contains(all));
        let all = all.ok_or_else(|| format!("{text}: the weights add up to 1 to {MOST}"))?;
        Ok(Self::Mix(spread(&parts, all)))
    }
}

fn size(text: &str) -> Result<u16, String> {
    text.parse().map_err(|error| format!("{text}: {error}"))
}

/// Each size as often as it weighs, and whichever is furthest behind its share comes next.
fn spread(parts: &[(u16, u64)], all: u64) -> Vec<u16> {
    let mut sent = vec![0; parts.len()];
    (1..=all)
        .map(|number| {
            let behind = |part: usize| {
                (parts[part].1 * number).cast_signed() - (sent[part] * all).cast_signed()
            };
            let next = (0..parts.len()).rev().max_by_key(|part| behind(*part)).expect("a part");
            sent[next] += 1;
            parts[next].0
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(text: &str, count: u64) -> Vec<usize> {
        let mut random = Rng::with_seed(1);
        let sizes: Sizes = text.parse().unwrap();
        (0..count).map(|number| sizes.size(number, &mut random)).collect()
    }

    #[test]
    fn imix_is_seven_to_four_to_one_in_every_twelve() {
        let sent = sizes("imix", 1200);
        for (start, twelve) in sent.chunks(12).enumerate() {
            let count = |size| twelve.iter().filter(|sent| **sent == size).count();
            assert_eq!([count(60), count(590), count(1514)], [7, 4, 1], "from {start}");
        }
        assert!(!sent.windows(2).any(|two| two == [590, 590]), "evenly: {:?}", &sent[..12]);
        let imix: Sizes = "imix".parse().unwrap();
        assert_eq!((imix.least(), imix.most()), (60, 1514));
    }

    #[test]
    fn ranges() {
        assert_eq!(sizes("60-62", 4), [60, 61, 62, 60]);
        assert!(sizes("60~62", 100).iter().all(|size| (60..=62).contains(size)));
        for wrong in ["", "x", "70000", "60:0", "60:1,590", "60:99999", "62-60"] {
            assert!(wrong.parse::<Sizes>().is_err(), "{wrong}");
        }
    }
}
