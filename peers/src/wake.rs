//! The calls that tell the kernel to look at the rings, as C programs make them: counted.

use std::{
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
    sync::atomic::{AtomicU64, Ordering},
};

static CALLS: AtomicU64 = AtomicU64::new(0);

/// How many calls there were.
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// `sendto` of nothing. What it refuses (`EAGAIN`, `EBUSY`) stays in the ring, and the next call is for it.
pub fn send(fd: BorrowedFd<'_>) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: no memory is passed.
    unsafe { libc::sendto(fd.as_raw_fd(), ptr::null(), 0, libc::MSG_DONTWAIT, ptr::null(), 0) };
}

/// `recvfrom` of nothing.
pub fn receive(fd: BorrowedFd<'_>) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: no memory is passed.
    unsafe { libc::recv(fd.as_raw_fd(), ptr::null_mut(), 0, libc::MSG_DONTWAIT) };
}
