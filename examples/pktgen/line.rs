//! A socket to send on, and what went through it.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use xskit::{Batch, Clones, Interest, Result, Socket};

use crate::{
    clock,
    common::{Bytes, LAST_CALL, TURN},
    outcome::{Outcome, Sent},
    pace::{Begin, Pace},
};

/// Where one thread sends.
pub(crate) struct Line {
    socket: Socket,
    bytes: Arc<Bytes>,
    sent: Sent,
    outcome: Arc<Outcome>,
}

impl Line {
    pub(crate) fn new(socket: Socket, bytes: Arc<Bytes>, outcome: Arc<Outcome>) -> Self {
        Self { socket, bytes, sent: Sent::default(), outcome }
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Sends what there is room for; waits for room if there is none.
    pub(crate) fn send(&mut self, batch: &mut Batch) -> Result<()> {
        let before = batch.bytes();
        let sent = self.socket.send(batch)?;
        self.count(sent, before - batch.bytes())
    }

    /// Sends clones, as many as there is room for; returns how many. They are to be [counted](Self::count).
    pub(crate) fn send_clones(&mut self, clones: &mut Clones, count: usize) -> Result<usize> {
        self.socket.send_clones(clones, count)
    }

    /// So many packets were sent, that have so many bytes together. If there was no room for any, waits for
    /// some.
    pub(crate) fn count(&mut self, packets: usize, bytes: u64) -> Result<()> {
        if packets == 0 {
            self.sent.ring_full += 1;
            self.socket.wait(Interest::WRITABLE, TURN)?;
            return Ok(());
        }
        self.bytes.add_sent(bytes);
        self.sent.packets += packets as u64;
        self.sent.bytes += bytes;
        Ok(())
    }

    /// Waits for frames to come back, where there is none to write into.
    pub(crate) fn wait_for_frames(&mut self) -> Result<()> {
        self.reap()?;
        thread::sleep(Duration::from_micros(20));
        Ok(())
    }

    /// Takes back what completed. The kernel may have to be called for what still lies in the ring.
    pub(crate) fn reap(&mut self) -> Result<usize> {
        self.socket.split_mut().1.reap()
    }

    /// The first packet is about to be sent: the pace begins.
    pub(crate) fn begin(&mut self, begin: Option<Begin>) -> Pace {
        self.sent.from = clock::now();
        begin.map_or(Pace::Flood, |begin| begin(self.sent.from))
    }

    /// Nothing more is sent: waits for what is under way, and tells what was sent.
    pub(crate) fn finish(&mut self, pace: &Pace) -> Result<()> {
        self.sent.to = clock::now();
        self.sent.behind = pace.behind();
        self.outcome.add_sent(&self.sent);
        let deadline = Instant::now() + LAST_CALL;
        while Instant::now() < deadline {
            self.reap()?;
            let statistics = self.socket.statistics()?;
            if statistics.completed == statistics.sent {
                break;
            }
            thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }
}
