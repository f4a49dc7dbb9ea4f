//! A plain pointer chase: what memory alone costs, whatever is done with it.

use std::time::{Duration, Instant};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Cache lines in a circle, each with the place of the next: no load can begin before the one before has ended.
/// In the order of their addresses, as the entries of a ring.
pub struct Chase {
    lines: Box<[Line]>,
    at: usize,
    /// Bytes that a packet takes of it.
    each: usize,
}

#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line {
    next: usize,
}

impl Chase {
    /// Through that much memory, of which each packet takes some bytes.
    pub fn new(bytes: usize, each: usize) -> Self {
        let lines = (bytes / LINE).max(1);
        let line = |number: usize| Line { next: (number + 1) % lines };
        Self { lines: (0..lines).map(line).collect(), at: 0, each }
    }

    /// As far as so many packets go.
    pub fn run(&mut self, packets: u32) -> Duration {
        let started = Instant::now();
        for _ in 0..packets as usize * self.each / LINE {
            self.at = self.lines[self.at].next;
        }
        std::hint::black_box(self.at);
        started.elapsed()
    }
}
