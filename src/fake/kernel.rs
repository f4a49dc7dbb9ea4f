//! The handle by which a test tells the fake kernel what to do.

use std::{fmt, os::fd::OwnedFd};

use nix::{
    errno::Errno,
    sys::eventfd::{EfdFlags, EventFd},
    unistd::write,
};

use super::{
    Call, Kicks, memory,
    receive::Incoming,
    socket_on,
    state::{GONE, Member, Queue, State},
};
use crate::{
    Result, Socket, SocketConfig, Step,
    error::Error,
    ring::{Consumer, Desc, Producer},
    sync::{Arc, MutexGuard, lock},
    umem::{DeviceQueue, Umem},
};

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

/// The kernel behind a fake socket: a handle, for any thread.
///
/// It does nothing by itself. Packets come in when it is told to [`deliver`](Self::deliver) them, and those
/// in the TX ring stay there until it is told to [`transmit`](Self::transmit) them, at once or on each
/// call ([`transmit_on_kick`](Self::transmit_on_kick)): short batches, no progress and full rings are what it
/// is not told to do.
#[derive(Clone)]
pub struct Kernel {
    pub(super) queue: Arc<Queue>,
    /// Which of the queue's sockets it is for.
    pub(super) member: usize,
    /// An eventfd; wakes whoever polls it.
    pub(super) event: Arc<OwnedFd>,
}

/// A socket's own two rings, as it holds them.
type RxTx = (Option<Consumer<Desc>>, Option<Producer<Desc>>);

