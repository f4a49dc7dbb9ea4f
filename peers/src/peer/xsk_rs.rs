//! The crate `xsk-rs`.

use std::{
    num::NonZeroU32,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use anyhow::{Context, Result};
use xsk_rs::{
    CompQueue, FillQueue, FrameDesc, RxQueue, Socket, TxQueue, Umem,
    config::{BindFlags, FrameSize, Interface, LibxdpFlags, QueueSize, SocketConfig, UmemConfig},
};

use super::{Peer, Place};
use crate::{kernel::CHUNK, sum::Sum};

/// A socket of xsk-rs.
pub struct XskRs {
    tx: TxQueue,
    rx: RxQueue,
    fill: FillQueue,
    completion: CompQueue,
    umem: Umem,
    /// Where received and completed descriptors go.
    packets: Vec<FrameDesc>,
    /// Frames to send from: last in, first out.
    free: Vec<FrameDesc>,
    kicks: bool,
}

impl XskRs {
    pub fn open(place: &Place) -> Result<Self> {
        let ring = QueueSize::new(place.ring)?;
        let config = UmemConfig::builder()
            .frame_size(FrameSize::new(u32::try_from(CHUNK)?)?)
            .fill_queue_size(ring)
            .comp_queue_size(ring)
            .build()?;
        let frames = NonZeroU32::new(place.frames).context("some frames")?;
        let (umem, descs) = Umem::new(config, frames, false)?;
        let config = SocketConfig::builder()
            .rx_queue_size(ring)
            .tx_queue_size(ring)
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .bind_flags(BindFlags::XDP_COPY | BindFlags::XDP_USE_NEED_WAKEUP)
            .build();
        let interface: Interface = place.interface.parse()?;
        // SAFETY: the only socket of this UMEM, whose frames go one way round below.
        let (tx, rx, rings) = unsafe { Socket::new(config, &umem, &interface, place.queue)? };
        let (mut fill, completion) = rings.context("the UMEM's first socket has both rings")?;
        let mut free = descs;
        let packets = free[..place.batch as usize].to_vec();
        if place.receives {
            // SAFETY: frames that nobody has yet.
            unsafe { fill.produce(&free) };
            free.clear();
        }
        free.reverse();
        Ok(Self { tx, rx, fill, completion, umem, packets, free, kicks: false })
    }

    /// Calls the kernel for what is to be sent, from now on.
    pub fn kicking(mut self) -> Self {
        self.kicks = true;
        self
    }

    #[inline]
    fn kick(&self) {
        if self.kicks && self.tx.needs_wakeup() {
            crate::wake::send(self.as_fd());
        }
    }
}

impl AsFd for XskRs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the queues, which we own.
        unsafe { BorrowedFd::borrow_raw(self.tx.fd().as_raw_fd()) }
    }
}

impl Peer for XskRs {
    #[inline(never)]
    fn receive(&mut self, batch: u32, sum: &mut Sum) -> Result<u32> {
        // SAFETY: what comes out of RX goes into Fill, and nowhere else. The same below.
        unsafe {
            let count = self.rx.consume(&mut self.packets[..batch as usize]);
            for desc in &self.packets[..count] {
                sum.add(desc.addr() as u64, desc.lengths().data() as u32);
            }
            self.fill.produce(&self.packets[..count]);
            Ok(count as u32)
        }
    }

    #[inline(never)]
    fn transmit(&mut self, batch: u32, length: u32, sum: &mut Sum) -> Result<u32> {
        let first = self.free.len() - self.free.len().min(batch as usize);
        // SAFETY: free frames go into TX, and come back from Completion.
        unsafe {
            for desc in &mut self.free[first..] {
                self.umem.data_mut(desc).cursor().set_pos(length as usize);
                sum.add(desc.addr() as u64 & !(CHUNK - 1), desc.lengths().data() as u32);
            }
            let count = self.tx.produce(&self.free[first..]);
            if count > 0 {
                self.free.truncate(first);
            }
            self.kick();
            let done = self.completion.consume(&mut self.packets[..batch as usize]);
            self.free.extend_from_slice(&self.packets[..done]);
            Ok(count as u32)
        }
    }

    #[inline(never)]
    fn forward(&mut self, batch: u32, sum: &mut Sum) -> Result<u32> {
        // SAFETY: what comes out of RX goes into TX; what comes out of Completion goes into Fill.
        unsafe {
            let done = self.completion.consume(&mut self.packets[..batch as usize]);
            self.fill.produce(&self.packets[..done]);
            let count = self.rx.consume(&mut self.packets[..batch as usize]);
            for desc in &self.packets[..count] {
                sum.add(desc.addr() as u64, desc.lengths().data() as u32);
            }
            while count > 0 && self.tx.produce(&self.packets[..count]) == 0 {
                self.kick();
            }
            self.kick();
            Ok(count as u32)
        }
    }
}
