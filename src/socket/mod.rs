//! One (interface, queue) bound: receiving, sending and waiting.
//!
//! # Who shares what
//!
//! ```text
//! Umem ── memory, registered with the kernel once per mode by the first socket of that mode
//!  │
//!  ├─ eth0 queue 0 ── Fill + Completion, made on the queue's first socket
//!  │    ├─ Socket       RX, TX    XDP_UMEM_REG, bind(XDP_COPY or XDP_ZEROCOPY, XDP_USE_NEED_WAKEUP)
//!  │    └─ Socket       RX, TX    share_queue: bind(XDP_SHARED_UMEM), no rings of the queue, no flags
//!  │
//!  ├─ eth0 queue 1 ── Fill + Completion
//!  │    └─ Socket       RX, TX    bind(XDP_SHARED_UMEM): another queue, so a pair of its own
//!  │
//!  └─ eth1 queue 0 ── Fill + Completion
//!       └─ Socket       RX, TX    bind(XDP_SHARED_UMEM), or XDP_UMEM_REG anew for another mode
//! ```
//!
//! [`Socket::open`] finds the way by itself: it shares the registration of a living socket of the same
//! mode, and registers the memory where there is none (which the kernel charges to `RLIMIT_MEMLOCK`
//! once more). What the flags of bind may repeat, and what not, cannot be got wrong, since nobody
//! states them.
//!
//! # Without privileges
//!
//! What takes privileges is to make a socket (CAP_NET_RAW) and to make and attach a program. Another
//! process can do both: it hands over [unbound](Socket::unbound) sockets, of which the worker makes its
//! own ([`Socket::from_fd`]) with memory of its own. Into the program's map they are put by the one, or by
//! the other, which may have been given the map too: by its pin ([`SocketMap::from_pin`]) or its
//! descriptor ([`SocketMap::from_fd`]).
//!
//! # need_wakeup
//!
//! See [`need_wakeup`].

#[cfg(feature = "tokio")]
pub mod asynchronous;
mod busy_poll;
mod clones;
mod config;
mod core;
mod endpoint;
#[cfg(all(test, loom, feature = "fake"))]
mod loom;
pub mod need_wakeup;
mod open;
mod queue;
mod reap;
mod receiver;
mod refill;
mod rings;
mod sender;
mod statistics;
mod wait;
mod wait_any;

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use self::core::Core;
#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncReceiver, AsyncSender, AsyncSocket};
pub use busy_poll::BusyPoll;
pub use config::{CopyMode, SocketConfig};
#[cfg(feature = "fake")]
use endpoint::Endpoint;
pub use receiver::Receiver;
pub use rings::{Rings, RingsMut};
pub use sender::Sender;
pub use statistics::{KernelStatistics, RingLevels, Statistics, StatisticsReader};
pub use wait::{Interest, Ready};
use wait::{Link, Look, Wait};
pub use wait_any::{Waiting, wait_any};

use crate::{
    Batch, Interface, QueueId, Result,
    program::{Attachment, SocketMap},
    sync::{Arc, lock},
    umem::{TxTimestamp, Umem},
};
#[cfg(feature = "fake")]
use crate::{fake, umem::Prefilled};

/// An AF_XDP socket, bound to one queue of an interface.
///
/// [`Port`](crate::Port) opens one on every queue, with the program that redirects packets to them.
/// Opened by itself, a socket can send at once, and receives what a program redirects to it:
/// [`join`](Self::join).
///
/// One thread at a time receives and sends with it, or two with its halves; all may read its statistics.
///
/// ```
/// use std::time::Duration;
/// use xskit::{Interest, RingSize, SocketConfig, UmemConfig, fake};
///
/// let umem = UmemConfig::new(256).build()?;
/// let config = SocketConfig::default().fill(RingSize::new(64)?);
/// let (mut socket, kernel) = fake::socket(&umem, &config)?;
/// kernel.deliver(b"ping");
///
/// let mut batch = socket.umem().batch(64);
/// socket.wait(Interest::for_batch(&batch), Duration::from_secs(1))?;
/// socket.recv(&mut batch)?;
/// for mut packet in batch.packets_mut() {
///     packet.head_mut()[1] = b'o';
/// }
/// socket.send(&mut batch)?;
/// assert_eq!(kernel.transmit(1), [b"pong"]);
/// # Ok::<(), xskit::Error>(())
/// ```
pub struct Socket {
    receiver: Receiver,
    sender: Sender,
}

