//! A thread that works on packets.

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender},
    },
};

use xskit::{Batch, Result};

use crate::common::{Stop, Work};

/// What a worker has done.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Done(AtomicU64);

impl Done {
    pub(crate) fn packets(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Only the worker itself counts, once for a batch.
    fn add(&self, packets: usize) {
        self.0.store(self.packets() + packets as u64, Ordering::Relaxed);
    }
}

pub(crate) struct Worker {
    waiting: Receiver<Batch>,
    home: SyncSender<Batch>,
    done: Arc<Done>,
    through_pool: bool,
}

impl Worker {
    pub(crate) fn new(
        waiting: Receiver<Batch>,
        home: SyncSender<Batch>,
        done: Arc<Done>,
        through_pool: bool,
    ) -> Self {
        Self { waiting, home, done, through_pool }
    }
}

impl Work for Worker {
    /// Works until the receiving thread has ended and nothing is left.
    fn run(&mut self, _: &Stop) -> Result<()> {
        while let Ok(mut batch) = self.waiting.recv() {
            for packet in batch.packets() {
                black_box(checksum(packet.head()));
            }
            self.done.add(batch.packet_count());
            // The frames stay with the batch, and go where it goes.
            batch.clear();
            if self.through_pool {
                batch.release_spare();
            }
            // Nobody takes it any more at the end: then its frames go to the pool.
            self.home.send(batch).ok();
        }
        Ok(())
    }
}

/// As IP's: something to do with every byte.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u64::from(low)));
    let sum: u64 = words.sum();
    let folded = (0..3).fold(sum, |sum, _| (sum & 0xffff) + (sum >> 16));
    !u16::try_from(folded).unwrap_or(u16::MAX)
}
