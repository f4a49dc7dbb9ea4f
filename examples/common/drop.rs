//! Receiving and dropping.

use std::{hint, num::TryFromIntError, sync::Arc};

use xskit::{Batch, Interest, Result, Socket};

use super::{Bytes, Opened, Queue, Stop, TURN, Work, cli::RunOptions};

/// A queue whose packets are dropped.
pub(crate) struct RxDrop {
    socket: Socket,
    batch: Batch,
    bytes: Arc<Bytes>,
    spin: bool,
}

impl RxDrop {
    /// One for each socket, which are those of all queues in order.
    pub(crate) fn on_all(
        sockets: Vec<Vec<Socket>>,
        opened: &Opened,
        running: &RunOptions,
    ) -> Result<Vec<Self>, TryFromIntError> {
        let size = usize::try_from(running.batch)?;
        let queues = sockets.into_iter().flatten().zip(&opened.queues);
        Ok(queues.map(|(socket, queue)| Self::new(socket, size, queue, running.spin)).collect())
    }

    fn new(socket: Socket, size: usize, queue: &Queue, spin: bool) -> Self {
        let batch = socket.umem().batch(size);
        Self { socket, batch, bytes: queue.bytes_in.clone(), spin }
    }
}

impl Work for RxDrop {
    fn run(&mut self, stop: &Stop) -> Result<()> {
        while !stop.wanted() {
            if self.socket.recv(&mut self.batch)? > 0 {
                self.bytes.add_received(self.batch.bytes());
                // Their frames wait in the batch, from where the next `recv` gives them to the kernel.
                self.batch.clear();
            } else if self.spin {
                hint::spin_loop();
            } else {
                self.socket.wait(Interest::READABLE, TURN)?;
            }
        }
        Ok(())
    }
}