/// The mode that a socket really got.
///
/// ```
/// use xskit::{SocketConfig, UmemConfig, fake};
///
/// let umem = UmemConfig::new(4096).build()?;
/// let (socket, _) = fake::socket(&umem, &SocketConfig::default().multi_buffer(true))?;
/// println!("{}", socket.mode());
/// match socket.mode().tx_budget {
///     Some(frames) => println!("a call to the kernel sends up to {frames} frames"),
///     None => println!("… sends what the driver likes, or 32 frames before Linux 6.17"),
/// }
/// assert_eq!(socket.mode().max_frames, 18);
/// # Ok::<(), xskit::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "independent of each other, by name")]
pub struct Mode {
    /// Packets are not copied between the kernel's buffers and the UMEM.
    pub zero_copy: bool,
    /// The kernel may sleep until it is called.
    pub need_wakeup: bool,
    /// The kernel is called with every `recv`, `send` and `wait`, to run the driver's receive loop.
    pub busy_poll: bool,
    /// Packets may have several frames.
    #[doc(alias = "XDP_USE_SG")]
    pub multi_buffer: bool,
    /// Frames that a packet to send can have at most: 1 without multi-buffer, 18 in copy mode (one less
    /// on devices that take no linear packets, virtio_net for one, where the kernel drops such a packet),
    /// what the device can in zero-copy mode; and no more than its TX and Completion rings have slots.
    pub max_frames: u32,
    /// Frames that one call to the kernel sends at most in copy mode. `None` in zero-copy mode, for a
    /// socket that only receives, and where the kernel does not let one choose (before 6.17): then it is
    /// 32.
    #[doc(alias = "XDP_MAX_TX_SKB_BUDGET")]
    pub tx_budget: Option<u32>,
    /// Packets can be given a time at which to be sent.
    #[doc(alias = "XDP_TXMD_FLAGS_LAUNCH_TIME")]
    pub launch_time: bool,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.zero_copy { "zero-copy" } else { "copy" })?;
        if self.need_wakeup {
            f.write_str(", need_wakeup")?;
        }
        if self.multi_buffer {
            write!(f, ", multi-buffer of up to {} frames", self.max_frames)?;
        }
        if self.busy_poll { f.write_str(", busy poll") } else { Ok(()) }
    }
}

impl Socket {
    /// Opens a socket on a queue of an interface, with frames of `umem`.
    ///
    /// The Fill ring is filled from the UMEM's free frames before the socket is bound. If the queue's
    /// last socket has just been closed, bind is tried again for up to a second (ten in zero-copy
    /// mode), as its teardown is asynchronous.
    ///
    /// # Errors
    ///
    /// [`LinkDown`](crate::ErrorKind::LinkDown) or [`NotFound`](crate::ErrorKind::NotFound) for an
    /// interface that is down or has no such queue, [`Busy`](crate::ErrorKind::Busy) if the queue has a
    /// socket, [`Unsupported`](crate::ErrorKind::Unsupported) for zero-copy where the driver has none,
    /// [`Limit`](crate::ErrorKind::Limit) if the memory cannot be locked,
    /// [`Permission`](crate::ErrorKind::Permission) without CAP_NET_RAW. Nothing is left behind.
    ///
    /// Linux 5.4; 5.10 to share one UMEM between queues and devices.
    pub fn open(
        umem: &Umem,
        interface: &Interface,
        queue: impl Into<QueueId>,
        config: &SocketConfig,
    ) -> Result<Self> {
        open::open(umem, interface, queue.into(), config, None)
    }

    /// A socket for [`from_fd`](Self::from_fd) in another process, which needs no privilege for it: not
    /// bound yet, and to be bound to a queue of this interface alone (`SO_BINDTODEVICE`, which the
    /// kernel heeds since Linux 6.5).
    ///
    /// Send it over a Unix socket, and when the other process has bound it,
    /// [put it](SocketMap::insert) into the program's map. Then close it here: the queue is not free
    /// again before every descriptor is closed. The example `broker` does all this.
    ///
    /// # Errors
    ///
    /// [`Permission`](crate::ErrorKind::Permission) without CAP_NET_RAW.
    #[doc(alias = "SO_BINDTODEVICE")]
    pub fn unbound(interface: &Interface) -> Result<OwnedFd> {
        open::unbound(interface)
    }

