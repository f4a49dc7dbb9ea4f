//! The way down to the descriptor level.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use bytemuck::Pod;

use super::{Socket, queue::Queue};
use crate::{
    Umem,
    ring::{CompletionRing, Consumer, Desc, FillRing, Producer, RxRing, TxRing},
};

/// The four rings of a socket at the [descriptor level](crate::ring), for as long as the socket is
/// borrowed.
///
/// Frames are the caller's business here: what is taken out of RX and Completion came to the caller,
/// what is put into Fill and TX left it, and the audit counts the difference as
/// [`detached`](crate::Audit::detached). [`detach`](crate::ring::detach) makes addresses of a batch's
/// frames, [`attach`](crate::ring::attach) makes them free frames of the UMEM again.
///
/// ```
/// # use xskit::{SocketConfig, UmemConfig, fake, ring};
/// # let umem = UmemConfig::new(64).build()?;
/// # let config = SocketConfig::default().receive_only().fill(xskit::RingSize::new(32)?);
/// # let (mut socket, kernel) = fake::socket(&umem, &config)?;
/// kernel.deliver(b"a packet");
/// let mut rings = socket.rings();
/// let mut rx = rings.rx().expect("a socket that receives");
/// let packets = rx.peek(16);
/// let addresses: Vec<u64> = packets.iter().map(|desc| desc.addr).collect();
/// packets.release();
/// drop(rings);
/// assert_eq!(umem.audit().detached, 1);
/// // SAFETY: the frames came out of RX just now, and nobody else has them.
/// unsafe { ring::attach(&umem, &addresses) };
/// assert!(umem.audit().is_complete());
/// # Ok::<(), xskit::Error>(())
/// ```
pub struct Rings<'a> {
    // Before the queue's rings, whose locks, where there are any, guard the counts of all four.
    rx: Option<Access<'a, Consumer<Desc>>>,
    tx: Option<Access<'a, Producer<Desc>>>,
    fill: Access<'a, Producer<u64>>,
    completion: Access<'a, Consumer<u64>>,
    /// The one that sends.
    queue: &'a Queue,
    umem: &'a Umem,
}

/// A ring, inline or locked, and the account that is settled when it is given back.
type Access<'a, R> = Box<dyn DerefMut<Target = R> + 'a>;

/// All rings of a socket at once, by [`Rings::split_mut`].
#[derive(Debug)]
pub struct RingsMut<'a> {
    /// As [`Rings::rx`].
    pub rx: Option<RxRing<'a>>,
    /// As [`Rings::tx`].
    pub tx: Option<TxRing<'a>>,
    /// As [`Rings::fill`].
    pub fill: FillRing<'a>,
    /// As [`Rings::completion`].
    pub completion: CompletionRing<'a>,
}

impl Rings<'_> {
    /// All four, to move descriptors from one to the other.
    ///
    /// ```
    /// # use xskit::{SocketConfig, UmemConfig, fake};
    /// # let umem = UmemConfig::new(64).build()?;
    /// # let config = SocketConfig::default().fill(xskit::RingSize::new(32)?);
    /// # let (mut socket, kernel) = fake::socket(&umem, &config)?;
    /// # kernel.deliver(b"a packet");
    /// let mut rings = socket.rings();
    /// let mut rings = rings.split_mut();
    /// let (Some(rx), Some(tx)) = (&mut rings.rx, &mut rings.tx) else { unreachable!() };
    /// let packets = rx.peek(16);
    /// let mut slots = tx.reserve_up_to(packets.len());
    /// // SAFETY: the frames came out of RX, and nobody else has them.
    /// unsafe { slots.write_peeked(&packets, |packet| *packet) };
    /// let sent = slots.submit();
    /// assert_eq!(packets.release_first(sent), 1);
    /// # drop(rings);
    /// # assert_eq!(kernel.transmit(1), [b"a packet"]);
    /// # Ok::<(), xskit::Error>(())
    /// ```
    pub fn split_mut(&mut self) -> RingsMut<'_> {
        RingsMut {
            rx: self.rx.as_deref_mut().map(|ring| RxRing::new(ring)),
            tx: self.tx.as_deref_mut().map(|ring| TxRing::new(ring)),
            fill: FillRing::new(&mut self.fill),
            completion: CompletionRing::new(&mut self.completion),
        }
    }

    /// Received packets; none for a socket that only sends.
    pub fn rx(&mut self) -> Option<RxRing<'_>> {
        self.rx.as_deref_mut().map(|ring| RxRing::new(ring))
    }

    /// Packets to send; none for a socket that only receives. [`Sender::reap`](super::Sender::reap) and
    /// `wait` call the kernel for them.
    pub fn tx(&mut self) -> Option<TxRing<'_>> {
        self.tx.as_deref_mut().map(|ring| TxRing::new(ring))
    }

    /// Free frames for the kernel to receive into.
    pub fn fill(&mut self) -> FillRing<'_> {
        FillRing::new(&mut self.fill)
    }

    /// Frames that the kernel has sent.
    pub fn completion(&mut self) -> CompletionRing<'_> {
        CompletionRing::new(&mut self.completion)
    }

    /// Takes descriptors off the account that the kernel refused and did not complete.
    ///
    /// The kernel counts what it refuses on TX
    /// ([`tx_invalid_descs`](super::KernelStatistics::tx_invalid_descs)); whether it returns it through
    /// Completion too differs between kernels. What does not come back would count as a frame with
    /// the kernel for ever. No more are taken off than the kernel has.
    pub fn refused(&mut self, descriptors: u32) {
        // Too many here can only leave frames of a closed socket unfound, never have one found twice.
        let descriptors = self.queue.refuse(descriptors);
        self.umem.counts().detach(descriptors.cast_signed());
    }
}

