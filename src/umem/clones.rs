//! Prepared packets that are sent many times over without being written or copied again.
//!
//! Their chunks are the last ones of the UMEM ([`UmemConfig::clones`](super::UmemConfig::clones)), which
//! never are in the pool, a batch or a Fill ring. So an address says what it is by one comparison, which
//! is made only while the queue has clones with the kernel; how many it has is one number per queue,
//! changed once per batch by whoever holds the queue's Completion ring.

use std::{fmt, mem::MaybeUninit};

use super::{Batch, Cache, DeviceQueue, Geometry, Place, Taken, Umem, at, free::Home, to_u32};
use crate::{
    Error, ErrorKind, Result, Step,
    ring::{Peeked, Reserved},
    sync::{Arc, AtomicU32, Ordering, lock},
    sys::uapi::Desc,
};

/// Packets that are prepared once and sent any number of times, in turn: what the kernel's pktgen calls
/// `clone_skb`.
///
/// [`Sender::send_clones`](crate::Sender::send_clones) submits one and the same frame again and again,
/// also while it is on its way already. It can be read meanwhile, and never be written: there is nothing
/// here to write it with. Its chunk is used again only when the value is dropped and the kernel has
/// completed everything that was submitted, however long that takes.
///
/// How many clones the kernel has is counted per queue, by one plain number that changes once per call:
/// no reference count per packet, no atomic addition. The price is that chunks come back when *all* clones
/// of the queues that they were sent on have completed.
///
/// A packet is one frame, without [TX metadata](super::TxRequest), which the kernel would write into it.
/// Clones that complete at the [descriptor level](crate::socket::Rings) are not told apart there: they
/// count as frames that the caller got, and as with the kernel for ever.
///
/// ```
/// use xskit::{SocketConfig, UmemConfig, fake};
///
/// let umem = UmemConfig::new(64).clones(2).build()?;
/// let config = SocketConfig::default().send_only();
/// let (mut socket, kernel) = fake::socket(&umem, &config)?;
/// let mut clones = umem.clones([[1; 60], [2; 60]])?;
/// assert_eq!(socket.send_clones(&mut clones, 100)?, 100);
/// assert_eq!(umem.audit().cloned, 2);
///
/// let sent = kernel.transmit(100);
/// assert_eq!(sent.len(), 100);
/// assert_eq!((&sent[98][..], &sent[99][..]), (&[1; 60][..], &[2; 60][..]));
/// # Ok::<(), xskit::Error>(())
/// ```
///
/// It cannot be written, in flight or not:
///
/// ```compile_fail,E0594
/// # let umem = xskit::UmemConfig::new(64).clones(2).build()?;
/// let clones = umem.clones([[1; 60]])?;
/// for packet in clones.packets() {
///     packet[0] = 2;
/// }
/// # Ok::<(), xskit::Error>(())
/// ```
///
/// nor freed while somebody reads it:
///
/// ```compile_fail,E0505
/// # let umem = xskit::UmemConfig::new(64).clones(2).build()?;
/// let clones = umem.clones([[1; 60]])?;
/// let packet = clones.packets().next();
/// drop(clones);
/// println!("{packet:?}");
/// # Ok::<(), xskit::Error>(())
/// ```
///
/// nor be sent by two threads at once, whose turns would be mixed up:
///
/// ```compile_fail,E0499
/// # use xskit::{SocketConfig, UmemConfig, fake};
/// # let umem = UmemConfig::new(64).clones(2).build()?;
/// # let (mut a, _) = fake::socket(&umem, &SocketConfig::default().send_only())?;
/// # let (mut b, _) = fake::socket(&umem, &SocketConfig::default().send_only())?;
/// let mut clones = umem.clones([[1; 60]])?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| a.send_clones(&mut clones, 8));
///     scope.spawn(|| b.send_clones(&mut clones, 8));
/// });
/// # Ok::<(), xskit::Error>(())
/// ```
#[doc(alias = "clone_skb")]
pub struct Clones {
    umem: Umem,
    /// One packet each, of which nobody has a mutable reference.
    packets: Vec<Desc>,
    /// Whose turn it is.
    next: usize,
    /// Of all queues that they were sent on.
    flights: Vec<Arc<Flights>>,
}

