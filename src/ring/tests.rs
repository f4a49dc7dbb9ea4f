//! Both sides of a ring in plain memory, with indices that wrap.

use std::{collections::VecDeque, mem, ptr::NonNull};

use bytemuck::Pod;
use proptest::prelude::*;

use super::{
    memory::{Layout, layout},
    *,
};
use crate::{
    sync::{Arc, AtomicU32, Ordering},
    sys::uapi::RingOffset,
};

pub(crate) struct Backing<T> {
    producer: AtomicU32,
    consumer: AtomicU32,
    flags: AtomicU32,
    slots: Box<[std::cell::UnsafeCell<T>]>,
}

// SAFETY: the slots are touched by the two sides of the ring alone, by its rules.
unsafe impl<T: Send> Send for Backing<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Backing<T> {}

pub(crate) fn ring<T: Pod + Send>(
    size: u32,
    first: u32,
) -> (Producer<T>, Consumer<T>, Arc<Backing<T>>) {
    let backing = Arc::new(Backing {
        producer: AtomicU32::new(first),
        consumer: AtomicU32::new(first),
        flags: AtomicU32::new(0),
        slots: (0..size).map(|_| T::zeroed().into()).collect(),
    });
    // SAFETY: all in the Arc that the ring keeps; one producer and one consumer are made.
    unsafe {
        let memory = RingMemory::new(
            NonNull::from(&backing.producer),
            NonNull::from(&backing.consumer),
            NonNull::from(&backing.flags),
            NonNull::from(&*backing.slots).cast(),
            RingSize::new(size).unwrap(),
            backing.clone(),
        );
        (Producer::new(memory.clone()), Consumer::new(memory), backing)
    }
}

/// Everything that is in the ring, taken out.
fn drain(consumer: &mut Consumer<u64>) -> Vec<u64> {
    let peeked = consumer.peek(usize::MAX);
    let all = peeked.iter().copied().collect();
    peeked.release();
    all
}

fn push(producer: &mut Producer<u64>, values: &[u64]) -> usize {
    let mut slots = producer.reserve_up_to(values.len());
    // SAFETY: no kernel reads this ring.
    unsafe { slots.write(values) };
    slots.submit()
}

#[test]
#[expect(clippy::forget_non_drop, reason = "a guard that gets a Drop must stay a cancel")]
fn nothing_moves_before_submit() {
    for first in [0, u32::MAX - 1] {
        let (mut producer, mut consumer, backing) = ring(4, first);
        // Dropped, and forgotten: both are a cancel, even after writing.
        for forget in [false, true] {
            let mut slots = producer.reserve(3).unwrap();
            // SAFETY: no kernel reads this ring.
            unsafe { slots.write(&[1, 2, 3]) };
            if forget {
                mem::forget(slots);
            } else {
                drop(slots);
            }
            assert_eq!(backing.producer.load(Ordering::Relaxed), first);
            assert!(consumer.peek(4).is_empty());
        }
        assert_eq!(push(&mut producer, &[4, 5, 6, 7, 8]), 4);
        assert_eq!(drain(&mut consumer), [4, 5, 6, 7]);
    }
}

#[test]
#[expect(clippy::forget_non_drop, reason = "a guard that gets a Drop must stay a cancel")]
fn nothing_moves_before_release() {
    for first in [0, u32::MAX - 1] {
        let (mut producer, mut consumer, backing) = ring(4, first);
        push(&mut producer, &[1, 2, 3]);
        for forget in [false, true] {
            let peeked = consumer.peek(3);
            assert_eq!(peeked.iter().copied().collect::<Vec<_>>(), [1, 2, 3]);
            if forget {
                mem::forget(peeked);
            } else {
                drop(peeked);
            }
            assert_eq!(backing.consumer.load(Ordering::Relaxed), first);
        }
        assert_eq!(consumer.peek(3).release_first(2), 2);
        assert_eq!(drain(&mut consumer), [3]);
    }
}

