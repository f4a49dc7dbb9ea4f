//! AF_PACKET with TPACKET_V3: packets come in blocks of memory that is shared with the kernel, and leave
//! from slots of it.
//!
//! The crates that have it are under the GPL, or only receive and are not kept any more.

use std::{
    ffi::c_void,
    num::NonZeroUsize,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, Result};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::mman::{MapFlags, ProtFlags, mmap, munmap},
};
use xskit_lab::Flow;

use super::{bind_to, frame, packet_socket, set};
use crate::{peer::Place, subject::Cycle, sum::Sum, veth::worker::Work};

/// Bytes of a block, and how many blocks there are for each direction: as much memory as an AF_XDP socket here
/// has for its frames.
const BLOCK: u32 = 1 << 18;
const BLOCKS: u32 = 16;
/// Milliseconds after which the kernel hands over a block that is not full.
const RETIRE: u32 = 1;
/// Bytes of a slot from which a packet leaves.
const SLOT: u32 = 256;
/// Where the packet is in it (`tp_hdrlen - sizeof(struct sockaddr_ll)`).
const DATA: usize = size_of::<libc::tpacket3_hdr>();

/// Packets in and out of blocks.
pub fn blocks(place: &Place, cycle: Cycle, flow: &Flow) -> Result<Box<dyn Work>> {
    Ok(Box::new(Blocks::open(place, cycle, flow)?))
}

impl Blocks {
    fn open(place: &Place, cycle: Cycle, flow: &Flow) -> Result<Self> {
        let [rx, tx] = cycle.sides();
        let socket = packet_socket()?;
        set(&socket, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V3 as libc::c_int))?;
        if rx {
            set(&socket, libc::PACKET_RX_RING, &request(BLOCK, RETIRE))?;
        }
        if tx {
            set(&socket, libc::PACKET_TX_RING, &request(SLOT, 0))?;
        }
        let ring = BLOCK as usize * BLOCKS as usize;
        let memory = Memory::map(&socket, ring * (usize::from(rx) + usize::from(tx)))?;
        bind_to(&socket, place.index)?;
        let received = rx.then(|| Received { start: memory.at(0), block: 0, packet: 0, next: 0 });
        // The ring to send from comes after that to receive from.
        let to_send = ToSend { start: memory.at(if rx { ring } else { 0 }), slot: 0 };
        let (frame, batch) = (frame(flow), place.batch);
        Ok(Self {
            socket,
            received,
            to_send,
            cycle,
            batch,
            frame,
            sum: Sum::default(),
            calls: 0,
            _memory: memory,
        })
    }
}

/// A ring of blocks. The kernel wants a frame size, which says something for slots to send from only.
fn request(frame: u32, retire: u32) -> libc::tpacket_req3 {
    libc::tpacket_req3 {
        tp_block_size: BLOCK,
        tp_block_nr: BLOCKS,
        tp_frame_size: frame,
        tp_frame_nr: BLOCK / frame * BLOCKS,
        tp_retire_blk_tov: retire,
        tp_sizeof_priv: 0,
        tp_feature_req_word: 0,
    }
}

/// Both rings of a socket, mapped.
struct Memory {
    start: NonNull<c_void>,
    len: NonZeroUsize,
}

impl Memory {
    fn map(socket: &OwnedFd, len: usize) -> Result<Self> {
        let len = NonZeroUsize::new(len).context("a ring")?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: a new mapping, which overlays nothing.
        let start = unsafe { mmap(None, len, protection, flags, socket, 0)? };
        Ok(Self { start, len })
    }

