//! What is asked of the kernel or the device for a packet that is sent, and what comes back.

use std::{collections::VecDeque, ptr::NonNull};

use super::{Geometry, at};
use crate::{
    sync::{AtomicU64, Ordering},
    sys::uapi::{
        Desc, TXMD_CHECKSUM, TXMD_LAUNCH_TIME, TXMD_TIMESTAMP, TxMetadata, XDP_TX_METADATA,
    },
};

/// What is asked for one packet: see [`PacketMut::request`](super::PacketMut::request).
///
/// | | in zero-copy mode | in copy mode |
/// |---|---|---|
/// | checksum | [drivers with it](crate::interface::TxMetadata::checksum) | with [software checksums](super::UmemConfig::software_checksums); else where the interface's TX checksum offload is off, as the kernel then computes it, or is real: a veth with it on passes the field on as it is |
/// | timestamp | [drivers with it](crate::interface::TxMetadata::timestamp), by the NIC's clock | always: when the driver has let go of the packet, by the system's TAI clock |
/// | launch time | [drivers with it](crate::interface::TxMetadata::launch_time) | the same, where the device does it without a queueing discipline |
///
/// ```
/// use xskit::{SocketConfig, UmemConfig, fake, umem::TxRequest};
///
/// let umem = UmemConfig::new(4096).tx_metadata(true).build()?;
/// let (mut socket, kernel) = fake::socket(&umem, &SocketConfig::default())?;
/// let mut batch = umem.batch(64);
/// batch.alloc(1);
/// for mut packet in batch.packets_mut() {
///     packet.write(&[0; 60])?;
///     packet.request(TxRequest::new().timestamp(7))?;
/// }
/// socket.send(&mut batch)?;
/// kernel.transmit(1);
/// socket.send(&mut batch)?; // or `wait`, or `reap`: whatever takes completed frames back
/// let sent = socket.timestamps();
/// assert_eq!((sent.len(), sent[0].id), (1, 7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "xsk_tx_metadata")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct TxRequest {
    checksum: Option<(u16, u16)>,
    timestamp: Option<u64>,
    launch_time: Option<u64>,
}

impl TxRequest {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The checksum over everything from byte `start` of the packet to its end, to be stored `offset`
    /// bytes after `start`. What is there before is added: the sum of the
    /// [pseudo-header](super::pseudo_header). For UDP over IPv4 without options: 34 and 6; TCP: 34 and 16.
    #[doc(alias = "XDP_TXMD_FLAGS_CHECKSUM")]
    pub fn checksum(mut self, start: u16, offset: u16) -> Self {
        self.checksum = Some((start, offset));
        self
    }

    /// The time at which the packet was sent; it comes back with this number:
    /// [`Socket::timestamps`](crate::Socket::timestamps).
    #[doc(alias = "XDP_TXMD_FLAGS_TIMESTAMP")]
    pub fn timestamp(mut self, id: u64) -> Self {
        self.timestamp = Some(id);
        self
    }

    /// Not to be sent before this time, in nanoseconds of the NIC's clock. Linux 6.15, and a driver that
    /// can: [`send`](crate::Socket::send) is an error elsewhere.
    #[doc(alias = "XDP_TXMD_FLAGS_LAUNCH_TIME")]
    pub fn launch_time(mut self, nanoseconds: u64) -> Self {
        self.launch_time = Some(nanoseconds);
        self
    }

    /// Bytes that the packet's first frame must have.
    pub(super) fn least_len(&self) -> usize {
        self.checksum.map_or(0, |(start, offset)| usize::from(start) + usize::from(offset) + 2)
    }

    fn flags(&self) -> u64 {
        let flag = |on, flag| if on { flag } else { 0 };
        flag(self.checksum.is_some(), TXMD_CHECKSUM)
            | flag(self.timestamp.is_some(), TXMD_TIMESTAMP)
            | flag(self.launch_time.is_some(), TXMD_LAUNCH_TIME)
    }
}

/// When a packet was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxTimestamp {
    /// The number with which it was [asked for](TxRequest::timestamp).
    pub id: u64,
    /// Nanoseconds: of the NIC's clock in zero-copy mode, of TAI in copy mode.
    pub nanoseconds: u64,
}

/// Timestamps that came back and were not asked for yet.
#[derive(Debug)]
pub(crate) struct Timestamps {
    queue: VecDeque<TxTimestamp>,
    most: usize,
    pub(crate) lost: u64,
}

impl Timestamps {
    pub(crate) fn new(most: u32) -> Self {
        Self { queue: VecDeque::new(), most: most as usize, lost: 0 }
    }

    pub(crate) fn take(&mut self) -> Vec<TxTimestamp> {
        self.queue.drain(..).collect()
    }

    fn push(&mut self, timestamp: TxTimestamp) {
        if self.queue.len() == self.most {
            self.queue.pop_front();
            self.lost += 1;
        }
        self.queue.push_back(timestamp);
    }
}

/// The requests for all chunks of a UMEM, beside them, so that headers may still be put before a packet
/// after something was asked for it. An entry belongs to whoever has the chunk.
#[derive(Debug)]
pub(super) struct Requests(Box<[Entry]>);

