//! One packet's bytes, in one or more frames.

use std::{fmt, mem, ptr::NonNull, slice};

use bytemuck::Pod;

use super::{Batch, Geometry, TxRequest, Umem, at, checksum};
use crate::{
    Error, ErrorKind, Result, Step,
    sys::uapi::{Desc, XDP_PKT_CONTD, XDP_TX_METADATA},
};

/// A packet in a [`Batch`], to read: one frame, or several when it is larger than a chunk.
#[derive(Clone, Copy)]
pub struct Packet<'a> {
    memory: NonNull<u8>,
    geometry: &'a Geometry,
    descs: &'a [Desc],
}

/// A packet in a [`Batch`], to read, change, shorten and lengthen.
pub struct PacketMut<'a> {
    memory: NonNull<u8>,
    umem: &'a Umem,
    /// The UMEM's, at hand: nothing that is written can change it.
    geometry: Geometry,
    /// Bytes that each frame has at least from its first one to its chunk's end; 0 where nobody knows.
    least_room: u32,
    descs: &'a mut [Desc],
}

// SAFETY: a shared view of bytes that the batch owns, borrowed for 'a.
unsafe impl Send for Packet<'_> {}
// SAFETY: as above.
unsafe impl Sync for Packet<'_> {}
// SAFETY: an exclusive view of bytes that the batch owns, borrowed for 'a.
unsafe impl Send for PacketMut<'_> {}
// SAFETY: `&PacketMut` only reads.
unsafe impl Sync for PacketMut<'_> {}

/// A packet cannot grow that far: the chunk has no room before or after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// Bytes asked for.
    pub asked: usize,
    /// Bytes that would have been possible.
    pub possible: usize,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes asked for where the frame has room for {}", self.asked, self.possible)
    }
}

impl std::error::Error for NoRoom {}

/// # Safety
///
/// The descriptor is one of a batch that owns its chunk, and the batch is borrowed for `'a`.
#[inline]
unsafe fn bytes<'a>(memory: NonNull<u8>, desc: &Desc) -> &'a [u8] {
    // SAFETY: a batch holds only descriptors that lie in one chunk of the mapped, initialised memory;
    // the batch owns the chunk, so that neither the kernel nor another batch writes it meanwhile.
    unsafe { slice::from_raw_parts(at(memory, desc.addr).as_ptr(), desc.len as usize) }
}

/// # Safety
///
/// As [`bytes`], and the borrow is exclusive.
#[inline]
unsafe fn bytes_mut<'a>(memory: NonNull<u8>, desc: &mut Desc) -> &'a mut [u8] {
    // SAFETY: as in `bytes`; exclusive by the caller's word.
    unsafe { slice::from_raw_parts_mut(at(memory, desc.addr).as_ptr(), desc.len as usize) }
}

#[inline]
fn length(descs: &[Desc]) -> usize {
    descs.iter().map(|desc| desc.len as usize).sum()
}

impl<'a> Packet<'a> {
    /// Bytes in the packet, over all of its frames.
    #[expect(clippy::len_without_is_empty, reason = "a received packet is never empty")]
    #[inline]
    pub fn len(&self) -> usize {
        length(self.descs)
    }

    /// The first frame's bytes, where the headers are: the whole packet unless it is larger than a
    /// chunk.
    #[inline]
    pub fn head(&self) -> &'a [u8] {
        // SAFETY: our batch's descriptor, borrowed for 'a.
        unsafe { bytes(self.memory, &self.descs[0]) }
    }

    /// Where the packet's first byte is, in bytes from the beginning of the UMEM: what the kernel's descriptor
    /// says, to be compared with what others print, or to find it in memory of your own.
    ///
    /// ```
    /// use xskit::UmemConfig;
    ///
    /// let umem = UmemConfig::new(64).headroom(64).build()?;
    /// let mut batch = umem.batch(2);
    /// batch.alloc(2);
    /// let addrs: Vec<u64> = batch.packets().map(|packet| packet.addr()).collect();
    /// assert!(addrs.iter().all(|addr| addr % 4096 == 64 && *addr < 64 * 4096));
    /// # Ok::<(), xskit::Error>(())
    /// ```
    #[doc(alias = "xdp_desc")]
    #[inline]
    pub fn addr(&self) -> u64 {
        self.descs[0].addr
    }

    /// What an XDP program left before the received packet with `bpf_xdp_adjust_meta`, of the length that
    /// [`UmemConfig::rx_metadata`](super::UmemConfig::rx_metadata) says. Where the program left nothing, it
    /// is what the chunk happened to hold: that it did is the program's and your agreement.
    ///
    /// ```
    /// use xskit::{SocketConfig, UmemConfig, fake};
    ///
    /// #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
    /// #[repr(C)]
    /// struct Mark {
    ///     flow: u32,
    ///     rule: u32,
    /// }
    ///
    /// let umem = UmemConfig::new(4096).rx_metadata(8).build()?;
    /// let (mut socket, kernel) = fake::socket(&umem, &SocketConfig::default())?;
    /// kernel.deliver_with_metadata(&[7, 0, 0, 0, 1, 0, 0, 0], b"packet");
    /// let mut batch = umem.batch(64);
    /// socket.recv(&mut batch)?;
    /// for packet in batch.packets() {
    ///     let mark: Mark = packet.metadata()?;
    ///     assert_eq!((u32::from_le(mark.flow), u32::from_le(mark.rule)), (7, 1));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`NoRoom`] if `T` has another length than the metadata, or the chunk less room before the packet.
    #[doc(alias = "bpf_xdp_adjust_meta")]
    #[doc(alias = "data_meta")]
    pub fn metadata<T: Pod>(&self) -> Result<T, NoRoom> {
        metadata(self.memory, self.geometry, &self.descs[0])
    }

    /// The bytes of each frame.
    #[inline]
    pub fn frames(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let memory = self.memory;
        // SAFETY: our batch's descriptors, borrowed for 'a.
        self.descs.iter().map(move |desc| unsafe { bytes(memory, desc) })
    }
}

