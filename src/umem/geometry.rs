//! How memory is cut into chunks, and which addresses and lengths lie inside one.

use std::fmt;

use super::config::Metadata;
use crate::{
    Error, Result,
    sys::uapi::{
        TxMetadata, XDP_UMEM_TX_METADATA_LEN, XDP_UMEM_TX_SW_CSUM, XDP_UMEM_UNALIGNED_CHUNK_FLAG,
    },
};

/// Bytes that the kernel keeps before a received packet (`XDP_PACKET_HEADROOM`).
const XDP_HEADROOM: u32 = 256;

/// Bytes at a chunk's end that new kernels keep for `struct skb_shared_info`; older ones were laxer.
const SHARED_INFO: u32 = 448;

/// The smallest chunk (`XDP_UMEM_MIN_CHUNK_SIZE`).
const LEAST: u32 = 2048;

/// Bytes of the metadata of a packet to send.
const TX_METADATA: u32 = 24;
const _: () = assert!(size_of::<TxMetadata>() == TX_METADATA as usize);

/// The longest metadata that a program can leave before a packet.
const RX_METADATA: u32 = 252;

/// In an address of the kernel's, in unaligned mode: how far into the chunk, above where the chunk is.
const OFFSET_SHIFT: u32 = 48;

/// The size of a chunk: 2048 or 4096 bytes, or with [unaligned](Self::unaligned) chunks anything between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkSize {
    bytes: u32,
    unaligned: bool,
}

impl ChunkSize {
    /// 2048 bytes: packets of up to 1792 bytes, and twice as many chunks for the same memory.
    pub const K2: Self = Self { bytes: 2048, unaligned: false };
    /// 4096 bytes: packets of up to 3840 bytes.
    pub const K4: Self = Self { bytes: 4096, unaligned: false };

    /// The aligned chunk size of that many bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if it is neither 2048 nor 4096.
    pub fn new(bytes: u32) -> Result<Self> {
        match bytes {
            2048 => Ok(Self::K2),
            4096 => Ok(Self::K4),
            _ => Err(Error::invalid(format!(
                "chunks of {bytes} bytes: an aligned chunk has 2048 or 4096, a power of two up to \
                 the page size"
            ))
            .hint(
                "use ChunkSize::K4, or ChunkSize::K2 if packets have at most 1792 bytes; or \
                 ChunkSize::unaligned",
            )),
        }
    }

    /// Chunks of any size from 2048 bytes to a page, one right behind the other, across the borders of
    /// pages: as large as the packets are, and no larger. Linux 5.4.
    ///
    /// In zero-copy mode the pages that a chunk lies on have to be neighbours for the device too: take
    /// [huge pages](super::Pages::HugeOrTransparent). Finding the chunk of an address costs a division,
    /// once a packet on its way in and back, which aligned chunks do without. In chunks of odd size packets
    /// to send have one byte less room: Linux 6.18 loses the lowest bit of their addresses.
    ///
    /// ```
    /// use xskit::{ChunkSize, UmemConfig};
    ///
    /// // Room for packets of 1514 bytes, a quarter less memory than with chunks of 4096.
    /// let umem = UmemConfig::new(4096).chunk_size(ChunkSize::unaligned(3000)?).build()?;
    /// assert_eq!(umem.max_packet_len(), 3000 - 256);
    /// # Ok::<(), xskit::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) outside that range.
    #[doc(alias = "XDP_UMEM_UNALIGNED_CHUNK_FLAG")]
    pub fn unaligned(bytes: u32) -> Result<Self> {
        let page = u32::try_from(crate::sys::page_size()).unwrap_or(u32::MAX);
        if (LEAST..=page).contains(&bytes) {
            return Ok(Self { bytes, unaligned: true });
        }
        Err(Error::invalid(format!(
            "unaligned chunks of {bytes} bytes: the kernel takes {LEAST} to the page size, {page}"
        ))
        .hint("longer packets take several frames: SocketConfig::multi_buffer"))
    }

