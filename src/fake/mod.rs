//! The kernel's side of the rings over plain memory, for tests without a kernel.
//!
//! [`socket`] gives a [`Socket`] like any other and the [`Kernel`] behind it, which does what it is told:
//! deliver a packet, send some of what lies in the TX ring, sleep, refuse a call, take the link down.
//! Test your own packet code on it as any user. Above the rings nothing is faked: batches, checks,
//! refill, accounts and waiting are those of a real socket.
//!
//! ```
//! use xskit::{Batch, Result, Socket, SocketConfig, UmemConfig, fake};
//!
//! /// What is to be tested: sends every packet back that has more than two bytes.
//! fn echo(socket: &mut Socket, batch: &mut Batch) -> Result<()> {
//!     socket.recv(batch)?;
//!     batch.retain(|packet| packet.len() > 2);
//!     socket.send(batch)?;
//!     Ok(())
//! }
//!
//! let umem = UmemConfig::new(4096).build()?;
//! let (mut socket, kernel) = fake::socket(&umem, &SocketConfig::default())?;
//! let mut batch = umem.batch(16);
//! for packet in [b"one".as_slice(), b"2", b"three"] {
//!     assert!(kernel.deliver(packet));
//! }
//! echo(&mut socket, &mut batch)?;
//! assert_eq!(kernel.transmit(8), [b"one".as_slice(), b"three"]);
//!
//! // When the kernel sends nothing, packets wait; once it does, they leave in order.
//! for _ in 0..3 {
//!     assert!(kernel.deliver(b"later"));
//!     echo(&mut socket, &mut batch)?;
//! }
//! assert_eq!(kernel.tx_level(), 3);
//! assert_eq!(kernel.transmit(2).len(), 2);
//!
//! // No frame is lost on the way, whatever happens.
//! kernel.set_link(fake::Link::Down);
//! assert!(echo(&mut socket, &mut batch).is_err());
//! assert!(umem.audit().is_complete());
//! # Ok::<(), xskit::Error>(())
//! ```
//!
//! # What can happen
//!
//! | | by |
//! |---|---|
//! | packets come in, longer than a frame too | [`deliver`](Kernel::deliver), [`deliver_with_metadata`](Kernel::deliver_with_metadata) |
//! | they are dropped: RX full, Fill empty, too long | `deliver` into such rings; [`KernelStatistics`](crate::socket::KernelStatistics) counts them |
//! | descriptors that lead nowhere | [`deliver_nonsense`](Kernel::deliver_nonsense), [`deliver_broken`](Kernel::deliver_broken), [`complete_nonsense`](Kernel::complete_nonsense) |
//! | packets leave, some or all | [`transmit`](Kernel::transmit); on each call: [`transmit_on_kick`](Kernel::transmit_on_kick) |
//! | frames complete late, or never | [`take`](Kernel::take), [`complete`](Kernel::complete) |
//! | rings stay full, nothing moves | the default: it does nothing that it is not told to |
//! | need_wakeup | [`set_needs_wakeup_tx`](Kernel::set_needs_wakeup_tx), [`set_needs_wakeup_rx`](Kernel::set_needs_wakeup_rx) |
//! | a call fails, or drops a packet | [`refuse`](Kernel::refuse) |
//! | the link goes down or away | [`set_link`](Kernel::set_link) |
//! | packets come in while the socket closes | [`deliver_at_close`](Kernel::deliver_at_close) |
//! | several sockets on a queue; the queue is bound again | [`of_queue`](Kernel::of_queue); [`reopen`](Kernel::reopen) |
//! | indices wrap | [`socket_from`] |
#![allow(unsafe_code, reason = "it plays the kernel, which reads and writes frames by address")]

mod bulk;
mod calls;
mod kernel;
mod memory;
mod receive;
mod state;
mod transmit;

use std::collections::VecDeque;

pub use calls::{Call, Kicks};
pub use kernel::{Kernel, Link};

use crate::{
    Result, Socket, SocketConfig,
    ring::{Consumer, Desc, Producer, RingMemory, RingSize},
    sync::{Arc, Condvar, Mutex, Ordering, global::AtomicU32},
    umem::Umem,
};

/// The number of the next queue.
static NUMBERS: AtomicU32 = AtomicU32::new(0);

/// RX, TX, Fill and Completion.
pub(crate) type FourRings =
    (Option<Consumer<Desc>>, Option<Producer<Desc>>, Producer<u64>, Consumer<u64>);

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
    socket_on(umem, config, NUMBERS.fetch_add(1, Ordering::Relaxed), first)
}

/// The first socket on the queue of that number.
fn socket_on(
    umem: &Umem,
    config: &SocketConfig,
    number: u32,
    first: u32,
) -> Result<(Socket, Kernel)> {
    let (fill, kernel_fill) = memory::ends(&memory::ring::<u64>(config.fill_size(), first));
    let (kernel_completion, completion) =
        memory::ends(&memory::ring::<u64>(config.completion_size(), first));
    let state = state::State {
        umem: umem.clone(),
        fill: kernel_fill,
        completion: kernel_completion,
        multi_buffer: config.is_multi_buffer(),
        stamped: 0,
        flying: VecDeque::new(),
        link: Ok(()),
        members: Vec::new(),
        again: None,
    };
    let queue = Arc::new(state::Queue {
        state: Mutex::new(state),
        number,
        first,
        changed: Condvar::default(),
    });
    let ((rx, tx), kernel) = Kernel::join(&queue, config)?;
    let handle = (*kernel).clone();
    let socket = Socket::on_fake(umem, config, (rx, tx, fill, completion), kernel);
    Ok((socket, handle))
}
