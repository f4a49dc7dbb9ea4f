//! Where each chunk is, a byte each: in tests and with the feature `audit`.

use super::Geometry;
#[cfg(any(test, feature = "audit"))]
use crate::sync::{Ordering, global::AtomicU8};

/// Where a frame is, as far as we move it. Between the kernel's rings it moves by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Place {
    /// The pool, a cache, a spare list.
    Free,
    /// A batch holds it.
    Batch,
    /// Given to the kernel to receive into: Fill ring, device, RX ring.
    Fill,
    /// Given to the kernel to send: TX ring, device, Completion ring.
    Tx,
    /// Handed to the user as a plain address, and put wherever they like.
    Detached,
    /// Of [`Clones`](super::Clones), with the kernel or not.
    Cloned,
}

#[cfg(any(test, feature = "audit"))]
#[derive(Debug)]
pub(super) struct Places(Box<[AtomicU8]>);

#[cfg(any(test, feature = "audit"))]
impl Places {
    pub(super) fn new(chunks: u32) -> Self {
        Self((0..chunks).map(|_| AtomicU8::new(Place::Free as u8)).collect())
    }

    pub(super) fn moved<'a>(
        &self,
        geometry: &Geometry,
        addresses: impl IntoIterator<Item = &'a u64>,
        from: Place,
        to: Place,
    ) {
        for address in addresses {
            let was = self.0[geometry.chunk(*address)].swap(to as u8, Ordering::Relaxed);
            // The user keeps account of detached frames, wherever they put them.
            assert!(
                was == from as u8 || was == Place::Detached as u8,
                "frame {address:#x} goes from {from:?} to {to:?}, but was in place {was} \
                 (0 Free, 1 Batch, 2 Fill, 3 Tx, 4 Detached, 5 Cloned)"
            );
        }
    }

    pub(super) fn returned(&self, geometry: &Geometry, addresses: &[u64]) {
        for address in addresses {
            let was = self.0[geometry.chunk(*address)].swap(Place::Free as u8, Ordering::Relaxed);
            assert!(
                was != Place::Free as u8 && was != Place::Batch as u8,
                "frame {address:#x} comes back, but was in place {was}"
            );
        }
    }
}

#[cfg(not(any(test, feature = "audit")))]
#[derive(Debug)]
pub(super) struct Places;

#[cfg(not(any(test, feature = "audit")))]
impl Places {
    pub(super) fn new(_chunks: u32) -> Self {
        Self
    }

    #[expect(clippy::unused_self, reason = "its twin keeps the bytes")]
    #[inline]
    pub(super) fn moved<'a>(
        &self,
        _geometry: &Geometry,
        _addresses: impl IntoIterator<Item = &'a u64>,
        _from: Place,
        _to: Place,
    ) {
    }

    #[expect(clippy::unused_self, reason = "its twin keeps the bytes")]
    #[inline]
    pub(super) fn returned(&self, _geometry: &Geometry, _addresses: &[u64]) {}
}
