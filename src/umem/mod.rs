//! The packet memory: chunks, who holds which, and the batches through which packets are touched.
//!
//! A [`Umem`] is a handle to page-aligned memory cut into chunks. Every chunk is in exactly one place:
//! free (the pool, a socket's cache, a batch's spare list), in a [`Batch`], or with the kernel in one
//! of the rings. Only a batch gives access to a chunk's bytes, and a chunk enters a batch only by being
//! allocated or received, and leaves it only by being sent, recycled or moved to another batch. [`Clones`],
//! sent many times over and never written, have chunks of their own.
//! [`Umem::audit`] counts the places.
#![allow(unsafe_code, reason = "chunks are memory that the kernel reads and writes as well")]

mod audit;
mod batch;
mod cache;
mod checksum;
mod clones;
mod config;
mod detached;
mod device_queue;
mod free;
mod geometry;
#[cfg(all(test, loom))]
mod loom;
mod memory;
mod numa;
mod packet;
mod passes;
mod place;
mod quarantine;
mod registration;
mod tx_metadata;

use std::fmt;

pub use audit::Audit;
pub(crate) use audit::{BatchCount, Holder, Tally};
pub use batch::Batch;
pub(crate) use batch::{Received, Taken};
pub(crate) use cache::Cache;
pub use cache::FrameCache;
pub use checksum::pseudo_header;
use clones::CloneReserve;
pub use clones::Clones;
pub(crate) use clones::{Flights, complete_with_clones};
pub use config::UmemConfig;
pub use detached::{attach, detach};
pub(crate) use device_queue::DeviceQueue;
use free::{FreeList, Pool};
pub(crate) use free::{Prefilled, complete};
pub use geometry::ChunkSize;
use geometry::Geometry;
use memory::Memory;
pub use memory::Pages;
pub(crate) use memory::at;
pub use packet::{NoRoom, Packet, PacketMut};
pub(crate) use place::Place;
use place::Places;
pub(crate) use quarantine::Held;
use quarantine::Quarantine;
pub(crate) use registration::{Registration, Registrations};
use tx_metadata::Requests;
pub(crate) use tx_metadata::Timestamps;
pub use tx_metadata::{TxRequest, TxTimestamp};

use crate::{
    ring::Peeked,
    sync::{Arc, Mutex, global::OnceLock},
};

/// Page-aligned memory cut into chunks, shared by sockets, batches and the kernel.
///
/// A handle: clones are cheap and mean the same memory, which is unmapped when the last handle,
/// socket and batch are gone.
///
/// ```
/// use xskit::{ChunkSize, UmemConfig};
///
/// let umem = UmemConfig::new(256).chunk_size(ChunkSize::K2).build()?;
/// let mut batch = umem.batch(64);
/// assert_eq!(batch.alloc(3), 3);
/// assert_eq!(umem.audit().batch, 3);
/// drop(batch);
/// assert_eq!(umem.audit().free, 256);
/// # Ok::<(), xskit::Error>(())
/// ```
#[derive(Clone)]
pub struct Umem(Arc<Shared>);

struct Shared {
    geometry: Geometry,
    pool: Pool,
    places: Places,
    /// Where packets to send can have metadata.
    requests: Option<Requests>,
    quarantine: Mutex<Quarantine>,
    clones: Mutex<CloneReserve>,
    registrations: Mutex<Registrations>,
    counts: audit::Counts,
    /// Last, so that it outlives what points into it.
    memory: Memory,
}

impl Umem {
    fn new(memory: Memory, geometry: Geometry) -> Self {
        let pool = Pool::new(geometry.addresses());
        Self(Arc::new(Shared {
            pool,
            places: Places::new(geometry.chunks()),
            requests: (geometry.tx_metadata() > 0).then(|| Requests::new(geometry.chunks())),
            quarantine: Mutex::default(),
            clones: Mutex::new(CloneReserve::new(&geometry)),
            registrations: Mutex::default(),
            counts: audit::Counts::default(),
            geometry,
            memory,
        }))
    }

    /// An empty batch for up to `capacity` frames of this UMEM.
    ///
    /// # Panics
    ///
    /// If `capacity` is 0 or more than 2^24.
    pub fn batch(&self, capacity: usize) -> Batch {
        Batch::new(self, capacity)
    }

    /// The number of chunks.
    pub fn chunks(&self) -> u32 {
        self.0.geometry.chunks()
    }

    /// The size of a chunk.
    pub fn chunk_size(&self) -> ChunkSize {
        self.0.geometry.chunk_size()
    }

    /// Bytes before a packet that stay free for headers to come.
    pub fn headroom(&self) -> u32 {
        self.0.geometry.headroom()
    }

    /// The longest packet, in bytes, that fits a frame when it is received: the kernel keeps 256 bytes
    /// and the headroom before it.
    pub fn max_packet_len(&self) -> u32 {
        self.0.geometry.max_received()
    }

    /// The pages that the memory is really on.
    pub fn pages(&self) -> Pages {
        self.0.memory.pages()
    }

    /// The NUMA node that the memory was made to prefer. `None` where nothing was asked for, where there
    /// is only one, and for adopted memory.
    pub fn numa_node(&self) -> Option<u32> {
        self.0.memory.node()
    }

    /// Counts the frames in each place.
    ///
    /// Exact when traffic rests; a snapshot, whose places need not add up, while it flows.
    pub fn audit(&self) -> Audit {
        self.0.counts.audit(self)
    }

    /// How often free frames were taken from or given to the pool that all sockets and batches share. Each
    /// time costs a lock; [`FrameCache`] says how many frames it is for.
    pub fn pool_exchanges(&self) -> u64 {
        self.0.pool.exchanges()
    }