impl Clones {
    fn new(umem: &Umem, packets: &[&[u8]]) -> Result<Self> {
        let geometry = umem.geometry();
        let first = geometry.first_byte();
        let room = (geometry.chunk_bytes() - first) as usize;
        if packets.is_empty() {
            return Err(Error::invalid("clones of no packet").hint("give one or more"));
        }
        for packet in packets {
            let len = packet.len();
            if !(1..=room).contains(&len) {
                return Err(Error::invalid(format!(
                    "a packet of {len} bytes to clone: a frame of this UMEM has room for 1 to {room}"
                )));
            }
        }
        let chunks = lock(&umem.0.clones).take(umem, packets.len()).ok_or_else(|| {
            Error::new(
                Step::Configure,
                ErrorKind::Limit,
                format!(
                    "{} packets to clone: of the UMEM's {} chunks for clones not so many are free",
                    packets.len(),
                    geometry.clones()
                ),
            )
            .hint(
                "keep more with `UmemConfig::clones`; those of dropped ones come back once the \
                 kernel has completed all clones of their queues: `Sender::reap`",
            )
        })?;
        let mut descs = Vec::with_capacity(chunks.len());
        for (base, packet) in chunks.iter().zip(packets) {
            let addr = base + u64::from(first);
            // SAFETY: the chunk is ours alone: it came out of the reserve, into which chunks go that the
            // kernel does not have. The packet fits behind `first`, by the check above.
            unsafe {
                let to = at(umem.memory().start(), addr).as_ptr();
                std::ptr::copy_nonoverlapping(packet.as_ptr(), to, packet.len());
            }
            descs.push(Desc { addr, len: to_u32(packet.len()), options: 0 });
        }
        Ok(Self { umem: umem.clone(), packets: descs, next: 0, flights: Vec::new() })
    }

    /// The memory that the frames belong to.
    pub fn umem(&self) -> &Umem {
        &self.umem
    }

    /// The packets, in the order in which they are sent, over and over.
    pub fn packets(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.packets.iter().map(|desc| {
            // SAFETY: the packet lies in a chunk that is ours, and that nobody writes: the kernel reads
            // packets to send. It is mapped as long as we hold the UMEM.
            unsafe {
                let start = at(self.umem.memory().start(), desc.addr).as_ptr();
                std::slice::from_raw_parts(start, desc.len as usize)
            }
        })
    }

    /// Whether the kernel may have one of them: whether a clone, of these or others, is in flight on a
    /// queue that these were sent on.
    pub fn in_flight(&self) -> bool {
        self.flights.iter().any(|flights| flights.get() > 0)
    }

    /// Writes descriptors into all slots, packet after packet in turn. They are in flight as soon as they are
    /// submitted, which [`fly`](Self::fly) has to know before.
    pub(crate) fn send(&mut self, slots: &mut Reserved<'_, Desc>) -> usize {
        let (before, after) = slots.unwritten();
        let count = before.len() + after.len();
        for slots in [before, after] {
            if let [one] = self.packets.as_slice() {
                slots.fill(MaybeUninit::new(*one));
                continue;
            }
            for slot in slots {
                slot.write(self.packets[self.next]);
                self.next += 1;
                if self.next == self.packets.len() {
                    self.next = 0;
                }
            }
        }
        // SAFETY: all written above. The chunks are ours; there are shared references into them at most,
        // and the kernel reads them only, as no metadata is asked for. They are in no batch, and back in
        // the reserve only when nothing is in flight any more.
        unsafe { slots.assume_written(count) };
        count
    }

