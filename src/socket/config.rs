//! What a socket shall be.

use std::fmt;

use super::{BusyPoll, Mode};
use crate::{FrameCache, ring::RingSize};

/// Frames of one packet to send in copy mode: the kernel makes the first the skb's linear part, and each
/// other one of its fragments (`MAX_SKB_FRAGS`, 17 unless configured otherwise).
const COPY_FRAMES: u32 = 18;

/// Frames that one call takes from the TX ring in copy mode, unless the kernel is told to take more.
pub(super) const DEFAULT_BUDGET: u32 = 32;

/// Whether packets are copied between the kernel's buffers and the UMEM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CopyMode {
    /// Zero-copy where the driver can, else copy. [`Socket::mode`](super::Socket::mode) says which it
    /// became: the kernel falls back silently.
    #[default]
    Auto,
    /// Copy, which every driver can.
    #[doc(alias = "XDP_COPY")]
    Copy,
    /// Zero-copy, or an error that says what stands in the way.
    #[doc(alias = "XDP_ZEROCOPY")]
    ZeroCopy,
}

impl fmt::Display for CopyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "zero-copy or copy",
            Self::Copy => "copy",
            Self::ZeroCopy => "zero-copy",
        })
    }
}

/// The rings and the mode of a [`Socket`](super::Socket) to open.
///
/// ```
/// use xskit::{CopyMode, RingSize, SocketConfig};
///
/// let config = SocketConfig::default().copy_mode(CopyMode::Copy).tx(RingSize::new(512)?);
/// let listener = SocketConfig::default().receive_only();
/// # Ok::<(), xskit::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct SocketConfig {
    pub(super) rx: Option<RingSize>,
    pub(super) tx: Option<RingSize>,
    pub(super) fill: RingSize,
    pub(super) completion: RingSize,
    pub(super) copy_mode: CopyMode,
    pub(super) need_wakeup: bool,
    pub(super) busy_poll: Option<BusyPoll>,
    pub(super) multi_buffer: bool,
    pub(super) tx_budget: Option<u32>,
    pub(super) frame_cache: Option<FrameCache>,
}

impl Default for SocketConfig {
    /// Both directions, all rings of 2048 entries, zero-copy where possible, need_wakeup on.
    fn default() -> Self {
        Self {
            rx: Some(RingSize::DEFAULT),
            tx: Some(RingSize::DEFAULT),
            fill: RingSize::DEFAULT,
            completion: RingSize::DEFAULT,
            copy_mode: CopyMode::default(),
            need_wakeup: true,
            busy_poll: None,
            multi_buffer: false,
            tx_budget: None,
            frame_cache: None,
        }
    }
}

impl SocketConfig {
    /// The size of the RX ring: received packets that wait to be taken.
    #[doc(alias = "XDP_RX_RING")]
    pub fn rx(mut self, size: RingSize) -> Self {
        self.rx = Some(size);
        self
    }

    /// The size of the TX ring: packets that wait to be sent.
    #[doc(alias = "XDP_TX_RING")]
    pub fn tx(mut self, size: RingSize) -> Self {
        self.tx = Some(size);
        self
    }

    /// The size of the Fill ring: free frames for the kernel to receive into. At least the NIC's own
    /// RX ring plus the RX ring, or the NIC runs dry; [`Port`](crate::Port) sees to that.
    #[doc(alias = "XDP_UMEM_FILL_RING")]
    pub fn fill(mut self, size: RingSize) -> Self {
        self.fill = size;
        self
    }

    /// The size of the Completion ring: sent frames that wait to be reused. At least the TX ring, or
    /// sending waits for it.
    #[doc(alias = "XDP_UMEM_COMPLETION_RING")]
    pub fn completion(mut self, size: RingSize) -> Self {
        self.completion = size;
        self
    }

    /// No TX ring: [`send`](super::Socket::send) is an error.
    pub fn receive_only(mut self) -> Self {
        self.tx = None;
        self
    }

    /// No RX ring: [`recv`](super::Socket::recv) is an error.
    ///
    /// In zero-copy mode the driver receives what comes on the queue for the network stack into frames of the
    /// UMEM all the same: it gets as many as the Fill ring holds, and half of the free ones at most, and keeps
    /// them until the socket is closed.
    pub fn send_only(mut self) -> Self {
        self.rx = None;
        self
    }

    /// Whether packets may be copied.
    pub fn copy_mode(mut self, mode: CopyMode) -> Self {
        self.copy_mode = mode;
        self
    }

    /// Whether the kernel may sleep until it is called (the default), which saves a system call per
    /// batch while it is awake. See [the page on need_wakeup](super::need_wakeup).
    #[doc(alias = "XDP_USE_NEED_WAKEUP")]
    pub fn need_wakeup(mut self, on: bool) -> Self {
        self.need_wakeup = on;
        self
    }

