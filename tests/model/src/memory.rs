//! The memory of a UMEM, on the heap.
#![allow(unsafe_code, reason = "memory handed to a UMEM, to be looked at from outside")]

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ptr::NonNull,
};

use xskit::{Umem, UmemConfig};

/// What a UMEM begins at.
const PAGE: usize = 4096;

/// As many bytes as the UMEM has: AddressSanitizer and memcheck see who goes further by one.
pub(crate) struct Memory {
    start: NonNull<u8>,
    layout: Layout,
    chunk: usize,
}

impl Memory {
    pub(crate) fn new(chunks: u32, chunk: u32) -> Self {
        let chunk = chunk as usize;
        let layout = Layout::from_size_align(chunks as usize * chunk, PAGE).expect("a few chunks");
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })
            .unwrap_or_else(|| handle_alloc_error(layout));
        Self { start, layout, chunk }
    }

    /// A UMEM on it, which has to be gone with all sockets, batches and kernels before the memory is.
    pub(crate) fn umem(&self, config: UmemConfig) -> Umem {
        // SAFETY: so many bytes, initialised, and `World` drops this last of all that it has. Nobody touches
        // them but through the UMEM.
        unsafe { config.adopt(self.start, self.layout.size(), ()) }.expect("it fits")
    }

    /// The chunk that these bytes of a packet lie in, all of them.
    pub(crate) fn chunk(&self, bytes: &[u8]) -> usize {
        let at = bytes.as_ptr().addr() - self.start.as_ptr().addr();
        let chunk = at / self.chunk;
        let end = (chunk + 1) * self.chunk;
        assert!(at + bytes.len() <= end, "{} bytes at {at} leave their chunk", bytes.len());
        assert!(end <= self.layout.size(), "{} bytes at {at} lie outside", bytes.len());
        chunk
    }

    /// The chunk that begins at this address of the UMEM.
    pub(crate) fn chunk_at(&self, address: u64) -> usize {
        usize::try_from(address).expect("within the memory") / self.chunk
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; the UMEM is gone, by the rule of `umem`.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