/// What lies before the packet, if it is as long as its configuration says and the chunk has as much there.
fn metadata<T: Pod>(memory: NonNull<u8>, geometry: &Geometry, head: &Desc) -> Result<T, NoRoom> {
    let (asked, possible) = (size_of::<T>(), geometry.rx_metadata() as usize);
    let before = geometry.offset(head.addr) as usize;
    if asked != possible || asked > before {
        return Err(NoRoom { asked, possible: possible.min(before) });
    }
    let mut value = T::zeroed();
    // SAFETY: the chunk that the packet begins in has as many bytes before it, of mapped, initialised
    // memory; the packet's batch owns the chunk, which nobody writes meanwhile.
    let bytes =
        unsafe { slice::from_raw_parts(at(memory, head.addr - asked as u64).as_ptr(), asked) };
    bytemuck::bytes_of_mut(&mut value).copy_from_slice(bytes);
    Ok(value)
}

impl<'a> PacketMut<'a> {
    /// A view of one packet's descriptors.
    #[inline]
    pub(super) fn new(
        memory: NonNull<u8>,
        umem: &'a Umem,
        least_room: u32,
        descs: &'a mut [Desc],
    ) -> Self {
        Self { memory, umem, geometry: *umem.geometry(), least_room, descs }
    }

    /// Bytes in the packet, over all of its frames.
    #[inline]
    pub fn len(&self) -> usize {
        length(self.descs)
    }

    /// Whether there are none, as in a frame just allocated. Such a packet is never sent.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first frame's bytes, where the headers are: the whole packet unless it is larger than a
    /// chunk.
    #[inline]
    pub fn head(&self) -> &[u8] {
        // SAFETY: our batch's descriptor, borrowed with self.
        unsafe { bytes(self.memory, &self.descs[0]) }
    }

    /// As [`head`](Self::head), to change.
    #[inline]
    pub fn head_mut(&mut self) -> &mut [u8] {
        // SAFETY: our batch's descriptor, borrowed exclusively with self.
        unsafe { bytes_mut(self.memory, &mut self.descs[0]) }
    }

    /// As [`Packet::addr`].
    #[inline]
    pub fn addr(&self) -> u64 {
        self.descs[0].addr
    }

