//! Packets that are written one by one.

use xskit::{Batch, PacketMut, Result};

use crate::{
    clock,
    common::{Stop, Work},
    line::Line,
    pace::{Begin, Pace},
};

/// Where packets come from.
pub(crate) trait Source: Send {
    /// Writes the next packet, of a burst that is sent now; returns its length.
    fn write(&mut self, packet: &mut PacketMut<'_>, now: u64) -> usize;
}

/// A thread that writes packets and sends them.
pub(crate) struct Written<S> {
    line: Line,
    batch: Batch,
    begin: Option<Begin>,
    /// Packets still to be written.
    left: u64,
    source: S,
}

impl<S: Source> Written<S> {
    /// Sends so many packets, at most `most` of them at once.
    pub(crate) fn new(line: Line, begin: Begin, most: usize, left: u64, source: S) -> Self {
        let batch = line.socket().umem().batch(most);
        Self { line, batch, begin: Some(begin), left, source }
    }

    /// Writes packets into free frames, as many as there are.
    fn fill(&mut self, count: usize, now: u64, pace: &mut Pace) {
        self.left -= self.batch.alloc(count) as u64;
        for mut packet in self.batch.packets_mut() {
            pace.sent(self.source.write(&mut packet, now));
        }
    }

    fn send(&mut self, stop: &Stop, pace: &mut Pace) -> Result<()> {
        while !stop.wanted() && (self.left > 0 || !self.batch.is_empty()) {
            if self.batch.is_empty() {
                // Once per burst: a packet's time is that of its burst.
                let now = clock::now();
                let left = usize::try_from(self.left).unwrap_or(usize::MAX);
                let ready = pace.ready(now, self.batch.capacity().min(left));
                if ready == 0 {
                    self.line.reap()?;
                    pace.wait(now);
                    continue;
                }
                self.fill(ready, now, pace);
                if self.batch.is_empty() {
                    self.line.wait_for_frames()?;
                    continue;
                }
            }
            self.line.send(&mut self.batch)?;
        }
        Ok(())
    }
}

impl<S: Source> Work for Written<S> {
    fn run(&mut self, stop: &Stop) -> Result<()> {
        let mut pace = self.line.begin(self.begin.take());
        let sent = self.send(stop, &mut pace);
        sent.and(self.line.finish(&pace))
    }
}
