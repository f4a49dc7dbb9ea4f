//! The kernel's side of the rings over plain memory, for tests without a kernel.
//!
//! [`socket`] gives a [`Socket`] like any other and the [`Kernel`] behind it, which does what it is told:
//! deliver a packet, send some of what lies in the TX ring, sleep, refuse a call, take the link down.
//! Test your own packet code on it as any user. Above the rings nothing is faked: batches, checks,
//! refill, accounts and waiting are those of a real socket.
#![allow(unsafe_code, reason = "it plays the kernel, which reads and writes frames by address")]

mod memory;

use std::{
    collections::VecDeque,
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::eventfd::{EfdFlags, EventFd},
    unistd::{read, write},
};

use crate::{
    Interest, Result, Socket, SocketConfig, Step,
    error::Error,
    ring::{Consumer, Desc, Producer, RingMemory, RingSize},
    sync::{Arc, AtomicU32, Condvar, Mutex, MutexGuard, Ordering, PoisonError, lock},
    sys::uapi::{XDP_PKT_CONTD, XDP_TX_METADATA, XdpStatistics},
    umem::{Umem, at, to_u32},
};

/// A socket on the fake kernel, and the kernel behind it.
///
/// # Errors
///
/// As [`Socket::open`], as far as memory is concerned.
pub fn socket(umem: &Umem, config: &SocketConfig) -> Result<(Socket, Kernel)> {
    socket_from(umem, config, 0)
}

/// As [`socket`], with all ring indices starting at `first`: near `u32::MAX`, they soon wrap.
///
/// # Errors
///
/// As [`socket`].
pub fn socket_from(umem: &Umem, config: &SocketConfig, first: u32) -> Result<(Socket, Kernel)> {
    let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
        .map_err(|errno| Error::os(Step::OpenSocket, "no eventfd for the fake kernel", errno))?;
    let rx = config.rx_size().map(|size| memory::ring::<Desc>(size, first));
    let tx = config.tx_size().map(|size| memory::ring::<Desc>(size, first));
    let fill = memory::ring::<u64>(config.fill_size(), first);
    let completion = memory::ring::<u64>(config.completion_size(), first);
    let rings = Rings {
        rx: rx.as_ref().map(producer),
        tx: tx.as_ref().map(consumer),
        fill: consumer(&fill),
        completion: producer(&completion),
        umem: umem.clone(),
        multi_buffer: config.is_multi_buffer(),
        metadata: Vec::new(),
        stamped: 0,
        flying: VecDeque::new(),
        statistics: XdpStatistics::default(),
        link: Ok(()),
        refusals: VecDeque::new(),
        on_kick: None,
        sent: Vec::new(),
        kicks: Kicks::default(),
    };
    let kernel = Kernel(Arc::new(Shared {
        rings: Mutex::new(rings),
        number: NUMBERS.fetch_add(1, Ordering::Relaxed),
        changed: Condvar::default(),
        event: Arc::new(event.into()),
    }));
    // As the kernel does: the first packets to send always need a call.
    kernel.set_needs_wakeup_tx(true);
    let (rx, tx) = (rx.as_ref().map(consumer), tx.as_ref().map(producer));
    let rings = (rx, tx, producer(&fill), consumer(&completion));
    let socket = Socket::on_fake(umem, config, rings, kernel.clone());
    Ok((socket, kernel))
}

fn producer<T: bytemuck::Pod>(ring: &RingMemory<T>) -> Producer<T> {
    // SAFETY: `socket_from` makes one producer and one consumer per ring.
    unsafe { Producer::new(ring.clone()) }
}

fn consumer<T: bytemuck::Pod>(ring: &RingMemory<T>) -> Consumer<T> {
    // SAFETY: as above.
    unsafe { Consumer::new(ring.clone()) }
}

/// The number of the next kernel.
static NUMBERS: AtomicU32 = AtomicU32::new(0);

/// What calls say once the interface was deleted.
const GONE: Errno = Errno::ENXIO;

/// The kernel behind a fake socket: a handle, for any thread.
#[derive(Clone)]
pub struct Kernel(Arc<Shared>);

