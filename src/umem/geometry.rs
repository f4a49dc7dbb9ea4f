//! How memory is cut into chunks, and which addresses and lengths lie inside one.

use std::{fmt, mem::MaybeUninit, ops::Range};

use super::{
    config::Metadata,
    passes::{self, Seen},
};
use crate::{
    Error, Result,
    sys::uapi::{
        Desc, TxMetadata, XDP_UMEM_TX_METADATA_LEN, XDP_UMEM_TX_SW_CSUM,
        XDP_UMEM_UNALIGNED_CHUNK_FLAG,
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
    /// The last chunks, kept for clones: no frame is in them, and no address of a frame may lead there.
    clones: u32,
    /// The largest power of two that is not more than the memory of frames: addresses without a bit of that
    /// value or higher lie in it. 0 for unaligned chunks, whose addresses say more than that.
    sure_bytes: u64,
    /// Where in its chunk a packet to send begins.
    first_byte: u32,
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
        Ok(Self { chunk, chunks, headroom, metadata, clones: 0, sure_bytes: 0, first_byte: 0 }
            .measured())
    }

    /// The same, with the last chunks kept for clones.
    pub(super) fn with_clones(self, clones: u32) -> Result<Self> {
        if clones >= self.chunks {
            return Err(Error::invalid(format!(
                "{clones} of {} chunks kept for clones: at least one has to be left",
                self.chunks
            ))
            .hint("make the UMEM larger by as many chunks as there are packets to clone"));
        }
        Ok(Self { clones, ..self }.measured())
    }

    /// With what follows from the rest.
    fn measured(self) -> Self {
        let sure_bytes = if self.is_unaligned() { 0 } else { 1 << self.frame_bytes().ilog2() };
        let first_byte = (self.headroom + self.tx_metadata()).max(self.least_offset());
        Self { sure_bytes, first_byte, ..self }
    }

    /// As the kernel sees it, to which all chunks are alike.
    #[cfg(feature = "fake")]
    pub(crate) fn whole(self) -> Self {
        Self { clones: 0, ..self }.measured()
    }

    /// The number of chunks kept for clones.
    pub(super) fn clones(&self) -> u32 {
        self.clones
    }

    /// The number of the others.
    pub(super) fn frames(&self) -> u32 {
        self.chunks - self.clones
    }

    /// Bytes in the others.
    #[inline]
    fn frame_bytes(&self) -> u64 {
        u64::from(self.frames()) * u64::from(self.chunk_bytes())
    }

    /// Whether the address of a frame that the kernel returned is that of a clone.
    #[inline]
    pub(super) fn is_clone<const UNALIGNED: bool>(&self, address: u64) -> bool {
        let into = Self::plain::<UNALIGNED>(address).wrapping_sub(self.frame_bytes());
        into < self.bytes() - self.frame_bytes()
    }

    /// As [`is_clone`](Self::is_clone), asking for the mode.
    pub(crate) fn holds_clone(&self, address: u64) -> bool {
        if self.is_unaligned() {
            self.is_clone::<true>(address)
        } else {
            self.is_clone::<false>(address)
        }
    }

    pub(crate) fn chunks(&self) -> u32 {
        self.chunks
    }

    pub(crate) fn chunk_size(&self) -> ChunkSize {
        self.chunk
    }

    #[inline]
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
    #[inline]
    pub(crate) fn first_byte(&self) -> u32 {
        self.first_byte
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
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.chunks) * u64::from(self.chunk_bytes())
    }

    /// The first address of every chunk that frames can be in.
    pub(super) fn addresses(&self) -> impl DoubleEndedIterator<Item = u64> + use<> {
        self.bases(0..self.frames())
    }

    /// The first address of every chunk that is kept for clones.
    pub(super) fn clone_addresses(&self) -> impl DoubleEndedIterator<Item = u64> + use<> {
        self.bases(self.frames()..self.chunks)
    }

    fn bases(&self, chunks: Range<u32>) -> impl DoubleEndedIterator<Item = u64> + use<> {
        let bytes = u64::from(self.chunk_bytes());
        chunks.map(move |chunk| u64::from(chunk) * bytes)
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
    #[inline]
    pub(crate) fn base(&self, address: u64) -> u64 {
        if self.is_unaligned() {
            self.base_in::<true>(address)
        } else {
            self.base_in::<false>(address)
        }
    }

    /// Bytes from a plain address to the end of its chunk.
    #[inline]
    pub(crate) fn room(&self, address: u64) -> u32 {
        self.chunk_bytes() - self.offset(address)
    }

    /// How far into its chunk a plain address lies.
    #[inline]
    pub(crate) fn offset(&self, address: u64) -> u32 {
        if self.is_unaligned() {
            return u32::try_from(self.offset_in::<true>(address)).unwrap_or(u32::MAX);
        }
        self.aligned_offset(address)
    }

    /// As [`offset`](Self::offset), where chunks are aligned.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the lower half has all bits of the offset"
    )]
    fn aligned_offset(&self, address: u64) -> u32 {
        address as u32 & (self.chunk_bytes() - 1)
    }

    /// The number of the chunk in which a plain address lies.
    pub(super) fn chunk(&self, address: u64) -> usize {
        usize::try_from(address / u64::from(self.chunk_bytes())).unwrap_or(usize::MAX)
    }

    /// Whether an address lies in a frame.
    pub(crate) fn holds(&self, address: u64) -> bool {
        let fault = if self.is_unaligned() {
            self.address_fault::<true>(address)
        } else {
            self.address_fault::<false>(address)
        };
        fault >> 63 == 0
    }

    /// Whether a packet lies in one frame.
    pub(crate) fn holds_packet(&self, address: u64, len: u32) -> bool {
        let fault = if self.is_unaligned() {
            self.packet_fault::<true>(address, len)
        } else {
            self.packet_fault::<false>(address, len)
        };
        fault >> 63 == 0
    }

    /// Highest bit set if the address is not in a frame: clones' chunks are past the end too. Faults are
    /// ORed over a batch and looked at once: subtractions vectorise where comparisons of 64-bit numbers do
    /// not.
    #[inline]
    pub(crate) fn address_fault<const UNALIGNED: bool>(&self, address: u64) -> u64 {
        let address = Self::plain::<UNALIGNED>(address);
        // A UMEM has less than 2^44 bytes: the difference goes below zero exactly for addresses past
        // its end, and addresses from 2^63 on show by themselves.
        address | (self.frame_bytes() - 1).wrapping_sub(address)
    }

    /// Appends the first addresses of the chunks in which these addresses of the kernel's lie; whether all of
    /// these are chunks of the memory.
    #[inline]
    pub(super) fn append_chunks<const UNALIGNED: bool>(
        &self,
        addresses: &[u64],
        to: &mut Vec<u64>,
    ) -> bool {
        let start = to.len();
        if UNALIGNED {
            to.extend(addresses.iter().map(|address| self.base_in::<true>(*address)));
        } else {
            let write =
                |to: &mut [MaybeUninit<u64>]| passes::write_chunks(addresses, self.mask(), to);
            // SAFETY: the pass writes one for each address.
            let bits = unsafe { passes::append(to, addresses.len(), write) };
            // All of them lie below a power of two if none has a higher bit.
            if bits < self.sure_bytes {
                return true;
            }
        }
        self.all_hold(&to[start..])
    }

    /// Whether all of these plain addresses lie in a frame.
    #[inline(never)]
    fn all_hold(&self, addresses: &[u64]) -> bool {
        let fault = |base: &u64| self.address_fault::<false>(*base);
        addresses.iter().map(fault).fold(0, |all, fault| all | fault) >> 63 == 0
    }

    /// Writes the first addresses of these packets' chunks into as many slots.
    #[inline]
    pub(super) fn write_bases(&self, descs: &[Desc], to: &mut [MaybeUninit<u64>]) {
        if self.is_unaligned() {
            for (desc, to) in descs.iter().zip(to) {
                to.write(self.base_in::<true>(desc.addr));
            }
        } else {
            passes::write_bases(descs, self.mask(), to);
        }
    }

    /// Bytes that each of these packets has at least from its first byte to the end of its chunk, where
    /// each lies in one frame and has a plain address. None where they have to be looked at more closely:
    /// chunks are unaligned, the memory is no power of two and a packet lies in its last part, the longest
    /// packet would not fit behind the offset that all have together, or one of them does not lie in a
    /// frame.
    #[inline]
    pub(super) fn sure_room(&self, packets: Seen) -> Option<u32> {
        let Seen { addresses, longest } = packets;
        // No offset is more than all of their bits.
        let room = self.chunk_bytes() - self.aligned_offset(addresses);
        (addresses < self.sure_bytes && longest <= room).then_some(room)
    }

    /// Highest bit set if the packet does not lie in one frame.
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
