//! The memory as the kernel knows it: registered once per mode.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use super::{DeviceQueue, Umem};
use crate::{
    sync::{Arc, Weak},
    sys::{uapi::UmemReg, xsk},
};

/// What all sockets of one registration have in common: that of the first one's bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    pub(crate) zero_copy: bool,
    pub(crate) need_wakeup: bool,
    pub(crate) multi_buffer: bool,
}

/// A socket that is bound with a registration.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    fd: Weak<OwnedFd>,
    queue: DeviceQueue,
    registration: Registration,
}

/// The sockets that are bound with this memory. Any of them, bound and open, can be named to the
/// kernel by the next one that shares its registration; with the last of them a registration ends.
#[derive(Debug, Default)]
pub(crate) struct Registrations {
    members: Vec<Member>,
}

impl Member {
    /// The socket, if it is open and bound: the kernel takes it off an interface that is deleted.
    fn bound(&self) -> Option<Arc<OwnedFd>> {
        self.fd.upgrade().filter(|fd| xsk::is_bound(fd.as_fd()))
    }
}

impl Registrations {
    /// The registrations that live, each with a socket to name.
    pub(crate) fn living(&mut self) -> Vec<(Registration, Arc<OwnedFd>)> {
        let mut living: Vec<(Registration, Arc<OwnedFd>)> = Vec::new();
        self.members.retain(|member| {
            let Some(fd) = member.bound() else { return false };
            if living.iter().all(|(registration, _)| *registration != member.registration) {
                living.push((member.registration, fd));
            }
            true
        });
        living
    }

    /// Whether a socket of this memory is bound to that queue.
    pub(crate) fn has_queue(&self, queue: DeviceQueue) -> bool {
        self.members.iter().any(|member| member.queue == queue && member.bound().is_some())
    }

    pub(crate) fn add(
        &mut self,
        fd: &Arc<OwnedFd>,
        queue: DeviceQueue,
        registration: Registration,
    ) {
        self.members.push(Member { fd: Arc::downgrade(fd), queue, registration });
    }
}

impl Umem {
    /// `XDP_UMEM_REG` on a socket that is not bound yet.
    pub(crate) fn register(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let geometry = self.geometry();
        let umem = UmemReg {
            addr: self.memory().start().addr().get() as u64,
            len: geometry.bytes(),
            chunk_size: geometry.chunk_bytes(),
            headroom: geometry.headroom(),
            flags: geometry.flags(),
            tx_metadata_len: geometry.tx_metadata(),
        };
        // SAFETY: the memory is mapped and stays so until the last handle is gone, and every socket
        // that registers holds one until it has closed; after that the kernel's own reference to the
        // pages keeps them (a duplicate descriptor may live on), and adopted memory is leaked. Chunks
        // are written only by batches, which own them, and own none that is in a ring.
        unsafe { xsk::register_umem(socket.as_fd(), &umem) }
    }
}
