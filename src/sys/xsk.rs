//! One typed function per socket option and call of an AF_XDP socket.

use std::{
    io,
    mem::size_of,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
};

use bytemuck::Pod;
use libc::{c_int, c_void, socklen_t};

use super::{
    mapping::Mapping,
    uapi::{MmapOffsets, SockaddrXdp, UmemReg, XdpOptions, XdpStatistics},
};

/// One of the four rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingKind {
    Rx,
    Tx,
    Fill,
    Completion,
}

impl RingKind {
    fn size_option(self) -> c_int {
        match self {
            Self::Rx => libc::XDP_RX_RING,
            Self::Tx => libc::XDP_TX_RING,
            Self::Fill => libc::XDP_UMEM_FILL_RING,
            Self::Completion => libc::XDP_UMEM_COMPLETION_RING,
        }
    }

    fn page_offset(self) -> i64 {
        match self {
            Self::Rx => libc::XDP_PGOFF_RX_RING,
            Self::Tx => libc::XDP_PGOFF_TX_RING,
            Self::Fill => 0x1_0000_0000,
            Self::Completion => 0x1_8000_0000,
        }
    }
}

/// A new AF_XDP socket, closed on exec.
pub(crate) fn socket() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor; nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Lets a socket be bound to this interface alone, which the kernel heeds at bind since Linux 6.5. Only
/// with CAP_NET_RAW can that be changed again.
pub(crate) fn bind_to_device(socket: BorrowedFd<'_>, interface: &str) -> io::Result<()> {
    let length = socklen_t::try_from(interface.len()).map_err(io::Error::other)?;
    // SAFETY: the name is live and as long as we say; the kernel only reads it.
    checked(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            interface.as_ptr().cast(),
            length,
        )
    })
}

/// Whether a socket is one of AF_XDP.
pub(crate) fn is_xdp(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let (domain, _) = get::<c_int>(socket, libc::SOL_SOCKET, libc::SO_DOMAIN)?;
    Ok(domain == libc::AF_XDP)
}

/// `XDP_UMEM_REG`.
///
/// # Safety
///
/// From bind on, the kernel reads and writes the memory described. It has to stay mapped, and
/// whoever writes into it has to follow the rings' ownership of frames, until the kernel lets go.
pub(crate) unsafe fn register_umem(socket: BorrowedFd<'_>, umem: &UmemReg) -> io::Result<()> {
    set(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, umem)
}

/// Creates a ring with that many entries.
pub(crate) fn set_ring_size(
    socket: BorrowedFd<'_>,
    ring: RingKind,
    entries: u32,
) -> io::Result<()> {
    set(socket, libc::SOL_XDP, ring.size_option(), &entries)
}

/// `XDP_MMAP_OFFSETS`. A kernel before 5.4 returns a shorter struct, without flags: `None`.
pub(crate) fn mmap_offsets(socket: BorrowedFd<'_>) -> io::Result<Option<MmapOffsets>> {
    let (offsets, len) = get::<MmapOffsets>(socket, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)?;
    Ok((len == size_of::<MmapOffsets>()).then_some(offsets))
}

/// Maps a ring whose size has been set. `len` covers its indices, flags and slots.
pub(crate) fn map_ring(socket: BorrowedFd<'_>, ring: RingKind, len: usize) -> io::Result<Mapping> {
    Mapping::of_socket(socket, ring.page_offset(), len)
}

/// `XDP_STATISTICS`, and whether the three counters of 5.9 are among them.
pub(crate) fn statistics(socket: BorrowedFd<'_>) -> io::Result<(XdpStatistics, bool)> {
    let (statistics, len) = get::<XdpStatistics>(socket, libc::SOL_XDP, libc::XDP_STATISTICS)?;
    Ok((statistics, len == size_of::<XdpStatistics>()))
}

/// `XDP_OPTIONS`: whether the bound socket is in zero-copy mode.
pub(crate) fn zero_copy(socket: BorrowedFd<'_>) -> io::Result<bool> {
    const XDP_OPTIONS_ZEROCOPY: u32 = 1;
    let (options, _) = get::<XdpOptions>(socket, libc::SOL_XDP, libc::XDP_OPTIONS)?;
    Ok(options.flags & XDP_OPTIONS_ZEROCOPY != 0)
}

/// `XDP_MAX_TX_SKB_BUDGET` (6.17): how many descriptors one call takes from the TX ring in copy mode.
pub(crate) fn set_tx_budget(socket: BorrowedFd<'_>, descriptors: u32) -> io::Result<()> {
    const XDP_MAX_TX_SKB_BUDGET: c_int = 9;
    set(socket, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &descriptors)
}

