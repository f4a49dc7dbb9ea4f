//! Sending.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use xskit::{Batch, Interest, NoRoom, Result, Socket};

use crate::common::{Bytes, LAST_CALL, Queue, Stop, TURN, Work};

/// A queue to send on.
pub(crate) struct TxOnly {
    socket: Socket,
    batch: Batch,
    /// Bytes of a frame.
    len: usize,
    /// Frames still to be put into a batch.
    left: u64,
    bytes: Arc<Bytes>,
}

impl TxOnly {
    pub(crate) fn new(
        socket: Socket,
        size: usize,
        len: usize,
        count: Option<u64>,
        queue: &mut Queue,
    ) -> Self {
        let batch = socket.umem().batch(size);
        let bytes = Arc::new(Bytes::default());
        queue.bytes_out.push(bytes.clone());
        Self { socket, batch, len, left: count.unwrap_or(u64::MAX), bytes }
    }

    /// Frames that have completed, or else were never used; all hold what is to be sent.
    fn fill(&mut self) -> Result<(), NoRoom> {
        let before = self.batch.len();
        let count = usize::try_from(self.left).unwrap_or(usize::MAX);
        self.left -= self.batch.alloc(count) as u64;
        self.batch.packets_mut().skip(before).try_for_each(|mut packet| packet.set_len(self.len))
    }

    /// Sends what there is room for, and waits for room where there is none.
    fn send(&mut self, limit: Duration) -> Result<()> {
        let sent = self.socket.send(&mut self.batch)?;
        self.bytes.add_sent((sent * self.len) as u64);
        if sent == 0 {
            self.socket.wait(Interest::WRITABLE, limit)?;
        }
        Ok(())
    }

    /// What was sent is counted as sent; now it shall complete.
    fn finish(&mut self) -> Result<()> {
        let deadline = Instant::now() + LAST_CALL;
        while Instant::now() < deadline {
            self.socket.split_mut().1.reap()?;
            let statistics = self.socket.statistics()?;
            if statistics.completed == statistics.sent {
                break;
            }
            thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }
}

impl Work for TxOnly {
    fn run(&mut self, stop: &Stop) -> Result<()> {
        while !stop.wanted() {
            self.fill().expect("a frame of this length was written into every chunk");
            if self.batch.is_empty() && self.left == 0 {
                break;
            }
            self.send(TURN)?;
        }
        self.finish()
    }
}
