//! The crate `xdp`.

use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context, Result, anyhow};
use xdp::{
    Packet, RingConfigBuilder, Rings, Umem,
    nic::NicIndex,
    slab::{HeapSlab, Slab},
    socket::{XdpSocket, XdpSocketBuilder},
    umem::UmemCfgBuilder,
};

use super::{Peer, Place};
use crate::{kernel::CHUNK, sum::Sum};

/// A socket of the crate xdp.
pub struct Xdp {
    // Before the memory.
    socket: XdpSocket,
    rings: Rings,
    packets: HeapSlab,
    looked_at: HeapSlab,
    umem: Umem,
    base: usize,
    kicks: bool,
}

impl Xdp {
    pub fn open(place: &Place) -> Result<Self> {
        let config = UmemCfgBuilder { frame_count: place.frames, ..UmemCfgBuilder::default() };
        let mut umem = Umem::map(config.build().map_err(|error| anyhow!("{error}"))?)?;
        let config = RingConfigBuilder {
            rx_count: if place.receives { place.ring } else { 0 },
            tx_count: if place.sends { place.ring } else { 0 },
            fill_count: place.ring,
            completion_count: place.ring,
        };
        let mut builder = XdpSocketBuilder::new().map_err(|error| anyhow!("{error}"))?;
        let config = config.build().map_err(|error| anyhow!("{error}"))?;
        let built = builder.build_rings(&umem, config).map_err(|error| anyhow!("{error}"))?;
        let (mut rings, mut flags) = built;
        flags.force_copy();
        // SAFETY: the packet goes back to its UMEM at once.
        let packet = unsafe { umem.alloc() }.context("a frame")?;
        let base = packet.as_ptr().addr() & !(CHUNK as usize - 1);
        umem.free_packet(packet);
        if place.receives {
            // SAFETY: the UMEM outlives the socket, being dropped after it.
            unsafe { rings.fill_ring.enqueue(&mut umem, place.frames as usize) };
        }
        let bound = builder.bind(NicIndex::new(place.index), place.queue, flags);
        let socket = bound.map_err(|error| anyhow!("{error}"))?;
        let slab = || HeapSlab::with_capacity(place.batch as usize);
        Ok(Self { socket, rings, packets: slab(), looked_at: slab(), umem, base, kicks: false })
    }

    /// As [`XskRs::kicking`](super::xsk_rs::XskRs::kicking): this crate has no way to ask whether the
    /// kernel sleeps, so it is called every time.
    pub fn kicking(mut self) -> Self {
        self.kicks = true;
        self
    }

    #[inline]
    fn add(&self, packet: &Packet, sum: &mut Sum) {
        sum.add((packet.as_ptr().addr() - self.base) as u64, packet.len() as u32);
    }

    #[inline]
    fn kick(&self) {
        if self.kicks {
            crate::wake::send(self.as_fd());
        }
    }
}

impl AsFd for Xdp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the socket, which we own.
        unsafe { BorrowedFd::borrow_raw(self.socket.raw_fd()) }
    }
}

impl Peer for Xdp {
    #[inline(never)]
    fn receive(&mut self, batch: u32, sum: &mut Sum) -> Result<u32> {
        let Some(rx) = &mut self.rings.rx_ring else { return Ok(0) };
        // SAFETY: the packets are freed before the UMEM is. The same below.
        let count = unsafe { rx.recv(&self.umem, &mut self.packets) };
        while let Some(packet) = self.packets.pop_back() {
            self.add(&packet, sum);
            self.umem.free_packet(packet);
        }
        debug_assert!(count <= batch as usize);
        // SAFETY: the UMEM outlives the socket.
        unsafe { self.rings.fill_ring.enqueue(&mut self.umem, count) };
        Ok(count as u32)
    }

    #[inline(never)]
    fn transmit(&mut self, batch: u32, length: u32, sum: &mut Sum) -> Result<u32> {
        for _ in self.packets.len()..batch as usize {
            // SAFETY: as above.
            let Some(mut packet) = (unsafe { self.umem.alloc() }) else { break };
            packet.adjust_tail(i32::try_from(length)?).map_err(|error| anyhow!("{error}"))?;
            let address = packet.as_ptr().addr() - self.base;
            sum.add(address as u64 & !(CHUNK - 1), packet.len() as u32);
            self.packets.push_front(packet);
        }
        let Some(tx) = &mut self.rings.tx_ring else { return Ok(0) };
        // SAFETY: as above.
        let count = unsafe { tx.send(&mut self.packets) };
        self.kick();
        self.rings.completion_ring.dequeue(&mut self.umem, batch as usize);
        Ok(count as u32)
    }

    #[inline(never)]
    fn forward(&mut self, batch: u32, sum: &mut Sum) -> Result<u32> {
        let done = self.rings.completion_ring.dequeue(&mut self.umem, batch as usize);
        // SAFETY: as above.
        unsafe { self.rings.fill_ring.enqueue(&mut self.umem, done) };
        let (Some(rx), Some(tx)) = (&mut self.rings.rx_ring, &mut self.rings.tx_ring) else {
            return Ok(0);
        };
        if self.looked_at.is_empty() {
            // SAFETY: as above.
            unsafe { rx.recv(&self.umem, &mut self.packets) };
            while let Some(packet) = self.packets.pop_back() {
                let address = packet.as_ptr().addr() - self.base;
                sum.add(address as u64, packet.len() as u32);
                self.looked_at.push_front(packet);
            }
        }
        // SAFETY: as above.
        let count = unsafe { tx.send(&mut self.looked_at) };
        self.kick();
        Ok(count as u32)
    }
}