    /// Bytes in a chunk.
    pub const fn bytes(self) -> u32 {
        self.bytes
    }

    /// Whether chunks lie across the borders of pages.
    pub const fn is_unaligned(self) -> bool {
        self.unaligned
    }
}

impl Default for ChunkSize {
    /// [`K4`](Self::K4).
    fn default() -> Self {
        Self::K4
    }
}

impl fmt::Display for ChunkSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// The cut, decided once. Addresses are offsets from the start of the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    chunk: ChunkSize,
    chunks: u32,
    headroom: u32,
    metadata: Metadata,
}

impl Geometry {
    pub(super) fn new(
        chunks: u32,
        chunk: ChunkSize,
        headroom: u32,
        metadata: Metadata,
    ) -> Result<Self> {
        if chunks == 0 {
            return Err(Error::invalid("a UMEM of 0 chunks").hint(
                "one chunk holds one packet; give at least as many as the rings have slots",
            ));
        }
        let most = chunk.bytes() - XDP_HEADROOM - SHARED_INFO;
        if headroom > most {
            return Err(Error::invalid(format!(
                "a headroom of {headroom} bytes: a chunk of {chunk} has room for {most}, since the \
                 kernel keeps {XDP_HEADROOM} bytes before a packet and {SHARED_INFO} after it"
            ))
            .hint(format!("use at most {most}")));
        }
        if metadata.rx > RX_METADATA || !metadata.rx.is_multiple_of(4) {
            return Err(Error::invalid(format!(
                "metadata of {} bytes before received packets: a multiple of 4 up to {RX_METADATA}",
                metadata.rx
            ))
            .hint("as long as what your XDP program asks of bpf_xdp_adjust_meta"));
        }
        Ok(Self { chunk, chunks, headroom, metadata })
    }

    pub(crate) fn chunks(&self) -> u32 {
        self.chunks
    }

    pub(crate) fn chunk_size(&self) -> ChunkSize {
        self.chunk
    }

    pub(crate) fn chunk_bytes(&self) -> u32 {
        self.chunk.bytes()
    }

    pub(crate) fn headroom(&self) -> u32 {
        self.headroom
    }

    /// Bytes before each packet to send that are kept for metadata: 0 without.
    #[inline]
    pub(crate) fn tx_metadata(&self) -> u32 {
        if self.metadata.tx { TX_METADATA } else { 0 }
    }

    /// Bytes that an XDP program leaves before received packets.
    #[inline]
    pub(crate) fn rx_metadata(&self) -> u32 {
        self.metadata.rx
    }

    /// Where in its chunk a packet to send begins.
    pub(crate) fn first_byte(&self) -> u32 {
        (self.headroom + self.tx_metadata()).max(self.least_offset())
    }

    /// Where in its chunk a packet to send begins at least.
    ///
    /// Linux 6.18 loses the lowest bit of an address on its way through TX and Completion in copy mode: the
    /// address has to lie in the same chunk without it, too.
    #[inline]
    pub(crate) fn least_offset(&self) -> u32 {
        self.tx_metadata().max(self.chunk_bytes() % 2)
    }

    /// What the kernel has to know of it at registration.
    pub(super) fn flags(&self) -> u32 {
        let flag = |on, flag| if on { flag } else { 0 };
        flag(self.is_unaligned(), XDP_UMEM_UNALIGNED_CHUNK_FLAG)
            | flag(self.metadata.tx, XDP_UMEM_TX_METADATA_LEN)
            | flag(self.metadata.software_checksums, XDP_UMEM_TX_SW_CSUM)
    }

    pub(crate) fn max_received(&self) -> u32 {
        self.chunk_bytes() - XDP_HEADROOM - self.headroom
    }

