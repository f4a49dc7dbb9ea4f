//! Many packets at once, without a copy to look at: for benchmarks and soak tests.

use super::{receive::write, state::State, transmit::completed};
use crate::{ring::Desc, umem::to_u32};

impl State {
    /// Receives a packet up to that many times, in one go; returns how often. No more than frames and slots
    /// are there for are sent this way, so that nothing is dropped.
    pub(super) fn deliver_many(&mut self, member: usize, packet: &[u8], count: usize) -> usize {
        if self.is_gone() {
            return 0;
        }
        let Self { umem, fill, members, .. } = self;
        let member = &mut members[member];
        let Some(rx) = &mut member.rx else { return 0 };
        let geometry = *umem.geometry();
        if packet.len() > geometry.max_received() as usize {
            return 0;
        }
        let room = geometry.chunk_bytes() - geometry.max_received();
        let len = to_u32(packet.len());
        let mut slots = rx.reserve_up_to(count);
        let frames = fill.peek(slots.len());
        for address in frames.iter() {
            if !geometry.holds(*address) {
                member.statistics.rx_invalid_descs += 1;
                continue;
            }
            let base = geometry.base(*address);
            write(umem, base + u64::from(room), packet);
            let addr = geometry.received_at(base, room);
            // SAFETY: we play the kernel, whose the frame is, and which gives it away here.
            unsafe { slots.push(Desc { addr, len, options: 0 }) };
        }
        frames.release();
        slots.submit()
    }

    /// Takes up to that many frames from a TX ring and completes them; returns how many. A frame that the
    /// kernel would refuse is left out, and counted.
    pub(super) fn discard(&mut self, member: usize, most: usize) -> usize {
        self.complete_flying(usize::MAX);
        if self.is_gone() || !self.flying.is_empty() {
            return 0;
        }
        let valid = self.valid();
        let Self { completion, members, .. } = self;
        let member = &mut members[member];
        let Some(tx) = &mut member.tx else { return 0 };
        let mut slots = completion.reserve_up_to(most);
        let sent = tx.peek(slots.len());
        for desc in sent.iter() {
            if !valid(desc) {
                member.statistics.tx_invalid_descs += 1;
                continue;
            }
            // SAFETY: as above.
            unsafe { slots.push(completed(desc)) };
        }
        sent.release();
        slots.submit()
    }
}
