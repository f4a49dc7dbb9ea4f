//! Sockets to wait for with `.await`, on tokio. Feature `tokio`.
//!
//! An [`AsyncSocket`] is a [`Socket`] whose descriptor is registered with the runtime, once for both of its
//! halves. Only waiting is different: batches, rings and calls to the kernel are those of the socket
//! inside, and a call that finds what it wants makes no system call that the socket would not make.
//!
//! # What a dropped future loses
//!
//! Nothing, so that all of them can stand in `select!` and `timeout`. A future holds no packets: frames
//! move between ring and batch in one piece, after the last `.await`. So a
//! [`recv`](AsyncSocket::recv) that was dropped has taken nothing, a [`send`](AsyncSocket::send) has
//! sent nothing, and what a [`send_all`](AsyncSocket::send_all) has not sent is still in the batch.
//!
//! # Who calls the kernel
//!
//! The runtime's descriptor tells when the kernel has done something, and makes the kernel do nothing,
//! unlike `poll` on the socket itself. So each call looks at the rings before it waits, and calls the
//! kernel where that is needed, for the last time before it returns. In copy mode the kernel takes a part
//! of the packets at a time; the rest is on its way while the task sends or waits for room, and
//! [`flush`](AsyncSocket::flush) sees it off before the task does something else.
//!
//! # A link that dies
//!
//! No event tells that an interface went down or away. All that wait ask for it at least once in half a
//! second, also if futures are dropped all the time.

use std::{fmt, future::Future, io};

use tokio::{
    io::Interest as Events,
    runtime::Handle,
    task::coop::consume_budget,
    time::{sleep, timeout},
};

use super::{
    Interest, Ready, Receiver, Sender, Socket,
    core::Core,
    wait::{self, LINK_CHECK, Link, Look, Turn, Wait},
};
use crate::{Batch, Error, ErrorKind, Result, Step, sync::Arc, sys::watch::Watch};

/// A socket or a half of one, with the registration of its descriptor.
struct Watched<W> {
    inner: W,
    /// Until both halves are gone: two registrations of one descriptor are refused. Then the socket is
    /// closed, if it was not taken back.
    watch: Arc<Watch<Arc<Core>>>,
}

/// A [`Socket`] to wait for with `.await`.
///
/// ```
/// use xskit::{AsyncSocket, RingSize, SocketConfig, UmemConfig, fake};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), xskit::Error> {
/// let umem = UmemConfig::new(256).build()?;
/// let config = SocketConfig::default().fill(RingSize::new(64)?);
/// let (socket, kernel) = fake::socket(&umem, &config)?;
/// let mut socket = AsyncSocket::new(socket)?;
/// let mut batch = umem.batch(64);
///
/// let other = kernel.clone();
/// let task = tokio::spawn(async move { other.deliver(b"ping") });
/// socket.recv(&mut batch).await?; // Waits until the packet is there.
/// for mut packet in batch.packets_mut() {
///     packet.head_mut()[1] = b'o';
/// }
/// socket.send_all(&mut batch).await?;
/// assert_eq!(kernel.transmit(1), [b"pong"]);
/// # assert!(task.await.unwrap());
/// # Ok(())
/// # }
/// ```
pub struct AsyncSocket(Watched<Socket>);

impl AsyncSocket {
    /// Registers a socket with the runtime.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) outside a runtime, [`InvalidInput`](ErrorKind::InvalidInput)
    /// for a socket whose halves were exchanged for those of others,
    /// [`Busy`](ErrorKind::Busy) if the descriptor is registered with this runtime already. The socket is
    /// closed then.
    ///
    /// # Panics
    ///
    /// On a runtime without I/O or time, as all of tokio does: `enable_all` of its builder is missing.
    pub fn new(socket: Socket) -> Result<Self> {
        let core = socket.receiver.core.clone();
        if !socket.is_whole() {
            return Err(core
                .error(
                    Step::Configure,
                    ErrorKind::InvalidInput,
                    "its halves are those of two sockets",
                )
                .hint("put back the half that `split_mut` let you take"));
        }
        if Handle::try_current().is_err() {
            return Err(core
                .error(Step::Wait, ErrorKind::Unsupported, "there is no tokio runtime here")
                .hint("make the AsyncSocket inside of one: #[tokio::main], or Runtime::block_on"));
        }
        // A runtime without time panics here, and not when first it has to wait.
        drop(sleep(LINK_CHECK));
        let watch = Watch::new(core.endpoint.shared_fd().clone(), core.clone());
        let watch = watch.map_err(|source| {
            let taken = source.raw_os_error() == Some(libc::EEXIST);
            let error = Error::os(Step::Wait, "the runtime cannot watch the descriptor", source)
                .on(&core.interface)
                .queue_is(core.queue_id);
            if taken {
                error.hint("it watches it already: use one AsyncSocket and its halves")
            } else {
                error
            }
        })?;
        Ok(Self(Watched { inner: socket, watch: Arc::new(watch) }))
    }

