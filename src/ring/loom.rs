//! A producer and a consumer on two threads: every order in which they can meet, and every index that each
//! may see by then. Run by `cargo xtask test loom`.
//!
//! Slots are plain memory, watched over by a cell each: an order that is missing in `submit`, `release`,
//! `peek` or `reserve` shows as two threads that touch a slot at once.

use ::loom::thread;

use super::tests::ring;
use crate::sync::model;

/// Passes that many entries, more than there are slots, through a ring; each side at most so many at once.
fn pass(interruptions: Option<usize>, entries: u64, size: u32, first: u32, most: (usize, usize)) {
    model(interruptions, move || {
        let (mut producer, mut consumer, _) = ring(size, first);
        let sender = thread::spawn(move || {
            let mut sent = 0;
            while sent < entries {
                let mut slots = producer.reserve_up_to(most.0);
                if slots.is_empty() {
                    thread::yield_now();
                    continue;
                }
                while sent < entries && slots.written() < slots.len() {
                    // SAFETY: no kernel reads this ring.
                    unsafe { slots.push(sent) };
                    sent += 1;
                }
                slots.submit();
            }
            producer
        });
        let mut taken = 0;
        while taken < entries {
            let ready = consumer.peek(most.1);
            if ready.is_empty() {
                thread::yield_now();
                continue;
            }
            for entry in ready.iter() {
                assert_eq!(*entry, taken, "each once, in order");
                taken += 1;
            }
            ready.release();
        }
        let mut producer = sender.join().unwrap();
        assert_eq!((consumer.peek(1).len(), producer.free(size as usize)), (0, size));
    });
}

#[test]
fn one_at_a_time() {
    pass(None, 3, 2, u32::MAX, (1, 1));
    pass(Some(3), 4, 2, u32::MAX, (1, 1));
}

#[test]
fn batches_over_the_wrap() {
    pass(None, 4, 2, u32::MAX - 1, (2, 2));
    pass(Some(3), 6, 4, u32::MAX - 1, (3, 3));
}

#[test]
fn batches_of_unlike_sizes() {
    pass(None, 3, 2, u32::MAX, (2, 1));
    pass(None, 3, 2, u32::MAX, (1, 2));
}

#[test]
fn a_ring_of_one_slot() {
    pass(None, 2, 1, u32::MAX, (1, 1));
    pass(Some(3), 3, 1, u32::MAX - 1, (1, 1));
}
