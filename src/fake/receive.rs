//! Packets from nowhere: out of the Fill ring, into an RX ring.

use std::ptr;

use super::state::State;
use crate::{
    ring::{Desc, Producer},
    sys::uapi::XDP_PKT_CONTD,
    umem::{Umem, at, to_u32},
};

/// What comes in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming<'a> {
    pub(super) packet: &'a [u8],
    /// What lies before it.
    pub(super) metadata: &'a [u8],
    /// A descriptor that makes no sense, in front of the packet's frame of that number.
    pub(super) nonsense: Option<(usize, Desc)>,
}

impl<'a> Incoming<'a> {
    pub(super) fn new(packet: &'a [u8]) -> Self {
        Self { packet, metadata: &[], nonsense: None }
    }
}

impl State {
    /// Receives a packet for a socket, or drops and counts it; whether it was received.
    pub(super) fn deliver(&mut self, member: usize, incoming: Incoming<'_>) -> bool {
        if self.is_gone() {
            return false;
        }
        let Self { umem, fill, members, .. } = self;
        let member = &mut members[member];
        let Some(rx) = &mut member.rx else { return false };
        let Incoming { packet, metadata, nonsense } = incoming;
        let most = umem.max_packet_len() as usize;
        let count = packet.len().div_ceil(most).max(1);
        let slots = to_u32(count + usize::from(nonsense.is_some()));
        if rx.free(slots as usize) < slots {
            member.statistics.rx_ring_full += 1;
            return false;
        }
        if count > 1 && !self.multi_buffer {
            member.statistics.rx_dropped += 1;
            return false;
        }
        let frames = fill.peek(count);
        if frames.len() < count {
            member.statistics.rx_dropped += 1;
            member.statistics.rx_fill_ring_empty_descs += 1;
            return false;
        }
        let geometry = *umem.geometry();
        let addresses: Vec<u64> = frames.iter().copied().collect();
        frames.release();
        if !addresses.iter().all(|address| geometry.holds(*address)) {
            member.statistics.rx_invalid_descs += 1;
            return false;
        }
        let room = geometry.chunk_bytes() - geometry.max_received();
        let first = geometry.base(addresses[0]) + u64::from(room);
        write(umem, first - metadata.len() as u64, metadata);
        let mut rest = packet;
        let mut descs = Vec::with_capacity(count + 1);
        for address in addresses {
            let (part, after) = rest.split_at(rest.len().min(most));
            rest = after;
            let base = geometry.base(address);
            write(umem, base + u64::from(room), part);
            let addr = geometry.received_at(base, room);
            descs.push(Desc { addr, len: to_u32(part.len()), options: XDP_PKT_CONTD });
        }
        if let Some((at, desc)) = nonsense {
            descs.insert(at.min(count - 1), desc);
        }
        if let Some(last) = descs.last_mut() {
            last.options = 0;
        }
        descs.into_iter().all(|desc| post(rx, desc))
    }

    /// Puts a descriptor that leads to no frame into a socket's RX ring; whether there was room.
    pub(super) fn post_nonsense(&mut self, member: usize, desc: Desc) -> bool {
        self.members[member].rx.as_mut().is_some_and(|rx| post(rx, desc))
    }
}

fn post(rx: &mut Producer<Desc>, desc: Desc) -> bool {
    let mut slot = rx.reserve_up_to(1);
    // SAFETY: we play the kernel, which gives the frame away here; nonsense leads to none.
    unsafe { slot.push(desc) };
    slot.submit() == 1
}

/// Writes into a frame that [`State::deliver`] took, or that [`State::take`](super::state::State) has.
pub(super) fn write(umem: &Umem, address: u64, bytes: &[u8]) {
    let memory = umem.memory().start();
    // SAFETY: the frame came out of the Fill or the TX ring, so that it is the kernel's, which we play; the
    // part of a packet fits the chunk, as does its metadata before it, and the address lies in the
    // memory, by the checks of both callers.
    unsafe {
        let to = at(memory, address).as_ptr();
        ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
    }
}
