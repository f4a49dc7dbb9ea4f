//! `AF_PACKET`: membership in what an interface receives.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use bytemuck::{Pod, Zeroable};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::xsk;

/// `struct packet_mreq`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Membership {
    index: i32,
    kind: u16,
    address_len: u16,
    address: [u8; 8],
}

/// A socket that keeps the interface promiscuous for as long as it is open, and receives nothing itself.
pub(crate) fn promiscuous(index: u32) -> io::Result<OwnedFd> {
    // Protocol 0: no packet is queued on it.
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?;
    let membership = Membership {
        index: i32::try_from(index).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?,
        kind: u16::try_from(libc::PACKET_MR_PROMISC).expect("a small constant"),
        address_len: 0,
        address: [0; 8],
    };
    xsk::set(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)?;
    Ok(socket)
}