    /// They are about to be sent on the queue of these flights.
    #[inline]
    pub(crate) fn fly(&mut self, flights: &Arc<Flights>) {
        if !self.flights.iter().any(|known| Arc::ptr_eq(known, flights)) {
            self.flights.retain(|known| known.get() > 0);
            self.flights.push(flights.clone());
        }
    }
}

impl fmt::Debug for Clones {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clones")
            .field("packets", &self.packets.len())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

impl Drop for Clones {
    fn drop(&mut self) {
        let geometry = *self.umem.geometry();
        let chunks = self.packets.iter().map(|desc| geometry.base(desc.addr)).collect();
        let flights = std::mem::take(&mut self.flights);
        lock(&self.umem.0.clones).retire(&self.umem, Retired { chunks, flights });
    }
}

impl Umem {
    /// Prepares packets, a frame each, to be sent many times over, in turn. They are copied here, into chunks
    /// [kept for that](super::UmemConfig::clones), and never again.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for no packet, an empty one, or one longer than a frame;
    /// [`Limit`](ErrorKind::Limit) if there are fewer chunks for clones than packets, or the kernel still
    /// has those of clones that were dropped.
    #[doc(alias = "clone_skb")]
    pub fn clones<P: AsRef<[u8]>>(&self, packets: impl IntoIterator<Item = P>) -> Result<Clones> {
        let packets: Vec<P> = packets.into_iter().collect();
        // Asked once: it might say something else the next time.
        let packets: Vec<&[u8]> = packets.iter().map(AsRef::as_ref).collect();
        Clones::new(self, &packets)
    }

    /// A queue's last socket is closed, and the kernel may still have clones of that queue.
    pub(crate) fn close_flights(&self, flights: &Arc<Flights>, queue: DeviceQueue) {
        if flights.get() > 0 {
            lock(&self.0.clones).closed.push((queue, flights.clone()));
        }
    }
}

/// The clones of one queue that the kernel has.
#[derive(Debug, Default)]
pub(crate) struct Flights(AtomicU32);

impl Flights {
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        // Acquire: whoever sees that none is left may write the frames, after the completions were seen.
        self.0.load(Ordering::Acquire)
    }

    /// A plain load and store: whoever changes it holds the queue's Completion ring.
    ///
    /// At the end of its range it stays: so many do not fly, but may have been taken out of the ring by hand,
    /// and nobody can tell any more when the last one has landed.
    #[inline]
    pub(crate) fn add(&self, clones: u32) {
        self.0.store(self.0.load(Ordering::Relaxed).saturating_add(clones), Ordering::Relaxed);
    }

    /// As [`add`](Self::add). Returns how many of them cannot be, since so many were never sent.
    #[inline]
    pub(crate) fn land(&self, clones: usize) -> usize {
        let flying = self.0.load(Ordering::Relaxed);
        let landed = to_u32(clones).min(flying);
        if flying < u32::MAX {
            self.0.store(flying - landed, Ordering::Release);
        }
        clones - landed as usize
    }

    /// The kernel has let go of the queue.
    fn end(&self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Clones that were dropped, and that the kernel may still have.
#[derive(Debug)]
pub(super) struct Retired {
    chunks: Vec<u64>,
    flights: Vec<Arc<Flights>>,
}

/// The chunks for clones, as far as no [`Clones`] have them.
#[derive(Debug)]
pub(super) struct CloneReserve {
    free: Vec<u64>,
    /// The number of chunks that living [`Clones`] have.
    used: usize,
    retired: Vec<Retired>,
    /// Of closed queues: the kernel may have clones of theirs until it is known to
    /// have let go.
    closed: Vec<(DeviceQueue, Arc<Flights>)>,
}

/// Where the chunks for clones are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CloneCounts {
    pub(super) free: usize,
    pub(super) cloned: usize,
    pub(super) quarantine: usize,
}

impl CloneReserve {
    pub(super) fn new(geometry: &Geometry) -> Self {
        Self {
            free: geometry.clone_addresses().rev().collect(),
            used: 0,
            retired: Vec::new(),
            closed: Vec::new(),
        }
    }

