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

use std::{fmt, future::Future, io, time::Instant};

use tokio::{
    io::Interest as Events,
    runtime::Handle,
    task::coop::consume_budget,
    time::{sleep, timeout},
};

use super::{
    Interest, Ready, Receiver, Sender, Socket,
    core::Core,
    wait::{self, KICK_AGAIN, LINK_CHECK, Link, Look},
};
use crate::{Batch, Error, ErrorKind, Result, Step, sync::Arc, sys::watch::Watch};

/// The descriptor, registered with the runtime until both halves are gone: two registrations of one
/// descriptor are refused. Then the socket is closed, if it was not taken back.
type Registered = Arc<Watch<Arc<Core>>>;

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
pub struct AsyncSocket {
    socket: Socket,
    link: Link,
    registered: Registered,
}

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
        let registered = Watch::new(core.endpoint.shared_fd().clone(), core.clone());
        let registered = registered.map_err(|source| {
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
        Ok(Self { socket, link: Link::new(), registered: Arc::new(registered) })
    }

    /// As [`Socket::recv`], but waits until there is a packet; at once 0 if the batch has no room.
    ///
    /// Dropped, it has received nothing.
    ///
    /// # Errors
    ///
    /// As [`Socket::recv`] and [`readable`](Self::readable).
    pub async fn recv(&mut self, batch: &mut Batch) -> Result<usize> {
        loop {
            consume_budget().await;
            let received = self.socket.recv(batch)?;
            if received > 0 || batch.room() == 0 {
                return Ok(received);
            }
            self.readable().await?;
        }
    }

    /// As [`Socket::send`], but waits until the TX ring has room; at once 0 if the batch is empty.
    ///
    /// Dropped, it has sent nothing.
    ///
    /// # Errors
    ///
    /// As [`Socket::send`] and [`writable`](Self::writable).
    pub async fn send(&mut self, batch: &mut Batch) -> Result<usize> {
        loop {
            consume_budget().await;
            let sent = self.socket.send(batch)?;
            if sent > 0 || batch.is_empty() {
                return Ok(sent);
            }
            self.writable().await?;
        }
    }

    /// Sends until the batch is empty: all of it has been put into the TX ring.
    ///
    /// Dropped, what it has not sent is still in the batch.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub async fn send_all(&mut self, batch: &mut Batch) -> Result<()> {
        while !batch.is_empty() {
            self.send(batch).await?;
        }
        Ok(())
    }

    /// Waits until the kernel has taken all packets out of the TX ring, calling it as often as it takes.
    ///
    /// Dropped, the rest stays in the ring.
    ///
    /// # Errors
    ///
    /// As [`writable`](Self::writable).
    pub async fn flush(&mut self) -> Result<()> {
        flush(&self.registered, &mut self.link, &mut self.socket.sender).await
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
        let Self { socket, link, registered } = self;
        async move {
            let can = socket.can();
            wait::possible(registered.kept(), interest, can, None)?;
            wait(registered, link, interest, || socket.look(interest)).await
        }
    }

    /// Takes the socket apart for two tasks, on one registration.
    pub fn into_split(self) -> (AsyncReceiver, AsyncSender) {
        let Self { socket, registered, link } = self;
        let (receiver, sender) = socket.into_split();
        let receiver = AsyncReceiver { receiver, link, registered: registered.clone() };
        (receiver, AsyncSender { sender, link: Link::new(), registered })
    }

    /// The socket inside, to look at: its mode, its statistics, its UMEM.
    pub fn get_ref(&self) -> &Socket {
        &self.socket
    }

    /// Takes the socket back; the runtime forgets it.
    pub fn into_inner(self) -> Socket {
        self.socket
    }
}

/// The receiving half of an [`AsyncSocket`].
pub struct AsyncReceiver {
    receiver: Receiver,
    link: Link,
    registered: Registered,
}

impl AsyncReceiver {
    /// As [`AsyncSocket::recv`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn recv(&mut self, batch: &mut Batch) -> Result<usize> {
        loop {
            consume_budget().await;
            let received = self.receiver.recv(batch)?;
            if received > 0 || batch.room() == 0 {
                return Ok(received);
            }
            self.readable().await?;
        }
    }

    /// Waits for packets to receive.
    ///
    /// # Errors
    ///
    /// As [`AsyncSocket::readable`].
    pub async fn readable(&mut self) -> Result<()> {
        let Self { receiver, link, registered } = self;
        let (interest, can) = (Interest::READABLE, Interest::of(receiver.rx.is_some(), false));
        wait::possible(registered.kept(), interest, can, None)?;
        wait(registered, link, interest, || receiver.look(None)).await.map(drop)
    }

    /// The half inside, to look at.
    pub fn get_ref(&self) -> &Receiver {
        &self.receiver
    }

    /// Takes the half back. The other one is watched on.
    pub fn into_inner(self) -> Receiver {
        self.receiver
    }
}

