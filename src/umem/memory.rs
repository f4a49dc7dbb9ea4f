//! The memory itself: mapped by us, or handed in.

use std::{any::Any, fmt, mem, ptr::NonNull};

use super::{numa::Preference, physical_memory};
use crate::{
    Error, ErrorKind, Result, Step,
    sys::{self, mapping::Mapping},
};

/// The pages that a UMEM's memory is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pages {
    /// Pages of the usual size.
    #[default]
    Normal,
    /// Transparent huge pages: asked of the kernel, which gives them where it can and does not say.
    Transparent,
    /// Huge pages of the system's default size from its reserve (`vm.nr_hugepages`), or an error.
    Huge,
    /// [`Huge`](Self::Huge), or [`Transparent`](Self::Transparent) if the reserve has too few.
    /// [`Umem::pages`](super::Umem::pages) says which it became.
    HugeOrTransparent,
    /// Memory that the user handed in.
    Adopted,
}

/// Who owns adopted memory; dropped when no socket can reach it any more.
pub(super) type Owner = Box<dyn Any + Send + Sync>;

/// Where an address lies.
///
/// # Safety
///
/// The memory begins at `start`, and the address lies in it.
#[inline]
pub(crate) unsafe fn at(start: NonNull<u8>, address: u64) -> NonNull<u8> {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "mapped memory has less than usize::MAX bytes"
    )]
    let offset = address as usize;
    // SAFETY: within the memory, by the caller's word.
    unsafe { start.add(offset) }
}

pub(crate) struct Memory {
    start: NonNull<u8>,
    pages: Pages,
    node: Option<u32>,
    owner: MemoryOwner,
}

enum MemoryOwner {
    Mapped(#[expect(dead_code, reason = "held to be unmapped on drop")] Mapping),
    Adopted(Option<Owner>),
}

// SAFETY: chunks are reached only through a batch that owns them, wherever it is; the memory as such
// belongs to the process.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps memory of `bytes` bytes.
    pub(super) fn map(bytes: u64, pages: Pages, node: Option<Preference>) -> Result<Self> {
        let failed = |kind, reason: String| Error::new(Step::AllocateUmem, kind, reason);
        if let Some(physical) = physical_memory().filter(|physical| bytes > *physical) {
            return Err(failed(
                ErrorKind::Limit,
                format!(
                    "a UMEM of {bytes} bytes does not fit the {physical} bytes of this machine"
                ),
            )
            .hint("use fewer chunks, or ChunkSize::K2"));
        }
        let len = usize::try_from(bytes).map_err(|_| {
            failed(ErrorKind::Limit, format!("{bytes} bytes exceed the address space"))
        })?;
        let (mapping, got) = match pages {
            Pages::Normal | Pages::Adopted => (Mapping::anonymous(len, false), Pages::Normal),
            Pages::Transparent => (transparent(len), Pages::Transparent),
            Pages::Huge => (huge(len), Pages::Huge),
            Pages::HugeOrTransparent => match huge(len) {
                Ok(mapping) => (Ok(mapping), Pages::Huge),
                Err(_) => (transparent(len), Pages::Transparent),
            },
        };
        let mapping = mapping.map_err(|source| {
            let error = Error::os(Step::AllocateUmem, format!("mapping {bytes} bytes"), source)
                .with_kind(ErrorKind::Limit);
            match pages {
                Pages::Huge => error.asked("huge pages").hint(
                    "reserve them in /proc/sys/vm/nr_hugepages, or use Pages::HugeOrTransparent",
                ),
                _ => error.hint("use fewer chunks"),
            }
        })?;
        // Before anybody has touched it.
        let node = match node {
            Some(preference) => preference.apply(&mapping)?,
            None => None,
        };
        let start = mapping.start();
        Ok(Self { start, pages: got, node, owner: MemoryOwner::Mapped(mapping) })
    }

    pub(super) fn adopt(start: NonNull<u8>, owner: Owner) -> Self {
        let owner = MemoryOwner::Adopted(Some(owner));
        Self { start, pages: Pages::Adopted, node: None, owner }
    }

    pub(super) fn pages(&self) -> Pages {
        self.pages
    }

    pub(super) fn node(&self) -> Option<u32> {
        self.node
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Never frees adopted memory: somebody may still write into it.
    pub(super) fn leak_owner(&mut self) {
        if let MemoryOwner::Adopted(owner) = &mut self.owner {
            mem::forget(owner.take());
        }
    }
}

fn huge(len: usize) -> std::io::Result<Mapping> {
    // munmap wants whole huge pages.
    Mapping::anonymous(len.next_multiple_of(sys::huge_page_size()?), true)
}

fn transparent(len: usize) -> std::io::Result<Mapping> {
    let mapping = Mapping::anonymous(len, false)?;
    // A kernel built without them refuses; the memory is as good on normal pages.
    mapping.transparent_huge().or_else(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => Ok(()),
        _ => Err(error),
    })?;
    Ok(mapping)
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("start", &self.start).finish_non_exhaustive()
    }
}