/// Not the kernel's: the frame is with it, and its timestamp is to come back.
const AWAITED: u64 = 1 << 63;

#[derive(Debug, Default)]
struct Entry {
    /// What is asked for; once that has been submitted, [`AWAITED`] or nothing.
    flags: AtomicU64,
    /// Start, and offset above it.
    checksum: AtomicU64,
    launch_time: AtomicU64,
    id: AtomicU64,
    /// Where the metadata of the packet that was sent last lies: a completed address may lack its lowest bit.
    place: AtomicU64,
}

impl Requests {
    pub(super) fn new(chunks: u32) -> Self {
        Self((0..chunks).map(|_| Entry::default()).collect())
    }

    pub(super) fn set(&self, chunk: usize, request: &TxRequest) {
        let entry = &self.0[chunk];
        let (start, offset) = request.checksum.unwrap_or_default();
        entry.checksum.store(u64::from(start) | u64::from(offset) << 16, Ordering::Relaxed);
        entry.launch_time.store(request.launch_time.unwrap_or(0), Ordering::Relaxed);
        entry.id.store(request.timestamp.unwrap_or(0), Ordering::Relaxed);
        entry.flags.store(request.flags(), Ordering::Relaxed);
    }

    /// Whether a launch time is asked for.
    pub(super) fn has_launch_time(&self, geometry: &Geometry, desc: &Desc) -> bool {
        self.flags(geometry, desc) & TXMD_LAUNCH_TIME != 0
    }

    /// Whether the kernel takes the descriptor: there is room for metadata before it, whether there is some
    /// or not, and a checksum lies in the frame. Otherwise it would lose the frame, or jam the ring.
    pub(super) fn is_good(&self, geometry: &Geometry, desc: &Desc) -> bool {
        let checksum = self.entry(geometry, desc).checksum.load(Ordering::Relaxed);
        let field = (checksum & 0xffff) + (checksum >> 16) + 2;
        geometry.offset(desc.addr) >= geometry.tx_metadata()
            && (self.flags(geometry, desc) & TXMD_CHECKSUM == 0 || field <= u64::from(desc.len))
    }

    /// Writes what is asked for before the packet, where the kernel looks for it, and remembers whether
    /// a timestamp is to come back.
    ///
    /// # Safety
    ///
    /// The memory begins at `memory`; the caller owns the descriptor's chunk, and the descriptor is
    /// [good](Self::is_good).
    pub(super) unsafe fn submit(&self, memory: NonNull<u8>, geometry: &Geometry, desc: &Desc) {
        let entry = self.entry(geometry, desc);
        let flags = self.flags(geometry, desc) & !AWAITED;
        let awaited = if flags & TXMD_TIMESTAMP == 0 { 0 } else { AWAITED };
        entry.flags.store(awaited, Ordering::Relaxed);
        if desc.options & XDP_TX_METADATA == 0 {
            return;
        }
        let checksum = entry.checksum.load(Ordering::Relaxed);
        let half = |shift: u32| u16::try_from(checksum >> shift & 0xffff).expect("16 bits");
        let metadata = TxMetadata {
            flags,
            csum_start: half(0),
            csum_offset: half(16),
            padding: 0,
            launch_time: entry.launch_time.load(Ordering::Relaxed),
        };
        let place = desc.addr - u64::from(geometry.tx_metadata());
        entry.place.store(place, Ordering::Relaxed);
        // SAFETY: the area lies in the descriptor's chunk, which the caller owns, since the descriptor is
        // good; it need not be aligned.
        unsafe { at(memory, place).cast::<TxMetadata>().write_unaligned(metadata) };
    }

    /// Collects the timestamps of completed frames.
    pub(super) fn collect<'a>(
        &self,
        memory: NonNull<u8>,
        geometry: &Geometry,
        completed: impl Iterator<Item = &'a u64>,
        timestamps: &mut Timestamps,
    ) {
        for address in completed.map(|address| geometry.to_plain(*address)) {
            if !geometry.holds(address) {
                continue;
            }
            let entry = &self.0[geometry.chunk(address)];
            // A request that was never submitted is none: then the frame was sent at the descriptor level.
            if entry.flags.load(Ordering::Relaxed) & AWAITED == 0 {
                continue;
            }
            entry.flags.store(0, Ordering::Relaxed);
            // After the flags.
            let place = entry.place.load(Ordering::Relaxed) + 8;
            // SAFETY: in a chunk of the memory, where `submit` has written; the frame has completed, so that
            // the kernel has written what it had to, and nobody else has it before we give it on.
            let nanoseconds = unsafe { at(memory, place).cast::<u64>().read_unaligned() };
            timestamps.push(TxTimestamp { id: entry.id.load(Ordering::Relaxed), nanoseconds });
        }
    }

    fn entry(&self, geometry: &Geometry, desc: &Desc) -> &Entry {
        &self.0[geometry.chunk(desc.addr)]
    }

    /// What is asked for the descriptor: what its chunk's entry says is of an earlier packet otherwise.
    fn flags(&self, geometry: &Geometry, desc: &Desc) -> u64 {
        if desc.options & XDP_TX_METADATA == 0 {
            return 0;
        }
        self.entry(geometry, desc).flags.load(Ordering::Relaxed)
    }
}