    /// That many chunks, or none.
    fn take(&mut self, umem: &Umem, count: usize) -> Option<Vec<u64>> {
        for retired in std::mem::take(&mut self.retired) {
            self.put(umem, retired);
        }
        let rest = self.free.len().checked_sub(count)?;
        self.used += count;
        let mut chunks = self.free.split_off(rest);
        chunks.reverse();
        umem.moved(&chunks, Place::Free, Place::Cloned);
        Some(chunks)
    }

    fn retire(&mut self, umem: &Umem, retired: Retired) {
        self.used -= retired.chunks.len();
        self.put(umem, retired);
    }

    fn put(&mut self, umem: &Umem, mut retired: Retired) {
        if retired.flights.iter().any(|flights| flights.get() > 0) {
            self.retired.push(retired);
        } else {
            umem.moved(&retired.chunks, Place::Cloned, Place::Free);
            self.free.append(&mut retired.chunks);
        }
    }

    /// The kernel is known to have let go of that queue.
    pub(super) fn queue_is_free(&mut self, queue: DeviceQueue) {
        self.closed.retain(|(closed, flights)| {
            let free = *closed == queue;
            if free {
                flights.end();
            }
            !free
        });
    }

    /// Whether the kernel may have clones of closed queues.
    pub(super) fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    pub(super) fn counts(&self) -> CloneCounts {
        let mut counts =
            CloneCounts { free: self.free.len(), cloned: self.used, ..CloneCounts::default() };
        let is_closed = |flights: &Arc<Flights>| {
            self.closed.iter().any(|(_, closed)| Arc::ptr_eq(closed, flights))
        };
        for Retired { chunks, flights } in &self.retired {
            let mut flying = flights.iter().filter(|flights| flights.get() > 0).peekable();
            let place = if flying.peek().is_none() {
                &mut counts.free
            } else if flying.any(is_closed) {
                &mut counts.quarantine
            } else {
                &mut counts.cloned
            };
            *place += chunks.len();
        }
        counts
    }
}

/// As [`complete`](super::complete), while clones are in flight: they land, and what lies between them goes
/// where sent frames go.
#[inline(never)]
pub(crate) fn complete_with_clones(
    umem: &Umem,
    flights: &Flights,
    completed: Peeked<'_, u64>,
    batch: Option<&mut Batch>,
    cache: &mut Cache,
) -> Taken {
    // Once for all of them, so that aligned chunks pay nothing for the others.
    if umem.geometry().is_unaligned() {
        complete_in::<true>(umem, flights, completed, batch, cache)
    } else {
        complete_in::<false>(umem, flights, completed, batch, cache)
    }
}

fn complete_in<const UNALIGNED: bool>(
    umem: &Umem,
    flights: &Flights,
    completed: Peeked<'_, u64>,
    batch: Option<&mut Batch>,
    cache: &mut Cache,
) -> Taken {
    let geometry = *umem.geometry();
    let (before, after) = completed.slices();
    let mut home = Home::new(umem, batch, cache);
    let mut clones = completed.len();
    for completed in [before, after] {
        let runs = completed.split(|address| geometry.is_clone::<UNALIGNED>(*address));
        for run in runs.filter(|run| !run.is_empty()) {
            clones -= run.len();
            home.take::<UNALIGNED>(run);
        }
    }
    let bad = home.close() + flights.land(clones);
    Taken { good: completed.release() - bad, bad }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_can_be_counted_never_land() {
        let flights = Flights::default();
        flights.add(u32::MAX - 1);
        assert_eq!(flights.land(2), 0);
        assert_eq!(flights.get(), u32::MAX - 3);
        flights.add(1 << 24);
        assert_eq!(flights.land(u32::MAX as usize), 0);
        assert_eq!(flights.get(), u32::MAX, "one may fly still");
        flights.end();
        assert_eq!((flights.get(), flights.land(1)), (0, 1));
    }
}
