//! Switching off the offload that hides VLAN tags from XDP, and back on.

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
pub struct VlanOffload {
    ethtool: Ethtool,
    interface: Interface,
    /// Those that were on. Empty once restored.
    disabled: Vec<Feature>,
}

impl VlanOffload {
    /// Switches the offload off, where it is on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the driver cannot switch it off,
    /// [`ErrorKind::Permission`] without CAP_NET_ADMIN, [`ErrorKind::LinkGone`] where the interface
    /// was deleted. Nothing is changed then.
    pub fn disable(interface: &Interface) -> Result<Self> {
        let failed = |error: io::Error| match error.raw_os_error() {
            Some(libc::ENODEV) => interface.gone(),
            Some(libc::EPERM) => Error::os(Step::Offload, "receive VLAN offload", error)
                .on(interface.name())
                .hint("CAP_NET_ADMIN is needed"),
            _ => Error::os(Step::Offload, "receive VLAN offload", error).on(interface.name()),
        };
        let ethtool = Ethtool::open().map_err(failed)?;
        let name = ethtool.name_of(interface.index()).map_err(failed)?;
        let on = |ethtool: &Ethtool| -> Result<Vec<Feature>> {
            let mut features = ethtool.features(&name).map_err(failed)?;
            features.retain(|feature| feature.active && hides_tags(feature));
            Ok(features)
        };
        // From here on dropping it undoes what was done.
        let disabled = on(&ethtool)?;
        let guard = Self { ethtool, interface: interface.clone(), disabled };
        if guard.disabled.is_empty() {
            return Ok(guard);
        }
        if guard.disabled.iter().all(|feature| feature.changeable) {
            guard.ethtool.set_features(&name, &guard.disabled, false).map_err(failed)?;
        }
        // A driver may refuse quietly.
        if on(&guard.ethtool)?.is_empty() {
            return Ok(guard);
        }
        Err(Error::new(
            Step::Offload,
            ErrorKind::Unsupported,
            "the driver does not let its receive VLAN offload be switched off",
        )
        .on(interface.name())
        .hint("XDP programs cannot see VLAN tags there: use rules without VLANs"))
    }

    /// Whether the offload was on and has been switched off.
    pub fn changed(&self) -> bool {
        !self.disabled.is_empty()
    }

    /// The interface.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Switches the offload on again, where it was on before. What dropping does, with its error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LinkGone`] where the interface was deleted, [`ErrorKind::Permission`] where the
    /// process has lost CAP_NET_ADMIN.
    pub fn restore(mut self) -> Result<()> {
        self.switch_on().map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV | libc::ENXIO) => self.interface.gone(),
            _ => Error::os(Step::Offload, "receive VLAN offload stays off", error)
                .on(self.interface.name()),
        })
    }

    /// Leaves the offload off for good.
    pub(crate) fn leave_off(mut self) {
        self.disabled.clear();
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

impl Drop for VlanOffload {
    fn drop(&mut self) {
        // Nobody is left to be told: `restore` is for those who want to know.
        drop(self.switch_on());
    }
}

impl fmt::Display for VlanOffload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.changed() { "switched off" } else { "was off" };
        write!(f, "receive VLAN offload of {}: {state}", self.interface)
    }
}
