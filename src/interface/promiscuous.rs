//! Receiving what is for somebody else.

use std::os::fd::OwnedFd;

use super::Interface;
use crate::{
    error::{Error, Result, Step},
    sys::packet,
};

/// Keeps an interface promiscuous: it receives frames for any MAC address, not only its own.
///
/// A forwarder needs that on a NIC, which otherwise drops them before XDP. It is a membership, counted by the
/// kernel: the interface stays promiscuous until the last one ends, and each ends with its guard or with its
/// process, even with a killed one, from whatever network namespace.
///
/// ```no_run
/// use xskit::{Interface, interface::Promiscuous};
///
/// let promiscuous = Promiscuous::on(&Interface::by_name("eth0")?)?;
/// # drop(promiscuous);
/// # Ok::<(), xskit::Error>(())
/// ```
#[doc(alias = "PACKET_ADD_MEMBERSHIP")]
#[doc(alias = "IFF_PROMISC")]
#[derive(Debug)]
#[must_use = "dropping it ends the membership"]
pub struct Promiscuous {
    interface: Interface,
    /// The membership lasts as long as it is open.
    _socket: OwnedFd,
}

impl Promiscuous {
    /// Makes the interface promiscuous, if it is not already.
    ///
    /// # Errors
    ///
    /// [`Permission`](crate::ErrorKind::Permission) without CAP_NET_RAW,
    /// [`LinkGone`](crate::ErrorKind::LinkGone) where the interface was deleted,
    /// [`Unsupported`](crate::ErrorKind::Unsupported) on a kernel without packet sockets (`CONFIG_PACKET`).
    pub fn on(interface: &Interface) -> Result<Self> {
        let socket = packet::promiscuous(interface.index).map_err(|source| {
            let error = Error::os(Step::Steer, "it cannot be made promiscuous", source);
            let error = error.on(interface.name());
            match error.raw_os_error() {
                Some(libc::ENODEV) => interface.gone(),
                Some(libc::EPERM) => error.hint("CAP_NET_RAW is missing: run as root"),
                Some(libc::EAFNOSUPPORT) => error.hint("the kernel lacks CONFIG_PACKET"),
                _ => error,
            }
        })?;
        Ok(Self { interface: interface.clone(), _socket: socket })
    }

    /// The interface.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }
}
