//! Packets to nowhere: out of a TX ring, and their frames into the Completion ring.

use std::ptr;

use super::{receive::write, state::State};
use crate::{
    ring::{Consumer, Desc},
    sys::uapi::{XDP_PKT_CONTD, XDP_TX_METADATA},
    umem::{Umem, at},
};

impl State {
    /// Takes up to that many packets from a socket's TX ring; returns them, and how many frames they had.
    /// As the kernel does, it takes no frame for which the Completion ring has no room by now. A
    /// descriptor that the kernel would refuse voids its packet.
    pub(super) fn take(&mut self, member: usize, most: usize) -> (Vec<Vec<u8>>, usize) {
        let valid = self.valid();
        let mut packets = Vec::new();
        let mut frames = 0;
        while packets.len() < most && !self.is_gone() {
            let room = self.completion.free(usize::MAX) as usize;
            let room = room.saturating_sub(self.flying.len());
            let member = &mut self.members[member];
            let Some(tx) = &mut member.tx else { break };
            let taken = tx.peek(usize::MAX);
            let more = |desc: &&Desc| desc.options & XDP_PKT_CONTD != 0;
            let count = taken.iter().take_while(more).count() + 1;
            // An unfinished packet waits for its end.
            if count > taken.len().min(room) {
                break;
            }
            let descs: Vec<Desc> = taken.iter().take(count).copied().collect();
            taken.release_first(count);
            if !descs.iter().all(&valid) {
                member.statistics.tx_invalid_descs += descs.len() as u64;
                continue;
            }
            self.stamp(descs[0]);
            packets.push(descs.iter().flat_map(|desc| read(&self.umem, *desc)).collect());
            frames += descs.len();
            self.flying.extend(descs.iter().map(completed));
        }
        (packets, frames)
    }

    /// Whether the kernel would take a descriptor. Clones' chunks are to it as all others.
    pub(super) fn valid(&self) -> impl Fn(&Desc) -> bool + use<> {
        let geometry = self.umem.geometry().whole();
        let several = if self.multi_buffer { XDP_PKT_CONTD } else { 0 };
        let metadata = if self.umem.has_tx_metadata() { XDP_TX_METADATA } else { 0 };
        let options = several | metadata;
        move |desc| {
            desc.len > 0
                && geometry.holds_packet(desc.addr, desc.len)
                && geometry.offset(geometry.to_plain(desc.addr)) >= geometry.tx_metadata()
                && desc.options & !options == 0
        }
    }

    /// Whether clones are still to be sent or to be completed.
    pub(super) fn has_clones(&mut self) -> bool {
        let geometry = *self.umem.geometry();
        let unsent = |tx: &mut Consumer<Desc>| {
            tx.peek(usize::MAX).iter().any(|desc| geometry.holds_clone(desc.addr))
        };
        self.flying.iter().any(|address| geometry.holds_clone(*address))
            || self.members.iter_mut().filter_map(|member| member.tx.as_mut()).any(unsent)
    }

    /// Writes the time at which a packet is sent, where that is asked: the number of the packet.
    fn stamp(&mut self, desc: Desc) {
        if desc.options & XDP_TX_METADATA == 0 {
            return;
        }
        let len = self.umem.geometry().tx_metadata();
        let addr = self.umem.geometry().to_plain(desc.addr) - u64::from(len);
        let metadata = read(&self.umem, Desc { addr, len, options: 0 });
        if metadata[0] & 1 != 0 {
            self.stamped += 1;
            write(&self.umem, addr + 8, &self.stamped.to_ne_bytes());
        }
    }

    /// Completes up to that many frames, in the order in which they were taken; returns how many.
    pub(super) fn complete_flying(&mut self, most: usize) -> usize {
        let mut completed = 0;
        while completed < most && !self.is_gone() {
            let Some(address) = self.flying.front().copied() else { break };
            if !self.complete(address) {
                break;
            }
            self.flying.pop_front();
            completed += 1;
        }
        completed
    }

    /// Puts an address into the Completion ring; whether there was room.
    pub(super) fn complete(&mut self, address: u64) -> bool {
        let mut slot = self.completion.reserve_up_to(1);
        // SAFETY: we play the kernel, which gives the frame away here; nonsense leads to none.
        unsafe { slot.push(address) };
        slot.submit() == 1
    }

    /// What a call to send does by itself; whether packets are left.
    pub(super) fn send(&mut self, member: usize, most: usize) -> bool {
        let (packets, frames) = self.take(member, most);
        self.complete_flying(frames);
        let member = &mut self.members[member];
        member.sent.extend(packets);
        member.tx.as_ref().is_some_and(|tx| tx.indices().level() > 0)
    }
}

/// What the Completion ring tells of a frame that was sent: as Linux 6.18 in copy mode, all but the lowest bit
/// of its address.
pub(super) fn completed(desc: &Desc) -> u64 {
    desc.addr & !1
}

fn read(umem: &Umem, desc: Desc) -> Vec<u8> {
    let address = umem.geometry().to_plain(desc.addr);
    let mut packet = vec![0; desc.len as usize];
    // SAFETY: the frame came out of the TX ring, so that it is the kernel's, which we play; the packet
    // lies in a chunk by the check in `take`.
    unsafe {
        let from = at(umem.memory().start(), address).as_ptr();
        ptr::copy_nonoverlapping(from, packet.as_mut_ptr(), packet.len());
    }
    packet
}
