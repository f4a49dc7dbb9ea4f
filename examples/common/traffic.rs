//! What a thread has moved.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that one thread counts and others read; the sockets count the packets.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Bytes {
    received: AtomicU64,
    sent: AtomicU64,
}

impl Bytes {
    pub(crate) fn add_received(&self, bytes: u64) {
        add(&self.received, bytes);
    }

    pub(crate) fn add_sent(&self, bytes: u64) {
        add(&self.sent, bytes);
    }

    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

/// Only the thread whose numbers these are counts.
fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}