struct Shared {
    rings: Mutex<Rings>,
    /// Its own, as an interface's: what one kernel lets go of, another may still hold.
    number: u32,
    /// Wakes whoever waits in `poll`: two halves may wait at once, each for its own.
    changed: Condvar,
    /// An eventfd; wakes whoever polls it.
    event: Arc<OwnedFd>,
}

struct Rings {
    rx: Option<Producer<Desc>>,
    tx: Option<Consumer<Desc>>,
    fill: Consumer<u64>,
    completion: Producer<u64>,
    umem: Umem,
    multi_buffer: bool,
    /// What lies before the packet that is being delivered.
    metadata: Vec<u8>,
    /// Packets that got a timestamp: the fake kernel's clock.
    stamped: u64,
    /// Frames taken from TX and not completed yet.
    flying: VecDeque<u64>,
    statistics: XdpStatistics,
    link: Result<(), Errno>,
    /// What the next calls to send fail with.
    refusals: VecDeque<Errno>,
    /// Packets that a call to send takes, if it takes any by itself.
    on_kick: Option<usize>,
    sent: Vec<Vec<u8>>,
    kicks: Kicks,
}

/// How often the fake kernel was called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kicks {
    /// Calls to look at the Fill ring, or to ask for the link.
    pub rx: u64,
    /// Calls to look at the TX ring.
    pub tx: u64,
    /// Calls of `poll`.
    pub poll: u64,
}

/// How the link of a fake socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// It works.
    Up,
    /// The interface is down.
    Down,
    /// The interface was deleted. It does not come back.
    Gone,
}

impl Kernel {
    /// What an interface has its index for.
    pub(crate) fn number(&self) -> u32 {
        self.0.number
    }

