//! Loom's, and what runs a model.

use ::loom::model::Builder;
#[cfg(feature = "fake")]
pub(crate) use ::loom::sync::Condvar;
pub(crate) use ::loom::{
    cell::UnsafeCell,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, fence},
    },
};

/// In a model no time passes: it is up at once.
#[cfg(feature = "fake")]
pub(crate) fn wait_while<'a, T>(
    _changed: &Condvar,
    guard: MutexGuard<'a, T>,
    _timeout: std::time::Duration,
    _condition: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    guard
}

/// Tries every order in which the model's threads can meet: all of them, or those in which threads are
/// interrupted at most so many times where they could have gone on. What goes wrong at all does so with few.
pub(crate) fn model(interruptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = interruptions;
    builder.max_branches = 10_000;
    builder.check(model);
}