    /// Where that ring begins: on a page.
    fn at(&self, offset: usize) -> *mut c_void {
        assert!(offset <= self.len.get(), "within the mapping");
        // SAFETY: within the mapping.
        unsafe { self.start.as_ptr().byte_add(offset) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`; whoever has pointers into it is dropped with us.
        if let Err(error) = unsafe { munmap(self.start, self.len.get()) } {
            eprintln!("unmap blocks: {error}");
        }
    }
}

/// Where in the blocks of received packets we are.
struct Received {
    start: *const c_void,
    block: u32,
    /// Of that block: how many packets have been read, and where the next one is.
    packet: u32,
    next: u32,
}

impl Received {
    fn block(&self) -> *const libc::tpacket_block_desc {
        // SAFETY: one of the ring's blocks, which are in the mapping; aligned as its pages.
        unsafe { self.start.byte_add((self.block * BLOCK) as usize).cast() }
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: in the mapping, which outlives us; both sides know it as the hand-over of the block.
        unsafe { &*(&raw const (*self.block()).hdr.bh1.block_status).cast() }
    }

    /// Whether the block is ours.
    fn ready(&self) -> bool {
        self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// The next packet, which stays until the next call. A block of which all have been read is given back.
    fn next(&mut self) -> Option<&[u8]> {
        while self.ready() {
            // SAFETY: the block is ours until it is given back, and the kernel has written all of this; the
            // packets of a block form a list, each with its place relative to the one before.
            unsafe {
                let block = self.block();
                if self.packet < (*block).hdr.bh1.num_pkts {
                    if self.packet == 0 {
                        self.next = (*block).hdr.bh1.offset_to_first_pkt;
                    }
                    let header = block.byte_add(self.next as usize).cast::<libc::tpacket3_hdr>();
                    self.packet += 1;
                    self.next += (*header).tp_next_offset;
                    let data = header.cast::<u8>().add(usize::from((*header).tp_mac));
                    return Some(std::slice::from_raw_parts(data, (*header).tp_snaplen as usize));
                }
            }
            self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.block = (self.block + 1) % BLOCKS;
            self.packet = 0;
        }
        None
    }
}

/// Where in the slots to send from we are.
struct ToSend {
    start: *mut c_void,
    slot: u32,
}

impl ToSend {
    /// Writes a packet into the next slot, unless that is the kernel's.
    fn write(&mut self, packet: &[u8]) -> bool {
        let packet = &packet[..packet.len().min(SLOT as usize - DATA)];
        // SAFETY: one of the ring's slots, which are in the mapping; the status hands it over.
        unsafe {
            let header =
                self.start.byte_add((self.slot * SLOT) as usize).cast::<libc::tpacket3_hdr>();
            let status = &*(&raw const (*header).tp_status).cast::<AtomicU32>();
            if status.load(Ordering::Acquire) != libc::TP_STATUS_AVAILABLE {
                return false;
            }
            ptr::copy_nonoverlapping(packet.as_ptr(), header.cast::<u8>().add(DATA), packet.len());
            (*header).tp_len = packet.len() as u32;
            (*header).tp_next_offset = 0;
            status.store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
        }
        self.slot = (self.slot + 1) % (BLOCK / SLOT * BLOCKS);
        true
    }
}

// SAFETY: its pointers go into the mapping that it owns, and nobody else has any.
unsafe impl Send for Blocks {}

/// A socket with its rings.
struct Blocks {
    socket: OwnedFd,
    received: Option<Received>,
    to_send: ToSend,
    cycle: Cycle,
    batch: u32,
    frame: Vec<u8>,
    /// Of all packets that have come.
    sum: Sum,
    calls: u64,
    _memory: Memory,
}

impl Blocks {
    /// Reads up to a batch of packets, and sends them on if that is the work.
    fn receive(&mut self) -> Result<u32> {
        let received = self.received.as_mut().context("a ring to receive from")?;
        let (mut seen, mut count) = (0, 0);
        while seen < self.batch {
            let Some(packet) = received.next() else { break };
            seen += 1;
            self.sum.add(packet.as_ptr().addr() as u64, packet.len() as u32);
            // Dropped if the kernel has not sent yet what is in the slots.
            let done = self.cycle == Cycle::Receive || self.to_send.write(packet);
            count += u32::from(done);
        }
        if seen == 0 {
            self.wait()?;
        }
        Ok(count)
    }

    /// Until there is a block, or for a millisecond.
    fn wait(&mut self) -> Result<()> {
        self.calls += 1;
        let mut socket = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut socket, PollTimeout::from(1_u8)) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error).context("poll"),
        }
    }

    /// Has everything sent that is in the slots.
    fn kick(&mut self) -> Result<()> {
        self.calls += 1;
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: no memory is passed.
        let result =
            unsafe { libc::sendto(self.socket.as_raw_fd(), ptr::null(), 0, flags, ptr::null(), 0) };
        match Errno::result(result) {
            Ok(_) | Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::EINTR) => Ok(()),
            Err(error) => Err(error).context("send what is in the slots"),
        }
    }
}

impl Work for Blocks {
    fn step(&mut self) -> Result<u32> {
        if self.cycle == Cycle::Transmit {
            let mut count = 0;
            while count < self.batch && self.to_send.write(&self.frame) {
                count += 1;
            }
            self.kick()?;
            return Ok(count);
        }
        let count = self.receive()?;
        if self.cycle == Cycle::Forward && count > 0 {
            self.kick()?;
        }
        Ok(count)
    }

    fn calls(&self) -> u64 {
        self.calls
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use xskit_lab::{Lab, RawPort};

    use super::*;

    /// Packets of these lengths, whole batches and blocks of them.
    const LENGTHS: [usize; 3] = [60, 64, 200];
    const COUNT: usize = 3 * 4000;
    const LIMIT: Duration = Duration::from_secs(10);

    fn open(lab: &Lab, cycle: Cycle) -> Blocks {
        let [receives, sends] = cycle.sides();
        let (interface, index) = (lab.near.name().to_owned(), lab.near.index());
        let place =
            Place { interface, index, queue: 0, frames: 0, ring: 0, receives, sends, batch: 64 };
        lab.enter(|| Blocks::open(&place, cycle, &lab.flow(4242)).unwrap())
    }

    fn packets(lab: &Lab) -> Vec<Vec<u8>> {
        let payload = |number: usize| vec![number as u8; LENGTHS[number % 3] - 42];
        (0..COUNT).map(|number| lab.flow(4242).frame(&payload(number))).collect()
    }

    /// Steps until so many packets have been handled, and sees to it that they end.
    fn work(blocks: &mut Blocks, wanted: usize) {
        let (started, mut count) = (Instant::now(), 0);
        while count < wanted {
            count += blocks.step().unwrap() as usize;
            assert!(started.elapsed() < LIMIT, "{count} of {wanted}");
        }
        assert_eq!(count, wanted);
    }

    fn arrived(far: &mut RawPort, wanted: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while all.len() < wanted {
            let visit = |packet: &[u8]| all.push(packet.to_vec());
            let more = far.recv_each(Duration::from_secs(2), visit).unwrap();
            assert!(more > 0, "{} of {wanted}", all.len());
        }
        all
    }

    #[test]
    fn every_packet_of_every_block_is_seen() {
        let Some(lab) = Lab::for_test() else { return };
        let mut blocks = open(&lab, Cycle::Receive);
        for packets in packets(&lab).chunks(1000) {
            lab.raw().unwrap().send_all(packets).unwrap();
            work(&mut blocks, packets.len());
        }
        let expected = (COUNT * LENGTHS.iter().sum::<usize>() / 3) as u64;
        assert_eq!((blocks.sum.count, blocks.sum.lengths), (COUNT as u64, expected));
    }

    #[test]
    fn packets_leave_from_the_slots() {
        let Some(lab) = Lab::for_test() else { return };
        let mut blocks = open(&lab, Cycle::Transmit);
        let mut far = lab.raw().unwrap();
        // Some times round the ring.
        for _ in 0..100 {
            work(&mut blocks, 64 * 16);
            let expected = frame(&lab.flow(4242));
            assert!(arrived(&mut far, 64 * 16).iter().all(|packet| *packet == expected));
        }
    }

    #[test]
    fn packets_are_forwarded_as_they_came() {
        let Some(lab) = Lab::for_test() else { return };
        let mut blocks = open(&lab, Cycle::Forward);
        let mut far = lab.raw().unwrap();
        for packets in packets(&lab).chunks(1000) {
            far.send_all(packets).unwrap();
            work(&mut blocks, packets.len());
            assert!(arrived(&mut far, packets.len()) == packets);
        }
    }
}
