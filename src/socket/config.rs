//! What a socket shall be.

use std::fmt;

use super::BusyPoll;
use crate::ring::RingSize;

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
        if let Some(busy_poll) = self.busy_poll {
            write!(f, ", {busy_poll}")?;
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
