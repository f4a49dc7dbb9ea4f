//! The faults: where, what, and which test has to say what.
//!
//! What is replaced has to be found exactly once in its file: code that changes takes its faults along.

use std::fmt;

/// A fault that somebody could make.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) name: &'static str,
    pub(super) edits: &'static [Edit],
    pub(super) target: Target,
    /// The test that has to fail.
    pub(super) test: &'static str,
    /// What it has to say then: it is to fail for this reason, and not for another.
    pub(super) says: &'static str,
}

#[derive(Debug)]
pub(super) struct Edit {
    pub(super) file: &'static str,
    pub(super) from: &'static str,
    pub(super) to: &'static str,
}

/// What is built and run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The models.
    Loom,
    /// The unit tests.
    Unit,
    /// A file of tests on the fake kernel.
    Fake(&'static str),
    /// A case of `cargo xtask vm`, on a kernel with zero-copy.
    Vm,
}

impl Target {
    /// Faults of one target are tried one after the other, since little is built anew between them.
    pub(super) const ALL: &[Self] =
        &[Self::Loom, Self::Unit, SOCKET, BATCH, MODEL, MULTI_BUFFER, UNALIGNED, Self::Vm];

    /// What cargo is called with.
    pub(super) fn build(self) -> Vec<&'static str> {
        let library = ["--package", "xskit", "--all-features", "--lib"];
        match self {
            Self::Loom => {
                [&["rustc"], &library[..], &["--profile", "test", "--", "--cfg", "loom"]].concat()
            }
            Self::Unit => [&["test"], &library[..], &["--no-run"]].concat(),
            // It builds for itself.
            Self::Vm => Vec::new(),
            Self::Fake(file) => {
                vec!["test", "--package", "xskit", "--all-features", "--test", file, "--no-run"]
            }
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loom => f.write_str("models"),
            Self::Unit => f.write_str("unit tests"),
            Self::Fake(file) => write!(f, "tests/{file}.rs"),
            Self::Vm => f.write_str("virtual machine"),
        }
    }
}

const SOCKET: Target = Target::Fake("fake_socket");
const BATCH: Target = Target::Fake("fake_batch");
const MODEL: Target = Target::Fake("fake_model");
const MULTI_BUFFER: Target = Target::Fake("fake_multi_buffer");
const UNALIGNED: Target = Target::Fake("fake_unaligned");

/// What loom says of two threads that touch a slot at once.
const RACE: &str = "Causality violation";
/// What the audit says of a chunk that is none, which a build without it would follow.
const AUDIT: &str = "index out of bounds";
const UNEQUAL: &str = "assertion `left == right` failed";
/// What a kernel says of a program that is gone under a socket.
const OOPS: &str = "Oops: ";