    /// Bytes in all chunks together.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.chunks) * u64::from(self.chunk_bytes())
    }

    /// The first address of every chunk.
    pub(super) fn addresses(&self) -> impl DoubleEndedIterator<Item = u64> + use<> {
        let bytes = u64::from(self.chunk_bytes());
        (0..u64::from(self.chunks)).map(move |chunk| chunk * bytes)
    }

    /// Whether chunks lie across the borders of pages. Then the kernel says where a received packet is by
    /// its chunk and the offset there; all other addresses are plain, and everything here takes both.
    #[inline]
    pub(crate) fn is_unaligned(&self) -> bool {
        self.chunk.unaligned
    }

    /// Highest bit of an aligned chunk's offsets and all below.
    #[inline]
    fn mask(&self) -> u64 {
        u64::from(self.chunk_bytes()) - 1
    }

    /// The plain address of one of the kernel's; a plain one stays as it is.
    #[inline]
    pub(crate) fn plain<const UNALIGNED: bool>(address: u64) -> u64 {
        if UNALIGNED {
            let plain = (address & ((1 << OFFSET_SHIFT) - 1)) + (address >> OFFSET_SHIFT);
            // All ones for a sum that would be taken for an address of the kernel's again.
            plain | (plain >> OFFSET_SHIFT).wrapping_neg()
        } else {
            address
        }
    }

    /// As [`plain`](Self::plain), asking for the mode.
    pub(crate) fn to_plain(self, address: u64) -> u64 {
        if self.is_unaligned() {
            Self::plain::<true>(address)
        } else {
            Self::plain::<false>(address)
        }
    }

    /// As the kernel says where a packet is that it has received at this offset in a chunk.
    #[cfg(feature = "fake")]
    pub(crate) fn received_at(&self, base: u64, offset: u32) -> u64 {
        if self.is_unaligned() {
            base | u64::from(offset) << OFFSET_SHIFT
        } else {
            base + u64::from(offset)
        }
    }

    /// How far into its chunk a plain address lies.
    #[inline]
    fn offset_in<const UNALIGNED: bool>(&self, address: u64) -> u64 {
        if UNALIGNED { address % u64::from(self.chunk_bytes()) } else { address & self.mask() }
    }

    /// As [`base`](Self::base), where the mode has been asked for once for many addresses.
    #[inline]
    pub(crate) fn base_in<const UNALIGNED: bool>(&self, address: u64) -> u64 {
        if UNALIGNED {
            let address = Self::plain::<true>(address);
            address - self.offset_in::<true>(address)
        } else {
            address & !self.mask()
        }
    }

    /// The first address of the chunk in which this one lies.
    pub(crate) fn base(&self, address: u64) -> u64 {
        if self.is_unaligned() {
            self.base_in::<true>(address)
        } else {
            self.base_in::<false>(address)
        }
    }

    /// How far into its chunk a plain address lies.
    #[inline]
    pub(crate) fn offset(&self, address: u64) -> u32 {
        let offset = if self.is_unaligned() {
            self.offset_in::<true>(address)
        } else {
            self.offset_in::<false>(address)
        };
        u32::try_from(offset).expect("a chunk's offsets fit a u32")
    }

    /// The number of the chunk in which a plain address lies.
    pub(super) fn chunk(&self, address: u64) -> usize {
        usize::try_from(address / u64::from(self.chunk_bytes())).unwrap_or(usize::MAX)
    }

    /// Whether an address lies in the memory.
    pub(crate) fn holds(&self, address: u64) -> bool {
        let fault = if self.is_unaligned() {
            self.address_fault::<true>(address)
        } else {
            self.address_fault::<false>(address)
        };
        fault >> 63 == 0
    }

    /// Whether a packet lies in one chunk.
    pub(crate) fn holds_packet(&self, address: u64, len: u32) -> bool {
        let fault = if self.is_unaligned() {
            self.packet_fault::<true>(address, len)
        } else {
            self.packet_fault::<false>(address, len)
        };
        fault >> 63 == 0
    }

    /// Highest bit set if the address is not in the memory. Faults are ORed over a batch and looked
    /// at once: subtractions vectorise where comparisons of 64-bit numbers do not.
    #[inline]
    pub(crate) fn address_fault<const UNALIGNED: bool>(&self, address: u64) -> u64 {
        let address = Self::plain::<UNALIGNED>(address);
        // A UMEM has less than 2^44 bytes: the difference goes below zero exactly for addresses past
        // its end, and addresses from 2^63 on show by themselves.
        address | (self.bytes() - 1).wrapping_sub(address)
    }

    /// Highest bit set if the packet does not lie in one chunk of the memory.
    #[inline]
    pub(crate) fn packet_fault<const UNALIGNED: bool>(&self, address: u64, len: u32) -> u64 {
        let end = self.offset_in::<UNALIGNED>(Self::plain::<UNALIGNED>(address)) + u64::from(len);
        self.address_fault::<UNALIGNED>(address) | u64::from(self.chunk_bytes()).wrapping_sub(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(chunks: u32, chunk: ChunkSize, headroom: u32) -> Result<Geometry> {
        Geometry::new(chunks, chunk, headroom, Metadata::default())
    }

    #[test]
    fn headroom_bounds_are_the_kernels() {
        for (chunk, most) in [(ChunkSize::K2, 1344), (ChunkSize::K4, 3392)] {
            assert!(geometry(1, chunk, most).is_ok());
            assert!(geometry(1, chunk, most + 1).is_err());
            assert!(geometry(1, chunk, u32::MAX).is_err());
        }
    }

    #[test]
    fn faults_are_found_at_every_edge() {
        let g = geometry(3, ChunkSize::K2, 0).unwrap();
        let end = 3 * 2048;
        for good in [(0, 0), (0, 2048), (2047, 1), (2048, 2048), (end - 1, 1), (end - 1, 0)] {
            assert!(g.holds_packet(good.0, good.1), "{good:?}");
        }
        let bad = [
            (0, 2049),
            (2047, 2),
            (2047, u32::MAX),
            (end, 0),
            (end, 1),
            (1 << 62, 1),
            (1 << 63, 1),
            (u64::MAX, 0),
            (u64::MAX, u32::MAX),
        ];
        for (address, len) in bad {
            assert!(!g.holds_packet(address, len), "{address:#x} {len}");
        }
    }

    #[test]
    fn unaligned_chunks_have_any_size_up_to_a_page() {
        for bytes in [2048, 2049, 3000, 4001, 4096] {
            assert_eq!(ChunkSize::unaligned(bytes).unwrap().bytes(), bytes);
        }
        for bytes in [0, 1, 2047, u32::MAX] {
            let error = ChunkSize::unaligned(bytes).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn chunk_and_offset_come_out_of_both_kinds_of_address() {
        for bytes in [2048, 3000, 4001, 4096] {
            let g = geometry(1000, ChunkSize::unaligned(bytes).unwrap(), 0).unwrap();
            for chunk in [0, 1, 2, 17, 999] {
                let base = u64::from(chunk * bytes);
                for offset in [0, 1, 256, bytes - 1] {
                    let plain = base + u64::from(offset);
                    let kernels = base | u64::from(offset) << 48;
                    assert_eq!(Geometry::plain::<true>(kernels), plain);
                    assert_eq!((g.base(kernels), g.base(plain)), (base, base));
                    assert_eq!((g.offset(plain), g.chunk(plain)), (offset, chunk as usize));
                    for address in [kernels, plain] {
                        assert!(g.holds(address));
                        assert!(g.holds_packet(address, bytes - offset));
                        assert!(!g.holds_packet(address, bytes - offset + 1), "over its end");
                    }
                }
            }
            let end = u64::from(1000 * bytes);
            for bad in [u64::MAX, ((1 << 48) - 1) | (1 << 48)] {
                let plain = Geometry::plain::<true>(bad);
                assert!(!g.holds(plain) && !g.holds_packet(plain, 1), "{bad:#x}");
            }
            for bad in [end, end | 5 << 48, (end - 1) | 1 << 48, (1 << 48) - 1, u64::MAX] {
                assert!(!g.holds(bad) && !g.holds_packet(bad, 0), "{bad:#x}");
            }
        }
    }
}
