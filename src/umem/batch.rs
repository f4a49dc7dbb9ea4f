//! The unit of ownership.

use std::{
    fmt,
    mem::{self, MaybeUninit},
    ptr::NonNull,
};

use super::{
    BatchCount, FreeList, Geometry, Place, Umem,
    packet::{Packet, PacketMut, Packets, PacketsMut, first_packet},
    passes::{self, Seen},
    to_u32,
};
use crate::{
    Error, ErrorKind, Result, Step,
    ring::{Peeked, Reserved},
    sync::Arc,
    sys::uapi::{Desc, XDP_PKT_CONTD},
};

/// Frames that are ours: received packets, packets to send, and a list of spare frames.
///
/// A batch owns its frames until it gives them away: [`send`](crate::Socket::send) to the kernel,
/// [`append`](Self::append), [`split_off`](Self::split_off) and [`route`](Self::route) to other batches,
/// everything else back to the free frames. Ownership costs something per batch and nothing per
/// packet. Packets come out in the order in which they went in.
///
/// The frames of packets that are dropped ([`clear`](Self::clear), [`retain`](Self::retain)) or that
/// completed sending go to the batch's spare list, from which the next `recv` gives the kernel new
/// frames first and [`alloc`](Self::alloc) takes; the shared pool sees them only when that list is
/// full, and when the batch is dropped.
///
/// To hold a packet for later, hold a batch of one.
///
/// ```
/// use xskit::UmemConfig;
///
/// let umem = UmemConfig::new(64).build()?;
/// let mut batch = umem.batch(16);
/// batch.alloc(4);
/// for (number, mut packet) in batch.packets_mut().enumerate() {
///     packet.write(&[number as u8; 60])?;
/// }
/// batch.retain(|packet| packet.head()[0] % 2 == 1);
/// let firsts: Vec<u8> = batch.packets().map(|packet| packet.head()[0]).collect();
/// assert_eq!(firsts, [1, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Batch {
    umem: Umem,
    /// From `head` on: descriptors of chunks that this batch owns, each within its chunk.
    descs: Vec<Desc>,
    /// Packets before it have been sent; advancing it is all that taking from the front costs.
    head: usize,
    /// Whether any descriptor may carry `XDP_PKT_CONTD`.
    multi_buffer: bool,
    /// Bytes that each frame has at least from its packet's first one to its chunk's end; 0 where nobody
    /// knows.
    least_room: u32,
    /// Packets that [`clear`](Self::clear) has dropped: their frames are spare, and the next `recv` gives
    /// the kernel these first, right from here.
    dropped: Vec<Desc>,
    /// Never more than `capacity` together with `dropped`.
    spare: FreeList,
    capacity: usize,
    count: Arc<BatchCount>,
}

/// What became of received descriptors, where each is a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) good: usize,
    /// Refused, since they point outside the memory or past their chunk.
    pub(crate) bad: usize,
}

/// What became of received descriptors, where a packet may have several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) packets: usize,
    /// Descriptors taken out of the ring, whatever became of them.
    pub(crate) frames: usize,
    /// Of these, refused as in [`Taken`].
    pub(crate) bad: usize,
    /// Whether a packet was dropped that this batch will never have room for.
    pub(crate) oversized: bool,
}

impl Batch {
    pub(super) fn new(umem: &Umem, capacity: usize) -> Self {
        assert!((1..=1 << 24).contains(&capacity), "a batch of {capacity} frames: 1 to 2^24");
        let count = Arc::new(BatchCount::default());
        umem.counts().register(&count);
        Self {
            umem: umem.clone(),
            descs: Vec::with_capacity(capacity),
            head: 0,
            multi_buffer: false,
            least_room: 0,
            dropped: Vec::with_capacity(capacity),
            spare: FreeList::with_capacity(capacity),
            capacity,
            count,
        }
    }

    /// The memory that the frames belong to.
    pub fn umem(&self) -> &Umem {
        &self.umem
    }

    /// The number of frames in the batch's packets: that of packets, unless some have several frames.
    #[inline]
    pub fn len(&self) -> usize {
        self.descs.len() - self.head
    }

