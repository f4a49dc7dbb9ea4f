//! Packets of our own.

use xskit::PacketMut;
use xskit_traffic::{Rng, Sizes, Stamp, Template};

use crate::written::Source;

/// Where a thread's packets are among all threads'.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) thread: u64,
    pub(crate) threads: u64,
}

impl Share {
    /// The thread's part of so many packets.
    pub(crate) fn of(self, packets: u64) -> u64 {
        packets / self.threads + u64::from(self.thread < packets % self.threads)
    }

    /// The number among all packets of the thread's packet of that number.
    pub(crate) fn number(self, sequence: u64) -> u64 {
        sequence * self.threads + self.thread
    }
}

/// Each another one, with a number and a time.
pub(crate) struct Fresh {
    pub(crate) template: Template,
    pub(crate) sizes: Sizes,
    pub(crate) random: Rng,
    pub(crate) share: Share,
    /// What the stamps of this thread say.
    pub(crate) stream: u16,
    pub(crate) sequence: u64,
}

impl Source for Fresh {
    fn write(&mut self, packet: &mut PacketMut<'_>, now: u64) -> usize {
        let number = self.share.number(self.sequence);
        let size = self.sizes.size(number, &mut self.random);
        #[expect(clippy::cast_possible_truncation, reason = "stamps begin anew after 2^32")]
        let stamp = Stamp { stream: self.stream, sequence: self.sequence as u32, time: now };
        packet.set_len(size).expect("the longest size fits a frame, by a look at the start");
        self.template.write(packet.head_mut(), number, &mut self.random, stamp);
        self.sequence += 1;
        size
    }
}
