//! Memory for packets.

use std::{ffi::c_void, io, num::NonZeroUsize, ptr::NonNull};

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::kernel::CHUNK;

/// Chunks on pages of their own.
pub struct Area {
    start: NonNull<c_void>,
    len: NonZeroUsize,
}

impl Area {
    pub fn new(frames: u32) -> io::Result<Self> {
        let len = usize::try_from(u64::from(frames) * CHUNK).map_err(io::Error::other)?;
        let len = NonZeroUsize::new(len).expect("some frames");
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_POPULATE;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, which overlays nothing.
        let start = unsafe { mmap_anonymous(None, len, protection, flags)? };
        Ok(Self { start, len })
    }

    pub fn start(&self) -> NonNull<u8> {
        self.start.cast()
    }

    pub fn bytes(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.start(), self.len.get())
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; the socket that used it is closed, being a field before or dropped by
        // the owner's own `Drop`.
        if let Err(error) = unsafe { munmap(self.start, self.len.get()) } {
            eprintln!("unmap packets: {error}");
        }
    }
}
