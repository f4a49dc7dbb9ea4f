//! xskit, at both of its levels.

use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Result, ensure};
use xskit::{
    Batch, CopyMode, Interface, RingSize, Socket, SocketConfig, Umem, UmemConfig,
    ring::Desc,
    socket::{Rings, RingsMut},
};

use super::{Peer, Place};
use crate::{kernel::CHUNK, sum::Sum};

fn open(place: &Place, umem: &Umem, budget: Option<u32>) -> Result<Socket> {
    let ring = RingSize::new(place.ring)?;
    let mut config = SocketConfig::default().copy_mode(CopyMode::Copy);
    if let Some(frames) = budget {
        config = config.tx_budget(frames);
    }
    config = config.rx(ring).tx(ring).fill(ring).completion(ring);
    if !place.sends {
        config = config.receive_only();
    }
    if !place.receives {
        config = config.send_only();
    }
    let interface = Interface::by_name(&place.interface)?;
    Ok(Socket::open(umem, &interface, place.queue, &config)?)
}

/// The safe level: packets in batches.
pub struct Safe {
    pub socket: Socket,
    pub batch: Batch,
}

impl Safe {
    pub fn open(place: &Place) -> Result<Self> {
        Self::open_with(place, None)
    }

    /// With so many frames at most for each call that sends.
    pub fn open_with(place: &Place, budget: Option<u32>) -> Result<Self> {
        Self::build(place, UmemConfig::new(place.frames), budget)
    }

    /// On a UMEM of another kind.
    pub fn open_on(place: &Place, umem: UmemConfig) -> Result<Self> {
        Self::build(place, umem, None)
    }

    fn build(place: &Place, umem: UmemConfig, budget: Option<u32>) -> Result<Self> {
        let umem = umem.build()?;
        let socket = open(place, &umem, budget)?;
        let batch = umem.batch(place.batch as usize);
        Ok(Self { socket, batch })
    }
}

impl AsFd for Safe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Peer for Safe {
    #[inline(never)]
    fn receive(&mut self, _: u32, sum: &mut Sum) -> Result<u32> {
        let count = self.socket.recv(&mut self.batch)?;
        let mut local = Sum::default();
        for packet in self.batch.packets() {
            local.add(packet.addr(), packet.head().len() as u32);
        }
        sum.merge(local);
        self.batch.clear();
        Ok(count as u32)
    }

    #[inline(never)]
    fn transmit(&mut self, batch: u32, length: u32, sum: &mut Sum) -> Result<u32> {
        self.batch.alloc(batch as usize);
        let mut local = Sum::default();
        for mut packet in self.batch.packets_mut() {
            packet.set_len(length as usize)?;
            local.add(packet.addr(), packet.head().len() as u32);
        }
        sum.merge(local);
        Ok(self.socket.send(&mut self.batch)? as u32)
    }

    #[inline(never)]
    fn forward(&mut self, _: u32, sum: &mut Sum) -> Result<u32> {
        if self.batch.is_empty() {
            self.socket.recv(&mut self.batch)?;
            let mut local = Sum::default();
            for packet in self.batch.packets_mut() {
                local.add(packet.addr(), packet.head().len() as u32);
            }
            sum.merge(local);
        }
        Ok(self.socket.send(&mut self.batch)? as u32)
    }
}

/// The descriptor level: the socket, to be opened to its rings by [`Descriptors`].
pub struct Opened {
    pub socket: Socket,
    frames: Vec<u64>,
}

impl Opened {
    pub fn open(place: &Place) -> Result<Self> {
        let umem = UmemConfig::new(place.frames).build()?;
        let socket = open(place, &umem, None)?;
        let frames = if place.receives {
            Vec::new()
        } else {
            let mut batch = umem.batch(place.frames as usize);
            ensure!(batch.alloc(place.frames as usize) == place.frames as usize, "free frames");
            let mut addresses = xskit::ring::detach(&mut batch);
            addresses.reverse();
            addresses
        };
        Ok(Self { socket, frames })
    }

