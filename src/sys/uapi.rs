//! `include/uapi/linux/if_xdp.h` as types. `Pod` proves that no struct has padding.

use bytemuck::{Pod, Zeroable};

/// One descriptor of an RX or TX ring: where a packet's bytes are, and how many.
///
/// Follows `struct xdp_desc`.
#[doc(alias = "xdp_desc")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Desc {
    /// Offset of the first byte from the start of the UMEM. With unaligned chunks, a received packet's is
    /// that of its chunk, and the upper 16 bits say how far into the chunk it begins.
    pub addr: u64,
    /// Bytes of the packet in this frame.
    pub len: u32,
    /// `XDP_PKT_CONTD`, `XDP_TX_METADATA`.
    pub options: u32,
}

/// The packet goes on in the next descriptor.
pub(crate) const XDP_PKT_CONTD: u32 = 1;

/// Metadata lies before the packet; only on a UMEM with metadata.
pub(crate) const XDP_TX_METADATA: u32 = 1 << 1;

/// `XDP_TXMD_FLAGS_*`.
pub(crate) const TXMD_TIMESTAMP: u64 = 1 << 0;
pub(crate) const TXMD_CHECKSUM: u64 = 1 << 1;
pub(crate) const TXMD_LAUNCH_TIME: u64 = 1 << 2;

/// `struct xsk_tx_metadata` with its request. On completion, the eight bytes after the flags are the
/// timestamp.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct TxMetadata {
    pub(crate) flags: u64,
    pub(crate) csum_start: u16,
    pub(crate) csum_offset: u16,
    pub(crate) padding: u32,
    pub(crate) launch_time: u64,
}

/// Software checksums in copy mode (6.8).
pub(crate) const XDP_UMEM_TX_SW_CSUM: u32 = 1 << 1;
/// `tx_metadata_len` counts (6.11, and stable kernels from 6.8 on).
pub(crate) const XDP_UMEM_TX_METADATA_LEN: u32 = 1 << 2;

/// Chunks of any size, across the borders of pages (5.4).
pub(crate) const XDP_UMEM_UNALIGNED_CHUNK_FLAG: u32 = 1 << 0;

/// `struct xdp_umem_reg`. All of its bytes are set: 6.8 read what was padding as `tx_metadata_len`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct UmemReg {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) chunk_size: u32,
    pub(crate) headroom: u32,
    pub(crate) flags: u32,
    pub(crate) tx_metadata_len: u32,
}

/// `struct xdp_ring_offset`, as of 5.4.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RingOffset {
    pub(crate) producer: u64,
    pub(crate) consumer: u64,
    pub(crate) desc: u64,
    pub(crate) flags: u64,
}

/// `struct xdp_mmap_offsets`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct MmapOffsets {
    pub(crate) rx: RingOffset,
    pub(crate) tx: RingOffset,
    pub(crate) fill: RingOffset,
    pub(crate) completion: RingOffset,
}

/// `struct xdp_statistics`; kernels before 5.9 fill the first three.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct XdpStatistics {
    pub(crate) rx_dropped: u64,
    pub(crate) rx_invalid_descs: u64,
    pub(crate) tx_invalid_descs: u64,
    pub(crate) rx_ring_full: u64,
    pub(crate) rx_fill_ring_empty_descs: u64,
    pub(crate) tx_ring_empty_descs: u64,
}

/// `struct xdp_options`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct XdpOptions {
    pub(crate) flags: u32,
}

/// `struct sockaddr_xdp`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct SockaddrXdp {
    pub(crate) family: u16,
    pub(crate) flags: u16,
    pub(crate) ifindex: u32,
    pub(crate) queue_id: u32,
    pub(crate) shared_umem_fd: u32,
}
