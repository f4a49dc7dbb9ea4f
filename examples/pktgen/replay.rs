//! Packets of a capture.

use xskit::PacketMut;
use xskit_traffic::capture::Captured;

use crate::written::Source;

/// What was captured, from the beginning again after the last packet.
pub(crate) struct Replay {
    pub(crate) packets: Vec<Captured>,
    /// The next one to send.
    pub(crate) next: usize,
}

impl Source for Replay {
    fn write(&mut self, packet: &mut PacketMut<'_>, _now: u64) -> usize {
        let frame = &self.packets[self.next].frame;
        packet.write(frame).expect("each fits a frame, by a look at the start");
        self.next = (self.next + 1) % self.packets.len();
        frame.len()
    }
}