    /// Lets the calling thread run the driver's receive loop: `recv`, `send` and `wait` call the kernel every
    /// time, whatever its flags say. Linux 5.11, and CAP_NET_ADMIN; see [`BusyPoll`].
    #[doc(alias = "SO_BUSY_POLL")]
    #[doc(alias = "SO_PREFER_BUSY_POLL")]
    pub fn busy_poll(mut self, busy_poll: BusyPoll) -> Self {
        self.busy_poll = Some(busy_poll);
        self
    }

    /// Whether a packet may have several frames (off by default): for packets longer than a chunk, on
    /// links with jumbo frames. Linux 6.6.
    ///
    /// Such packets are dropped by a socket without it. It takes an XDP program for several buffers too,
    /// where the MTU is above about 3.4 KB: [`Port`](crate::Port) attaches it, a program of your own has
    /// to be declared so (`SEC("xdp.frags")`, aya's `#[xdp(frags)]`).
    ///
    /// Batches should have room for the longest packet, and for many of them: see
    /// [`recv`](super::Socket::recv).
    #[doc(alias = "XDP_USE_SG")]
    #[doc(alias = "XDP_PKT_CONTD")]
    pub fn multi_buffer(mut self, on: bool) -> Self {
        self.multi_buffer = on;
        self
    }

    /// Frames that one call to the kernel sends at most in copy mode: 32 to the size of the TX ring. The
    /// default is all of the ring where the kernel lets one choose (Linux 6.17), and 32 before:
    /// [`Mode::tx_budget`] says what it became. Fewer frames a call keep the calls short.
    ///
    /// Asking for a number that the kernel does not take is an error when the socket is opened:
    /// [`Unsupported`](crate::ErrorKind::Unsupported) before 6.17, unless it is 32.
    ///
    /// ```
    /// use xskit::{RingSize, SocketConfig};
    ///
    /// let config = SocketConfig::default().tx(RingSize::new(1024)?).tx_budget(128);
    /// # Ok::<(), xskit::Error>(())
    /// ```
    #[doc(alias = "XDP_MAX_TX_SKB_BUDGET")]
    pub fn tx_budget(mut self, frames: u32) -> Self {
        self.tx_budget = Some(frames);
        self
    }

    /// Free frames that each half keeps at hand; the default goes by the UMEM's size.
    pub fn frame_cache(mut self, cache: FrameCache) -> Self {
        self.frame_cache = Some(cache);
        self
    }

    /// The mode of a socket of this configuration, of which the kernel has said whether it is zero-copy,
    /// and the device of how many frames a packet may then be.
    pub(super) fn mode(&self, zero_copy: bool, zc_max_segments: Option<u32>) -> Mode {
        let max_frames = match (self.multi_buffer, zero_copy) {
            (false, _) => 1,
            (true, false) => COPY_FRAMES,
            (true, true) => zc_max_segments.unwrap_or(1).max(1),
        };
        let tx = self.tx.map_or(1, RingSize::get);
        Mode {
            zero_copy,
            need_wakeup: self.need_wakeup,
            busy_poll: self.busy_poll.is_some(),
            multi_buffer: self.multi_buffer,
            tx_budget: None,
            launch_time: false,
            max_frames: max_frames.min(tx).min(self.completion.get()),
        }
    }

    /// Whether a packet may have several frames.
    pub(crate) fn is_multi_buffer(&self) -> bool {
        self.multi_buffer
    }

    /// Frames that the kernel shall have to receive into: none for a socket that only sends.
    pub(super) fn fill_target(&self) -> u32 {
        if self.rx.is_some() { self.fill.get() } else { 0 }
    }

    /// The size of the RX ring, if there is to be one.
    pub fn rx_size(&self) -> Option<RingSize> {
        self.rx
    }

    /// The size of the TX ring, if there is to be one.
    pub fn tx_size(&self) -> Option<RingSize> {
        self.tx
    }

    /// The size of the Fill ring.
    pub fn fill_size(&self) -> RingSize {
        self.fill
    }

    /// The size of the Completion ring.
    pub fn completion_size(&self) -> RingSize {
        self.completion
    }
}

impl fmt::Display for SocketConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.copy_mode)?;
        if self.need_wakeup {
            f.write_str(", need_wakeup")?;
        }
        if self.multi_buffer {
            f.write_str(", multi-buffer")?;
        }
        if let Some(busy_poll) = self.busy_poll {
            write!(f, ", {busy_poll}")?;
        }
        if let Some(cache) = self.frame_cache {
            write!(f, ", {cache}")?;
        }
        let size = |size: Option<RingSize>| size.map_or(0, RingSize::get);
        write!(
            f,
            ", rings rx {} tx {} fill {} completion {}",
            size(self.rx),
            size(self.tx),
            self.fill,
            self.completion
        )
    }
}
