//! One value, or a range of them.

use fastrand::Rng;

/// The values of a field: `A`, `A-B` for each from A to B in turn, `A~B` for a draw from A to B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values {
    first: u128,
    /// The number of values less one.
    span: u128,
    drawn: bool,
}

impl Values {
    /// Always that one.
    pub const fn one(value: u128) -> Self {
        Self { first: value, span: 0, drawn: false }
    }

    /// Reads such a text, each value by `parse`.
    pub fn parse(text: &str, parse: impl Fn(&str) -> Result<u128, String>) -> Result<Self, String> {
        let Some((first, last)) = text.split_once(['-', '~']) else {
            return Ok(Self::one(parse(text)?));
        };
        let (first, last) = (parse(first)?, parse(last)?);
        let span =
            last.checked_sub(first).ok_or_else(|| format!("{text}: ends before it begins"))?;
        Ok(Self { first, span, drawn: text.contains('~') })
    }

    /// The first of them.
    pub fn first(self) -> u128 {
        self.first
    }

    /// The last of them.
    pub fn last(self) -> u128 {
        self.first + self.span
    }

    /// The value for the packet of that number.
    pub fn value(self, number: u64, random: &mut Rng) -> u128 {
        if self.span == 0 {
            return self.first;
        }
        let offset = match (self.drawn, self.span.checked_add(1)) {
            (true, _) => random.u128(0..=self.span),
            (false, Some(count)) => u128::from(number) % count,
            (false, None) => number.into(),
        };
        self.first + offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Result<u128, String> {
        text.parse().map_err(|error| format!("{error}"))
    }

    #[test]
    fn one_in_turn_or_drawn() {
        let mut random = Rng::with_seed(1);
        let mut values = |text: &str| -> Vec<u128> {
            let values = Values::parse(text, number).unwrap();
            (0..1000).map(|index| values.value(index, &mut random)).collect()
        };
        assert_eq!(values("7")[..3], [7, 7, 7]);
        assert_eq!(values("7-9")[..5], [7, 8, 9, 7, 8]);
        let drawn = values("7~9");
        for value in [7, 8, 9] {
            let count = drawn.iter().filter(|drawn| **drawn == value).count();
            assert!((200..500).contains(&count), "{value}: {count} of 1000");
        }
        assert!(drawn.iter().all(|value| (7..=9).contains(value)));
        for wrong in ["", "9-7", "1-", "-1", "1~2~3", "x"] {
            assert!(Values::parse(wrong, number).is_err(), "{wrong}");
        }
        let all = Values::parse(&format!("0-{}", u128::MAX), number).unwrap();
        assert_eq!(all.value(5, &mut random), 5);
    }
}
