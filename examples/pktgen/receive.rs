//! Packets that arrive.

use std::{hint, sync::Arc};

use xskit::{Batch, Interest, Result, Socket};

use crate::{
    clock,
    common::{Bytes, Queue, Stop, TURN, Work},
    outcome::Outcome,
};

/// A queue whose packets are counted.
pub(crate) struct Receive {
    socket: Socket,
    batch: Batch,
    bytes: Arc<Bytes>,
    outcome: Arc<Outcome>,
    /// Packets of all queues after which to end.
    count: u64,
    spin: bool,
}

impl Receive {
    pub(crate) fn new(
        socket: Socket,
        size: usize,
        queue: &Queue,
        outcome: Arc<Outcome>,
        (count, spin): (Option<u64>, bool),
    ) -> Self {
        let batch = socket.umem().batch(size);
        let count = count.unwrap_or(u64::MAX);
        Self { socket, batch, bytes: queue.bytes_in.clone(), outcome, count, spin }
    }
}

impl Work for Receive {
    fn run(&mut self, stop: &Stop) -> Result<()> {
        while !stop.wanted() {
            if self.socket.recv(&mut self.batch)? == 0 {
                if self.spin {
                    hint::spin_loop();
                } else {
                    self.socket.wait(Interest::READABLE, TURN)?;
                }
                continue;
            }
            let now = clock::now();
            let packets = self.batch.packets().map(|packet| (packet.head(), packet.len()));
            let all = self.outcome.received(packets, now);
            self.bytes.add_received(self.batch.bytes());
            self.batch.clear();
            if all >= self.count {
                stop.now();
            }
        }
        Ok(())
    }
}