    /// As [`Packet::metadata`], as long as the front has not been moved.
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias = "bpf_xdp_adjust_meta")]
    pub fn metadata<T: Pod>(&self) -> Result<T, NoRoom> {
        metadata(self.memory, self.geometry(), &self.descs[0])
    }

    /// The bytes of each frame.
    #[inline]
    pub fn frames(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let memory = self.memory;
        // SAFETY: our batch's descriptors, borrowed with self.
        self.descs.iter().map(move |desc| unsafe { bytes(memory, desc) })
    }

    /// As [`frames`](Self::frames), to change.
    #[inline]
    pub fn frames_mut(&mut self) -> impl ExactSizeIterator<Item = &mut [u8]> {
        let memory = self.memory;
        // SAFETY: our batch's descriptors, borrowed exclusively with self; each is in a chunk of its
        // own.
        self.descs.iter_mut().map(move |desc| unsafe { bytes_mut(memory, desc) })
    }

    /// The longest this packet can become by [`set_len`](Self::set_len).
    #[inline]
    pub fn max_len(&self) -> usize {
        let last = self.descs.len() - 1;
        length(&self.descs[..last]) + self.geometry.room(self.descs[last].addr) as usize
    }

    /// Makes the packet `len` bytes long, by moving the end of its last frame. Bytes that appear are
    /// what the chunk happened to hold.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] if the chunk ends before, or if the packet's last frame begins after `len`; the packet
    /// is as it was.
    #[inline]
    pub fn set_len(&mut self, len: usize) -> Result<(), NoRoom> {
        // Known for all packets of a batch at once, as a rule.
        if let ([frame], Ok(new)) = (&mut *self.descs, u32::try_from(len)) {
            if new <= self.least_room {
                frame.len = new;
                return Ok(());
            }
        }
        set_end(self.umem.geometry(), self.descs, len)
    }

    /// Takes `count` bytes off the front: a header that is no longer wanted.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] if the first frame has fewer; the packet is as it was.
    #[inline]
    pub fn trim_front(&mut self, count: usize) -> Result<(), NoRoom> {
        let geometry = self.geometry;
        let head = &mut self.descs[0];
        // One past a chunk's end is the next chunk's first byte: a frame that fills its chunk to the
        // end keeps its last byte.
        let fills = geometry.offset(head.addr) + head.len == geometry.chunk_bytes();
        let possible = (head.len - u32::from(fills && head.len > 0)) as usize;
        if count > possible {
            return Err(NoRoom { asked: count, possible });
        }
        head.addr += count as u64;
        head.len -= narrow(count);
        self.least_room = 0;
        Ok(())
    }

    /// Puts `count` bytes before the front, out of the headroom: a header to come. They are what the
    /// chunk happened to hold. A received packet has at least 256 bytes and the
    /// [headroom](super::Umem::headroom) before it.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] if the chunk begins before, or its area for metadata ends before; the packet is as it was.
    #[inline]
    pub fn grow_front(&mut self, count: usize) -> Result<(), NoRoom> {
        let geometry = self.geometry;
        let head = &mut self.descs[0];
        // Never into the metadata of a packet to send.
        let possible = geometry.offset(head.addr).saturating_sub(geometry.least_offset()) as usize;
        if count > possible {
            return Err(NoRoom { asked: count, possible });
        }
        head.addr -= count as u64;
        head.len += narrow(count);
        Ok(())
    }

    /// Asks the kernel or the device for something when this packet is sent, instead of what was asked
    /// before. Offsets count from the packet's first byte at that time.
    ///
    /// A packet that has become too short for its checksum by then is not sent, and counted as
    /// [`tx_refused`](crate::Statistics::tx_refused).
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) on a UMEM without
    /// [`tx_metadata`](super::UmemConfig::tx_metadata), [`InvalidInput`](ErrorKind::InvalidInput) for a
    /// checksum outside the packet's first frame. What was asked before stays.
    #[doc(alias = "XDP_TX_METADATA")]
    pub fn request(&mut self, request: TxRequest) -> Result<()> {
        let Some(requests) = self.umem.requests() else {
            let reason = "the UMEM has no room for metadata before packets";
            return Err(Error::new(Step::Send, ErrorKind::Unsupported, reason)
                .hint("make it with `UmemConfig::tx_metadata`"));
        };
        let (least, len) = (request.least_len(), self.head().len());
        if least > len {
            return Err(Error::invalid(format!(
                "a checksum field that ends at byte {least} of a packet whose first frame has {len}"
            ))
            .hint("write the packet first"));
        }
        let head = &mut self.descs[0];
        requests.set(self.umem.geometry().chunk(head.addr), &request);
        head.options |= XDP_TX_METADATA;
        Ok(())
    }

    /// Computes the Internet checksum over everything from byte `start` to the packet's end, over all
    /// frames, and stores it `offset` bytes after `start`, in the first frame: what
    /// [`TxRequest::checksum`] asks of others. What is there before is added: the sum of the
    /// [pseudo-header](super::pseudo_header), or zero.
    ///
    /// ```
    /// # let umem = xskit::UmemConfig::new(8).build()?;
    /// # let mut batch = umem.batch(1);
    /// # batch.alloc(1);
    /// # let mut packet = batch.packets_mut().next().unwrap();
    /// // The header of an IPv4 packet, its checksum at byte 10.
    /// let mut header = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    /// packet.write(&header)?;
    /// packet.fill_checksum(0, 10)?;
    /// assert_eq!(packet.head()[10..12], [0x66, 0xd7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`NoRoom`] if the field is not in the first frame; the packet is as it was.
    pub fn fill_checksum(&mut self, start: usize, offset: usize) -> Result<(), NoRoom> {
        let possible = self.head().len();
        let at = start.saturating_add(offset);
        if at.saturating_add(2) > possible {
            return Err(NoRoom { asked: at.saturating_add(2), possible });
        }
        let mut sum = 0;
        let mut odd = false;
        for (number, frame) in self.frames().enumerate() {
            let bytes = if number == 0 { &frame[start..] } else { frame };
            sum = checksum::add(sum, bytes, odd);
            odd ^= bytes.len() % 2 == 1;
        }
        // Zero means that there is none.
        let sum = match !checksum::fold(sum) {
            0 => u16::MAX,
            sum => sum,
        };
        self.head_mut()[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        Ok(())
    }

    /// Whether the kernel takes it, as far as metadata is concerned.
    pub(super) fn is_good(&self) -> bool {
        self.umem.requests().is_none_or(|requests| {
            self.descs.iter().all(|desc| requests.is_good(self.geometry(), desc))
        })
    }

    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Makes these bytes the packet's content, and their number its length.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] if they do not fit its frame; the packet is as it was.
    #[inline]
    pub fn write(&mut self, content: &[u8]) -> Result<(), NoRoom> {
        if self.descs.len() == 1 {
            self.set_len(content.len())?;
            self.head_mut().copy_from_slice(content);
            return Ok(());
        }
        let possible = self.max_len();
        if content.len() != self.len() {
            self.set_len(content.len()).map_err(|_| NoRoom { asked: content.len(), possible })?;
        }
        let mut rest = content;
        for frame in self.frames_mut() {
            let (part, after) = rest.split_at(frame.len());
            frame.copy_from_slice(part);
            rest = after;
        }
        Ok(())
    }
}

