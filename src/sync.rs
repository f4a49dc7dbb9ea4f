//! The one place that atomics and locks come from, so that a model checker can take their place.

#[cfg(feature = "fake")]
pub(crate) use std::sync::Condvar;
pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, Weak,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
};

/// Locks without a thought for poison: what our locks guard is consistent at every point where a
/// panic can happen, and frames must come back while one unwinds.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