    fn rings(&self) -> MutexGuard<'_, Rings> {
        lock(&self.0.rings)
    }

    fn wake(&self) {
        // Refused only by a counter at its end, which is readable all the same.
        write(&self.0.event, &1_u64.to_ne_bytes()).ok();
        self.0.changed.notify_all();
    }

    /// Receives a packet into a frame from the Fill ring, or with multi-buffer into as many as it takes;
    /// whether there were frames, room in them and in the RX ring. What is dropped is counted as the kernel
    /// counts it in copy mode.
    pub fn deliver(&self, packet: &[u8]) -> bool {
        let delivered = self.rings().deliver(packet, None);
        self.wake();
        delivered
    }

    /// As [`deliver`](Self::deliver), with this before the packet, as an XDP program would leave it with
    /// `bpf_xdp_adjust_meta`.
    ///
    /// # Panics
    ///
    /// If it has not the length that the UMEM was [configured](crate::UmemConfig::rx_metadata) for.
    pub fn deliver_with_metadata(&self, metadata: &[u8], packet: &[u8]) -> bool {
        let mut rings = self.rings();
        assert_eq!(metadata.len(), rings.umem.geometry().rx_metadata() as usize, "its length");
        rings.metadata = metadata.to_vec();
        let delivered = rings.deliver(packet, None);
        rings.metadata.clear();
        drop(rings);
        self.wake();
        delivered
    }

    /// As [`deliver`](Self::deliver), but with a descriptor that makes no sense in front of the packet's
    /// frame of that number, as a broken driver might do: a part of the same packet.
    ///
    /// # Panics
    ///
    /// If it lies in a frame: which one a packet is in, the kernel is trusted for.
    pub fn deliver_broken(&self, packet: &[u8], at: usize, desc: Desc) -> bool {
        self.assert_nonsense(desc);
        let desc = Desc { options: XDP_PKT_CONTD, ..desc };
        let delivered = self.rings().deliver(packet, Some((at, desc)));
        self.wake();
        delivered
    }

    /// Puts a descriptor that makes no sense into the RX ring, as a broken driver might do; whether there
    /// was room.
    ///
    /// # Panics
    ///
    /// If it lies in a frame: which one a packet is in, the kernel is trusted for.
    pub fn deliver_nonsense(&self, desc: Desc) -> bool {
        self.assert_nonsense(desc);
        let delivered = self.rings().post(desc);
        self.wake();
        delivered
    }

    fn assert_nonsense(&self, desc: Desc) {
        let sense = self.rings().umem.geometry().holds_packet(desc.addr, desc.len);
        assert!(!sense, "{desc:?} lies in a frame");
    }

    /// Puts an address that makes no sense into the Completion ring, as some kernels do after an invalid
    /// descriptor; whether there was room.
    ///
    /// # Panics
    ///
    /// If it lies in the UMEM: which frame was sent, the kernel is trusted for.
    pub fn complete_nonsense(&self, address: u64) -> bool {
        let sense = self.rings().umem.geometry().holds(address);
        assert!(!sense, "address {address:#x} lies in the UMEM");
        self.rings().complete(address)
    }

    /// Takes up to `most` packets from the TX ring and completes their frames; returns the packets.
    pub fn transmit(&self, most: usize) -> Vec<Vec<u8>> {
        let (packets, frames) = self.rings().take(most);
        self.complete(frames);
        packets
    }

    /// Takes up to `most` packets from the TX ring; their frames stay with the kernel.
    pub fn take(&self, most: usize) -> Vec<Vec<u8>> {
        let (packets, _) = self.rings().take(most);
        self.wake();
        packets
    }

    /// Completes up to `most` frames that were [taken](Self::take), in order; returns how many there was
    /// room for.
    pub fn complete(&self, most: usize) -> usize {
        let completed = self.rings().complete_flying(most);
        self.wake();
        completed
    }

    /// Lets each call to send take and complete up to `most` packets, as copy mode does. They are kept
    /// for [`sent`](Self::sent).
    pub fn transmit_on_kick(&self, most: usize) {
        self.rings().on_kick = Some(most);
    }

    /// What calls to send took since this was last asked.
    pub fn sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.rings().sent)
    }

    /// Makes the next call to send fail. With `EBUSY` the first packet in the TX ring is dropped and
    /// completed, as the kernel does in copy mode.
    pub fn refuse_kick(&self, errno: Errno) {
        self.rings().refusals.push_back(errno);
    }

    /// Sleeps, or wakes up, as far as the TX ring is concerned.
    pub fn set_needs_wakeup_tx(&self, sleeps: bool) {
        if let Some(tx) = &self.rings().tx {
            tx.indices().set_needs_wakeup(sleeps);
        }
    }

    /// Sleeps, or wakes up, as far as the Fill ring is concerned.
    pub fn set_needs_wakeup_rx(&self, sleeps: bool) {
        self.rings().fill.indices().set_needs_wakeup(sleeps);
    }

    /// Takes the link down or up, or away for good: from then on this kernel reaches no frame any more. As
    /// with the real one, nobody who waits is told.
    pub fn set_link(&self, link: Link) {
        let mut rings = self.rings();
        if rings.is_gone() {
            return;
        }
        rings.link = match link {
            Link::Up => Ok(()),
            Link::Down => Err(Errno::ENETDOWN),
            Link::Gone => Err(GONE),
        };
    }

    /// How often it was called.
    pub fn kicks(&self) -> Kicks {
        self.rings().kicks
    }

    /// Frames that lie in the Fill ring.
    pub fn fill_level(&self) -> usize {
        self.rings().fill.indices().level() as usize
    }

    /// Descriptors that lie in the TX ring.
    pub fn tx_level(&self) -> usize {
        self.rings().tx.as_ref().map_or(0, |tx| tx.indices().level() as usize)
    }

    pub(crate) fn kick_tx(&self) -> io::Result<()> {
        let mut rings = self.rings();
        rings.kicks.tx += 1;
        rings.link?;
        if let Some(errno) = rings.refusals.pop_front() {
            if errno == Errno::EBUSY {
                let (_, frames) = rings.take(1);
                rings.complete_flying(frames);
            }
            return Err(errno.into());
        }
        let Some(most) = rings.on_kick else { return Ok(()) };
        let (packets, frames) = rings.take(most);
        rings.complete_flying(frames);
        rings.sent.extend(packets);
        self.wake();
        let left = rings.tx.as_ref().is_some_and(|tx| tx.indices().level() > 0);
        if left { Err(Errno::EAGAIN.into()) } else { Ok(()) }
    }

    pub(crate) fn kick_rx(&self) -> io::Result<()> {
        let mut rings = self.rings();
        rings.kicks.rx += 1;
        rings.link.map_err(io::Error::from)
    }

    pub(crate) fn statistics(&self) -> XdpStatistics {
        self.rings().statistics
    }

    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn shared_fd(&self) -> &Arc<OwnedFd> {
        &self.0.event
    }

    /// As the kernel's `poll` on a socket: level-triggered, silent about a dead link.
    pub(crate) fn poll(&self, interest: Interest, timeout: Duration) -> bool {
        let mut rings = self.rings();
        rings.kicks.poll += 1;
        // What was signalled before the look at the rings needs no second look.
        read(&self.0.event, &mut [0; 8]).ok();
        let idle = |rings: &mut Rings| !rings.ready(interest);
        let waited = self.0.changed.wait_timeout_while(rings, timeout, idle);
        let (rings, _) = waited.unwrap_or_else(PoisonError::into_inner);
        rings.ready(interest)
    }
}

