//! [`RawPort`]: whole Ethernet frames in and out of an interface, past the network stack.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{
    link::Link,
    sys::{self, Slots, Tag},
};

/// Frames per system call.
const BATCH: usize = 64;
/// A jumbo frame of 9000 bytes with header and tags fits.
const FRAME: usize = 10 * 1024;
/// What waits to be read, as the kernel accounts it.
const RECEIVE_BUFFER: i32 = 32 << 20;
/// A link that takes no frame for so long is broken.
const SEND_LIMIT: Duration = Duration::from_secs(5);

/// An AF_PACKET socket bound to one interface. It does not see what is sent from there.
#[derive(Debug)]
pub struct RawPort {
    socket: OwnedFd,
    slots: Slots,
    /// Frames that were read but not asked for yet are the slots from here on.
    taken: usize,
    held: usize,
}

impl RawPort {
    /// Opens a socket on `link`, in the link's namespace.
    pub fn open(link: &Link) -> io::Result<Self> {
        // Protocol 0: nothing arrives before the socket is bound to its interface.
        let socket = link.netns().enter(|| sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0))?;
        let fd = socket.as_fd();
        sys::set_int(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        sys::set_int(fd, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
        // The kernel takes VLAN tags out of received frames, and tells them beside.
        sys::set_int(fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
        // Without CAP_NET_ADMIN in the first user namespace the limit of the system has to do.
        if sys::set_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER).is_err() {
            sys::set_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BUFFER)?;
        }
        sys::bind_packet(fd, link.index())?;
        Ok(Self { socket, slots: Slots::new(BATCH, FRAME), taken: 0, held: 0 })
    }

    /// From now on sends through the queueing layer, which chooses the queue by the flow: many flows
    /// then reach all queues of the peer. Otherwise the queue is the sending CPU's.
    pub fn spread_flows(&self) -> io::Result<()> {
        sys::set_int(self.socket.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 0)
    }

    /// Sends one frame.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.send_all(&[frame])
    }

    /// Sends all frames, in order, and waits for room where there is none.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::TimedOut`] when the interface takes nothing for 5 s.
    pub fn send_all<F: AsRef<[u8]>>(&self, frames: &[F]) -> io::Result<()> {
        let mut rest = frames;
        let mut deadline = Instant::now() + SEND_LIMIT;
        while !rest.is_empty() {
            match sys::send_frames(self.socket.as_fd(), &rest[..rest.len().min(BATCH)]) {
                Ok(sent) => {
                    rest = &rest[sent..];
                    deadline = Instant::now() + SEND_LIMIT;
                }
                Err(error) if Instant::now() >= deadline => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!("the interface takes no frames: {error}"),
                    ));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait(self.socket.as_fd(), PollFlags::POLLOUT, SEND_LIMIT)?;
                }
                // The peer's ring is full: its reader has to run.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    thread::sleep(Duration::from_micros(50));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next frame, or `None` when none arrives in time.
    pub fn recv(&mut self, limit: Duration) -> io::Result<Option<Vec<u8>>> {
        if self.taken == self.held && self.refill(limit)? == 0 {
            return Ok(None);
        }
        let frame = self.slots.frames().nth(self.taken).map(whole);
        self.taken += 1;
        Ok(frame)
    }

    /// Shows every frame that has arrived to `visit`, and waits at most `limit` for the first.
    /// Returns their number.
    pub fn recv_each(
        &mut self,
        limit: Duration,
        mut visit: impl FnMut(&[u8]),
    ) -> io::Result<usize> {
        if self.taken == self.held && self.refill(limit)? == 0 {
            return Ok(0);
        }
        for (frame, tag) in self.slots.frames().skip(self.taken) {
            if tag.is_some() { visit(&whole((frame, tag))) } else { visit(frame) }
        }
        let count = self.held - self.taken;
        self.taken = self.held;
        Ok(count)
    }

    /// Throws away what has arrived so far. Returns how many frames that were.
    pub fn drain(&mut self) -> io::Result<usize> {
        let mut dropped = 0;
        loop {
            match self.recv_each(Duration::ZERO, |_| ())? {
                0 => return Ok(dropped),
                count => dropped += count,
            }
        }
    }

    fn refill(&mut self, limit: Duration) -> io::Result<usize> {
        let deadline = Instant::now() + limit;
        (self.taken, self.held) = (0, 0);
        loop {
            self.held = sys::recv_frames(self.socket.as_fd(), &mut self.slots)?;
            let left = deadline.saturating_duration_since(Instant::now());
            if self.held > 0 || left.is_zero() {
                return Ok(self.held);
            }
            wait(self.socket.as_fd(), PollFlags::POLLIN, left)?;
        }
    }
}

impl AsFd for RawPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Waits for the event or the time, whichever is first; a signal ends it early.
fn wait(fd: BorrowedFd<'_>, event: PollFlags, limit: Duration) -> io::Result<()> {
    // Rounded up, so that the last millisecond does not spin.
    let limit = limit + Duration::from_millis(1);
    let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(fd, event)], limit) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The frame with its outer tag put back behind the MAC addresses.
fn whole((frame, tag): (&[u8], Option<Tag>)) -> Vec<u8> {
    let Some(tag) = tag else { return frame.to_vec() };
    let (addresses, rest) = frame.split_at(12.min(frame.len()));
    [addresses, &tag.tpid.to_be_bytes(), &tag.tci.to_be_bytes(), rest].concat()
}