impl fmt::Debug for Rings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rings").finish_non_exhaustive()
    }
}

impl Socket {
    /// Opens the descriptor level. Sockets that share the queue wait meanwhile.
    pub fn rings(&mut self) -> Rings<'_> {
        let Self { receiver, sender } = self;
        // Each half's own: they can be of two sockets, by `split_mut`.
        let (reads, writes) = (&*receiver.core, &*sender.core);
        let (filled, sending) = (&reads.queue.filled, &writes.queue.sending);
        let rx = receiver.rx.as_mut().map(|ring| {
            Counted::boxed(Box::new(ring), |frames| {
                filled.sub(frames);
                reads.umem.counts().detach(frames.cast_signed());
            })
        });
        let tx = sender.tx.as_mut().map(|ring| {
            Counted::boxed(Box::new(ring), |frames| {
                sending.add(frames);
                writes.umem.counts().detach(-frames.cast_signed());
            })
        });
        let fill = receiver.fill.ring.borrow(&reads.queue);
        let fill = Counted::boxed(fill, |frames| {
            filled.add(frames);
            reads.umem.counts().detach(-frames.cast_signed());
        });
        let completion = sender.completion.borrow(&writes.queue);
        let completion = Counted::boxed(completion, |frames| {
            sending.sub(frames);
            writes.umem.counts().detach(frames.cast_signed());
        });
        Rings { rx, tx, fill, completion, queue: &writes.queue, umem: &writes.umem }
    }
}

/// A ring with our index on it.
trait Positioned {
    fn position(&self) -> u32;
}

impl<T: Pod> Positioned for Producer<T> {
    fn position(&self) -> u32 {
        self.position()
    }
}

impl<T: Pod> Positioned for Consumer<T> {
    fn position(&self) -> u32 {
        self.position()
    }
}

/// A borrowed ring: at the end it is settled by how many frames the audit has to move.
struct Counted<'a, R: Positioned, S: FnMut(u32)> {
    ring: Access<'a, R>,
    before: u32,
    settle: S,
}

impl<'a, R: Positioned + 'a, S: FnMut(u32) + 'a> Counted<'a, R, S> {
    fn boxed(ring: Access<'a, R>, settle: S) -> Access<'a, R> {
        let before = ring.position();
        Box::new(Self { ring, before, settle })
    }
}

impl<R: Positioned, S: FnMut(u32)> Deref for Counted<'_, R, S> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.ring
    }
}

impl<R: Positioned, S: FnMut(u32)> DerefMut for Counted<'_, R, S> {
    fn deref_mut(&mut self) -> &mut R {
        &mut self.ring
    }
}

impl<R: Positioned, S: FnMut(u32)> Drop for Counted<'_, R, S> {
    fn drop(&mut self) {
        (self.settle)(self.ring.position().wrapping_sub(self.before));
    }
}