/// All faults.
pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "submit does not publish the slots",
        edits: &[Edit {
            file: "src/ring/producer.rs",
            from: "producer().store(next, Ordering::Release)",
            to: "producer().store(next, Ordering::Relaxed)",
        }],
        target: Target::Loom,
        test: "ring::loom::batches_over_the_wrap",
        says: RACE,
    },
    Fault {
        name: "release does not wait for what was read",
        edits: &[Edit {
            file: "src/ring/consumer.rs",
            from: "consumer().store(next, Ordering::Release)",
            to: "consumer().store(next, Ordering::Relaxed)",
        }],
        target: Target::Loom,
        test: "ring::loom::batches_over_the_wrap",
        says: RACE,
    },
    Fault {
        name: "peek does not wait for the index",
        edits: &[Edit {
            file: "src/ring/consumer.rs",
            from: "producer().load(Ordering::Acquire)",
            to: "producer().load(Ordering::Relaxed)",
        }],
        target: Target::Loom,
        test: "ring::loom::batches_over_the_wrap",
        says: RACE,
    },
    Fault {
        name: "reserve does not wait for the index",
        edits: &[Edit {
            file: "src/ring/producer.rs",
            from: "it read before it gave the slot back.
        let consumer = self.indices().consumer().load(Ordering::Acquire)",
            to: "it read before it gave the slot back.
        let consumer = self.indices().consumer().load(Ordering::Relaxed)",
        }],
        target: Target::Loom,
        test: "ring::loom::batches_over_the_wrap",
        says: RACE,
    },
    Fault {
        name: "the flag of TX is read only after something was sent",
        edits: &[Edit {
            file: "src/socket/sender.rs",
            from: "if sleeps && (submitted || self.owes_kick || tx.indices().level() > 0) {",
            to: "if sleeps && submitted {",
        }],
        target: Target::Loom,
        test: "socket::loom::a_kernel_that_falls_asleep_over_tx_is_called",
        says: "nobody calls a kernel that sleeps",
    },
    Fault {
        name: "the flag of Fill is read only after something was filled",
        edits: &[Edit {
            file: "src/socket/refill.rs",
            from: "    ring.indices().needs_wakeup()",
            to: "    received > 0 && ring.indices().needs_wakeup()",
        }],
        target: Target::Loom,
        test: "socket::loom::a_kernel_that_falls_asleep_over_fill_is_called",
        says: "nobody calls a kernel that sleeps",
    },
    Fault {
        name: "no fence before the flag is read",
        edits: &[Edit {
            file: "src/socket/sender.rs",
            from: "            fence(Ordering::SeqCst);\n",
            to: "",
        }],
        target: Target::Loom,
        test: "socket::loom::two_fences_miss_nothing",
        says: UNEQUAL,
    },
    Fault {
        name: "the pool's length is noted without its lock",
        edits: &[Edit {
            file: "src/umem/free.rs",
            from: "        frames.extend_from_slice(back);
        self.note(&frames);",
            to: "        frames.extend_from_slice(back);
        let len = frames.len();
        drop(frames);
        self.len.store(to_u32(len), Ordering::Relaxed);",
        }],
        target: Target::Loom,
        test: "umem::loom::caches_that_share_a_pool",
        says: UNEQUAL,
    },
    Fault {
        name: "the mask is off by one",
        edits: &[Edit {
            file: "src/ring/memory.rs",
            from: "let mask = size.get() - 1;",
            to: "let mask = size.get().saturating_sub(2);",
        }],
        target: Target::Unit,
        test: "ring::tests::a_ring_is_a_queue",
        says: "assertion failed: `(left == right)`",
    },
    Fault {
        name: "reserve moves the index: a forgotten guard is no cancel",
        edits: &[
            Edit {
                file: "src/ring/producer.rs",
                from: "(self.free(count as usize) >= count).then_some(Reserved { ring: self, count, written: 0 })",
                to: "(self.free(count as usize) >= count).then(|| self.reserve_up_to(count as usize))",
            },
            Edit {
                file: "src/ring/producer.rs",
                from: "let count = u32::try_from(count.min(free as usize)).unwrap_or(free);",
                to: "let count = u32::try_from(count.min(free as usize)).unwrap_or(free);
        self.next = self.next.wrapping_add(count);",
            },
            Edit {
                file: "src/ring/producer.rs",
                from: "    fn start(&self) -> u32 {
        self.ring.next.wrapping_add(self.written)",
                to: "    fn start(&self) -> u32 {
        self.ring.next.wrapping_sub(self.count - self.written)",
            },
            Edit {
                file: "src/ring/producer.rs",
                from: "    pub fn submit(self) -> usize {
        let next = self.ring.next.wrapping_add(self.written);
        self.ring.next = next;",
                to: "    pub fn submit(mut self) -> usize {
        let next = self.ring.next.wrapping_sub(self.count - self.written);
        self.ring.next = next;
        self.count = 0;",
            },
            Edit {
                file: "src/ring/producer.rs",
                from: "/// Into the first of the slots, of which there are enough.",
                to: "impl<T> Drop for Reserved<'_, T> {
    fn drop(&mut self) {
        self.ring.next = self.ring.next.wrapping_sub(self.count);
    }
}

/// Into the first of the slots, of which there are enough.",
            },
        ],
        target: Target::Unit,
        test: "ring::tests::nothing_moves_before_submit",
        says: UNEQUAL,
    },
    Fault {
        name: "peek moves the index: a forgotten guard loses its entries",
        edits: &[
            Edit {
                file: "src/ring/consumer.rs",
                from: "let count = u32::try_from(count.min(available as usize)).unwrap_or(available);",
                to: "let count = u32::try_from(count.min(available as usize)).unwrap_or(available);
        self.next = self.next.wrapping_add(count);",
            },
            Edit {
                file: "src/ring/consumer.rs",
                from: "self.ring.ring.slices(self.ring.next, self.count)",
                to: "self.ring.ring.slices(self.ring.next.wrapping_sub(self.count), self.count)",
            },
            Edit {
                file: "src/ring/consumer.rs",
                from: "    pub fn release_first(self,",
                to: "    pub fn release_first(mut self,",
            },
            Edit {
                file: "src/ring/consumer.rs",
                from: "let next = self.ring.next.wrapping_add(count);
        self.ring.next = next;",
                to: "let next = self.ring.next.wrapping_sub(self.count - count);
        self.ring.next = next;
        self.count = 0;",
            },
            Edit {
                file: "src/ring/consumer.rs",
                from: "impl<T> fmt::Debug for Peeked<'_, T> {",
                to: "impl<T> Drop for Peeked<'_, T> {
    fn drop(&mut self) {
        self.ring.next = self.ring.next.wrapping_sub(self.count);
    }
}

impl<T> fmt::Debug for Peeked<'_, T> {",
            },
        ],
        target: Target::Unit,
        test: "ring::tests::nothing_moves_before_release",
        says: UNEQUAL,
    },
    Fault {
        name: "options of received packets leak into TX",
        edits: &[Edit {
            file: "src/umem/batch.rs",
            from: "options: desc.options & options }",
            to: "options: desc.options | options & 0 }",
        }],
        target: Target::Unit,
        test: "umem::batch::tests::options_of_received_packets_are_not_sent",
        says: UNEQUAL,
    },
    Fault {
        name: "a completion is not masked to its chunk",
        edits: &[
            Edit {
                file: "src/umem/passes/narrow.rs",
                from: "        let base = address & !mask;\n",
                to: "        let base = *address | mask & 0;\n",
            },
            Edit {
                file: "src/umem/passes/avx2.rs",
                from: "let bases = _mm256_andnot_si256(wide_mask, load(from));",
                to: "let bases = _mm256_andnot_si256(_mm256_setzero_si256(), load(from));",
            },
        ],
        target: SOCKET,
        test: "completions_come_back_whatever_their_offset",
        says: UNEQUAL,
    },
    Fault {
        name: "send forgets frames that the ring has no room for",
        edits: &[Edit {
            file: "src/socket/sender.rs",
            from: "batch.sent(count);",
            to: "batch.sent(batch.len());",
        }],
        target: SOCKET,
        test: "what_does_not_fit_waits_in_order",
        says: UNEQUAL,
    },
    Fault {
        name: "send takes a batch of another UMEM",
        edits: &[Edit {
            file: "src/socket/sender.rs",
            from: "if !core.umem.is(batch.umem()) {",
            to: "if false {",
        }],
        target: SOCKET,
        test: "a_batch_of_another_umem_stays_as_it_is",
        says: "the batch is another UMEM's",
    },
    Fault {
        name: "recv takes a batch of another UMEM",
        edits: &[Edit {
            file: "src/socket/receiver.rs",
            from: "if !core.umem.is(batch.umem()) {",
            to: "if false {",
        }],
        target: SOCKET,
        test: "a_batch_of_another_umem_stays_as_it_is",
        says: "the batch is another UMEM's: 0",
    },
    Fault {
        name: "batches of two UMEMs are mixed",
        edits: &[Edit {
            file: "src/umem/batch.rs",
            from: "if self.umem.is(&other.umem) {",
            to: "if true {",
        }],
        target: SOCKET,
        test: "a_batch_of_another_umem_stays_as_it_is",
        says: "too: 3",
    },
    Fault {
        name: "no bounds check on received descriptors",
        edits: &[Edit {
            file: "src/umem/batch.rs",
            from: "if fault >> 63 == 0 { 0 } else { self.discard_faulty(start) }",
            to: "if fault >> 63 <= 1 { 0 } else { self.discard_faulty(start) }",
        }],
        target: SOCKET,
        test: "descriptors_that_make_no_sense_are_lost_not_followed",
        says: AUDIT,
    },
    Fault {
        name: "what is found in a Fill ring at its end is not masked to its chunk",
        edits: &[Edit {
            file: "src/socket/queue.rs",
            from: "let (known, nowhere) = umem.frames_of(&known);",
            to: "let nowhere = 0;",
        }],
        target: UNALIGNED,
        test: "addresses_on_fill_need_not_be_a_chunks_first",
        says: UNEQUAL,
    },
    Fault {
        name: "no bounds check on completions",
        edits: &[Edit {
            file: "src/umem/mod.rs",
            from: "if self.geometry().append_chunks::<UNALIGNED>(addresses, to) {",
            to: "if self.geometry().append_chunks::<UNALIGNED>(addresses, to) || !to.is_empty() {",
        }],
        target: SOCKET,
        test: "descriptors_that_make_no_sense_are_lost_not_followed",
        says: AUDIT,
    },
    Fault {
        name: "a packet keeps the room that it had before its front moved",
        edits: &[Edit {
            file: "src/umem/packet.rs",
            from: "        self.least_room = 0;\n",
            to: "",
        }],
        target: BATCH,
        test: "a_trimmed_packet_knows_its_room",
        says: "past its chunk",
    },
    Fault {
        name: "a batch keeps the room that its packets had before somebody could change them",
        edits: &[Edit {
            file: "src/umem/batch.rs",
            from: "let least_room = mem::take(&mut self.least_room);",
            to: "let least_room = mem::take(&mut self.least_room.clone());",
        }],
        target: BATCH,
        test: "no_packet_grows_past_its_chunk",
        says: "past its chunk",
    },
    Fault {
        name: "dropped packets feed the Fill ring twice",
        edits: &[Edit {
            file: "src/umem/batch.rs",
            from: "            unsafe { slots.assume_written(dropped.len()) };
            self.dropped.clear();",
            to: "            unsafe { slots.assume_written(dropped.len()) };",
        }],
        target: BATCH,
        test: "dropped_packets_feed_the_fill_ring",
        says: UNEQUAL,
    },
    Fault {
        name: "a frame is recycled twice",
        edits: &[Edit {
            file: "src/umem/batch.rs",
            from: "        self.umem.moved([&base], Place::Batch, Place::Free);
        self.spare.push(base);",
            to: "        self.umem.moved([&base], Place::Batch, Place::Free);
        self.spare.push(base);
        self.spare.push(base);",
        }],
        target: MODEL,
        test: "any_program_keeps_its_packets_and_frames",
        // Whoever comes first: the audit's sum, the oracle, or the byte that each chunk has.
        says: "any_program_keeps_its_packets_and_frames' ",
    },
    Fault {
        name: "no bounds check on descriptors of packets of several frames",
        edits: &[Edit {
            file: "src/umem/batch.rs",
            from: "        if fault >> 63 != 0 {
            let voided",
            to: "        if fault >> 63 > 1 {
            let voided",
        }],
        target: MULTI_BUFFER,
        test: "one_bad_descriptor_voids_its_packet",
        says: AUDIT,
    },
    Fault {
        name: "the program is detached before the kernel has let go of zero-copy queues",
        edits: &[Edit {
            file: "src/socket/core.rs",
            from: "        self.rx_level = None;
        self.tx_level = None;
        if self.mode.zero_copy {",
            to: "        drop(lock(&self.attachment).take());
        self.rx_level = None;
        self.tx_level = None;
        if self.mode.zero_copy {",
        }],
        target: Target::Vm,
        test: "teardown",
        says: OOPS,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_tried_and_says_something() {
        for fault in FAULTS {
            assert!(Target::ALL.contains(&fault.target), "{}", fault.name);
            assert!(!fault.says.is_empty() && !fault.edits.is_empty(), "{}", fault.name);
            assert!(fault.edits.iter().all(|edit| edit.from != edit.to), "{}", fault.name);
        }
    }

    /// A suite sees what no longer fits at once, without building anything.
    #[test]
    fn every_fault_fits_once() {
        for Edit { file, from, .. } in FAULTS.iter().flat_map(|fault| fault.edits) {
            let content = std::fs::read_to_string(crate::cargo::workspace().join(file)).unwrap();
            assert_eq!(content.matches(from).count(), 1, "{file}: {from}");
        }
    }
}
