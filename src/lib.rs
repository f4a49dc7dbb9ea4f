//! Packet I/O over AF_XDP: batched rings between your program and the network driver, past the kernel's
//! stack, in safe Rust. An XDP program, which is part of this crate, sends the packets that your
//! [`Rules`] name to [`Socket`]s; the rest goes its usual way.
//!
//! One idea runs through it: **whatever can be paid once per batch is never paid per packet.**
//!
//! ```no_run
//! use xskit::{Interest, Port, Rules};
//!
//! // UDP packets for port 4242 that arrive on queue 0; all others go to the kernel's stack.
//! let mut port = Port::open("eth0", Rules::udp_port(4242))?;
//! let mut socket = port.take_queue(0)?;
//! let mut batch = port.umem().batch(64);
//! loop {
//!     socket.wait(Interest::READABLE, None)?;
//!     socket.recv(&mut batch)?;
//!     for packet in batch.packets() {
//!         println!("{} bytes: {:02x?}", packet.len(), packet.head());
//!     }
//!     batch.clear();
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), xskit::Error>(())
//! ```
//!
//! # The frame's way round
//!
//! ```text
//!             free frames (pool ⇄ caches ⇄ a batch's spare list)
//!               │ alloc            ▲ recycle, drop
//!    refill     ▼                  │
//!  Fill ring → kernel → RX ring → Batch → TX ring → kernel → Completion ring
//!                                   ▲                             │
//!                                   └── alloc for sending         └→ spare list, cache
//! ```
//!
//! Memory, the [`Umem`], is cut into frames. A [`Batch`] owns the frames of the packets in it, and is
//! the only way to their bytes; [`Socket::recv`] fills it, [`Socket::send`] empties it from the front,
//! and what is left waits there. Whatever is dropped, recycled or sent comes back by itself:
//! [`Umem::audit`] counts every frame in its place. Sending a frame twice, touching it after it was
//! sent, or two producers on one ring do not compile. [`Clones`] are prepared packets that are sent many
//! times over, and have chunks of their own.
//!
//! # Modules
//!
//! - [`port`]: an interface opened in one call: a program attached, a socket on every queue.
//! - [`socket`]: one queue bound: receive, send, wait, split, share, count. Who shares what, as a tree;
//!   [when the kernel has to be called](socket::need_wakeup).
//! - [`umem`]: the packet memory, batches and packets, the audit.
//! - [`program`]: the embedded XDP program, its rules and counters; or one of your own.
//! - [`interface`]: what a NIC is and has: queues, driver, MTU, XDP features.
//! - [`ring`]: the four rings at the descriptor level, for those who want them.
#![cfg_attr(
    feature = "fake",
    doc = "- [`fake`]: the kernel's side in memory, to test packet code without a kernel."
)]
#![cfg_attr(
    not(feature = "fake"),
    doc = "- `fake` (feature): the kernel's side in memory, to test packet code without a kernel."
)]
//!
//! # Features
//!
//! - `fake`: the module of that name.
//! - `audit`: a byte per frame holds its place, and an illegal move panics: for your tests.
#![cfg_attr(
    feature = "tokio",
    doc = "- `tokio`: sockets to wait for with `.await`: [`AsyncSocket`], and [what a dropped future loses](socket::asynchronous)."
)]
#![cfg_attr(not(feature = "tokio"), doc = "- `tokio`: sockets to wait for with `.await`.")]
//!
//! Linux 5.9 or later, by the interfaces used; the README says which kernels were tried. One UMEM for
//! several queues and devices: 5.10.
#![deny(missing_docs)]

mod error;
#[cfg(feature = "fake")]
pub mod fake;
pub mod interface;
pub mod port;
pub mod program;
pub mod ring;
mod snapshot;
pub mod socket;
mod sync;
mod sys;
pub mod umem;

pub use error::{Error, ErrorKind, Result, Step};
pub use interface::{Facts, Interface, QueueId};
pub use port::{Port, PortConfig, Steering};
pub use program::{
    AttachMode, Attached, Counters, Program, ProgramOptions, Rule, Rules, SocketMap,
};
pub use ring::RingSize;
pub use snapshot::{Snapshot, SocketSnapshot};
#[cfg(feature = "tokio")]
pub use socket::{AsyncReceiver, AsyncSender, AsyncSocket};
pub use socket::{
    CopyMode, Interest, Mode, Ready, Receiver, Sender, Socket, SocketConfig, Statistics,
};
pub use umem::{
    Audit, Batch, ChunkSize, Clones, FrameCache, NoRoom, Packet, PacketMut, Pages, Umem, UmemConfig,
};

/// The README's programs compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[derive(Debug)]
pub struct Readme;