    /// Whether both are handles to the same memory.
    #[inline]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    #[inline]
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    #[inline]
    pub(crate) fn pool(&self) -> &Pool {
        &self.0.pool
    }

    #[inline]
    pub(crate) fn counts(&self) -> &audit::Counts {
        &self.0.counts
    }

    pub(crate) fn registrations(&self) -> &Mutex<Registrations> {
        &self.0.registrations
    }

    #[inline]
    pub(crate) fn memory(&self) -> &Memory {
        &self.0.memory
    }

    #[inline]
    fn requests(&self) -> Option<&Requests> {
        self.0.requests.as_ref()
    }

    /// Whether something can be asked for packets to send.
    #[inline]
    pub(crate) fn has_tx_metadata(&self) -> bool {
        self.0.requests.is_some()
    }

    /// Collects the timestamps of frames that have just completed.
    pub(crate) fn collect_timestamps(&self, completed: &Peeked<'_, u64>, to: &Mutex<Timestamps>) {
        if completed.is_empty() {
            return;
        }
        if let Some(requests) = self.requests() {
            let memory = self.memory().start();
            let mut to = crate::sync::lock(to);
            requests.collect(memory, self.geometry(), completed.iter(), &mut to);
        }
    }

    /// Notes that frames moved, and panics if one was not where it should have been: with the feature
    /// `audit` and in tests. Otherwise nothing.
    pub(crate) fn moved<'a>(
        &self,
        addresses: impl IntoIterator<Item = &'a u64>,
        from: Place,
        to: Place,
    ) {
        self.0.places.moved(&self.0.geometry, addresses, from, to);
    }

    /// Takes custody of frames that the kernel may still reach.
    pub(crate) fn quarantine(&self, held: Held) {
        if !held.is_empty() {
            crate::sync::lock(&self.0.quarantine).hold(held);
        }
    }

    /// The kernel is known to have let go of that queue: what was held for it is free again. `elsewhere`
    /// are frames that the queue's new socket has given to the kernel already.
    pub(crate) fn queue_is_free(&self, queue: DeviceQueue, elsewhere: &[u64]) {
        crate::sync::lock(&self.0.clones).queue_is_free(queue);
        let mut quarantine = crate::sync::lock(&self.0.quarantine);
        let back = quarantine.queue_is_free(self, queue, elsewhere);
        drop(quarantine);
        self.returned(&back);
    }

    /// Appends the chunks in which these addresses of the kernel's lie, whatever offset in a chunk they
    /// name, by their first addresses; returns how many lie in none.
    #[inline]
    fn chunks_of<const UNALIGNED: bool>(&self, addresses: &[u64], to: &mut Vec<u64>) -> usize {
        let start = to.len();
        if self.geometry().append_chunks::<UNALIGNED>(addresses, to) {
            return 0;
        }
        to.truncate(start);
        self.real_chunks_of::<UNALIGNED>(addresses, to)
    }

    /// As [`chunks_of`](Self::chunks_of), where one of them is known to lie in none.
    #[cold]
    fn real_chunks_of<const UNALIGNED: bool>(&self, addresses: &[u64], to: &mut Vec<u64>) -> usize {
        let geometry = self.geometry();
        let start = to.len();
        let real = addresses.iter().filter(|address| geometry.holds(**address));
        to.extend(real.map(|address| geometry.base_in::<UNALIGNED>(*address)));
        addresses.len() - (to.len() - start)
    }

    /// Takes frames back that were found in a ring at its end. Those that do not exist are lost.
    pub(crate) fn take_back(&self, addresses: &[u64]) {
        let (frames, bad) = self.frames_of(addresses);
        self.counts().lose(to_u32(bad));
        self.returned(&frames);
    }

    /// The frames in which these addresses lie, by their chunks' first ones, and how many lie in none.
    pub(crate) fn frames_of(&self, addresses: &[u64]) -> (Vec<u64>, usize) {
        let mut frames = Vec::with_capacity(addresses.len());
        let bad = if self.geometry().is_unaligned() {
            self.chunks_of::<true>(addresses, &mut frames)
        } else {
            self.chunks_of::<false>(addresses, &mut frames)
        };
        (frames, bad)
    }

    /// Takes frames back that the kernel is known to have let go of.
    pub(crate) fn returned(&self, frames: &[u64]) {
        self.0.places.returned(&self.0.geometry, frames);
        self.0.pool.put(frames);
    }
}

impl fmt::Debug for Umem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Umem")
            .field("chunks", &self.chunks())
            .field("chunk_size", &self.chunk_size())
            .field("headroom", &self.headroom())
            .field("pages", &self.pages())
            .field("numa_node", &self.numa_node())
            .finish_non_exhaustive()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // No socket and no batch is left, since each holds a handle. Frames still in quarantine belong
        // to a socket whose end nobody has seen: user memory is then leaked rather than freed.
        if !crate::sync::lock(&self.quarantine).is_empty()
            || crate::sync::lock(&self.clones).has_closed()
        {
            self.memory.leak_owner();
        }
    }
}

/// A number of frames, which a UMEM has less than 2^32 of.
#[inline]
pub(crate) fn to_u32(frames: usize) -> u32 {
    u32::try_from(frames).unwrap_or(u32::MAX)
}

/// Bytes of memory that this machine has.
fn physical_memory() -> Option<u64> {
    static BYTES: OnceLock<Option<u64>> = OnceLock::new();
    *BYTES.get_or_init(crate::sys::physical_memory)
}
