//! The thread that receives.

use std::{
    hint,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender},
    },
};

use xskit::{Batch, Interest, Result, Socket};

use crate::common::{Bytes, Stop, TURN, Work};

/// Fills batches, and gives them to the workers in turn.
pub(crate) struct Receiving {
    socket: Socket,
    /// Batches without packets, whose frames are those of the packets that workers are done with.
    empty: Receiver<Batch>,
    workers: Vec<SyncSender<Batch>>,
    next: usize,
    bytes: Arc<Bytes>,
    spin: bool,
}

impl Receiving {
    pub(crate) fn new(
        socket: Socket,
        empty: Receiver<Batch>,
        workers: Vec<SyncSender<Batch>>,
        bytes: Arc<Bytes>,
        spin: bool,
    ) -> Self {
        Self { socket, empty, workers, next: 0, bytes, spin }
    }

    /// Fills the batch; whether there were packets before the end.
    fn fill(&mut self, batch: &mut Batch, stop: &Stop) -> Result<bool> {
        while !stop.wanted() {
            // New frames for the kernel come from the batch.
            if self.socket.recv(batch)? > 0 {
                self.bytes.add_received(batch.bytes());
                return Ok(true);
            }
            if self.spin {
                hint::spin_loop();
            } else {
                self.socket.wait(Interest::READABLE, TURN)?;
            }
        }
        Ok(false)
    }

    fn hand_out(&mut self, stop: &Stop) -> Result<()> {
        while !stop.wanted() {
            let mut batch = match self.empty.recv_timeout(TURN) {
                Ok(batch) => batch,
                // All are with the workers.
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if !self.fill(&mut batch, stop)? || self.workers[self.next].send(batch).is_err() {
                break;
            }
            self.next = (self.next + 1) % self.workers.len();
        }
        Ok(())
    }
}

impl Work for Receiving {
    fn run(&mut self, stop: &Stop) -> Result<()> {
        let outcome = self.hand_out(stop);
        // The workers finish what they have, and end, whatever the outcome.
        self.workers.clear();
        outcome
    }
}