    /// Whether there is no packet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of frames that the batch can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The number of frames that still fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.capacity - self.len()
    }

    /// The number of packets.
    pub fn packet_count(&self) -> usize {
        if !self.multi_buffer {
            return self.len();
        }
        self.packets().count()
    }

    /// Bytes in all packets.
    pub fn bytes(&self) -> u64 {
        self.descs().iter().map(|desc| u64::from(desc.len)).sum()
    }

    /// The packets, in order.
    #[inline]
    pub fn packets(&self) -> impl Iterator<Item = Packet<'_>> {
        Packets::of(self)
    }

    /// The packets, in order, to change.
    #[inline]
    pub fn packets_mut(&mut self) -> impl Iterator<Item = PacketMut<'_>> {
        let (memory, several) = (self.memory(), self.multi_buffer);
        // Whether one of them loses bytes at its front is seen by nobody.
        let least_room = mem::take(&mut self.least_room);
        PacketsMut::new(memory, &self.umem, several, least_room, &mut self.descs[self.head..])
    }

    /// Appends up to `count` packets of one frame each, of no bytes yet, to be written and sent;
    /// returns how many there was room and memory for.
    ///
    /// Frames come from the spare list, where completed ones go, then from the pool. They begin after
    /// the [headroom](Umem::headroom).
    pub fn alloc(&mut self, count: usize) -> usize {
        let count = count.min(self.room());
        if self.spare.len() < count {
            self.restock(count);
        }
        let count = count.min(self.spare.len());
        let geometry = self.umem.geometry();
        let first = geometry.first_byte();
        self.add_with_room(count, geometry.chunk_bytes() - first);
        let start = self.descs.len();
        // Hottest first.
        let frames = self.spare.last(count);
        let write = |to: &mut [MaybeUninit<Desc>]| passes::write_fresh(frames, first.into(), to);
        // SAFETY: the pass writes one for each frame.
        unsafe { passes::append(&mut self.descs, count, write) };
        self.spare.forget_last(count);
        let new = self.descs.iter().skip(start);
        self.umem.moved(new.map(|desc| &desc.addr), Place::Free, Place::Batch);
        self.note();
        count
    }

    /// Has that many spare frames in the list, as far as there are any.
    #[inline(never)]
    fn restock(&mut self, count: usize) {
        self.list_dropped();
        if self.spare.len() < count {
            self.spare.take_from(self.umem.pool(), count - self.spare.len());
        }
    }

    /// Appends one packet of `len` bytes, over as many frames as it takes, to be written and sent as one
    /// packet. `None`, and nothing changed, if the batch has no room for all of them, or the UMEM no
    /// frames.
    ///
    /// The bytes are what the frames happened to hold. Each frame begins after the
    /// [headroom](Umem::headroom) and is filled to its end, but for the last. To send a packet of several
    /// frames takes a socket with [multi-buffer](crate::SocketConfig::multi_buffer), whose
    /// [`Mode::max_frames`](crate::Mode::max_frames) says how many.
    ///
    /// ```
    /// use xskit::{SocketConfig, UmemConfig, fake};
    ///
    /// let umem = UmemConfig::new(4096).build()?;
    /// let config = SocketConfig::default().multi_buffer(true);
    /// let (mut socket, kernel) = fake::socket(&umem, &config)?;
    /// let mut batch = umem.batch(64);
    /// let jumbo = vec![7; 9000];
    /// let mut packet = batch.alloc_packet(jumbo.len()).expect("room for three frames");
    /// packet.write(&jumbo)?;
    /// assert_eq!(packet.frames().map(<[u8]>::len).collect::<Vec<_>>(), [4096, 4096, 808]);
    /// assert_eq!((batch.packet_count(), batch.len()), (1, 3));
    /// socket.send(&mut batch)?;
    /// assert_eq!(kernel.transmit(1), [jumbo]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "XDP_PKT_CONTD")]
    pub fn alloc_packet(&mut self, len: usize) -> Option<PacketMut<'_>> {
        let geometry = self.umem.geometry();
        let room = (geometry.chunk_bytes() - geometry.first_byte()) as usize;
        let frames = len.div_ceil(room).max(1);
        self.list_dropped();
        if frames > self.room() || self.spare.len() + (self.umem.pool().len() as usize) < frames {
            return None;
        }
        let before = self.len();
        if self.alloc(frames) < frames {
            // Another thread took from the pool meanwhile: those that we got are the last packets.
            self.drop_frames(self.head + before);
            return None;
        }
        let memory = self.memory();
        let descs = &mut self.descs[self.head + before..];
        let mut rest = len;
        for desc in &mut *descs {
            let part = rest.min(room);
            rest -= part;
            *desc = Desc { len: to_u32(part), options: XDP_PKT_CONTD, ..*desc };
        }
        descs[frames - 1].options = 0;
        self.multi_buffer |= frames > 1;
        self.least_room = 0;
        Some(PacketMut::new(memory, &self.umem, 0, descs))
    }

    /// Moves packets from the front of `other` to the end of this batch, as many as there is room for;
    /// returns how many. The rest stays.
    ///
    /// # Errors
    ///
    /// [`WrongUmem`](ErrorKind::WrongUmem) if the two belong to different UMEMs; nothing moves.
    pub fn append(&mut self, other: &mut Self) -> Result<usize> {
        self.same_umem(other)?;
        let (frames, packets) = whole_packets(other.descs(), self.room());
        self.add_with_room(frames, other.least_room);
        self.descs.extend_from_slice(&other.descs()[..frames]);
        self.multi_buffer |= other.multi_buffer;
        other.forget_front(frames);
        self.note();
        Ok(packets)
    }

    /// Cuts the batch after its first `packets` packets; returns the others as a batch of the same
    /// capacity.
    #[must_use = "the packets cut off are dropped otherwise; `truncate` does that"]
    pub fn split_off(&mut self, packets: usize) -> Self {
        let at = self.head + self.frames_in_first(packets);
        let mut rest = Self::new(&self.umem, self.capacity);
        rest.multi_buffer = self.multi_buffer;
        rest.least_room = self.least_room;
        rest.descs.extend_from_slice(&self.descs[at..]);
        self.descs.truncate(at);
        self.note();
        rest.note();
        rest
    }

    /// Drops all packets but the first `packets`; their frames become spare.
    pub fn truncate(&mut self, packets: usize) {
        self.drop_frames(self.head + self.frames_in_first(packets));
    }

    /// Drops all packets; their frames become spare.
    #[inline]
    pub fn clear(&mut self) {
        if self.head > 0 || !self.dropped.is_empty() || self.descs.len() > self.spare_room() {
            return self.drop_frames(self.head);
        }
        self.umem.moved(self.descs.iter().map(|desc| &desc.addr), Place::Batch, Place::Free);
        mem::swap(&mut self.descs, &mut self.dropped);
        self.multi_buffer = false;
        self.note();
    }

    /// Keeps the packets for which `keep` returns true; the frames of the others become spare.
    pub fn retain(&mut self, mut keep: impl FnMut(&mut PacketMut<'_>) -> bool) {
        if self.umem.geometry().is_unaligned() {
            self.retain_in::<true>(&mut keep);
        } else {
            self.retain_in::<false>(&mut keep);
        }
    }

    #[inline]
    fn retain_in<const UNALIGNED: bool>(
        &mut self,
        keep: &mut impl FnMut(&mut PacketMut<'_>) -> bool,
    ) {
        let mut sieve = Sieve::new(self);
        while let Some(mut packet) = sieve.packet() {
            if keep(&mut packet) { sieve.keep() } else { sieve.recycle::<UNALIGNED>() }
        }
    }

    /// Moves each packet to the batch of the index that `choose` returns; returns how many moved. A
    /// packet stays, in order, where the index is past the end or that batch has no room.
    ///
    /// # Errors
    ///
    /// [`WrongUmem`](ErrorKind::WrongUmem) if one of the batches belongs to another UMEM; nothing
    /// moves.
    pub fn route(
        &mut self,
        targets: &mut [Self],
        mut choose: impl FnMut(&mut PacketMut<'_>) -> usize,
    ) -> Result<usize> {
        for target in &*targets {
            self.same_umem(target)?;
        }
        let mut moved = 0;
        let mut sieve = Sieve::new(self);
        while let Some(mut packet) = sieve.packet() {
            let index = choose(&mut packet);
            let target = targets.get_mut(index).filter(|target| target.room() >= sieve.frames());
            match target {
                Some(target) => {
                    target.accept(sieve.give());
                    moved += 1;
                }
                None => sieve.keep(),
            }
        }
        Ok(moved)
    }

    /// Gives the spare frames back to the pool, where other sockets and batches find them: for a batch
    /// that will not be used for a while.
    pub fn release_spare(&mut self) {
        self.list_dropped();
        self.spare.give_to(self.umem.pool(), self.spare.len());
        self.note();
    }

    #[inline]
    pub(super) fn memory(&self) -> NonNull<u8> {
        self.umem.memory().start()
    }

    /// The descriptors of the packets.
    #[inline]
    pub(crate) fn descs(&self) -> &[Desc] {
        &self.descs[self.head..]
    }

    /// Whether a packet may have several frames.
    #[inline]
    pub(crate) fn multi_buffer(&self) -> bool {
        self.multi_buffer
    }

    /// Whether a packet has several frames, by a look at each of them.
    pub(crate) fn has_several_frames(&mut self) -> bool {
        self.multi_buffer = self.descs().iter().any(|desc| desc.options & XDP_PKT_CONTD != 0);
        self.multi_buffer
    }

    /// Whether a launch time is asked for one of the packets.
    pub(crate) fn has_launch_time(&self) -> bool {
        self.umem.requests().is_some_and(|requests| {
            let geometry = self.umem.geometry();
            self.descs().iter().any(|desc| requests.has_launch_time(geometry, desc))
        })
    }

    /// The number of frames of the first packet; 1 where there is none.
    #[inline]
    pub(crate) fn first_frames(&self) -> usize {
        if self.multi_buffer { first_packet(self.descs()).max(1) } else { 1 }
    }

    /// Free frames, to put completed ones into.
    #[inline]
    pub(super) fn spare_mut(&mut self) -> &mut FreeList {
        &mut self.spare
    }

    /// How many more spare frames fit.
    #[inline]
    pub(super) fn spare_room(&self) -> usize {
        self.capacity - self.spare.len() - self.dropped.len()
    }

    /// Moves spare frames into the slots of a Fill ring, as many as fit. The caller
    /// [notes](Self::note) it.
    #[inline]
    pub(crate) fn fill(&mut self, slots: &mut Reserved<'_, u64>) {
        if !self.dropped.is_empty() {
            let (before, _) = slots.unwritten();
            if before.len() < self.dropped.len() || self.umem.geometry().is_unaligned() {
                return self.fill_up(slots);
            }
            let dropped = self.dropped.as_slice();
            self.umem.moved(dropped.iter().map(|desc| &desc.addr), Place::Free, Place::Fill);
            self.umem.geometry().write_bases(dropped, before);
            // SAFETY: so many have just been written. The batch owned the frames, no packet leads to them
            // since `clear`, and they are forgotten in the next line.
            unsafe { slots.assume_written(dropped.len()) };
            self.dropped.clear();
        }
        if slots.written() < slots.len() {
            self.spare.fill(&self.umem, slots);
        }
    }

    /// As [`fill`](Self::fill), where the ring has less room than packets have been dropped before it wraps,
    /// or chunks are unaligned.
    #[inline(never)]
    fn fill_up(&mut self, slots: &mut Reserved<'_, u64>) {
        let (before, after) = slots.unwritten();
        let count = self.dropped.len().min(before.len() + after.len());
        let rest = self.dropped.len() - count;
        let dropped = &self.dropped[rest..];
        self.umem.moved(dropped.iter().map(|desc| &desc.addr), Place::Free, Place::Fill);
        let (first, second) = dropped.split_at(count.min(before.len()));
        let geometry = self.umem.geometry();
        geometry.write_bases(first, before);
        geometry.write_bases(second, after);
        // SAFETY: as in `fill`.
        unsafe { slots.assume_written(count) };
        self.dropped.truncate(rest);
        self.list_dropped();
        self.spare.fill(&self.umem, slots);
    }

    /// Puts the frames of dropped packets into the list of spare ones, where others look for them.
    #[inline]
    fn list_dropped(&mut self) {
        if !self.dropped.is_empty() {
            self.list_all_dropped();
        }
    }

    #[inline(never)]
    fn list_all_dropped(&mut self) {
        self.spare.recycle(&self.umem, &self.dropped);
        self.dropped.clear();
    }

    /// Takes over received frames, each a packet, and checks that each lies in a chunk: of what is copied,
    /// since nobody else writes there any more. Returns how many were refused, as in [`Taken`].
    #[inline]
    pub(crate) fn receive(&mut self, received: Peeked<'_, Desc>) -> usize {
        let count = received.len();
        debug_assert!(count <= self.room(), "more than the batch has room for");
        self.make_room(count);
        let start = self.descs.len();
        let (before, after) = received.slices();
        let mut seen = self.copy_in(before);
        if !after.is_empty() {
            seen = seen.and(self.copy_in_wrapped(after));
        }
        let bad = if let Some(room) = self.umem.geometry().sure_room(seen) {
            self.set_least_room(start, room);
            0
        } else {
            self.check(start)
        };
        let new = self.descs.iter().skip(start);
        self.umem.moved(new.map(|desc| &desc.addr), Place::Fill, Place::Batch);
        received.release();
        self.note();
        bad
    }

    #[inline]
    fn copy_in(&mut self, received: &[Desc]) -> Seen {
        let write = |to: &mut [MaybeUninit<Desc>]| passes::take(received, to);
        // SAFETY: the pass writes one for each descriptor.
        unsafe { passes::append(&mut self.descs, received.len(), write) }
    }

    /// As [`copy_in`](Self::copy_in), for what lies after the ring's wrap: apart, since there seldom is
    /// something.
    #[inline(never)]
    fn copy_in_wrapped(&mut self, received: &[Desc]) -> Seen {
        self.copy_in(received)
    }

    /// Takes over received frames, of which a packet may have several: whole packets only. The others stay
    /// in the ring, unless not even an empty batch of this capacity has room for the first, or the ring has
    /// none for its end: then its frames are recycled. `cut_off` says that the ring begins with the rest of
    /// such a packet.
    pub(crate) fn receive_packets(
        &mut self,
        received: Peeked<'_, Desc>,
        cut_off: &mut bool,
    ) -> Received {
        if *cut_off {
            return self.skip_packet(received, cut_off);
        }
        let count = received.len();
        debug_assert!(count <= self.room(), "more than the batch has room for");
        self.add_with_room(count, 0);
        let start = self.descs.len();
        let room = self.descs.spare_capacity_mut();
        let geometry = *self.umem.geometry();
        // Frames and packets up to the last that is complete.
        let (mut frames, mut packets, mut index) = (0, 0, 0);
        let fault = copy_packets_in(geometry, received.slices(), room, XDP_PKT_CONTD, |desc| {
            index += 1;
            if desc.options & XDP_PKT_CONTD == 0 {
                frames = index;
                packets += 1;
            }
        });
        if frames == 0 && (count == self.capacity || received.fill_the_ring()) {
            *cut_off = true;
            return Received { oversized: true, ..self.skip_packet(received, cut_off) };
        }
        // SAFETY: `compact` has made room for `count` more, and `copy_packets_in` has written that many, of which
        // these are a part.
        unsafe { self.descs.set_len(start + frames) };
        received.release_first(frames);
        let mut bad = 0;
        if fault >> 63 != 0 {
            let voided = self.discard_faulty_packets(start);
            bad = voided.bad;
            packets -= voided.packets;
        }
        self.umem.moved(
            self.descs[start..].iter().map(|desc| &desc.addr),
            Place::Fill,
            Place::Batch,
        );
        self.multi_buffer |= self.descs.len() - start > packets;
        self.note();
        Received { packets, frames, bad, oversized: false }
    }

    /// Recycles the frames of the packet that the ring begins with, as far as they are there.
    #[cold]
    fn skip_packet(&mut self, received: Peeked<'_, Desc>, cut_off: &mut bool) -> Received {
        let descs: Vec<Desc> = received.iter().copied().collect();
        let frames = first_packet(&descs);
        let bad = self.recycle_received(&descs[..frames]);
        *cut_off = descs[..frames].last().is_none_or(|desc| desc.options & XDP_PKT_CONTD != 0);
        received.release_first(frames);
        self.note();
        Received { packets: 0, frames, bad, oversized: false }
    }

    /// Recycles received frames; returns how many of them do not exist.
    #[cold]
    fn recycle_received(&mut self, descs: &[Desc]) -> usize {
        let geometry = *self.umem.geometry();
        let mut bad = 0;
        for desc in descs {
            if geometry.holds_packet(desc.addr, desc.len) {
                let base = geometry.base(desc.addr);
                self.umem.moved([&base], Place::Fill, Place::Batch);
                self.recycle(base);
            } else {
                bad += 1;
            }
        }
        bad
    }

    /// Takes out packets of which a descriptor leads outside the memory: nothing can be said about the
    /// frame behind that one; the others are recycled.
    #[cold]
    fn discard_faulty_packets(&mut self, start: usize) -> Received {
        let geometry = *self.umem.geometry();
        let mut voided = Received::default();
        let received = self.descs.split_off(start);
        let mut rest = received.as_slice();
        while !rest.is_empty() {
            let (packet, after) = rest.split_at(first_packet(rest));
            rest = after;
            if packet.iter().all(|desc| geometry.holds_packet(desc.addr, desc.len)) {
                self.descs.extend_from_slice(packet);
            } else {
                voided.packets += 1;
                voided.bad += self.recycle_received(packet);
            }
        }
        voided
    }

    /// Copies packets of one frame each from the front into the slots of a TX ring, as many as fit; returns
    /// how many. They stay in the batch until [`sent`](Self::sent).
    ///
    /// None, where the kernel would refuse one of them: see [`recycle_refused`](Self::recycle_refused).
    #[inline]
    pub(crate) fn send(&self, slots: &mut Reserved<'_, Desc>) -> Option<usize> {
        debug_assert!(!self.multi_buffer && self.umem.requests().is_none(), "for `send_packets`");
        self.copy_out(slots, slots.len().min(self.len()))
    }

    /// As [`send`](Self::send), where packets may have several frames, at most `most`, and metadata: as many
    /// whole ones as fit. Returns how many frames.
    #[inline(never)]
    pub(crate) fn send_packets(
        &self,
        slots: &mut Reserved<'_, Desc>,
        most: usize,
    ) -> Option<usize> {
        let count = self.prepare(slots.len(), most)?;
        self.copy_out(slots, count)
    }

    /// Copies frames from the front into as many slots; none, if one of them is empty.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "used twice, once where it is rare: a call otherwise")]
    fn copy_out(&self, slots: &mut Reserved<'_, Desc>, count: usize) -> Option<usize> {
        let (before, after) = slots.unwritten();
        let (first, second) = self.descs()[..count].split_at(count.min(before.len()));
        let mut empty = passes::put(first, before);
        if !second.is_empty() {
            empty |= put_wrapped(second, after);
        }
        if empty {
            return None;
        }
        // SAFETY: so many have just been written. The batch owns the frames, each lies in its chunk, and the
        // caller takes them from it before anything else can touch it.
        unsafe { slots.assume_written(count) };
        Some(count)
    }

    /// Looks at packets that may have several frames or metadata, and has the metadata ready; returns how
    /// many frames to send.
    fn prepare(&self, slots: usize, most: usize) -> Option<usize> {
        let count = if self.multi_buffer {
            let (frames, _) = whole_packets(self.descs(), slots);
            // The next one, too: with too many frames for the ring it would wait for ever.
            let next = first_packet(&self.descs()[frames..]);
            if next > most || longest_packet(&self.descs()[..frames]) > most {
                return None;
            }
            frames
        } else {
            slots.min(self.len())
        };
        let Some(requests) = self.umem.requests() else { return Some(count) };
        let (geometry, descs) = (self.umem.geometry(), &self.descs()[..count]);
        if !descs.iter().all(|desc| desc.len > 0 && requests.is_good(geometry, desc)) {
            return None;
        }
        for desc in descs {
            // SAFETY: the batch owns the frames, and all descriptors are good, by the check above.
            unsafe { requests.submit(self.memory(), geometry, desc) };
        }
        Some(count)
    }

    /// Makes descriptors from this one on plain, and forgets those that lead outside the memory; returns
    /// how many.
    #[inline(never)]
    fn check(&mut self, start: usize) -> usize {
        self.least_room = 0;
        let geometry = *self.umem.geometry();
        let fault = if geometry.is_unaligned() {
            plain_faults::<true>(geometry, &mut self.descs[start..])
        } else {
            plain_faults::<false>(geometry, &mut self.descs[start..])
        };
        if fault >> 63 == 0 { 0 } else { self.discard_faulty(start) }
    }

    /// Forgets descriptors that lead outside the memory. Nothing can be said about the frames behind
    /// them.
    #[cold]
    fn discard_faulty(&mut self, start: usize) -> usize {
        let geometry = *self.umem.geometry();
        let count = self.descs.len();
        let mut index = 0;
        self.descs.retain(|desc| {
            index += 1;
            index <= start || geometry.holds_packet(desc.addr, desc.len)
        });
        count - self.descs.len()
    }

    /// The first `count` frames are the kernel's now.
    #[inline]
    pub(crate) fn sent(&mut self, count: usize) {
        let sent = self.descs().iter().take(count);
        self.umem.moved(sent.map(|desc| &desc.addr), Place::Batch, Place::Tx);
        self.forget_front(count);
    }

    /// Makes spare the frames of packets that the kernel would refuse, since a frame of theirs is
    /// empty or they have more than `most`; returns how many packets that were.
    #[cold]
    pub(crate) fn recycle_refused(&mut self, most: usize) -> usize {
        let mut refused = 0;
        self.retain(|packet| {
            let good = packet.frames().len() <= most
                && packet.frames().all(|frame| !frame.is_empty())
                && packet.is_good();
            refused += usize::from(!good);
            good
        });
        refused
    }

    /// Hands all frames of the batch, packets' and spare, to the caller as plain addresses.
    pub(crate) fn detach(&mut self) -> Vec<u64> {
        let geometry = *self.umem.geometry();
        let mut frames: Vec<u64> =
            self.descs().iter().map(|desc| geometry.base(desc.addr)).collect();
        self.umem.moved(&frames, Place::Batch, Place::Detached);
        let packets = frames.len();
        self.list_dropped();
        let spare = self.spare.len();
        frames.extend(self.spare.last(spare).iter().rev());
        self.spare.forget_last(spare);
        self.umem.moved(&frames[packets..], Place::Free, Place::Detached);
        self.forget_front(packets);
        frames
    }

    /// Takes over one packet's descriptors. There is room.
    fn accept(&mut self, packet: &[Desc]) {
        self.add_with_room(packet.len(), 0);
        self.descs.extend_from_slice(packet);
        self.multi_buffer |= packet.len() > 1;
        self.note();
    }

    /// The first `count` descriptors belong to somebody else now.
    #[inline]
    fn forget_front(&mut self, count: usize) {
        self.head += count;
        if self.head == self.descs.len() {
            self.descs.clear();
            self.head = 0;
            self.multi_buffer = false;
        }
        self.note();
    }

    /// Makes room for `count` more descriptors at the end, by moving what there is to the front where
    /// the end has been reached.
    #[inline]
    fn make_room(&mut self, count: usize) {
        if self.descs.len() + count > self.capacity && self.head > 0 {
            self.compact();
        }
    }

    #[inline(never)]
    fn compact(&mut self) {
        self.descs.drain(..self.head);
        self.head = 0;
    }

    /// As [`make_room`](Self::make_room), for frames with at least so many bytes from the packet's first one
    /// to the chunk's end.
    #[inline]
    fn add_with_room(&mut self, count: usize, least_room: u32) {
        self.make_room(count);
        self.set_least_room(self.descs.len(), least_room);
    }

    /// Descriptors from this one on are new, and have so many bytes to their chunks' ends.
    #[inline]
    fn set_least_room(&mut self, start: usize, least_room: u32) {
        let others = if start == self.head { least_room } else { self.least_room };
        self.least_room = least_room.min(others);
    }

    /// Recycles the frames of descriptors from this one on.
    #[inline(never)]
    fn drop_frames(&mut self, from: usize) {
        self.list_dropped();
        let descs = &self.descs[from..];
        if descs.len() > self.spare_room() {
            // Half of it, so that the pool's lock is taken once for many frames.
            let least = descs.len() - self.spare_room();
            self.spare.give_to(self.umem.pool(), least.max(self.spare.len() / 2));
        }
        self.umem.moved(descs.iter().map(|desc| &desc.addr), Place::Batch, Place::Free);
        self.spare.recycle(&self.umem, descs);
        self.descs.truncate(from);
        self.forget_front(0);
    }

    /// The chunk that begins at this address is free again.
    #[inline]
    fn recycle(&mut self, base: u64) {
        if self.spare_room() == 0 {
            self.list_dropped();
            // Half of it, so that the pool's lock is taken once for many frames.
            self.spare.give_to(self.umem.pool(), self.capacity.div_ceil(2));
        }
        self.umem.moved([&base], Place::Batch, Place::Free);
        self.spare.push(base);
    }

    fn frames_in_first(&self, packets: usize) -> usize {
        if !self.multi_buffer {
            return packets.min(self.len());
        }
        let mut frames = 0;
        for _ in 0..packets {
            let next = first_packet(&self.descs()[frames..]);
            if next == 0 {
                break;
            }
            frames += next;
        }
        frames
    }

    fn same_umem(&self, other: &Self) -> Result<()> {
        if self.umem.is(&other.umem) {
            return Ok(());
        }
        Err(Error::new(
            Step::Configure,
            ErrorKind::WrongUmem,
            "the two batches belong to different UMEMs",
        )
        .hint("make both from the same Umem; a packet gets from one UMEM to another by copying"))
    }

    /// Publishes the numbers that `audit` adds up.
    #[inline]
    pub(crate) fn note(&self) {
        self.count.set(self.len(), self.spare.len() + self.dropped.len());
    }
}

/// Makes addresses plain and clears options. Highest bit set if one of the descriptors does not lie in a
/// chunk.
#[inline]
fn plain_faults<const UNALIGNED: bool>(geometry: Geometry, descs: &mut [Desc]) -> u64 {
    let mut fault = 0;
    for desc in descs {
        fault |= geometry.packet_fault::<UNALIGNED>(desc.addr, desc.len);
        *desc = Desc { addr: Geometry::plain::<UNALIGNED>(desc.addr), len: desc.len, options: 0 };
    }
    fault
}

/// Copies descriptors out of a ring, their addresses made plain, with those of their options that are in
/// `options`, and shows each to `look`. Highest bit set if one of them does not lie in a chunk.
#[inline]
fn copy_packets_in(
    geometry: Geometry,
    from: (&[Desc], &[Desc]),
    to: &mut [MaybeUninit<Desc>],
    options: u32,
    mut look: impl FnMut(&Desc),
) -> u64 {
    // Once a batch, so that aligned chunks pay nothing for the others.
    if geometry.is_unaligned() {
        copy_packets_in_as::<true>(geometry, from, to, options, &mut look)
    } else {
        copy_packets_in_as::<false>(geometry, from, to, options, &mut look)
    }
}

#[inline]
fn copy_packets_in_as<const UNALIGNED: bool>(
    geometry: Geometry,
    (before, after): (&[Desc], &[Desc]),
    to: &mut [MaybeUninit<Desc>],
    options: u32,
    look: &mut impl FnMut(&Desc),
) -> u64 {
    let mut fault = 0;
    let (first, second) = to.split_at_mut(before.len());
    for (from, to) in [(before, first), (after, second)] {
        let to: &mut [MaybeUninit<Desc>] = to;
        for (desc, to) in from.iter().zip(to) {
            fault |= geometry.packet_fault::<UNALIGNED>(desc.addr, desc.len);
            let addr = Geometry::plain::<UNALIGNED>(desc.addr);
            to.write(Desc { addr, len: desc.len, options: desc.options & options });
            look(desc);
        }
    }
    fault
}

/// Into the slots after the ring's wrap: apart, since there seldom are some.
#[inline(never)]
fn put_wrapped(descs: &[Desc], to: &mut [MaybeUninit<Desc>]) -> bool {
    passes::put(descs, to)
}

/// How many frames, of how many whole packets, lie in the first `room` descriptors.
fn whole_packets(descs: &[Desc], room: usize) -> (usize, usize) {
    let (mut frames, mut packets) = (0, 0);
    while frames < descs.len() {
        let next = first_packet(&descs[frames..]);
        if frames + next > room {
            break;
        }
        frames += next;
        packets += 1;
    }
    (frames, packets)
}

/// The number of frames of the packet that has most of them.
fn longest_packet(descs: &[Desc]) -> usize {
    let mut longest = 0;
    let mut rest = descs;
    while !rest.is_empty() {
        let next = first_packet(rest);
        longest = longest.max(next);
        rest = &rest[next..];
    }
    longest
}

impl Drop for Batch {
    fn drop(&mut self) {
        // Then the spare list has room for the packets' frames.
        self.release_spare();
        self.clear();
        self.release_spare();
        self.count.set(0, 0);
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("len", &self.len())
            .field("capacity", &self.capacity)
            .field("spare", &(self.spare.len() + self.dropped.len()))
            .finish_non_exhaustive()
    }
}

/// Goes through a batch packet by packet and closes the gaps, also when a closure panics.
struct Sieve<'a> {
    batch: &'a mut Batch,
    /// Descriptors before it are kept.
    write: usize,
    /// The packet at hand: descriptors from `read` to `end`.
    read: usize,
    end: usize,
}

impl<'a> Sieve<'a> {
    fn new(batch: &'a mut Batch) -> Self {
        let head = batch.head;
        batch.least_room = 0;
        Self { batch, write: head, read: head, end: head }
    }

    /// The next packet. What became of the one before has been said.
    fn packet(&mut self) -> Option<PacketMut<'_>> {
        let rest = &self.batch.descs[self.read..];
        if rest.is_empty() {
            return None;
        }
        let frames = if self.batch.multi_buffer { first_packet(rest) } else { 1 };
        self.end = self.read + frames;
        let memory = self.batch.memory();
        let descs = &mut self.batch.descs[self.read..self.end];
        Some(PacketMut::new(memory, &self.batch.umem, 0, descs))
    }

    /// The number of frames of the packet at hand.
    fn frames(&self) -> usize {
        self.end - self.read
    }

    fn keep(&mut self) {
        self.batch.descs.copy_within(self.read..self.end, self.write);
        self.write += self.frames();
        self.read = self.end;
    }

    fn recycle<const UNALIGNED: bool>(&mut self) {
        while self.read < self.end {
            let address = self.batch.descs[self.read].addr;
            self.read += 1;
            let base = self.batch.umem.geometry().base_in::<UNALIGNED>(address);
            self.batch.recycle(base);
        }
    }

    /// The packet at hand, for another batch.
    fn give(&mut self) -> &[Desc] {
        let packet = self.read..self.end;
        self.read = self.end;
        &self.batch.descs[packet]
    }
}

