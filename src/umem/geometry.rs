//! How memory is cut into chunks, and which addresses and lengths lie inside one.

use std::fmt;

use crate::{Error, Result};

/// Bytes that the kernel keeps before a received packet (`XDP_PACKET_HEADROOM`).
const XDP_HEADROOM: u32 = 256;

/// Bytes at a chunk's end that new kernels keep for `struct skb_shared_info`; older ones were laxer.
const SHARED_INFO: u32 = 448;

/// The size of a chunk: 2048 or 4096 bytes.
///
/// The kernel takes a power of two from 2048 to the page size, and anything else only with unaligned
/// chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChunkSize {
    /// 2048 bytes: packets of up to 1792 bytes, and twice as many chunks for the same memory.
    K2,
    /// 4096 bytes: packets of up to 3840 bytes.
    #[default]
    K4,
}

impl ChunkSize {
    /// The chunk size of that many bytes.
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
            .hint("use ChunkSize::K4, or ChunkSize::K2 if packets have at most 1792 bytes")),
        }
    }

    /// Bytes in a chunk.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::K2 => 2048,
            Self::K4 => 4096,
        }
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
}

impl Geometry {
    pub(super) fn new(chunks: u32, chunk: ChunkSize, headroom: u32) -> Result<Self> {
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
        Ok(Self { chunk, chunks, headroom })
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

    fn mask(&self) -> u64 {
        u64::from(self.chunk_bytes()) - 1
    }

    /// The first address of the chunk in which this one lies.
    pub(crate) fn base(&self, address: u64) -> u64 {
        address & !self.mask()
    }

    /// How far into its chunk an address lies.
    pub(crate) fn offset(&self, address: u64) -> u32 {
        u32::try_from(address & self.mask()).expect("a chunk's offsets fit a u32")
    }

    /// The number of the chunk in which an address lies.
    pub(super) fn chunk(&self, address: u64) -> usize {
        usize::try_from(address / u64::from(self.chunk_bytes())).unwrap_or(usize::MAX)
    }

    /// Whether an address lies in the memory.
    pub(crate) fn holds(&self, address: u64) -> bool {
        self.address_fault(address) >> 63 == 0
    }

    /// Whether a packet lies in one chunk.
    pub(crate) fn holds_packet(&self, address: u64, len: u32) -> bool {
        self.packet_fault(address, len) >> 63 == 0
    }

    /// Highest bit set if the address is not in the memory. Faults are ORed over a batch and looked
    /// at once: subtractions vectorise where comparisons of 64-bit numbers do not.
    #[inline]
    pub(crate) fn address_fault(&self, address: u64) -> u64 {
        // A UMEM has less than 2^44 bytes: the difference goes below zero exactly for addresses past
        // its end, and addresses from 2^63 on show by themselves.
        address | (self.bytes() - 1).wrapping_sub(address)
    }

    /// Highest bit set if the packet does not lie in one chunk of the memory.
    #[inline]
    pub(crate) fn packet_fault(&self, address: u64, len: u32) -> u64 {
        let end = (address & self.mask()) + u64::from(len);
        self.address_fault(address) | u64::from(self.chunk_bytes()).wrapping_sub(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headroom_bounds_are_the_kernels() {
        for (chunk, most) in [(ChunkSize::K2, 1344), (ChunkSize::K4, 3392)] {
            assert!(Geometry::new(1, chunk, most).is_ok());
            assert!(Geometry::new(1, chunk, most + 1).is_err());
            assert!(Geometry::new(1, chunk, u32::MAX).is_err());
        }
    }

    #[test]
    fn faults_are_found_at_every_edge() {
        let g = Geometry::new(3, ChunkSize::K2, 0).unwrap();
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
}