impl Rings {
    /// Whether it has let go of the frames: they may be anybody's by now.
    fn is_gone(&self) -> bool {
        self.link == Err(GONE)
    }

    fn ready(&self, interest: Interest) -> bool {
        let readable = self.rx.as_ref().is_some_and(|rx| rx.indices().level() > 0);
        let writable =
            self.tx.as_ref().is_some_and(|tx| tx.indices().level() <= tx.indices().size() / 2);
        interest.is_readable() && readable || interest.is_writable() && writable
    }

    fn deliver(&mut self, packet: &[u8], nonsense: Option<(usize, Desc)>) -> bool {
        let gone = self.is_gone();
        let Some(rx) = self.rx.as_mut().filter(|_| !gone) else { return false };
        let most = self.umem.max_packet_len() as usize;
        let count = packet.len().div_ceil(most).max(1);
        let slots = to_u32(count + usize::from(nonsense.is_some()));
        if rx.free(slots) < slots {
            self.statistics.rx_ring_full += 1;
            return false;
        }
        if count > 1 && !self.multi_buffer {
            self.statistics.rx_dropped += 1;
            return false;
        }
        let frames = self.fill.peek(to_u32(count));
        if frames.len() < count {
            self.statistics.rx_dropped += 1;
            self.statistics.rx_fill_ring_empty_descs += 1;
            return false;
        }
        let geometry = *self.umem.geometry();
        let addresses: Vec<u64> = frames.iter().copied().collect();
        frames.release();
        if !addresses.iter().all(|address| geometry.holds(*address)) {
            self.statistics.rx_invalid_descs += 1;
            return false;
        }
        let room = geometry.chunk_bytes() - geometry.max_received();
        let first = geometry.base(addresses[0]) + u64::from(room);
        self.write(first - self.metadata.len() as u64, &self.metadata);
        let mut rest = packet;
        let mut descs = Vec::with_capacity(count + 1);
        for address in addresses {
            let (part, after) = rest.split_at(rest.len().min(most));
            rest = after;
            let base = geometry.base(address);
            self.write(base + u64::from(room), part);
            let addr = geometry.received_at(base, room);
            descs.push(Desc { addr, len: to_u32(part.len()), options: XDP_PKT_CONTD });
        }
        if let Some((at, desc)) = nonsense {
            descs.insert(at.min(count - 1), desc);
        }
        if let Some(last) = descs.last_mut() {
            last.options = 0;
        }
        descs.into_iter().all(|desc| self.post(desc))
    }

    fn post(&mut self, desc: Desc) -> bool {
        let Some(rx) = &mut self.rx else { return false };
        let mut slot = rx.reserve_up_to(1);
        // SAFETY: we play the kernel, which gives the frame away here; nonsense leads to none.
        unsafe { slot.push(desc) };
        slot.submit() == 1
    }