impl Kernel {
    /// Adds a socket to a queue: its two rings, and the kernel for it.
    pub(super) fn join(queue: &Arc<Queue>, config: &SocketConfig) -> Result<(RxTx, Arc<Self>)> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(
            |errno| Error::os(Step::OpenSocket, "no eventfd for the fake kernel", errno),
        )?;
        let rx = config.rx_size().map(|size| memory::ring::<Desc>(size, queue.first));
        let tx = config.tx_size().map(|size| memory::ring::<Desc>(size, queue.first));
        let (rx_producer, rx_consumer) = rx.as_ref().map(memory::ends).unzip();
        let (tx_producer, tx_consumer) = tx.as_ref().map(memory::ends).unzip();
        let event: Arc<OwnedFd> = Arc::new(event.into());
        let mut state = lock(&queue.state);
        let member = state.members.len();
        state.members.push(Member::new(rx_producer, tx_consumer, event.clone()));
        let kernel = Arc::new(Self { queue: queue.clone(), member, event });
        state.members[member].open = Arc::downgrade(&kernel);
        drop(state);
        Ok(((rx_consumer, tx_producer), kernel))
    }

    /// A further socket on the same queue.
    pub(crate) fn share(&self, config: &SocketConfig) -> Result<(RxTx, Arc<Self>)> {
        Self::join(&self.queue, config)
    }

    /// What it is bound to, which no interface is.
    pub(crate) fn place(&self) -> DeviceQueue {
        DeviceQueue { namespace: None, ifindex: self.queue.number, queue: 0 }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.queue.state)
    }

    pub(super) fn wake(&self) {
        // Refused only by a counter at its end, which is readable all the same.
        write(&self.event, &1_u64.to_ne_bytes()).ok();
        self.queue.changed.notify_all();
    }

    fn deliver_incoming(&self, incoming: Incoming<'_>) -> bool {
        let delivered = self.state().deliver(self.member, incoming);
        self.wake();
        delivered
    }

    /// Receives a packet into a frame from the Fill ring, or with multi-buffer into as many as it takes;
    /// whether there were frames, room in them and in the RX ring. What is dropped is counted as the kernel
    /// counts it in copy mode.
    pub fn deliver(&self, packet: &[u8]) -> bool {
        self.deliver_incoming(Incoming::new(packet))
    }

    /// As [`deliver`](Self::deliver), up to `count` times in one go; returns how often. It stops where
    /// frames or room in the RX ring end, and drops nothing. Takes packets of one frame alone.
    ///
    /// ```
    /// # use xskit::{SocketConfig, UmemConfig, fake};
    /// # let umem = UmemConfig::new(4096).build()?;
    /// # let (mut socket, kernel) = fake::socket(&umem, &SocketConfig::default())?;
    /// assert_eq!(kernel.deliver_many(b"one of a flood", 1000), 1000);
    /// let mut batch = umem.batch(64);
    /// assert_eq!(socket.recv(&mut batch)?, 64);
    /// socket.send(&mut batch)?;
    /// assert_eq!(kernel.discard(usize::MAX), 64);
    /// # Ok::<(), xskit::Error>(())
    /// ```
    pub fn deliver_many(&self, packet: &[u8], count: usize) -> usize {
        let delivered = self.state().deliver_many(self.member, packet, count);
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
        let expected = self.state().umem.geometry().rx_metadata() as usize;
        assert_eq!(metadata.len(), expected, "its length");
        self.deliver_incoming(Incoming { metadata, ..Incoming::new(packet) })
    }

    /// As [`deliver`](Self::deliver), but with a descriptor that makes no sense in front of the packet's
    /// frame of that number, as a broken driver might do: a part of the same packet.
    ///
    /// # Panics
    ///
    /// If it lies in a frame: which one a packet is in, the kernel is trusted for.
    pub fn deliver_broken(&self, packet: &[u8], at: usize, desc: Desc) -> bool {
        self.assert_nonsense(desc);
        let desc = Desc { options: crate::sys::uapi::XDP_PKT_CONTD, ..desc };
        self.deliver_incoming(Incoming { nonsense: Some((at, desc)), ..Incoming::new(packet) })
    }

    /// Puts a descriptor that makes no sense into the RX ring, as a broken driver might do; whether there
    /// was room.
    ///
    /// # Panics
    ///
    /// If it lies in a frame: which one a packet is in, the kernel is trusted for.
    pub fn deliver_nonsense(&self, desc: Desc) -> bool {
        self.assert_nonsense(desc);
        let delivered = self.state().post_nonsense(self.member, desc);
        self.wake();
        delivered
    }

    fn assert_nonsense(&self, desc: Desc) {
        let sense = self.state().umem.geometry().holds_packet(desc.addr, desc.len);
        assert!(!sense, "{desc:?} lies in a frame");
    }

    /// Delivers a packet when the queue's last socket is being closed, after that has looked at its RX ring
    /// for the last time: one that was just coming in. Its frame is the kernel's for good, as far as the
    /// socket can know. Nothing comes in on a socket whose descriptor was given out, since then nobody waits
    /// for such packets.
    pub fn deliver_at_close(&self, packet: &[u8]) {
        self.state().members[self.member].at_close.push(packet.to_vec());
    }

    /// Puts an address that makes no sense into the Completion ring, as some kernels do after an invalid
    /// descriptor; whether there was room.
    ///
    /// # Panics
    ///
    /// If it lies in a frame, or in a chunk for clones while the kernel has some: which frame was sent, the
    /// kernel is trusted for.
    pub fn complete_nonsense(&self, address: u64) -> bool {
        let mut state = self.state();
        let geometry = *state.umem.geometry();
        let sense = geometry.holds(address) || geometry.holds_clone(address) && state.has_clones();
        assert!(!sense, "address {address:#x} lies in the UMEM");
        state.complete(address)
    }

    /// Takes up to `most` packets from the TX ring and completes their frames; returns the packets.
    pub fn transmit(&self, most: usize) -> Vec<Vec<u8>> {
        let mut state = self.state();
        let (packets, frames) = state.take(self.member, most);
        state.complete_flying(frames);
        drop(state);
        self.wake();
        packets
    }

    /// Takes up to `most` packets from the TX ring; their frames stay with the kernel. As with the real
    /// one, a packet stays where it is while the Completion ring has no room for its frames, counting those
    /// that are still to be completed.
    pub fn take(&self, most: usize) -> Vec<Vec<u8>> {
        let (packets, _) = self.state().take(self.member, most);
        self.wake();
        packets
    }

    /// As [`transmit`](Self::transmit), for frames instead of packets, of which nobody gets a copy; returns
    /// how many were completed.
    pub fn discard(&self, most: usize) -> usize {
        let completed = self.state().discard(self.member, most);
        self.wake();
        completed
    }

    /// Completes up to `most` frames that were [taken](Self::take), in order; returns how many there was
    /// room for.
    pub fn complete(&self, most: usize) -> usize {
        let completed = self.state().complete_flying(most);
        self.wake();
        completed
    }

    /// Lets each call to send take and complete up to `most` packets, as copy mode does. They are kept
    /// for [`sent`](Self::sent).
    pub fn transmit_on_kick(&self, most: usize) {
        self.state().members[self.member].on_kick = Some(most);
    }

    /// What calls to send took since this was last asked.
    pub fn sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.state().members[self.member].sent)
    }

    /// Makes the next such call that no other refusal is for fail with that errno; several in a row for
    /// several calls. Where the link is down or gone, calls fail for that first.
    ///
    /// With `EBUSY` to [`Call::KickTx`] the first packet in the TX ring is dropped and completed, as the
    /// kernel does in copy mode.
    ///
    /// ```
    /// use xskit::{ErrorKind, SocketConfig, UmemConfig, fake};
    ///
    /// let umem = UmemConfig::new(4096).build()?;
    /// let (mut socket, kernel) = fake::socket(&umem, &SocketConfig::default())?;
    /// let mut batch = umem.batch(1);
    /// batch.alloc(1);
    /// batch.packets_mut().for_each(|mut packet| packet.write(b"a packet").unwrap());
    /// kernel.refuse(fake::Call::KickTx, libc::ENETUNREACH);
    /// let error = socket.send(&mut batch).unwrap_err();
    /// assert_eq!(error.raw_os_error(), Some(libc::ENETUNREACH));
    /// // The packet is in the TX ring all the same, and the next call sends it.
    /// kernel.transmit_on_kick(8);
    /// socket.send(&mut batch)?;
    /// assert_eq!(kernel.sent(), [b"a packet"]);
    /// # Ok::<(), xskit::Error>(())
    /// ```
    pub fn refuse(&self, call: Call, errno: i32) {
        let mut state = self.state();
        state.members[self.member].refusals.entry(call).or_default().push_back(errno);
    }

    /// Sleeps, or wakes up, as far as the TX ring is concerned.
    pub fn set_needs_wakeup_tx(&self, sleeps: bool) {
        if let Some(tx) = &self.state().members[self.member].tx {
            tx.indices().set_needs_wakeup(sleeps);
        }
    }

    /// Sleeps, or wakes up, as far as the Fill ring is concerned.
    pub fn set_needs_wakeup_rx(&self, sleeps: bool) {
        self.state().fill.indices().set_needs_wakeup(sleeps);
    }

    /// Takes the link down or up, or away for good: from then on this kernel reaches no frame any more. As
    /// with the real one, nobody who waits is told.
    pub fn set_link(&self, link: Link) {
        let mut state = self.state();
        if state.is_gone() {
            return;
        }
        state.link = match link {
            Link::Up => Ok(()),
            Link::Down => Err(Errno::ENETDOWN),
            Link::Gone => Err(GONE),
        };
    }

    /// The kernels of all sockets that were opened on the queue, the first one's first: how to get at that of
    /// a socket from [`share_queue`](Socket::share_queue).
    pub fn of_queue(&self) -> Vec<Self> {
        let events: Vec<_> =
            self.state().members.iter().map(|member| member.event.clone()).collect();
        let kernel = |(member, event)| Self { queue: self.queue.clone(), member, event };
        events.into_iter().enumerate().map(kernel).collect()
    }

    /// Opens a socket on the queue again, after all of its sockets were closed. The real kernel binds a queue
    /// only when it has let go of all frames that the closed sockets left with it: so does this one, and
    /// they are free again as far as it is known which they are.
    ///
    /// # Errors
    ///
    /// [`Busy`](crate::ErrorKind::Busy) while one of the queue's sockets is open; otherwise as
    /// [`socket`](super::socket).
    ///
    /// ```
    /// use xskit::{ErrorKind, SocketConfig, UmemConfig, fake};
    ///
    /// let umem = UmemConfig::new(4096).build()?;
    /// let config = SocketConfig::default();
    /// let (socket, kernel) = fake::socket(&umem, &config)?;
    /// assert_eq!(kernel.reopen(&umem, &config).unwrap_err().kind(), ErrorKind::Busy);
    /// drop(socket);
    /// assert!(umem.audit().quarantine > 0);
    /// let (socket, kernel) = kernel.reopen(&umem, &config)?;
    /// assert_eq!(umem.audit().quarantine, 0);
    /// # Ok::<(), xskit::Error>(())
    /// ```
    pub fn reopen(&self, umem: &Umem, config: &SocketConfig) -> Result<(Socket, Self)> {
        self.queue.bind_again(umem, config)
    }

    /// How often it was called.
    pub fn kicks(&self) -> Kicks {
        self.state().members[self.member].kicks
    }

    /// Frames that lie in the Fill ring.
    pub fn fill_level(&self) -> usize {
        self.state().fill.indices().level() as usize
    }

    /// Frames that were [taken](Self::take) from TX rings of the queue and are not completed yet.
    pub fn in_flight(&self) -> usize {
        self.state().flying.len()
    }

    /// Descriptors that lie in the TX ring.
    pub fn tx_level(&self) -> usize {
        let state = self.state();
        state.members[self.member].tx.as_ref().map_or(0, |tx| tx.indices().level() as usize)
    }
}

impl Queue {
    /// Binds the queue, or what has become of it, anew. Its lock is held all the while: of two who try at once
    /// one comes too late.
    fn bind_again(&self, umem: &Umem, config: &SocketConfig) -> Result<(Socket, Kernel)> {
        let mut state = lock(&self.state);
        if let Some(again) = state.again.clone() {
            drop(state);
            return again.bind_again(umem, config);
        }
        if state.is_bound() {
            let busy = "another socket has the queue";
            return Err(Error::os(Step::Bind, busy, Errno::EBUSY).on("fake"));
        }
        state.link = Err(GONE);
        let (socket, kernel) = socket_on(umem, config, self.number, self.first)?;
        state.again = Some(kernel.queue.clone());
        Ok((socket, kernel))
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("kicks", &self.kicks()).finish_non_exhaustive()
    }
}
