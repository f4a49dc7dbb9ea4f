//! A descriptor registered with a tokio runtime.
#![allow(unsafe_code, reason = "a registration goes by the descriptor's number, whoever has it")]

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
};

use tokio::io::{Interest, unix::AsyncFd};

use crate::sync::Arc;

/// A registration of a descriptor, and what has to live as long as it.
pub(crate) struct Watch<K>(AsyncFd<Watched<K>>);

/// Dropped from top to bottom, when the registration has ended.
struct Watched<K> {
    fd: Arc<OwnedFd>,
    keep: K,
}

impl<K> AsRawFd for Watched<K> {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl<K> Watch<K> {
    /// Registers a descriptor with the runtime of the calling task; it takes each once.
    pub(crate) fn new(fd: Arc<OwnedFd>, keep: K) -> io::Result<Self> {
        // SAFETY: the descriptor is open for as long as it is registered, since `Watched` has a share of
        // it, and stays the same, as nobody gets to `Watched` other than by a shared reference.
        match unsafe { AsyncFd::register(Watched { fd, keep }) } {
            Ok(registered) => Ok(Self(registered)),
            Err(error) => Err(error.into_parts().1),
        }
    }

    pub(crate) fn kept(&self) -> &K {
        &self.0.get_ref().keep
    }

    /// Waits for an event that has come since the last one was returned.
    pub(crate) async fn event(&self, interest: Interest) -> io::Result<()> {
        // It clears no event that comes between the two.
        self.0.ready(interest).await?.clear_ready();
        Ok(())
    }
}
