//! Switching offloads off that stand between XDP and whole packets, and back on.

use std::{fmt, io};

use super::Interface;
use crate::{
    error::{Error, ErrorKind, Result, Step},
    sys::ethtool::{Ethtool, Feature},
};

/// ethtool's names of the offloads that take a tag off a received packet, customer's and provider's.
const HIDING: [&str; 2] = ["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"];

pub(super) fn hides_tags(feature: &Feature) -> bool {
    HIDING.contains(&feature.name.as_str())
}

fn leaves_checksums(feature: &Feature) -> bool {
    // -ipv4, -ipv6, -ip-generic, -sctp, -fcoe-crc
    feature.name.starts_with("tx-checksum-")
}

/// A kind of offload.
#[derive(Debug)]
struct Offload {
    name: &'static str,
    stays_off: &'static str,
    refused: &'static str,
    hint: &'static str,
    is_one: fn(&Feature) -> bool,
}

const VLAN: Offload = Offload {
    name: "receive VLAN offload",
    stays_off: "receive VLAN offload stays off",
    refused: "the driver does not let its receive VLAN offload be switched off",
    hint: "XDP programs cannot see VLAN tags there: use rules without VLANs",
    is_one: hides_tags,
};

const CHECKSUM: Offload = Offload {
    name: "transmit checksum offload",
    stays_off: "transmit checksum offload stays off",
    refused: "the driver does not let its transmit checksum offload be switched off",
    hint: "checksums of packets that this machine's stack sends there are left to the receiver",
    is_one: leaves_checksums,
};

/// Features that have been switched off.
#[derive(Debug)]
struct Off {
    kind: &'static Offload,
    ethtool: Ethtool,
    interface: Interface,
    /// Those that were on. Empty once restored.
    disabled: Vec<Feature>,
}

impl Off {
    fn switch(kind: &'static Offload, interface: &Interface) -> Result<Self> {
        let failed = |error: io::Error| match error.raw_os_error() {
            Some(libc::ENODEV) => interface.gone(),
            Some(libc::EPERM) => Error::os(Step::Offload, kind.name, error)
                .on(interface.name())
                .hint("CAP_NET_ADMIN is needed"),
            _ => Error::os(Step::Offload, kind.name, error).on(interface.name()),
        };
        let ethtool = Ethtool::open().map_err(failed)?;
        let name = ethtool.name_of(interface.index()).map_err(failed)?;
        let on = |ethtool: &Ethtool| -> Result<Vec<Feature>> {
            let mut features = ethtool.features(&name).map_err(failed)?;
            features.retain(|feature| feature.active && (kind.is_one)(feature));
            Ok(features)
        };
        // From here on dropping it undoes what was done.
        let disabled = on(&ethtool)?;
        let off = Self { kind, ethtool, interface: interface.clone(), disabled };
        if off.disabled.is_empty() {
            return Ok(off);
        }
        if off.disabled.iter().all(|feature| feature.changeable) {
            off.ethtool.set_features(&name, &off.disabled, false).map_err(failed)?;
        }
        // A driver may refuse quietly.
        if on(&off.ethtool)?.is_empty() {
            return Ok(off);
        }
        Err(Error::new(Step::Offload, ErrorKind::Unsupported, kind.refused)
            .on(interface.name())
            .hint(kind.hint))
    }

    fn restore(mut self) -> Result<()> {
        self.switch_on().map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV | libc::ENXIO) => self.interface.gone(),
            _ => Error::os(Step::Offload, self.kind.stays_off, error).on(self.interface.name()),
        })
    }

    fn switch_on(&mut self) -> io::Result<()> {
        let disabled = std::mem::take(&mut self.disabled);
        if disabled.is_empty() {
            return Ok(());
        }
        let name = self.ethtool.name_of(self.interface.index())?;
        self.ethtool.set_features(&name, &disabled, true)
    }
}

impl Drop for Off {
    fn drop(&mut self) {
        // Nobody is left to be told: `restore` is for those who want to know.
        drop(self.switch_on());
    }
}

impl fmt::Display for Off {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.disabled.is_empty() { "was off" } else { "switched off" };
        write!(f, "{} of {}: {state}", self.kind.name, self.interface)
    }
}

/// Keeps an interface's receive VLAN offload off, so that XDP programs see VLAN tags.
///
/// Dropping it switches the offload on again where it was on before, in the namespace in which it was
/// switched off, whatever the interface is called by then. A killed process cannot do so. Of two guards
/// on one interface, the first one switches it on again: keep one per interface.
///
/// On veth the tag is hidden by the *sender's* transmit offload instead, which is another
/// interface, perhaps in another namespace.
#[derive(Debug)]
#[must_use = "dropping it switches the offload on again"]
pub struct VlanOffload(Off);

impl VlanOffload {
    /// Switches the offload off, where it is on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the driver cannot switch it off,
    /// [`ErrorKind::Permission`] without CAP_NET_ADMIN, [`ErrorKind::LinkGone`] where the interface
    /// was deleted. Nothing is changed then.
    pub fn disable(interface: &Interface) -> Result<Self> {
        Off::switch(&VLAN, interface).map(Self)
    }

    /// Whether the offload was on and has been switched off.
    pub fn changed(&self) -> bool {
        !self.0.disabled.is_empty()
    }

    /// The interface.
    pub fn interface(&self) -> &Interface {
        &self.0.interface
    }

    /// Switches the offload on again, where it was on before. What dropping does, with its error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LinkGone`] where the interface was deleted, [`ErrorKind::Permission`] where the
    /// process has lost CAP_NET_ADMIN.
    pub fn restore(self) -> Result<()> {
        self.0.restore()
    }

    /// Leaves the offload off for good.
    pub(crate) fn leave_off(mut self) {
        self.0.disabled.clear();
    }
}

impl fmt::Display for VlanOffload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Keeps an interface's transmit checksum offload off, so that the machine's stack sends packets with their
/// checksums.
///
/// With the offload on, the stack leaves TCP and UDP checksums to hardware. On veth there is none: what arrives
/// at the peer, and at an AF_XDP socket on it, has half a checksum, which nobody completes when it is forwarded.
/// It is needed at the *sending* end, and at both for traffic both ways. What AF_XDP sends is not concerned: its
/// checksums are your own.
///
/// Dropping it switches the offload on again, as with [`VlanOffload`].
///
/// ```no_run
/// use xskit::{Interface, interface::ChecksumOffload};
///
/// let offload = ChecksumOffload::disable(&Interface::by_name("veth1")?)?;
/// # drop(offload);
/// # Ok::<(), xskit::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it switches the offload on again"]
pub struct ChecksumOffload(Off);

impl ChecksumOffload {
    /// Switches the offload off, where it is on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the driver cannot switch it off,
    /// [`ErrorKind::Permission`] without CAP_NET_ADMIN, [`ErrorKind::LinkGone`] where the interface
    /// was deleted. Nothing is changed then.
    pub fn disable(interface: &Interface) -> Result<Self> {
        Off::switch(&CHECKSUM, interface).map(Self)
    }

    /// Whether the offload was on and has been switched off.
    pub fn changed(&self) -> bool {
        !self.0.disabled.is_empty()
    }

    /// The interface.
    pub fn interface(&self) -> &Interface {
        &self.0.interface
    }

    /// Switches the offload on again, where it was on before. What dropping does, with its error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LinkGone`] where the interface was deleted, [`ErrorKind::Permission`] where the
    /// process has lost CAP_NET_ADMIN.
    pub fn restore(self) -> Result<()> {
        self.0.restore()
    }
}

impl fmt::Display for ChecksumOffload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