    /// Takes up to that many packets; returns them, and how many frames they had. A descriptor that the
    /// kernel would refuse voids its packet.
    fn take(&mut self, most: usize) -> (Vec<Vec<u8>>, usize) {
        let gone = self.is_gone();
        let mut packets = Vec::new();
        let mut frames = 0;
        while packets.len() < most {
            let Some(tx) = self.tx.as_mut().filter(|_| !gone) else { break };
            let taken = tx.peek(u32::MAX);
            let more = |desc: &&Desc| desc.options & XDP_PKT_CONTD != 0;
            let count = taken.iter().take_while(more).count() + 1;
            // An unfinished packet waits for its end.
            let descs: Vec<Desc> = if count > taken.len() {
                Vec::new()
            } else {
                taken.iter().take(count).copied().collect()
            };
            taken.release_first(descs.len());
            if descs.is_empty() {
                break;
            }
            let geometry = *self.umem.geometry();
            let several = if self.multi_buffer { XDP_PKT_CONTD } else { 0 };
            let metadata = if self.umem.has_tx_metadata() { XDP_TX_METADATA } else { 0 };
            let options = several | metadata;
            let valid = |desc: &Desc| {
                desc.len > 0
                    && geometry.holds_packet(desc.addr, desc.len)
                    && geometry.offset(geometry.to_plain(desc.addr)) >= geometry.tx_metadata()
                    && desc.options & !options == 0
            };
            if !descs.iter().all(valid) {
                self.statistics.tx_invalid_descs += descs.len() as u64;
                continue;
            }
            self.stamp(descs[0]);
            packets.push(descs.iter().flat_map(|desc| self.read(*desc)).collect());
            frames += descs.len();
            self.flying.extend(descs.iter().map(|desc| desc.addr));
        }
        (packets, frames)
    }

    /// Writes the time at which a packet is sent, where that is asked: the number of the packet.
    fn stamp(&mut self, desc: Desc) {
        if desc.options & XDP_TX_METADATA == 0 {
            return;
        }
        let len = self.umem.geometry().tx_metadata() as usize;
        let addr = self.umem.geometry().to_plain(desc.addr) - len as u64;
        let metadata = self.read(Desc { addr, len: to_u32(len), options: 0 });
        if metadata[0] & 1 != 0 {
            self.stamped += 1;
            self.write(addr + 8, &self.stamped.to_ne_bytes());
        }
    }

    fn complete_flying(&mut self, most: usize) -> usize {
        let mut completed = 0;
        while completed < most && !self.is_gone() {
            let Some(address) = self.flying.front().copied() else { break };
            if !self.complete(address) {
                break;
            }
            self.flying.pop_front();
            completed += 1;
        }
        completed
    }

    fn complete(&mut self, address: u64) -> bool {
        let mut slot = self.completion.reserve_up_to(1);
        // SAFETY: as in `post`.
        unsafe { slot.push(address) };
        slot.submit() == 1
    }

    fn write(&self, address: u64, packet: &[u8]) {
        let memory = self.umem.memory().start();
        // SAFETY: the frame came out of the Fill ring, so that it is the kernel's, which we play; the
        // part of a packet fits the chunk, as does its metadata before it, and the address lies in the
        // memory, by `deliver`.
        unsafe {
            let to = at(memory, address).as_ptr();
            ptr::copy_nonoverlapping(packet.as_ptr(), to, packet.len());
        }
    }

    fn read(&self, desc: Desc) -> Vec<u8> {
        let memory = self.umem.memory().start();
        let mut packet = vec![0; desc.len as usize];
        // SAFETY: the frame came out of the TX ring, so that it is the kernel's, which we play; the
        // packet lies in a chunk by the check in `take`.
        unsafe {
            let from = at(memory, desc.addr).as_ptr();
            ptr::copy_nonoverlapping(from, packet.as_mut_ptr(), packet.len());
        }
        packet
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("kicks", &self.kicks()).finish_non_exhaustive()
    }
}
