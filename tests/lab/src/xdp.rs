//! The XDP program on a link: which one is there, and a trivial one as somebody else's.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use netlink_packet_route::link::{LinkAttribute, LinkXdp, XdpAttached};

use crate::{link::Link, sys};

/// `XDP_FLAGS_*`: fail rather than replace, and where to run.
const IF_NOEXIST: u32 = 1 << 0;
const GENERIC: u32 = 1 << 1;
const NATIVE: u32 = 1 << 2;

/// What the program of [`Link::attach_metadata`] writes after the packet's length.
pub const METADATA: u32 = 0x1234_5678;

/// The XDP program that is attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xdp {
    /// The kernel's id of the program.
    pub id: u32,
    /// Where it runs.
    pub mode: XdpMode,
}

/// Where an XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver.
    Native,
    /// In the kernel's generic receive path.
    Generic,
    /// In the hardware, or several at once.
    Other,
}

/// What a trivial program does with every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpAction {
    /// Leaves it to the stack.
    Pass,
    /// Drops it.
    Drop,
    /// Sends it back unchanged.
    Tx,
}

impl XdpAction {
    fn number(self) -> u32 {
        match self {
            Self::Drop => 1,
            Self::Pass => 2,
            Self::Tx => 3,
        }
    }
}

/// A trivial program for the CPUs of a CPUMAP, with or without frags.
///
/// # Errors
///
/// What the kernel says.
pub fn cpumap_program(action: XdpAction, frags: bool) -> io::Result<OwnedFd> {
    sys::load_cpumap(action.number(), frags)
}

/// A trivial program for interfaces.
///
/// # Errors
///
/// What the kernel says.
pub fn interface_program(action: XdpAction) -> io::Result<OwnedFd> {
    sys::load_xdp(action.number())
}

impl Link {
    /// The XDP program that is attached to it.
    pub fn xdp_program(&self) -> io::Result<Option<Xdp>> {
        let message = self.get()?;
        let details = message.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Xdp(details) => Some(details.as_slice()),
            _ => None,
        });
        let mut mode = None;
        let mut id = None;
        for detail in details.unwrap_or_default() {
            match detail {
                LinkXdp::Attached(XdpAttached::None) => return Ok(None),
                LinkXdp::Attached(XdpAttached::Driver) => mode = Some(XdpMode::Native),
                LinkXdp::Attached(XdpAttached::SocketBuffer) => mode = Some(XdpMode::Generic),
                LinkXdp::Attached(_) => mode = Some(XdpMode::Other),
                LinkXdp::ProgId(number) => id = Some(*number),
                _ => {}
            }
        }
        Ok(mode.zip(id).map(|(mode, id)| Xdp { id, mode }))
    }

    /// Attaches a trivial program, as somebody else would: by netlink, so that it stays until it is
    /// detached or the link is gone.
    ///
    /// # Errors
    ///
    /// EBUSY when one is there already; EINVAL for [`XdpMode::Other`].
    pub fn attach_xdp(&self, action: XdpAction, mode: XdpMode) -> io::Result<()> {
        self.set_xdp(interface_program(action)?.as_raw_fd(), flags(mode)? | IF_NOEXIST)
    }

    /// Attaches a trivial program in the place of one that may be there.
    ///
    /// # Errors
    ///
    /// EBUSY when a bpf_link attaches that one.
    pub fn replace_xdp(&self, action: XdpAction, mode: XdpMode) -> io::Result<()> {
        self.set_xdp(interface_program(action)?.as_raw_fd(), flags(mode)?)
    }

    /// Attaches a program that writes the packet's length and [`METADATA`] before each packet, as two
    /// 32-bit numbers, and redirects it to its queue's socket in the map that is returned.
    ///
    /// # Errors
    ///
    /// As [`attach_xdp`](Self::attach_xdp).
    pub fn attach_metadata(&self, mode: XdpMode) -> io::Result<OwnedFd> {
        let map = sys::create_xskmap(16)?;
        let code = |opcode: u64, to: u64, from: u64, offset: u64, value: i32| {
            opcode | to << 8 | from << 12 | offset << 16 | u64::from(value.cast_unsigned()) << 32
        };
        let program = sys::load_xdp_code(&[
            code(0xbf, 6, 1, 0, 0),                      // r6 = the context
            code(0xb7, 2, 0, 0, -8),                     //
            code(0x85, 0, 0, 0, 54),                     // bpf_xdp_adjust_meta(context, -8)
            code(0x55, 0, 0, 15, 0),                     // refused: pass
            code(0x61, 1, 6, 8, 0),                      // r1 = data_meta
            code(0x61, 2, 6, 0, 0),                      // r2 = data
            code(0xbf, 3, 1, 0, 0),                      //
            code(0x07, 3, 0, 0, 8),                      // r3 = data_meta + 8
            code(0x2d, 3, 2, 10, 0),                     // beyond data: pass
            code(0x61, 5, 6, 4, 0),                      // r5 = data_end
            code(0x1f, 5, 2, 0, 0),                      // - data
            code(0x63, 1, 5, 0, 0),                      // the first number
            code(0x62, 1, 0, 4, METADATA.cast_signed()), // the second
            code(0x61, 2, 6, 16, 0),                     // r2 = rx_queue_index
            code(0x18, 1, 1, 0, map.as_raw_fd()),        // r1 = the map
            0,                                           //
            code(0xb7, 3, 0, 0, 2),                      // XDP_PASS where it has no socket
            code(0x85, 0, 0, 0, 51),                     // bpf_redirect_map
            code(0x95, 0, 0, 0, 0),                      //
            code(0xb7, 0, 0, 0, 2),                      // XDP_PASS
            code(0x95, 0, 0, 0, 0),                      //
        ])?;
        self.set_xdp(program.as_raw_fd(), flags(mode)? | IF_NOEXIST)?;
        Ok(map)
    }

    /// Detaches what [`attach_xdp`](Self::attach_xdp) attached in this mode.
    pub fn detach_xdp(&self, mode: XdpMode) -> io::Result<()> {
        self.set_xdp(-1, flags(mode)?)
    }

    fn set_xdp(&self, program: i32, flags: u32) -> io::Result<()> {
        self.set(LinkAttribute::Xdp(vec![LinkXdp::Fd(program), LinkXdp::Flags(flags)]))
    }
}

/// Puts a trivial program in the place of the one that the bpf_link of this id keeps attached, as an
/// administrator can.
pub fn replace_in_bpf_link(id: u32, action: XdpAction) -> io::Result<()> {
    sys::update_bpf_link(sys::bpf_link(id)?.as_fd(), interface_program(action)?.as_fd())
}

/// Ends the attachment of the bpf_link of this id under whoever holds it (`bpftool link detach`).
pub fn detach_bpf_link(id: u32) -> io::Result<()> {
    sys::detach_bpf_link(sys::bpf_link(id)?.as_fd())
}

fn flags(mode: XdpMode) -> io::Result<u32> {
    match mode {
        XdpMode::Native => Ok(NATIVE),
        XdpMode::Generic => Ok(GENERIC),
        XdpMode::Other => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}
