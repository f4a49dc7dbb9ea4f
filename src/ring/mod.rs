//! The four rings at the descriptor level: `reserve`/`submit` and `peek`/`release`.
//!
//! | ring | written by | read by | holds |
//! |---|---|---|---|
//! | [`FillRing`] | us | kernel | addresses of free frames, for packets to come |
//! | [`RxRing`] | kernel | us | descriptors of received packets |
//! | [`TxRing`] | us | kernel | descriptors of packets to send |
//! | [`CompletionRing`] | kernel | us | addresses of frames that have been sent |
//!
//! `reserve` and `peek` change nothing. Only `submit` and `release`, which consume the guard, move an
//! index, and `submit` publishes exactly the slots that were written: a guard that is dropped, or
//! forgotten, is a cancel. Each guard gives its slots as two slices, before and after the wrap, so
//! that a batch is two copies.
//!
//! Most programs never come here: [`Socket`](crate::Socket) moves whole batches and keeps account of
//! frames. [`Socket::rings`](crate::Socket::rings) opens this level for those who do. Reading a
//! descriptor is safe; handing the kernel an address of your own choosing is `unsafe`.
//!
//! # Staleness
//!
//! Both sides cache the other side's index and read it anew only when the cached one does not
//! suffice. What a guard holds is therefore never too much, and may be less than a fresh look would
//! give only where more than asked for was there already.
#![allow(unsafe_code, reason = "slots and indices are memory shared with the kernel")]

mod consumer;
mod memory;
mod producer;
mod size;
mod watch;

pub(crate) use consumer::Consumer;
pub use consumer::{ConsumerRing, Peeked};
pub(crate) use memory::{Indices, RingMemory};
pub(crate) use producer::Producer;
pub use producer::{ProducerRing, Reserved};
pub use size::RingSize;

pub use crate::{
    sys::uapi::Desc,
    umem::{attach, detach},
};

/// Free frames on their way to the kernel.
#[doc(alias = "xsk_ring_prod")]
#[doc(alias = "XDP_UMEM_FILL_RING")]
pub type FillRing<'a> = ProducerRing<'a, u64>;

/// Packets on their way to the kernel.
#[doc(alias = "xsk_ring_prod")]
#[doc(alias = "XDP_TX_RING")]
pub type TxRing<'a> = ProducerRing<'a, Desc>;

/// Packets that the kernel received.
#[doc(alias = "xsk_ring_cons")]
#[doc(alias = "XDP_RX_RING")]
pub type RxRing<'a> = ConsumerRing<'a, Desc>;

/// Frames that the kernel has sent.
#[doc(alias = "xsk_ring_cons")]
#[doc(alias = "XDP_UMEM_COMPLETION_RING")]
pub type CompletionRing<'a> = ConsumerRing<'a, u64>;

#[cfg(all(test, loom))]
mod loom;
#[cfg(test)]
pub(crate) mod tests;
