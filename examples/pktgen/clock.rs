//! The clock that stamps come from.

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`: the same for all programs on this host.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every kernel has this clock");
    u64::try_from(time.tv_sec()).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec()).unwrap_or(0)
}
