//! Frames as plain addresses, for the descriptor level.

use super::{Batch, Umem};

/// Takes all frames out of a batch, packets' and spare ones, as addresses of their chunks: the caller's
/// from now on, and counted as [`detached`](crate::Audit::detached). In chunks of odd size, a packet to send
/// begins behind the first byte: see [`attach`].
pub fn detach(batch: &mut Batch) -> Vec<u64> {
    let frames = batch.detach();
    batch.umem().counts().detach(i32::try_from(frames.len()).unwrap_or(i32::MAX));
    frames
}

/// Gives frames back to the UMEM's free ones, whatever offset in its chunk each address has.
///
/// Linux 6.18 loses the lowest bit of an address on its way through the TX and the Completion ring in copy
/// mode. What was sent from an odd address comes back as the even one below: with chunks of odd size, which
/// begin at odd addresses half of the time, never send from a chunk's first byte, or the frame comes back as
/// that of the chunk before.
///
/// # Panics
///
/// If an address lies outside the UMEM.
///
/// # Safety
///
/// Each frame is the caller's: it came out of [`detach`], or out of an RX or Completion ring at the
/// descriptor level, and was neither attached nor handed to the kernel since. The
/// [`Rings`](crate::socket::Rings) that it came out of are or will be dropped, not forgotten: until then
/// the socket counts the frame among the kernel's.
pub unsafe fn attach(umem: &Umem, frames: &[u64]) {
    let geometry = umem.geometry();
    let bases: Vec<u64> = frames
        .iter()
        .map(|address| {
            assert!(geometry.holds(*address), "address {address:#x} lies outside the UMEM");
            geometry.base(*address)
        })
        .collect();
    umem.counts().detach(-i32::try_from(bases.len()).unwrap_or(i32::MAX));
    umem.returned(&bases);
}