#[test]
fn submit_publishes_exactly_what_was_written() {
    let (mut producer, mut consumer, _) = ring(8, u32::MAX - 3);
    let mut slots = producer.reserve(6).unwrap();
    // SAFETY: no kernel reads this ring.
    unsafe {
        assert!(slots.push(10));
        assert_eq!(slots.write(&[11, 12]), 2);
    }
    assert_eq!((slots.len(), slots.written()), (6, 3));
    assert_eq!(slots.submit(), 3);
    assert_eq!(drain(&mut consumer), [10, 11, 12]);
    // The three slots that were not written are free.
    assert_eq!(producer.free(8), 8);
}

#[test]
fn exact_is_all_or_nothing_and_up_to_is_not() {
    let (mut producer, _, _) = ring(64, 7);
    push(&mut producer, &[0]);
    assert!(producer.reserve(64).is_none());
    assert_eq!(producer.reserve(63).unwrap().len(), 63);
    assert_eq!(producer.reserve_up_to(64).len(), 63);
    let (mut producer, mut consumer, _) = ring(64, 7);
    let mut consumer = ConsumerRing::new(&mut consumer);
    push(&mut producer, &[0; 3]);
    assert!(consumer.peek_exact(4).is_none());
    assert_eq!(consumer.peek_exact(3).unwrap().len(), 3);
    assert_eq!(consumer.peek(4).len(), 3);
}

#[test]
fn two_slices_around_the_wrap() {
    let (mut producer, mut consumer, _) = ring(8, u32::MAX - 2);
    push(&mut producer, &[1, 2, 3, 4, 5]);
    let peeked = consumer.peek(8);
    // Index u32::MAX - 2 is slot 5.
    assert_eq!(peeked.slices(), (&[1, 2, 3][..], &[4, 5][..]));
}

/// Whatever wraps, and however many there are for how much room: as many as fit, each once, in order.
#[test]
fn entries_go_from_ring_to_ring() {
    const SIZE: u32 = 16;
    for (at, to, entries) in
        (0..SIZE).flat_map(|at| (0..SIZE).map(move |to| (at, to, SIZE - at / 2)))
    {
        let (mut there, mut from, _) = ring::<u64>(SIZE, u32::MAX - at);
        let (mut producer, mut consumer, _) = ring::<u64>(SIZE, u32::MAX - to);
        let all: Vec<_> = (1..=u64::from(entries)).collect();
        push(&mut there, &all);
        let mut moved = Vec::new();
        for room in [1, 7, 8, SIZE as usize] {
            let peeked = from.peek(SIZE as usize);
            let left = peeked.len();
            let mut slots = producer.reserve_up_to(room);
            // SAFETY: no kernel reads this ring.
            let count = unsafe { slots.write_peeked(&peeked, |entry| entry * 3) };
            assert_eq!(count, left.min(room), "{at} {to} {entries}");
            assert_eq!((slots.submit(), peeked.release_first(count)), (count, count));
            moved.append(&mut drain(&mut consumer));
        }
        assert_eq!(moved, all.iter().map(|entry| entry * 3).collect::<Vec<_>>(), "{at} {to}");
        // The same out of a slice, in two parts.
        let mut slots = producer.reserve_up_to(SIZE as usize);
        let (first, second) = all.split_at(to as usize % all.len());
        for part in [first, second] {
            // SAFETY: no kernel reads this ring.
            assert_eq!(unsafe { slots.write_from(part, |entry| entry + 1) }, part.len());
        }
        // SAFETY: as above.
        let rest = unsafe { slots.write_from(&[7; SIZE as usize], |entry| *entry) };
        assert_eq!((rest, slots.submit()), (SIZE as usize - all.len(), SIZE as usize));
        let expected = all.iter().map(|entry| entry + 1).chain(std::iter::repeat_n(7, rest));
        assert_eq!(drain(&mut consumer), expected.collect::<Vec<_>>(), "{at} {to}");
    }
}