    /// As [`open`](Self::open), with a socket that a privileged process made ([`unbound`](Self::unbound))
    /// and handed over: a process needs no capability for it.
    ///
    /// Without CAP_IPC_LOCK the UMEM counts against the process' `RLIMIT_MEMLOCK`. The interface is that
    /// of the network namespace in which the socket was made, so that both processes have to be there.
    /// With [`CopyMode::Auto`] on a UMEM that is in use in zero-copy mode, there is no way back to copy:
    /// that would take another socket.
    ///
    /// ```
    /// use std::os::fd::OwnedFd;
    /// use xskit::{Interface, Socket, SocketConfig, UmemConfig};
    ///
    /// /// With what came over a Unix socket, from a process with CAP_NET_RAW.
    /// fn work(fd: OwnedFd) -> Result<(), xskit::Error> {
    ///     let umem = UmemConfig::new(4096).build()?;
    ///     let interface = Interface::by_name("eth0")?;
    ///     let socket = Socket::from_fd(fd, &umem, &interface, 0, &SocketConfig::default())?;
    ///     println!("{}", socket.mode());
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); [`Corrupt`](crate::ErrorKind::Corrupt) for a descriptor of something
    /// else, [`Busy`](crate::ErrorKind::Busy) for a socket that was used before. The socket is closed
    /// then.
    pub fn from_fd(
        fd: OwnedFd,
        umem: &Umem,
        interface: &Interface,
        queue: impl Into<QueueId>,
        config: &SocketConfig,
    ) -> Result<Self> {
        open::open(umem, interface, queue.into(), config, Some(fd))
    }

    /// Opens a further socket on the same queue, with RX and TX rings of its own. All sockets of a
    /// queue share its Fill and Completion rings, behind a lock taken once per batch.
    ///
    /// Of `config`, the sizes of the RX and TX ring and busy polling count; mode, need_wakeup, multi-buffer
    /// and the other rings are those of the queue's first socket. Which socket a packet goes to is the
    /// program's choice.
    ///
    /// In copy mode before Linux 6.18, let one socket of a queue send at a time: the kernel reserves a place in
    /// the Completion ring for a frame before it copies it, and what another socket sends meanwhile lets
    /// it tell of the wrong one. That frame can be written to again while it is being sent.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    #[doc(alias = "XDP_SHARED_UMEM")]
    pub fn share_queue(&mut self, config: &SocketConfig) -> Result<Self> {
        open::share_queue(self, config)
    }

    /// A socket whose other side is not the kernel.
    #[cfg(feature = "fake")]
    pub(crate) fn on_fake(
        umem: &Umem,
        config: &SocketConfig,
        (rx, tx, fill, completion): fake::FourRings,
        kernel: Arc<fake::Kernel>,
    ) -> Self {
        let prefilled = Prefilled::new(umem, fill, config.fill_target());
        // Bound, as far as there is something to bind to.
        umem.queue_is_free(kernel.place(), prefilled.frames());
        let mode = config.mode(false, None);
        let place = ("fake", kernel.place());
        let rings = (rx, tx, prefilled, completion);
        open::assemble(umem, config, mode, place, rings, Endpoint::Fake(kernel))
    }

    /// Puts the socket into a program's map, at its queue's place: from now on the program can redirect
    /// packets to it. It leaves the map when it is dropped, before its rings are given up, and when it joins
    /// another one.
    ///
    /// # Errors
    ///
    /// If the map has no such place, or the kernel refuses.
    #[doc(alias = "BPF_MAP_TYPE_XSKMAP")]
    pub fn join(&mut self, map: &SocketMap) -> Result<()> {
        // The same map through another handle, perhaps: giving up the old place would empty the new one.
        self.receiver.entry.take_if(|entry| !entry.is_of(map));
        let core = &self.receiver.core;
        let entry = map
            .insert(core.queue_id, core.endpoint.as_fd())
            .map_err(|error| error.on(&core.interface).queue_is(core.queue_id))?;
        self.receiver.entry = Some(entry);
        Ok(())
    }

    /// Keeps a program attached until the socket is closed: in zero-copy mode, until the kernel has let go of
    /// the queue, which takes it some 20 ms. The last to drop a share of the attachment waits for that, on
    /// kernels that tell (6.15): there is a driver that does not survive the other order.
    pub fn keep(&mut self, attachment: Attachment) {
        if self.mode().zero_copy {
            attachment.expect_zero_copy();
        }
        *lock(&self.receiver.core.attachment) = Some(attachment);
    }

    /// Appends received packets to the batch, as many as it has room for; returns how many. The kernel
    /// gets new frames in turn: the batch's spare ones first.
    ///
    /// It does not wait: 0 means that there was nothing, or no room.
    ///
    /// With [multi-buffer](SocketConfig::multi_buffer), a packet is received whole or not at all: one that
    /// the batch has no room for stays in the ring, and 0 may mean this. One of more frames than the
    /// batch's capacity is dropped when the batch is empty, and counted as
    /// [`rx_oversized`](Statistics::rx_oversized).
    ///
    /// # Errors
    ///
    /// [`WrongUmem`](crate::ErrorKind::WrongUmem) for another UMEM's batch, which stays as it is.
    /// [`LinkDown`](crate::ErrorKind::LinkDown) or [`LinkGone`](crate::ErrorKind::LinkGone) if the
    /// interface is down or gone; a loop that never waits learns it after 65,536 calls without a packet.
    #[inline]
    pub fn recv(&mut self, batch: &mut Batch) -> Result<usize> {
        let whole = self.is_whole();
        let Self { receiver, sender } = self;
        receiver.recv_with(batch, whole.then_some(sender))
    }

    /// Gives packets from the front of the batch to the kernel to send, as many as the TX ring has room
    /// for; returns how many frames. The rest stays in the batch, in order. Frames that completed come
    /// back into the batch's spare list.
    ///
    /// It does not wait: 0 means that the batch was empty, or the ring full.
    ///
    /// A packet of several frames is given whole or not at all. Packets with a frame without bytes, or of
    /// more frames than [`Mode::max_frames`], are not sent: their frames become spare, and they are counted
    /// as [`tx_refused`](Statistics::tx_refused). What the kernel drops in copy mode is counted as
    /// [`tx_dropped`](Statistics::tx_dropped).
    ///
    /// # Errors
    ///
    /// [`WrongUmem`](crate::ErrorKind::WrongUmem) for another UMEM's batch,
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for packets of several frames without multi-buffer, or
    /// with a launch time that [cannot be kept](Mode::launch_time); the batch stays as it is.
    /// [`LinkDown`](crate::ErrorKind::LinkDown) or [`LinkGone`](crate::ErrorKind::LinkGone) if the
    /// interface is down or gone: packets that were taken before that showed are no longer in the batch,
    /// and leave when the interface comes up again.
    #[inline]
    pub fn send(&mut self, batch: &mut Batch) -> Result<usize> {
        self.sender.send(batch)
    }

    /// When packets were sent for which [that was asked](crate::umem::TxRequest::timestamp), in the order
    /// in which they completed: all that came back with `send`, `wait` and `reap` and were not taken yet.
    ///
    /// Sockets that share a queue share its completions, and these too. As many are kept as the Completion
    /// ring has entries, then the oldest are lost, and counted as
    /// [`timestamps_lost`](Statistics::timestamps_lost).
    #[doc(alias = "XDP_TXMD_FLAGS_TIMESTAMP")]
    pub fn timestamps(&mut self) -> Vec<TxTimestamp> {
        self.sender.timestamps()
    }

    /// Waits until there are packets to receive or room to send, whichever `interest` names, at most
    /// `timeout` (`None`: for ever).
    ///
    /// A signal does not end it. Calls to the kernel that are owed are made here too, and the Fill
    /// ring is topped up if it could not be before.
    ///
    /// # Errors
    ///
    /// [`LinkDown`](crate::ErrorKind::LinkDown) or [`LinkGone`](crate::ErrorKind::LinkGone) within a second
    /// of the interface going down or being deleted, which `poll` itself does not tell.
    /// [`Unsupported`](crate::ErrorKind::Unsupported) instead of waiting for ever for what cannot come:
    /// room to send on a socket that only receives, packets on one that only sends.
    pub fn wait(
        &mut self,
        interest: Interest,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Ready> {
        wait::wait(self, interest, timeout.into())
    }

    /// Whether both halves are of one socket: through [`split_mut`](Self::split_mut) they can be
    /// exchanged for those of others, on other queues and UMEMs. Then they have nothing in common.
    #[inline]
    fn is_whole(&self) -> bool {
        Arc::ptr_eq(&self.receiver.core, &self.sender.core)
    }

    /// Takes the socket apart for two threads.
    pub fn into_split(self) -> (Receiver, Sender) {
        (self.receiver, self.sender)
    }

    /// Borrows the two halves, for two scoped threads.
    pub fn split_mut(&mut self) -> (&mut Receiver, &mut Sender) {
        (&mut self.receiver, &mut self.sender)
    }

    /// The UMEM of its frames.
    pub fn umem(&self) -> &Umem {
        &self.receiver.core.umem
    }

    /// The name that the interface had when the socket was opened.
    pub fn interface(&self) -> &str {
        &self.receiver.core.interface
    }

    /// The queue it is bound to.
    pub fn queue(&self) -> QueueId {
        self.receiver.core.queue_id
    }

    /// The mode that it really got (`XDP_OPTIONS`).
    #[doc(alias = "XDP_OPTIONS_ZEROCOPY")]
    pub fn mode(&self) -> Mode {
        self.receiver.core.mode
    }
}

impl Wait for Socket {
    fn core(&self) -> &Arc<Core> {
        &self.receiver.core
    }

    fn link(&mut self) -> &mut Link {
        self.receiver.link()
    }

    fn can(&self) -> Interest {
        Interest::of(self.receiver.rx.is_some(), self.sender.tx.is_some())
    }

    fn look(&mut self, interest: Interest) -> Result<Look> {
        let whole = self.is_whole();
        let Self { receiver, sender } = self;
        let write = sender.look(interest)?;
        let read = receiver.look_with(whole.then_some(sender));
        Ok(Look { ready: Ready { readable: read?, ..write.ready }, ..write })
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket")
            .field("interface", &self.interface())
            .field("queue", &self.queue())
            .field("mode", &self.mode())
            .finish_non_exhaustive()
    }
}
