//! One way of the packets: from the queue where they arrive to the one where they leave.

use std::{
    hint,
    sync::Arc,
    time::{Duration, Instant},
};

use xskit::{
    Batch, Receiver, Result, Sender,
    socket::{Waiting, wait_any},
};

use crate::common::{Bytes, LAST_CALL, Stop, TURN, Work};

/// The receiving half of one socket and the sending half of another (or, to reflect, of the same one).
///
/// Each path has a thread of its own: the two directions between a pair of queues run on two cores. Nothing
/// is shared between threads but the UMEM's pool, and that is not touched while traffic flows: what completes
/// sending goes to the batch's spare frames, from which the receiver gives the kernel new ones.
pub(crate) struct Path {
    pub(crate) receiver: Receiver,
    pub(crate) sender: Sender,
    pub(crate) batch: Batch,
    pub(crate) bytes: Arc<Bytes>,
    pub(crate) style: Style,
}

/// What a path does besides moving packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    /// Send them back: swap the MAC addresses.
    pub(crate) reflect: bool,
    /// Never sleep for want of packets.
    pub(crate) spin: bool,
}

impl Work for Path {
    /// Forwards until somebody wants the end.
    fn run(&mut self, stop: &Stop) -> Result<()> {
        while !stop.wanted() {
            // Each packet is processed once: new ones come only when all others are sent.
            if self.batch.is_empty() && !self.receive()? {
                self.rest()?;
                continue;
            }
            self.send(TURN)?;
        }
        let deadline = Instant::now() + LAST_CALL;
        while !self.batch.is_empty() && Instant::now() < deadline {
            self.send(LAST_CALL)?;
        }
        Ok(())
    }
}

impl Path {
    /// Takes packets, if there are any.
    fn receive(&mut self) -> Result<bool> {
        if self.receiver.recv(&mut self.batch)? == 0 {
            return Ok(false);
        }
        self.bytes.add_received(self.batch.bytes());
        if self.style.reflect {
            for mut packet in self.batch.packets_mut() {
                swap_macs(packet.head_mut());
            }
        }
        Ok(true)
    }

    /// Sends what there is room for; the rest stays in the batch. A full TX ring is waited for, in
    /// every style.
    fn send(&mut self, limit: Duration) -> Result<()> {
        let before = self.batch.bytes();
        let sent = self.sender.send(&mut self.batch)?;
        self.bytes.add_sent(before - self.batch.bytes());
        if sent == 0 && !self.batch.is_empty() {
            self.sender.wait(limit)?;
        }
        Ok(())
    }

    /// Nothing to receive: waits for packets, and sees to the sending half, which may be another
    /// socket's: the kernel has to be called again for what it could not take from the TX ring.
    fn rest(&mut self) -> Result<()> {
        if self.style.spin {
            self.sender.reap()?;
            hint::spin_loop();
        } else {
            let packets = Waiting::receiver(&mut self.receiver);
            wait_any(&mut [packets, Waiting::reap(&mut self.sender)], TURN)?;
        }
        Ok(())
    }
}

fn swap_macs(frame: &mut [u8]) {
    if let Some(addresses) = frame.first_chunk_mut::<12>() {
        addresses.rotate_left(6);
    }
}