    /// As [`Socket::recv`], but waits until there is a packet; at once 0 if the batch has no room.
    ///
    /// Dropped, it has received nothing.
    ///
    /// # Errors
    ///
    /// As [`Socket::recv`] and [`readable`](Self::readable).
    pub async fn recv(&mut self, batch: &mut Batch) -> Result<usize> {
        self.0.recv(batch, Socket::recv).await
    }

    /// As [`Socket::send`], but waits until the TX ring has room; at once 0 if the batch is empty.
    ///
    /// Dropped, it has sent nothing.
    ///
    /// # Errors
    ///
    /// As [`Socket::send`] and [`writable`](Self::writable).
    pub async fn send(&mut self, batch: &mut Batch) -> Result<usize> {
        self.0.send(batch, Socket::send).await
    }

    /// Sends until the batch is empty: all of it has been put into the TX ring.
    ///
    /// Dropped, what it has not sent is still in the batch.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub async fn send_all(&mut self, batch: &mut Batch) -> Result<()> {
        self.0.send_all(batch, Socket::send).await
    }

    /// Waits until the kernel has taken all packets out of the TX ring, calling it as often as it takes.
    ///
    /// Dropped, the rest stays in the ring.
    ///
    /// # Errors
    ///
    /// As [`writable`](Self::writable).
    pub async fn flush(&mut self) -> Result<()> {
        let Watched { inner, watch } = &mut self.0;
        flush(watch, &mut inner.sender).await
    }

    /// Waits for packets to receive.
    ///
    /// # Errors
    ///
    /// As [`Socket::wait`]: a dead link within a second, and what cannot come at once.
    pub async fn readable(&mut self) -> Result<()> {
        self.ready(Interest::READABLE).await.map(drop)
    }

    /// Waits for room to send.
    ///
    /// # Errors
    ///
    /// As [`readable`](Self::readable).
    pub async fn writable(&mut self) -> Result<()> {
        self.ready(Interest::WRITABLE).await.map(drop)
    }

    /// Waits for packets to receive or room to send, whichever `interest` names; which it was. For a
    /// limit in time, put it into [`tokio::time::timeout`].
    ///
    /// # Errors
    ///
    /// As [`readable`](Self::readable).
    pub fn ready(&mut self, interest: Interest) -> impl Future<Output = Result<Ready>> + Send {
        self.0.ready(interest)
    }

    /// Takes the socket apart for two tasks, on one registration.
    pub fn into_split(self) -> (AsyncReceiver, AsyncSender) {
        let Watched { inner, watch } = self.0;
        let (receiver, sender) = inner.into_split();
        let receiver = AsyncReceiver(Watched { inner: receiver, watch: watch.clone() });
        (receiver, AsyncSender(Watched { inner: sender, watch }))
    }

    /// The socket inside, to look at: its mode, its statistics, its UMEM.
    pub fn get_ref(&self) -> &Socket {
        &self.0.inner
    }

    /// Takes the socket back; the runtime forgets it.
    pub fn into_inner(self) -> Socket {
        self.0.inner
    }
}

/// The receiving half of an [`AsyncSocket`].
pub struct AsyncReceiver(Watched<Receiver>);

impl AsyncReceiver {
    /// As [`AsyncSocket::recv`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn recv(&mut self, batch: &mut Batch) -> Result<usize> {
        self.0.recv(batch, Receiver::recv).await
    }

    /// Waits for packets to receive.
    ///
    /// # Errors
    ///
    /// As [`AsyncSocket::readable`].
    pub async fn readable(&mut self) -> Result<()> {
        self.0.ready(Interest::READABLE).await.map(drop)
    }

    /// The half inside, to look at.
    pub fn get_ref(&self) -> &Receiver {
        &self.0.inner
    }

    /// Takes the half back. The other one is watched on.
    pub fn into_inner(self) -> Receiver {
        self.0.inner
    }
}

/// The sending half of an [`AsyncSocket`].
pub struct AsyncSender(Watched<Sender>);