/// Sizes what a socket may have in flight; beyond the system's limit where that is permitted.
/// Returns what the kernel made of it, which is twice what it counts as usable.
pub(crate) fn set_send_buffer(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<u32> {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX / 2);
    if set(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes).is_err() {
        set(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes)?;
    }
    let (got, _) = get::<c_int>(socket, libc::SOL_SOCKET, libc::SO_SNDBUF)?;
    Ok(got.unsigned_abs())
}

/// One of the three options of busy polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BusyPollOption {
    Prefer,
    Micros,
    Budget,
}

/// Sets an option of busy polling.
pub(crate) fn set_busy_poll(
    socket: BorrowedFd<'_>,
    option: BusyPollOption,
    value: c_int,
) -> io::Result<()> {
    let name = match option {
        BusyPollOption::Prefer => libc::SO_PREFER_BUSY_POLL,
        BusyPollOption::Micros => libc::SO_BUSY_POLL,
        BusyPollOption::Budget => libc::SO_BUSY_POLL_BUDGET,
    };
    set(socket, libc::SOL_SOCKET, name, &value)
}

/// Binds to an interface and queue.
pub(crate) fn bind(
    socket: BorrowedFd<'_>,
    ifindex: u32,
    queue: u32,
    flags: u16,
    shared_umem: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let address = SockaddrXdp {
        family: u16::try_from(libc::AF_XDP).expect("a small constant"),
        flags,
        ifindex,
        queue_id: queue,
        shared_umem_fd: shared_umem.map_or(0, |fd| fd.as_raw_fd().unsigned_abs()),
    };
    // SAFETY: the address is a live struct of the length given, which the kernel only reads.
    checked(unsafe {
        libc::bind(
            socket.as_raw_fd(),
            ptr::from_ref(&address).cast(),
            socklen_t::try_from(size_of::<SockaddrXdp>()).expect("16"),
        )
    })
}

/// Whether the kernel has `XDP_USE_SG`: it looks at the flags of a bind before the interface, of which
/// there is none here.
pub(crate) fn knows_multi_buffer() -> io::Result<bool> {
    knows_bind_flag(libc::XDP_USE_SG)
}

fn knows_bind_flag(flag: u16) -> io::Result<bool> {
    let outcome = bind(socket()?.as_fd(), 0, 0, flag, None);
    Ok(outcome.is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV)))
}

/// Tells the kernel that the TX ring has descriptors: a `sendto` of nothing.
pub(crate) fn kick_tx(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let sent = unsafe {
        libc::sendto(socket.as_raw_fd(), ptr::null(), 0, libc::MSG_DONTWAIT, ptr::null(), 0)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Tells the kernel that the Fill ring has frames: a `recvfrom` of nothing. It also says whether
/// the link is there, which `poll` does not.
pub(crate) fn kick_rx(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let received = unsafe {
        libc::recvfrom(
            socket.as_raw_fd(),
            ptr::null_mut::<c_void>(),
            0,
            libc::MSG_DONTWAIT,
            ptr::null_mut(),
            ptr::null_mut(),
        )
    };
    if received < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether a socket that was bound still is: the kernel unbinds it when its interface is deleted.
pub(crate) fn is_bound(socket: BorrowedFd<'_>) -> bool {
    !kick_rx(socket).is_err_and(|error| error.raw_os_error() == Some(libc::ENXIO))
}

pub(super) fn set<T: Pod>(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the value is live and as long as we say; the kernel only reads it.
    checked(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            ptr::from_ref(value).cast(),
            socklen_t::try_from(size_of::<T>()).expect("options are small"),
        )
    })
}

/// The option's value, zeroed past what the kernel wrote, and how much that was.
pub(super) fn get<T: Pod>(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
) -> io::Result<(T, usize)> {
    let mut value = T::zeroed();
    let mut len = socklen_t::try_from(size_of::<T>()).expect("options are small");
    // SAFETY: the kernel writes at most `len` bytes into a live value that any bytes are valid for.
    checked(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            ptr::from_mut(&mut value).cast(),
            &raw mut len,
        )
    })?;
    Ok((value, len as usize))
}

fn checked(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bind_flag_that_no_kernel_has_is_told_from_one_that_all_have() {
        match knows_bind_flag(1 << 15) {
            // Not permitted to open AF_XDP sockets, or none in this kernel.
            Err(_) => {}
            Ok(known) => {
                assert!(!known);
                assert!(knows_bind_flag(libc::XDP_COPY).unwrap());
            }
        }
    }
}