    pub fn rings(&mut self) -> (Rings<'_>, &mut Vec<u64>) {
        (self.socket.rings(), &mut self.frames)
    }
}

impl AsFd for Opened {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The four rings, in hand.
pub struct Descriptors<'a> {
    rings: RingsMut<'a>,
    /// Frames to send from: last in, first out.
    frames: &'a mut Vec<u64>,
}

impl<'a> Descriptors<'a> {
    pub fn new(rings: &'a mut Rings<'_>, frames: &'a mut Vec<u64>) -> Self {
        Self { rings: rings.split_mut(), frames }
    }
}

impl Peer for Descriptors<'_> {
    #[inline(never)]
    fn receive(&mut self, batch: u32, sum: &mut Sum) -> Result<u32> {
        let RingsMut { rx: Some(rx), fill, .. } = &mut self.rings else { return Ok(0) };
        let packets = rx.peek(batch as usize);
        let Some(mut slots) = fill.reserve(packets.len()) else { return Ok(0) };
        let mut local = *sum;
        let base = |desc: &Desc| {
            local.add(desc.addr, desc.len);
            desc.addr & !(CHUNK - 1)
        };
        // SAFETY: the frames came out of RX, and nobody else has them.
        unsafe { slots.write_peeked(&packets, base) };
        *sum = local;
        slots.submit();
        Ok(packets.release() as u32)
    }

    #[inline(never)]
    fn transmit(&mut self, batch: u32, length: u32, sum: &mut Sum) -> Result<u32> {
        let RingsMut { tx: Some(tx), .. } = &mut self.rings else { return Ok(0) };
        let count = self.frames.len().min(batch as usize);
        let sent = if let Some(mut slots) = tx.reserve(count) {
            let rest = self.frames.len() - count;
            let mut local = *sum;
            let desc = |addr: &u64| {
                local.add(*addr, length);
                Desc { addr: *addr, len: length, options: 0 }
            };
            // SAFETY: frames of our own stack, which forgets them in the next line.
            unsafe { slots.write_from(&self.frames[rest..], desc) };
            self.frames.truncate(rest);
            *sum = local;
            slots.submit()
        } else {
            0
        };
        self.reap(batch);
        Ok(sent as u32)
    }

    #[inline(never)]
    fn forward(&mut self, batch: u32, sum: &mut Sum) -> Result<u32> {
        let RingsMut { rx: Some(rx), tx: Some(tx), fill, completion } = &mut self.rings else {
            return Ok(0);
        };
        let completed = completion.peek(batch as usize);
        if let Some(mut slots) = fill.reserve(completed.len()) {
            // SAFETY: the frames have been sent, and nobody else has them.
            unsafe { slots.write_peeked(&completed, |addr| addr & !(CHUNK - 1)) };
            slots.submit();
            completed.release();
        }
        let packets = rx.peek(batch as usize);
        let Some(mut slots) = tx.reserve(packets.len()) else { return Ok(0) };
        let mut local = *sum;
        let desc = |desc: &Desc| {
            local.add(desc.addr, desc.len);
            Desc { options: 0, ..*desc }
        };
        // SAFETY: the frames came out of RX, and nobody else has them.
        unsafe { slots.write_peeked(&packets, desc) };
        *sum = local;
        slots.submit();
        Ok(packets.release() as u32)
    }
}

impl Descriptors<'_> {
    #[inline]
    fn reap(&mut self, batch: u32) {
        let completed = self.rings.completion.peek(batch as usize);
        let (before, after) = completed.slices();
        self.frames.extend(before.iter().map(|addr| addr & !(CHUNK - 1)));
        if !after.is_empty() {
            self.frames.extend(after.iter().map(|addr| addr & !(CHUNK - 1)));
        }
        completed.release();
    }
}
