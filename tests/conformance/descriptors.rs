//! Sending at the descriptor level: what the safe interface cannot express.
#![allow(unsafe_code, reason = "descriptors are the caller's word")]

use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd, AsRawFd},
    ptr,
};

use nix::errno::Errno;
use xskit::{
    Socket, Umem,
    ring::{self, Desc},
};

use crate::support::{LIMIT, eventually};

/// Frames that are ours as plain addresses, with contents.
pub(crate) struct Frames {
    umem: Umem,
    /// The chunks' first addresses, in order.
    pub(crate) chunks: Vec<u64>,
}

impl Frames {
    /// As many frames as there are contents, each written to its chunk's start.
    #[track_caller]
    pub(crate) fn new<C: AsRef<[u8]>>(umem: &Umem, contents: &[C]) -> Self {
        assert_eq!(umem.headroom(), 0, "packets begin where their chunks do");
        let mut batch = umem.batch(contents.len());
        assert_eq!(batch.alloc(contents.len()), contents.len(), "{}", umem.audit());
        for (mut packet, content) in batch.packets_mut().zip(contents) {
            packet.write(content.as_ref()).unwrap();
        }
        let chunks = ring::detach(&mut batch)[..contents.len()].to_vec();
        Self { umem: umem.clone(), chunks }
    }

    /// Gives them back, once all have completed.
    pub(crate) fn attach(self) {
        // SAFETY: detached in `new`; the callers hand the kernel nothing that they do not wait for.
        unsafe { ring::attach(&self.umem, &self.chunks) };
    }
}

/// Puts descriptors into the TX ring and calls nobody.
#[track_caller]
pub(crate) fn submit(socket: &mut Socket, descs: &[Desc]) {
    let mut rings = socket.rings();
    let mut tx = rings.tx().unwrap();
    let mut slots = tx.reserve(descs.len()).expect("room in the TX ring");
    // SAFETY: valid ones name frames of a `Frames`, which nobody touches until they have completed; of
    // the others the kernel follows none.
    assert_eq!(unsafe { slots.write(descs) }, descs.len());
    slots.submit();
}

/// What lies in the Completion ring.
pub(crate) fn completed(socket: &mut Socket) -> Vec<u64> {
    let mut rings = socket.rings();
    let mut completion = rings.completion();
    let ready = completion.peek(usize::MAX);
    let addresses = ready.iter().copied().collect();
    ready.release();
    addresses
}

/// One wake-up: a `sendto` of nothing.
pub(crate) fn kick(socket: &Socket) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let sent = unsafe {
        let fd = socket.as_fd().as_raw_fd();
        libc::sendto(fd, ptr::null(), 0, libc::MSG_DONTWAIT, ptr::null(), 0)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Descriptors still in the TX ring.
pub(crate) fn unsent(socket: &mut Socket) -> usize {
    socket.split_mut().1.unsent()
}

/// Wakes the kernel until it has taken all descriptors; the errnos by which it said that it dropped some, which
/// differ between kernels.
#[track_caller]
pub(crate) fn drain(socket: &mut Socket) -> BTreeSet<String> {
    let mut said = BTreeSet::new();
    eventually("the kernel takes all descriptors", || {
        if let Err(error) = kick(socket) {
            match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
                // The rest next time.
                Errno::EAGAIN | Errno::ENOBUFS | Errno::EINTR => {}
                // Of no packet: the socket does not work.
                Errno::ENETDOWN | Errno::ENXIO | Errno::ENODEV | Errno::EBADF | Errno::ENOTCONN => {
                    panic!("{error}")
                }
                errno => drop(said.insert(format!("{errno:?}"))),
            }
        }
        unsent(socket) == 0
    });
    said
}

/// Sets how many packets one wake-up sends at most to the kernel's default; a kernel that does not know the option
/// has the default and no other.
pub(crate) fn default_budget(socket: &Socket) -> io::Result<u32> {
    const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
    const DEFAULT: u32 = 32;
    // SAFETY: the option's value lives through the call, and the length is its own.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_XDP,
            XDP_MAX_TX_SKB_BUDGET,
            ptr::from_ref(&DEFAULT).cast(),
            4,
        )
    };
    let error = io::Error::last_os_error();
    if result < 0 && error.raw_os_error() != Some(libc::ENOPROTOOPT) {
        return Err(error);
    }
    Ok(DEFAULT)
}

/// Collects completions until there are that many; fails if there are not soon.
#[track_caller]
pub(crate) fn wait_completed(socket: &mut Socket, count: usize) -> Vec<u64> {
    let mut all = completed(socket);
    let deadline = std::time::Instant::now() + LIMIT;
    while all.len() < count {
        assert!(std::time::Instant::now() < deadline, "{} of {count} completed", all.len());
        std::thread::sleep(std::time::Duration::from_micros(50));
        all.extend(completed(socket));
    }
    all
}
