//! What most people use today: AF_PACKET and UDP sockets.

mod blocks;
mod messages;

use std::{
    net::Ipv4Addr,
    os::fd::{AsRawFd, OwnedFd},
};

use anyhow::{Context, Result};
use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, LinkAddr, SockFlag, SockType, SockaddrLike, bind, socket},
};
use xskit_lab::Flow;

use crate::subject::LENGTH;

pub use blocks::blocks;
pub use messages::{datagrams, packets};

/// Where all packets go.
pub const PORT: u16 = 4242;

/// The ends of the lab's flow.
pub const NEAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
pub const FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

/// `ETH_P_ALL`.
const ALL: u16 = 3;

/// An AF_PACKET socket that is bound to nothing yet, so that nothing comes from other interfaces.
fn packet_socket() -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
    let on: libc::c_int = 1;
    // What it sends does not come back to it, and goes to the interface at once.
    set(&socket, libc::PACKET_IGNORE_OUTGOING, &on)?;
    set(&socket, libc::PACKET_QDISC_BYPASS, &on)?;
    Ok(socket)
}

/// Sets an option of an AF_PACKET socket.
fn set<T: Copy>(socket: &OwnedFd, name: libc::c_int, value: &T) -> Result<()> {
    let len = u32::try_from(size_of::<T>())?;
    // SAFETY: the kernel reads plain numbers, which live through the call.
    let result = unsafe {
        let value = std::ptr::from_ref(value).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, name, value, len)
    };
    Errno::result(result).with_context(|| format!("AF_PACKET's option {name}"))?;
    Ok(())
}

/// From now on everything that the interface receives comes.
fn bind_to(socket: &OwnedFd, index: u32) -> Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET)?,
        sll_protocol: ALL.to_be(),
        sll_ifindex: i32::try_from(index)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let len = u32::try_from(size_of_val(&address))?;
    // SAFETY: a filled address of its own length.
    let address = unsafe { LinkAddr::from_raw((&raw const address).cast(), Some(len)) };
    Ok(bind(socket.as_raw_fd(), &address.context("an address")?)?)
}

/// A packet to send, with all headers.
fn frame(flow: &Flow) -> Vec<u8> {
    flow.clone().reflected().frame(&vec![0; LENGTH as usize - 42])
}
