//! The crate `xdpilone`.

use std::{
    ffi::CString,
    num::NonZeroU32,
    os::fd::{AsFd, BorrowedFd},
};

use anyhow::{Context, Result, anyhow};
use xdpilone::{
    DeviceQueue, Errno, IfInfo, RingRx, RingTx, Socket, SocketConfig, Umem, UmemConfig,
    xdp::XdpDesc,
};

use super::{Peer, Place};
use crate::{area::Area, kernel::CHUNK, sum::Sum};

/// A socket of xdpilone.
pub struct Xdpilone {
    device: DeviceQueue,
    rx: Option<RingRx>,
    tx: Option<RingTx>,
    /// Frames to send from: last in, first out.
    free: Vec<u64>,
    kicks: bool,
    _umem: Umem,
    _area: Area,
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: Errno) -> anyhow::Error {
    anyhow!("xdpilone: {error}")
}

impl Xdpilone {
    pub fn open(place: &Place) -> Result<Self> {
        let area = Area::new(place.frames)?;
        let config = UmemConfig {
            fill_size: place.ring,
            complete_size: place.ring,
            frame_size: u32::try_from(CHUNK)?,
            headroom: 0,
            flags: 0,
        };
        // SAFETY: the area is mapped, aligned to pages, and outlives the UMEM.
        let umem = unsafe { Umem::new(config, area.bytes()) }.map_err(failed)?;
        let mut info = IfInfo::invalid();
        info.from_name(&CString::new(place.interface.as_str())?).map_err(failed)?;
        info.set_queue(place.queue);
        let socket = Socket::with_shared(&info, &umem).map_err(failed)?;
        let mut device = umem.fq_cq(&socket).map_err(failed)?;
        let size = NonZeroU32::new(place.ring);
        let config = SocketConfig {
            rx_size: size.filter(|_| place.receives),
            tx_size: size.filter(|_| place.sends),
            bind_flags: SocketConfig::XDP_BIND_COPY | SocketConfig::XDP_BIND_NEED_WAKEUP,
        };
        let user = umem.rx_tx(&socket, &config).map_err(failed)?;
        let rx = place.receives.then(|| user.map_rx()).transpose().map_err(failed)?;
        let tx = place.sends.then(|| user.map_tx()).transpose().map_err(failed)?;
        let frames = (0..u64::from(place.frames)).map(|frame| frame * CHUNK);
        let free = if place.receives {
            let mut fill = device.fill(place.frames);
            fill.insert(frames);
            fill.commit();
            Vec::new()
        } else {
            frames.rev().collect()
        };
        umem.bind(&user).map_err(failed).context("bind")?;
        Ok(Self { device, rx, tx, free, kicks: false, _umem: umem, _area: area })
    }

    /// As [`XskRs::kicking`](super::xsk_rs::XskRs::kicking).
    pub fn kicking(mut self) -> Self {
        self.kicks = true;
        self
    }

    #[inline]
    fn kick(&self) {
        if self.kicks && self.tx.as_ref().is_some_and(RingTx::needs_wakeup) {
            crate::wake::send(self.as_fd());
        }
    }
}

impl AsFd for Xdpilone {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the device, which we own.
        unsafe { BorrowedFd::borrow_raw(self.device.as_raw_fd()) }
    }
}

impl Peer for Xdpilone {
    #[inline(never)]
    fn receive(&mut self, batch: u32, sum: &mut Sum) -> Result<u32> {
        let Some(rx) = &mut self.rx else { return Ok(0) };
        let mut packets = rx.receive(batch);
        let count = packets.capacity();
        let mut fill = self.device.fill(count);
        fill.insert(packets.by_ref().map(|desc| {
            sum.add(desc.addr, desc.len);
            desc.addr & !(CHUNK - 1)
        }));
        fill.commit();
        packets.release();
        Ok(count)
    }

    #[inline(never)]
    fn transmit(&mut self, batch: u32, length: u32, sum: &mut Sum) -> Result<u32> {
        let Some(tx) = &mut self.tx else { return Ok(0) };
        let count = self.free.len().min(batch as usize);
        let mut slots = tx.transmit(count as u32);
        let (count, rest) = (slots.capacity(), self.free.len() - slots.capacity() as usize);
        slots.insert(self.free.drain(rest..).map(|addr| {
            sum.add(addr, length);
            XdpDesc { addr, len: length, options: 0 }
        }));
        slots.commit();
        drop(slots);
        self.kick();
        let mut done = self.device.complete(batch);
        self.free.extend(done.by_ref().map(|addr| addr & !(CHUNK - 1)));
        done.release();
        Ok(count)
    }

    #[inline(never)]
    fn forward(&mut self, batch: u32, sum: &mut Sum) -> Result<u32> {
        let (Some(rx), Some(tx)) = (&mut self.rx, &mut self.tx) else { return Ok(0) };
        let mut done = [0; 256];
        let mut completed = self.device.complete(batch.min(256));
        let mut count = 0;
        for (to, addr) in done.iter_mut().zip(completed.by_ref()) {
            *to = addr & !(CHUNK - 1);
            count += 1;
        }
        completed.release();
        drop(completed);
        let mut fill = self.device.fill(count);
        fill.insert(done[..count as usize].iter().copied());
        fill.commit();
        drop(fill);
        let mut packets = rx.receive(batch);
        let count = packets.capacity();
        let mut slots = tx.transmit(count);
        let sent = slots.capacity();
        slots.insert(packets.by_ref().take(sent as usize).map(|desc| {
            sum.add(desc.addr, desc.len);
            XdpDesc { options: 0, ..desc }
        }));
        slots.commit();
        drop(slots);
        packets.release();
        drop(packets);
        self.kick();
        Ok(sent)
    }
}