/// The sending half of an [`AsyncSocket`].
pub struct AsyncSender {
    sender: Sender,
    link: Link,
    registered: Registered,
}

impl AsyncSender {
    /// As [`AsyncSocket::send`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn send(&mut self, batch: &mut Batch) -> Result<usize> {
        loop {
            consume_budget().await;
            let sent = self.sender.send(batch)?;
            if sent > 0 || batch.is_empty() {
                return Ok(sent);
            }
            self.writable().await?;
        }
    }

    /// As [`AsyncSocket::send_all`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn send_all(&mut self, batch: &mut Batch) -> Result<()> {
        while !batch.is_empty() {
            self.send(batch).await?;
        }
        Ok(())
    }

    /// As [`AsyncSocket::flush`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn flush(&mut self) -> Result<()> {
        flush(&self.registered, &mut self.link, &mut self.sender).await
    }

    /// Waits for room to send.
    ///
    /// # Errors
    ///
    /// As [`AsyncSocket::writable`].
    pub async fn writable(&mut self) -> Result<()> {
        let Self { sender, link, registered } = self;
        let (interest, can) = (Interest::WRITABLE, Interest::of(false, sender.tx.is_some()));
        wait::possible(registered.kept(), interest, can, None)?;
        wait(registered, link, interest, || sender.look()).await.map(drop)
    }

    /// The half inside, to look at.
    pub fn get_ref(&self) -> &Sender {
        &self.sender
    }

    /// Takes the half back. The other one is watched on.
    pub fn into_inner(self) -> Sender {
        self.sender
    }
}

/// Waits until `look` finds something.
async fn wait(
    registered: &Watch<Arc<Core>>,
    link: &mut Link,
    interest: Interest,
    mut look: impl FnMut() -> Result<Look>,
) -> Result<Ready> {
    let events = match (interest.is_readable(), interest.is_writable()) {
        (true, true) => Events::READABLE | Events::WRITABLE,
        (_, false) => Events::READABLE,
        (false, true) => Events::WRITABLE,
    };
    // A task whose rings are never at rest lets the others have their turn.
    consume_budget().await;
    let core = registered.kept();
    loop {
        // After every event that was cleared: what comes after the look makes an event of its own.
        let Look { ready, owes_kick, crowded } = look()?;
        if !ready.timed_out() {
            return Ok(ready);
        }
        let now = Instant::now();
        link.check_in_time(core, Step::Wait, now)?;
        let check = link.due_in(now);
        // Of the last bit of room that is missing, no event tells.
        let slice = if owes_kick || crowded { check.min(KICK_AGAIN) } else { check };
        if let Ok(Err(error)) = timeout(slice, registered.event(events)).await {
            return Err(no_runtime(core, error));
        }
    }
}

/// Calls the kernel until the TX ring is empty.
async fn flush(registered: &Watch<Arc<Core>>, link: &mut Link, sender: &mut Sender) -> Result<()> {
    let can = Interest::of(false, sender.tx.is_some());
    wait::possible(registered.kept(), Interest::WRITABLE, can, None)?;
    let look = || {
        sender.reap()?;
        let unsent = sender.unsent() > 0;
        Ok(Look {
            ready: Ready { readable: false, writable: !unsent },
            owes_kick: unsent,
            crowded: false,
        })
    };
    wait(registered, link, Interest::WRITABLE, look).await.map(drop)
}

fn no_runtime(core: &Core, source: io::Error) -> Error {
    Error::os(Step::Wait, "the runtime waits for nothing any more", source)
        .on(&core.interface)
        .queue_is(core.queue_id)
}

impl fmt::Debug for AsyncSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncSocket").field(&self.socket).finish()
    }
}

impl fmt::Debug for AsyncReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncReceiver").field(&self.receiver).finish()
    }
}

impl fmt::Debug for AsyncSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncSender").field(&self.sender).finish()
    }
}
