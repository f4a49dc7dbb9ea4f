//! What a UMEM shall be.

use std::ptr::NonNull;

use super::{ChunkSize, Geometry, Pages, Umem, memory::Memory, numa::Placement};
use crate::{Error, Interface, Result};

/// The size and kind of a [`Umem`] to make.
///
/// ```
/// use xskit::{ChunkSize, Pages, UmemConfig};
///
/// let umem = UmemConfig::new(4096)
///     .chunk_size(ChunkSize::K2)
///     .headroom(64)
///     .pages(Pages::HugeOrTransparent)
///     .build()?;
/// assert_eq!(umem.max_packet_len(), 2048 - 256 - 64);
/// # Ok::<(), xskit::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct UmemConfig {
    chunks: Option<u32>,
    chunk_size: ChunkSize,
    headroom: u32,
    pages: Pages,
    placement: Placement,
    metadata: Metadata,
    clones: u32,
}

/// What lies before packets, beside the headroom.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Metadata {
    pub(super) tx: bool,
    pub(super) software_checksums: bool,
    /// Bytes that an XDP program leaves before received packets.
    pub(super) rx: u32,
}

impl UmemConfig {
    /// A UMEM of `chunks` chunks of 4096 bytes on normal pages, without headroom.
    ///
    /// The [default](Self::default) is the same without a number of chunks: for a
    /// [`PortConfig`](crate::PortConfig::umem_config), which knows how many it needs.
    pub fn new(chunks: u32) -> Self {
        Self::default().chunks(chunks)
    }

    /// The number of chunks.
    pub fn chunks(mut self, chunks: u32) -> Self {
        self.chunks = Some(chunks);
        self
    }

    /// The same, of as many chunks where no number was given.
    pub(crate) fn or_chunks(mut self, chunks: impl FnOnce() -> u32) -> Self {
        self.chunks = self.chunks.or_else(|| Some(chunks()));
        self
    }

    fn geometry(&self) -> Result<Geometry> {
        let chunks = self.chunks.ok_or_else(|| {
            Error::invalid("a UMEM without a number of chunks")
                .hint("UmemConfig::new, or `chunks`; only a PortConfig chooses by itself")
        })?;
        Geometry::new(chunks, self.chunk_size, self.headroom, self.metadata)?
            .with_clones(self.clones)
    }

    /// The size of a chunk.
    pub fn chunk_size(mut self, size: ChunkSize) -> Self {
        self.chunk_size = size;
        self
    }

    /// Bytes to keep free before every packet, received or allocated: 0 to 1344 for chunks of 2048,
    /// to 3392 for 4096. The kernel adds 256 bytes of its own before a received packet.
    pub fn headroom(mut self, bytes: u32) -> Self {
        self.headroom = bytes;
        self
    }

    /// The pages to map.
    pub fn pages(mut self, pages: Pages) -> Self {
        self.pages = pages;
        self
    }

    /// Memory of the NUMA node at which the interface's device is, as long as that node has any: a packet
    /// that a device has to fetch from another node's memory takes longer. A port does so with its own
    /// UMEM by itself.
    ///
    /// Nothing is done where there is one node, and where the device does not say at which it is (before
    /// Linux 5.14 none does): [`Umem::numa_node`] tells.
    #[doc(alias = "mbind")]
    pub fn near(mut self, interface: &Interface) -> Self {
        self.placement = Placement::Near(interface.clone());
        self
    }

    /// Memory of this NUMA node, as long as it has any. An error where there is no such node.
    ///
    /// ```
    /// use xskit::{ErrorKind, UmemConfig};
    ///
    /// let error = UmemConfig::new(64).numa_node(4711).build().unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::NotFound);
    /// ```
    #[doc(alias = "MPOL_PREFERRED")]
    pub fn numa_node(mut self, node: u32) -> Self {
        self.placement = Placement::Node(node);
        self
    }

    /// The same, near the interface where nothing was said about nodes.
    pub(crate) fn or_near(self, interface: &Interface) -> Self {
        match self.placement {
            Placement::Unsaid => self.near(interface),
            _ => self,
        }
    }

