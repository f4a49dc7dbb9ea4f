//! The one place that atomics and locks come from, so that a model checker can take their place.
//!
//! With `--cfg loom` (`cargo xtask test loom`) they are loom's, which tries every order in which two threads
//! can meet, and every value that a load may see by the orderings that we ask for. The models are the files
//! `loom.rs` in `ring`, `umem` and `socket`.

#[cfg(all(test, loom))]
mod loom;
#[cfg(not(all(test, loom)))]
mod native;

// No model is about reference counts; loom has no `Weak`.
pub(crate) use std::sync::{Arc, PoisonError, Weak, atomic::Ordering};

#[cfg(all(test, loom))]
pub(crate) use self::loom::*;
#[cfg(not(all(test, loom)))]
pub(crate) use self::native::*;

/// What belongs to the process and not to a model: numbers that are given out once, and what looks on, as
/// the audit's places do.
pub(crate) mod global {
    #[cfg(all(test, loom))]
    pub(crate) use std::sync::atomic::AtomicBool;
    #[cfg(any(test, feature = "audit"))]
    pub(crate) use std::sync::atomic::AtomicU8;
    pub(crate) use std::sync::{OnceLock, atomic::AtomicU32};
}

/// Locks without a thought for poison: what our locks guard is consistent at every point where a
/// panic can happen, and frames must come back while one unwinds.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