/// As [`PacketMut::set_len`], by a look at where the last frame's chunk ends. Without the packet, which can
/// stay in registers where this is not called.
#[inline(never)]
fn set_end(geometry: &Geometry, descs: &mut [Desc], len: usize) -> Result<(), NoRoom> {
    let Some((last, others)) = descs.split_last_mut() else {
        unreachable!("a packet has a frame");
    };
    let (before, room) = (length(others), geometry.room(last.addr));
    let new = len.checked_sub(before).and_then(|len| u32::try_from(len).ok());
    let Some(new) = new.filter(|len| *len <= room) else {
        return Err(NoRoom { asked: len, possible: before + room as usize });
    };
    last.len = new;
    Ok(())
}

/// A length that a chunk bounds.
#[inline]
fn narrow(len: usize) -> u32 {
    u32::try_from(len).expect("a chunk's bytes fit a u32")
}

impl fmt::Debug for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packet").field("len", &self.len()).field("head", &self.head()).finish()
    }
}

impl fmt::Debug for PacketMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketMut").field("len", &self.len()).field("head", &self.head()).finish()
    }
}

/// How many of these descriptors make up the first packet. An unfinished packet ends with them.
#[inline(never)]
pub(super) fn first_packet(descs: &[Desc]) -> usize {
    let continued = descs.iter().take_while(|desc| desc.options & XDP_PKT_CONTD != 0).count();
    descs.len().min(continued + 1)
}

/// The packets of a batch, in order.
#[derive(Debug)]
pub(super) struct Packets<'a> {
    memory: NonNull<u8>,
    geometry: &'a Geometry,
    /// Whether a packet may have several frames: asked of the batch, not of each packet.
    several: bool,
    rest: &'a [Desc],
}

impl<'a> Packets<'a> {
    #[inline]
    pub(super) fn of(batch: &'a Batch) -> Self {
        let (memory, geometry) = (batch.memory(), batch.umem().geometry());
        Self { memory, geometry, several: batch.multi_buffer(), rest: batch.descs() }
    }
}

impl<'a> Iterator for Packets<'a> {
    type Item = Packet<'a>;

    #[inline]
    fn next(&mut self) -> Option<Packet<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let count = if self.several { first_packet(self.rest) } else { 1 };
        let (descs, rest) = self.rest.split_at(count);
        self.rest = rest;
        Some(Packet { memory: self.memory, geometry: self.geometry, descs })
    }
}

/// The packets of a batch, in order, to change.
pub(super) struct PacketsMut<'a> {
    memory: NonNull<u8>,
    umem: &'a Umem,
    geometry: Geometry,
    /// As in [`Packets`].
    several: bool,
    /// As in [`PacketMut`].
    least_room: u32,
    rest: &'a mut [Desc],
}

impl<'a> PacketsMut<'a> {
    #[inline]
    pub(super) fn new(
        memory: NonNull<u8>,
        umem: &'a Umem,
        several: bool,
        least_room: u32,
        rest: &'a mut [Desc],
    ) -> Self {
        Self { memory, umem, geometry: *umem.geometry(), several, least_room, rest }
    }
}

impl<'a> Iterator for PacketsMut<'a> {
    type Item = PacketMut<'a>;

    #[inline]
    fn next(&mut self) -> Option<PacketMut<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let rest = mem::take(&mut self.rest);
        let count = if self.several { first_packet(rest) } else { 1 };
        let (descs, rest) = rest.split_at_mut(count);
        self.rest = rest;
        let Self { memory, umem, geometry, least_room, .. } = *self;
        Some(PacketMut { memory, umem, geometry, least_room, descs })
    }
}