    /// Keeps 24 bytes before each packet to send for what can be [asked for it](super::TxRequest):
    /// checksum, timestamp, launch time. They are not the headroom's. Linux 6.8 with its stable updates,
    /// or 6.11; earlier ones refuse the first socket.
    #[doc(alias = "XDP_UMEM_TX_METADATA_LEN")]
    #[doc(alias = "XDP_TX_METADATA")]
    pub fn tx_metadata(mut self, on: bool) -> Self {
        self.metadata.tx = on;
        self.metadata.software_checksums &= on;
        self
    }

    /// As [`tx_metadata`](Self::tx_metadata), and in copy mode the kernel computes the checksums that are
    /// asked for, instead of leaving them to an interface that may not.
    #[doc(alias = "XDP_UMEM_TX_SW_CSUM")]
    pub fn software_checksums(mut self, on: bool) -> Self {
        self.metadata.tx |= on;
        self.metadata.software_checksums = on;
        self
    }

    /// Bytes that your XDP program leaves before each received packet (`bpf_xdp_adjust_meta`), to be read
    /// with [`Packet::metadata`](super::Packet::metadata): a multiple of 4 up to 252; older kernels let a
    /// program leave 32 at most. The embedded program leaves none.
    #[doc(alias = "bpf_xdp_adjust_meta")]
    pub fn rx_metadata(mut self, bytes: u32) -> Self {
        self.metadata.rx = bytes;
        self
    }

    /// Keeps that many of the chunks, the last ones, for packets that are [sent many times
    /// over](super::Umem::clones): less than all. No packet is received into them, and no batch gets them.
    #[doc(alias = "clone_skb")]
    pub fn clones(mut self, chunks: u32) -> Self {
        self.clones = chunks;
        self
    }

    /// Maps the memory. It is given to the kernel by the first socket, and locked from then on.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for 0 chunks, no number of them, or none but those
    /// kept for clones, too much headroom, or a length of metadata that no program can leave,
    /// [`Limit`](crate::ErrorKind::Limit) if the memory is not to be had,
    /// [`NotFound`](crate::ErrorKind::NotFound) for a NUMA node that is not there,
    /// [`LinkGone`](crate::ErrorKind::LinkGone) for an interface to be near that was deleted.
    pub fn build(self) -> Result<Umem> {
        let geometry = self.geometry()?;
        let memory = Memory::map(geometry.bytes(), self.pages, self.placement.choose()?)?;
        Ok(Umem::new(memory, geometry))
    }

    /// Uses memory of the caller's instead: a shared mapping, huge pages of another size, a device's. It is
    /// on its own pages and NUMA nodes, whatever was said of these.
    ///
    /// `len` has to be exactly the number of chunks times their size. `owner` is dropped once no
    /// socket can reach the memory any more; if that is never seen (a duplicate of a socket's
    /// descriptor lives on elsewhere), it is leaked instead.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if the length does not fit or the start is not
    /// aligned to a page; and as [`build`](Self::build).
    ///
    /// # Safety
    ///
    /// From `start` on, `len` bytes are mapped readable and writable, initialised, and stay so, at this
    /// place (no `mremap`, no remapping over it), until `owner` is dropped. Until then nobody reads
    /// or writes them but through the [`Umem`] made here.
    pub unsafe fn adopt(
        self,
        start: NonNull<u8>,
        len: usize,
        owner: impl std::any::Any + Send + Sync,
    ) -> Result<Umem> {
        let geometry = self.geometry()?;
        if geometry.bytes() != len as u64 {
            return Err(Error::invalid(format!(
                "{len} bytes handed in for {} chunks of {}, which take {}",
                geometry.chunks(),
                self.chunk_size,
                geometry.bytes()
            )));
        }
        let page = crate::sys::page_size();
        if !start.addr().get().is_multiple_of(page) {
            return Err(Error::invalid(format!(
                "memory at {start:p} is not aligned to {page} bytes"
            )));
        }
        Ok(Umem::new(Memory::adopt(start, Box::new(owner)), geometry))
    }
}
