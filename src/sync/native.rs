//! The standard library's.

#[cfg(feature = "fake")]
pub(crate) use std::sync::Condvar;
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, fence},
};

/// Waits for the condition to be false, at most that long.
#[cfg(feature = "fake")]
pub(crate) fn wait_while<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: std::time::Duration,
    condition: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    let waited = changed.wait_timeout_while(guard, timeout, condition);
    waited.unwrap_or_else(super::PoisonError::into_inner).0
}