#[test]
fn a_hostile_index_is_clamped() {
    let (mut producer, mut consumer, backing) = ring(8, 100);
    // A producer far ahead, or behind, of what it can be is not believed: the slots hold what was taken
    // out of them before.
    for index in [100 + 9, 99, 100_u32.wrapping_sub(1 << 31)] {
        backing.producer.store(index, Ordering::Relaxed);
        assert_eq!(consumer.peek(usize::MAX).len(), 0);
        assert!(consumer.indices().level() <= 8);
    }
    backing.producer.store(100, Ordering::Relaxed);
    // A consumer that overtook us, or fell behind by more than a ring: no slot is free.
    assert_eq!(push(&mut producer, &[0; 8]), 8);
    for index in [109, 99, 108_u32.wrapping_add(1 << 31)] {
        backing.consumer.store(index, Ordering::Relaxed);
        assert_eq!(producer.reserve_up_to(8).len(), 0);
    }
    assert_eq!(producer.into_untaken(), [0; 0], "the last of them makes no sense either");
}

#[test]
fn what_is_left_is_found_at_the_end() {
    let (mut producer, mut consumer, _) = ring(8, u32::MAX - 2);
    push(&mut producer, &[1, 2, 3, 4, 5]);
    consumer.peek(2).release();
    assert_eq!(producer.into_untaken(), [3, 4, 5]);
    assert_eq!(consumer.into_ready(), [3, 4, 5]);
}

#[test]
fn sizes_are_powers_of_two() {
    for bad in [0, 3, 511, 1 << 25, 1 << 31, u32::MAX] {
        let error = RingSize::new(bad).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidInput, "{bad}");
        assert!(error.next_step().is_some());
    }
    for good in [1, 2, 512, 1 << 24] {
        assert_eq!(RingSize::new(good).unwrap().get(), good);
    }
    assert_eq!(RingSize::at_least(511).get(), 512);
    assert_eq!(RingSize::at_least(0).get(), 1);
    assert_eq!(RingSize::at_least(u32::MAX), RingSize::MAX);
}

#[test]
fn a_layout_that_leads_out_of_the_mapping_is_refused() {
    let size = RingSize::new(64).unwrap();
    let usual = RingOffset { producer: 0, consumer: 128, desc: 320, flags: 256 };
    let parts = Layout { producer: 0, consumer: 128, flags: 256, slots: 320, len: 320 + 64 * 16 };
    assert_eq!(layout::<Desc>(&usual, size), Some(parts));
    let end = u64::MAX - 7;
    for bad in [
        RingOffset { desc: end, ..usual },
        RingOffset { desc: end - 64 * 16 + 8, ..usual },
        RingOffset { desc: 316, ..usual },
        RingOffset { producer: 320, ..usual },
        RingOffset { producer: u64::MAX - 3, ..usual },
        RingOffset { consumer: 320, ..usual },
        RingOffset { consumer: 2, ..usual },
        RingOffset { flags: u64::MAX, ..usual },
        RingOffset { flags: u64::MAX - 3, ..usual },
    ] {
        assert_eq!(layout::<Desc>(&bad, size), None, "{bad:?}");
    }
}

#[test]
fn the_two_sides_share_no_cache_line() {
    assert_eq!(mem::align_of::<Producer<u64>>(), 128);
    assert_eq!(mem::align_of::<Consumer<Desc>>(), 128);
}

proptest! {
    /// Any sequence of operations gives what a queue would give.
    #[test]
    fn a_ring_is_a_queue(
        first in prop_oneof![Just(0), Just(u32::MAX - 5), any::<u32>()],
        order in 0_u32..6,
        steps in prop::collection::vec((any::<bool>(), 0_usize..20, 0_usize..20), 0..200),
    ) {
        let size = 1 << order;
        let (mut producer, mut consumer, _) = ring(size, first);
        let mut oracle = VecDeque::new();
        let mut next = 0;
        for (produce, count, part) in steps {
            if produce {
                let values: Vec<u64> = (next..next + count as u64).collect();
                let pushed = push(&mut producer, &values);
                prop_assert_eq!(pushed, count.min(size as usize - oracle.len()));
                oracle.extend(&values[..pushed]);
                next += pushed as u64;
            } else {
                let peeked = consumer.peek(count);
                let seen: Vec<u64> = peeked.iter().copied().collect();
                let expected: Vec<u64> = oracle.iter().copied().take(count).collect();
                prop_assert_eq!(&seen, &expected);
                let released = peeked.release_first(part);
                prop_assert_eq!(released, part.min(seen.len()));
                oracle.drain(..released);
            }
        }
        prop_assert_eq!(producer.into_untaken(), oracle.make_contiguous());
    }
}