impl AsyncSender {
    /// As [`AsyncSocket::send`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn send(&mut self, batch: &mut Batch) -> Result<usize> {
        self.0.send(batch, Sender::send).await
    }

    /// As [`AsyncSocket::send_all`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn send_all(&mut self, batch: &mut Batch) -> Result<()> {
        self.0.send_all(batch, Sender::send).await
    }

    /// As [`AsyncSocket::flush`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn flush(&mut self) -> Result<()> {
        let Watched { inner, watch } = &mut self.0;
        flush(watch, inner).await
    }

    /// Waits for room to send.
    ///
    /// # Errors
    ///
    /// As [`AsyncSocket::writable`].
    pub async fn writable(&mut self) -> Result<()> {
        self.0.ready(Interest::WRITABLE).await.map(drop)
    }

    /// The half inside, to look at.
    pub fn get_ref(&self) -> &Sender {
        &self.0.inner
    }

    /// Takes the half back. The other one is watched on.
    pub fn into_inner(self) -> Sender {
        self.0.inner
    }
}

impl<W: Wait> Watched<W> {
    /// Receives by `recv`, after waiting as long as there is nothing.
    async fn recv(&mut self, batch: &mut Batch, recv: Move<W>) -> Result<usize> {
        self.move_packets(batch, recv, Interest::READABLE, |batch| batch.room() == 0).await
    }

    /// Sends by `send`, after waiting as long as there is no room.
    async fn send(&mut self, batch: &mut Batch, send: Move<W>) -> Result<usize> {
        self.move_packets(batch, send, Interest::WRITABLE, Batch::is_empty).await
    }

    async fn send_all(&mut self, batch: &mut Batch, send: Move<W>) -> Result<()> {
        while !batch.is_empty() {
            self.send(batch, send).await?;
        }
        Ok(())
    }

    /// Moves packets between the batch and a ring, unless there can be none to move, whatever comes.
    async fn move_packets(
        &mut self,
        batch: &mut Batch,
        act: Move<W>,
        interest: Interest,
        none: fn(&Batch) -> bool,
    ) -> Result<usize> {
        loop {
            consume_budget().await;
            let moved = act(&mut self.inner, batch)?;
            if moved > 0 || none(batch) {
                return Ok(moved);
            }
            self.ready(interest).await?;
        }
    }

    async fn ready(&mut self, interest: Interest) -> Result<Ready> {
        wait::possible(&self.inner, interest)?;
        wait(&self.watch, &mut self.inner, interest).await
    }
}

/// Moves packets between a batch and a ring; returns how many.
type Move<W> = fn(&mut W, &mut Batch) -> Result<usize>;

/// Waits until there is something of interest.
async fn wait(
    watch: &Watch<Arc<Core>>,
    waiting: &mut impl Wait,
    interest: Interest,
) -> Result<Ready> {
    let events = match (interest.is_readable(), interest.is_writable()) {
        (true, true) => Events::READABLE | Events::WRITABLE,
        (_, false) => Events::READABLE,
        (false, true) => Events::WRITABLE,
    };
    // A task whose rings are never at rest lets the others have their turn.
    consume_budget().await;
    loop {
        // After every event that was cleared: what comes after the look makes an event of its own.
        let Turn { ready, pause, .. } = wait::turn(waiting, interest)?;
        if !ready.timed_out() {
            return Ok(ready);
        }
        if let Ok(Err(error)) = timeout(pause, watch.event(events)).await {
            return Err(no_runtime(watch.kept(), error));
        }
    }
}

/// A sender that is ready when its TX ring is empty.
struct Flush<'a>(&'a mut Sender);

impl Wait for Flush<'_> {
    fn core(&self) -> &Arc<Core> {
        self.0.core()
    }

    fn link(&mut self) -> &mut Link {
        self.0.link()
    }

    fn can(&self) -> Interest {
        self.0.can()
    }

    fn look(&mut self, _: Interest) -> Result<Look> {
        self.0.reap()?;
        let unsent = self.0.unsent() > 0;
        let ready = Ready { readable: false, writable: !unsent };
        Ok(Look { ready, owes_kick: unsent, crowded: false })
    }
}

/// Calls the kernel until the TX ring is empty.
async fn flush(watch: &Watch<Arc<Core>>, sender: &mut Sender) -> Result<()> {
    wait::possible(sender, Interest::WRITABLE)?;
    wait(watch, &mut Flush(sender), Interest::WRITABLE).await.map(drop)
}

fn no_runtime(core: &Core, source: io::Error) -> Error {
    Error::os(Step::Wait, "the runtime waits for nothing any more", source)
        .on(&core.interface)
        .queue_is(core.queue_id)
}

impl fmt::Debug for AsyncSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncSocket").field(&self.0.inner).finish()
    }
}

impl fmt::Debug for AsyncReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncReceiver").field(&self.0.inner).finish()
    }
}

impl fmt::Debug for AsyncSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncSender").field(&self.0.inner).finish()
    }
}
