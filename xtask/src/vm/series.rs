//! Which kernels: by series, and the newest of it.

use std::{cmp::Ordering, fmt, str::FromStr};

use anyhow::{Context, Result, bail};

/// A series of kernels, as a user names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Series {
    /// `6.12`: this one.
    Exactly(u32, u32),
    /// `6.18+`: this one; once it has vanished, the oldest after it.
    From(u32, u32),
    /// `newest`: whatever is.
    Newest,
}

impl FromStr for Series {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "newest" {
            return Ok(Self::Newest);
        }
        let (numbers, from) = match text.strip_suffix('+') {
            Some(numbers) => (numbers, true),
            None => (text, false),
        };
        let (major, minor) = numbers
            .split_once('.')
            .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
            .with_context(|| format!("`{text}` is no series of kernels: 6.12, 6.18+, newest"))?;
        Ok(if from { Self::From(major, minor) } else { Self::Exactly(major, minor) })
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(major, minor) => write!(f, "{major}.{minor}"),
            Self::From(major, minor) => write!(f, "{major}.{minor}+"),
            Self::Newest => f.write_str("newest"),
        }
    }
}

impl Series {
    /// Chooses among packages called `linux-image-6.12.117+deb12-cloud-amd64` and the like, the one to
    /// prefer first: an old package may have vanished although its name is known.
    pub(super) fn choose(self, names: &[String]) -> Result<Vec<&str>> {
        let mut known: Vec<(Vec<u32>, &str)> = names
            .iter()
            .filter_map(|name| {
                let version = name.strip_prefix("linux-image-")?.strip_suffix("-cloud-amd64")?;
                let numbers = numbers(version);
                (numbers.len() > 2).then_some((numbers, name.as_str()))
            })
            .collect();
        known.sort_by(|one, other| other.cmp(one));
        let series = |version: &Vec<u32>| (version[0], version[1]);
        let wanted = match self {
            Self::Exactly(major, minor) => Some((major, minor)),
            Self::From(major, minor) => known
                .iter()
                .map(|(version, _)| series(version))
                .filter(|found| found.cmp(&(major, minor)) != Ordering::Less)
                .min(),
            Self::Newest => known.first().map(|(version, _)| series(version)),
        };
        known.retain(|(version, _)| Some(series(version)) == wanted);
        if known.is_empty() {
            bail!("the archive has no kernel {self}");
        }
        Ok(known.into_iter().map(|(_, name)| name).collect())
    }
}

/// All numbers in the text: `6.1.0-57` has four.
fn numbers(text: &str) -> Vec<u32> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// Major and minor of a release such as `6.12.117+deb12-cloud-amd64`.
pub(super) fn version(release: &str) -> Result<(u32, u32)> {
    match numbers(release).as_slice() {
        [major, minor, ..] => Ok((*major, *minor)),
        _ => bail!("`{release}` is no release of a kernel"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        ["6.1.0-9", "6.1.0-57", "6.12.117+deb12", "6.12.99+deb12", "6.19.6+deb13", "7.3.4+deb13"]
            .iter()
            .map(|version| format!("linux-image-{version}-cloud-amd64"))
            .chain(["linux-image-6.12-cloud-amd64".into(), "linux-image-cloud-amd64".into()])
            .collect()
    }

    fn first(series: &str) -> String {
        let names = names();
        let series: Series = series.parse().unwrap();
        series.choose(&names).map_or_else(|error| error.to_string(), |found| found[0].into())
    }

    #[test]
    fn the_newest_of_a_series_comes_first() {
        assert_eq!(first("6.1"), "linux-image-6.1.0-57-cloud-amd64");
        assert_eq!(first("6.12"), "linux-image-6.12.117+deb12-cloud-amd64");
        assert_eq!(first("6.18+"), "linux-image-6.19.6+deb13-cloud-amd64");
        assert_eq!(first("newest"), "linux-image-7.3.4+deb13-cloud-amd64");
        assert_eq!(first("6.18"), "the archive has no kernel 6.18");
    }

    #[test]
    fn what_is_no_series_is_refused() {
        for text in ["", "6", "6.x", "latest", "+"] {
            assert!(text.parse::<Series>().is_err(), "{text}");
        }
        assert_eq!(version("6.12.117+deb12-cloud-amd64").unwrap(), (6, 12));
    }
}
