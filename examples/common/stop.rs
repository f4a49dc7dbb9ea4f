//! The end: a signal, the time, or an error of any thread.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

use super::Failure;

/// Whether to end, and the error that was first to want it.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    wanted: Arc<AtomicBool>,
    failure: Mutex<Option<Failure>>,
}

impl Stop {
    /// Catches Ctrl-C and what `kill` sends, from now on. A second one ends the process at once, which
    /// leaves nothing attached either.
    pub(crate) fn on_signals() -> io::Result<Self> {
        let stop = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_conditional_default(signal, stop.wanted.clone())?;
            flag::register(signal, stop.wanted.clone())?;
        }
        Ok(stop)
    }

    /// Everybody shall end.
    pub(crate) fn now(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// Everybody shall end, because of this.
    pub(crate) fn fail(&self, failure: Failure) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        self.now();
    }

    pub(crate) fn wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// The first error, if there was one.
    pub(crate) fn take_failure(&self) -> Option<Failure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
