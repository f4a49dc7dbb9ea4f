//! A ring in plain memory, laid out as the kernel lays out its own: producer, padding, consumer,
//! padding, flags, padding, slots.

use std::{cell::UnsafeCell, ptr::NonNull};

use bytemuck::Pod;

use super::{RingMemory, RingSize};
use crate::{
    ring::{Consumer, Producer},
    sync::{Arc, AtomicU32},
};

/// Alone on its pair of cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(AtomicU32);

struct Memory<T> {
    producer: Padded,
    consumer: Padded,
    flags: Padded,
    slots: Box<[UnsafeCell<T>]>,
}

// SAFETY: the slots are reached through `RingMemory`, by its rules; the rest is atomic.
unsafe impl<T: Send> Send for Memory<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Memory<T> {}

/// An empty ring with both indices at `first`.
pub(super) fn ring<T: Pod + Send + Sync>(size: RingSize, first: u32) -> RingMemory<T> {
    let slots = (0..size.get()).map(|_| UnsafeCell::new(T::zeroed())).collect();
    let memory = Arc::new(Memory {
        producer: Padded(AtomicU32::new(first)),
        consumer: Padded(AtomicU32::new(first)),
        flags: Padded::default(),
        slots,
    });
    let slots = NonNull::from(&*memory.slots).cast();
    // SAFETY: atomics and slots live in the allocation that the ring keeps, at a fixed place, since
    // nobody takes them out of the Arc; the slots are zeroed, and in cells, so that writing them
    // through the pointer is allowed.
    unsafe {
        RingMemory::new(
            NonNull::from(&memory.producer.0),
            NonNull::from(&memory.consumer.0),
            NonNull::from(&memory.flags.0),
            slots,
            size,
            memory,
        )
    }
}

/// The two ends of a ring just made.
pub(super) fn ends<T: Pod>(ring: &RingMemory<T>) -> (Producer<T>, Consumer<T>) {
    // SAFETY: called once per ring, by who made it, so that there is one producer and one consumer.
    unsafe { (Producer::new(ring.clone()), Consumer::new(ring.clone())) }
}
