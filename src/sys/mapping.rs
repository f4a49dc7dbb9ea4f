//! Memory mappings that undo themselves.

use std::{io, num::NonZeroUsize, os::fd::BorrowedFd, ptr::NonNull};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// A mapping of this process, unmapped on drop. Not inherited by a forked child.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; this type only unmaps it.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out the address and nothing else.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed private memory, on huge pages of the default size if asked for.
    pub(crate) fn anonymous(len: usize, huge: bool) -> io::Result<Self> {
        let size = NonZeroUsize::new(len).ok_or(io::ErrorKind::InvalidInput)?;
        let mut flags = MapFlags::MAP_PRIVATE;
        if huge {
            flags |= MapFlags::MAP_HUGETLB;
        }
        // SAFETY: a fresh mapping at an address of the kernel's choosing touches nobody's memory; it
        // is ours alone until `Drop`.
        let start = unsafe {
            mmap_anonymous(None, size, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags)
        }?;
        Self::own(start.cast(), len)
    }

    /// A ring of an AF_XDP socket, shared with the kernel.
    pub(crate) fn of_socket(socket: BorrowedFd<'_>, offset: i64, len: usize) -> io::Result<Self> {
        let size = NonZeroUsize::new(len).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: a fresh mapping at an address of the kernel's choosing. The kernel keeps the ring's
        // pages for as long as they are mapped, whatever becomes of the socket.
        let start = unsafe { mmap(None, size, protection, flags, socket, offset) }?;
        Self::own(start.cast(), len)
    }

    fn own(start: NonNull<u8>, len: usize) -> io::Result<Self> {
        let mapping = Self { start, len };
        mapping.advise(MmapAdvise::MADV_DONTFORK)?;
        Ok(mapping)
    }

    /// Asks for transparent huge pages. A kernel without them says so; the mapping stays usable.
    pub(crate) fn transparent_huge(&self) -> io::Result<()> {
        self.advise(MmapAdvise::MADV_HUGEPAGE)
    }

    fn advise(&self, advice: MmapAdvise) -> io::Result<()> {
        if cfg!(miri) {
            return Ok(()); // Miri has no madvise, and no fork either
        }
        // SAFETY: start and length are those of a mapping of ours, and neither of the two pieces of
        // advice given here changes what the memory holds.
        Ok(unsafe { madvise(self.start.cast(), self.len, advice) }?)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: start and length are those of a mapping of ours; whoever holds pointers into it
        // also holds its owner, so that nobody is left who could follow one.
        let unmapped = unsafe { munmap(self.start.cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
    }
}