impl Drop for Sieve<'_> {
    fn drop(&mut self) {
        // Nothing is left to read unless a closure panicked: then the packet at hand and those after
        // it stay.
        let len = self.batch.descs.len();
        self.batch.descs.copy_within(self.read..len, self.write);
        self.batch.descs.truncate(self.write + len - self.read);
        if self.batch.is_empty() {
            self.batch.forget_front(0);
        }
        self.batch.note();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{UmemConfig, ring::tests::ring};

    /// What a kernel says of a received packet is none of its business when the packet is sent: bits of
    /// options that mean something else there, or that no kernel has yet.
    #[test]
    fn options_of_received_packets_are_not_sent() {
        let umem = UmemConfig::new(8).build().unwrap();
        for multi_buffer in [false, true] {
            let mut batch = umem.batch(4);
            batch.alloc(2);
            let addresses = batch.detach();
            umem.moved(&addresses, Place::Detached, Place::Fill);
            let (mut kernel, mut rx, _) = ring::<Desc>(4, u32::MAX);
            let mut slots = kernel.reserve(2).unwrap();
            let continued = if multi_buffer { XDP_PKT_CONTD } else { 0 };
            for (addr, options) in addresses.into_iter().zip([!XDP_PKT_CONTD | continued, !1]) {
                // SAFETY: no kernel reads this ring; the frames are ours.
                unsafe { slots.push(Desc { addr, len: 60, options }) };
            }
            slots.submit();
            if multi_buffer {
                assert_eq!(batch.receive_packets(rx.peek(4), &mut false).packets, 1);
            } else {
                assert_eq!((batch.receive(rx.peek(4)), batch.len()), (0, 2));
            }
            let (mut tx, mut kernel, _) = ring::<Desc>(4, u32::MAX);
            let mut slots = tx.reserve(2).unwrap();
            assert_eq!(batch.send_packets(&mut slots, 2), Some(2));
            slots.submit();
            let options: Vec<u32> = kernel.peek(2).iter().map(|desc| desc.options).collect();
            assert_eq!(options, [continued, 0]);
        }
    }
}
