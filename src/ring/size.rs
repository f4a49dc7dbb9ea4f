//! How many entries a ring has.

use std::fmt;

use crate::{Error, Result};

/// The number of entries of a ring: a power of two from 1 to 2^24.
///
/// The kernel refuses anything but a power of two with a bare `EINVAL`; above 2^24 a ring alone would
/// take 256 MiB of memory that cannot be swapped out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingSize(u32);

impl RingSize {
    /// 2048 entries, the default of libxdp and of this crate.
    pub const DEFAULT: Self = Self(2048);
    /// The largest ring.
    pub const MAX: Self = Self(1 << 24);

    /// A ring of that many entries.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) unless it is a power of two from 1
    /// to 2^24. A NIC's ring size is often none (bnxt reports 511): see [`at_least`](Self::at_least).
    pub fn new(entries: u32) -> Result<Self> {
        if entries.is_power_of_two() && entries <= Self::MAX.0 {
            return Ok(Self(entries));
        }
        let near = Self::at_least(entries);
        Err(Error::invalid(format!(
            "a ring of {entries} entries: the number has to be a power of two from 1 to {}",
            Self::MAX
        ))
        .hint(format!("{near} would do")))
    }

    /// The smallest ring that holds that many entries, or the largest there is.
    pub const fn at_least(entries: u32) -> Self {
        if entries >= Self::MAX.0 { Self::MAX } else { Self(entries.next_power_of_two()) }
    }

    /// The number of entries.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl Default for RingSize {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for RingSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
