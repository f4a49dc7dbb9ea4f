//! The XDP program on a link: which one is there, and a trivial one as somebody else's.

use std::{io, os::fd::AsRawFd};

use netlink_packet_route::link::{LinkAttribute, LinkXdp, XdpAttached};

use crate::{link::Link, sys};

/// `XDP_FLAGS_*`: fail rather than replace, and where to run.
const IF_NOEXIST: u32 = 1 << 0;
const GENERIC: u32 = 1 << 1;
const NATIVE: u32 = 1 << 2;

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
        let program = sys::load_xdp(match action {
            XdpAction::Drop => 1,
            XdpAction::Pass => 2,
            XdpAction::Tx => 3,
        })?;
        self.set_xdp(program.as_raw_fd(), flags(mode)? | IF_NOEXIST)
    }

    /// Detaches what [`attach_xdp`](Self::attach_xdp) attached in this mode.
    pub fn detach_xdp(&self, mode: XdpMode) -> io::Result<()> {
        self.set_xdp(-1, flags(mode)?)
    }

    fn set_xdp(&self, program: i32, flags: u32) -> io::Result<()> {
        self.set(LinkAttribute::Xdp(vec![LinkXdp::Fd(program), LinkXdp::Flags(flags)]))
    }
}

fn flags(mode: XdpMode) -> io::Result<u32> {
    match mode {
        XdpMode::Native => Ok(NATIVE),
        XdpMode::Generic => Ok(GENERIC),
        XdpMode::Other => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}
