//! Switching offloads off that stand between XDP and whole packets, and back on.

use std::{fmt, io, iter, path::Path};

use super::{
    Interface,
    record::Record,
    stale::{self, Change},
};
use crate::{
    error::{Error, ErrorKind, Result, Step},
    sys::ethtool::{Ethtool, Feature},
};

/// ethtool's names of the offloads that take a tag off a received packet, customer's and provider's.
const HIDING: [&str; 2] = ["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"];

pub(super) fn hides_tags(feature: &Feature) -> bool {
    HIDING.contains(&feature.name.as_str())
}

/// An offload that stands between XDP and whole packets.
///
/// ```no_run
/// use xskit::{Interface, interface::Offload};
///
/// let guard = Offload::TxChecksum.disable(&Interface::by_name("veth1")?)?;
/// // … until it is dropped, or restored.
/// guard.restore()?;
/// # Ok::<(), xskit::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Offload {
    /// The NIC takes the VLAN tag off a received packet, so that XDP programs do not see it.
    ///
    /// On veth the tag is hidden by the *sender's* transmit offload instead, which is another
    /// interface, perhaps in another namespace.
    #[doc(alias = "rx-vlan-offload")]
    RxVlan,
    /// The machine's stack leaves TCP and UDP checksums of what it sends to hardware.
    ///
    /// On veth there is none: what arrives at the peer, and at an AF_XDP socket on it, has half a
    /// checksum, which nobody completes when it is forwarded. It is to be switched off at the *sending*
    /// end, and at both for traffic both ways. What AF_XDP sends is not concerned: its checksums are your
    /// own.
    #[doc(alias = "tx-checksum-ip-generic")]
    TxChecksum,
}

/// How an offload is called, and what is said of it.
struct Words {
    name: &'static str,
    stays_off: &'static str,
    refused: &'static str,
    hint: &'static str,
}

impl Offload {
    /// Switches the offload off, where it is on, until the guard is dropped.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the driver cannot switch it off,
    /// [`ErrorKind::Permission`] without CAP_NET_ADMIN, [`ErrorKind::LinkGone`] where the interface
    /// was deleted. Nothing is changed then.
    pub fn disable(self, interface: &Interface) -> Result<DisabledOffload> {
        DisabledOffload::switch(self, interface)
    }

    fn words(self) -> Words {
        match self {
            Self::RxVlan => Words {
                name: "receive VLAN offload",
                stays_off: "receive VLAN offload stays off",
                refused: "the driver does not let its receive VLAN offload be switched off",
                hint: "XDP programs cannot see VLAN tags there: use rules without VLANs",
            },
            Self::TxChecksum => Words {
                name: "transmit checksum offload",
                stays_off: "transmit checksum offload stays off",
                refused: "the driver does not let its transmit checksum offload be switched off",
                hint: "checksums of packets that this machine's stack sends there are left to the receiver",
            },
        }
    }

    /// Whether the feature is a part of it.
    fn includes(self, feature: &Feature) -> bool {
        match self {
            Self::RxVlan => hides_tags(feature),
            // -ipv4, -ipv6, -ip-generic, -sctp, -fcoe-crc
            Self::TxChecksum => feature.name.starts_with("tx-checksum-"),
        }
    }
}

impl fmt::Display for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words().name)
    }
}

/// Keeps an [`Offload`] of an interface off.
///
/// Dropping it switches the offload on again where it was on before, in the namespace in which it was
/// switched off, whatever the interface is called by then; if it was moved to another namespace, it stays
/// off. After a killed process, [`restore_stale`](super::restore_stale) does it. Of two guards on one
/// interface, the first one switches it on again: keep one per interface.
#[derive(Debug)]
#[must_use = "dropping it switches the offload on again"]
pub struct DisabledOffload {
    ethtool: Ethtool,
    interface: Interface,
    off: SwitchedOff,
    record: Option<Record>,
}

impl DisabledOffload {
    fn switch(offload: Offload, interface: &Interface) -> Result<Self> {
        stale::restore_first();
        let words = offload.words();
        let failed = |error| failed(interface, words.name, error);
        let ethtool = Ethtool::open().map_err(failed)?;
        let name = ethtool.name_of(interface.index()).map_err(failed)?;
        let on = |ethtool: &Ethtool| -> Result<Vec<Feature>> {
            let mut features = ethtool.features(&name).map_err(failed)?;
            features.retain(|feature| feature.active && offload.includes(feature));
            Ok(features)
        };
        let disabled = on(&ethtool)?;
        let features = disabled.iter().map(|feature| feature.name.clone()).collect();
        let off = SwitchedOff { offload, features };
        // From here on dropping it undoes what was done.
        let mut guard = Self { ethtool, interface: interface.clone(), off, record: None };
        if disabled.is_empty() {
            return Ok(guard);
        }
        guard.set_recorded(true);
        if disabled.iter().all(|feature| feature.changeable) {
            guard.ethtool.set_features(&name, &disabled, false).map_err(failed)?;
        }
        // A driver may refuse quietly.
        if on(&guard.ethtool)?.is_empty() {
            return Ok(guard);
        }
        Err(Error::new(Step::Offload, ErrorKind::Unsupported, words.refused)
            .on(interface.name())
            .hint(words.hint))
    }

    /// The offload.
    pub fn offload(&self) -> Offload {
        self.off.offload
    }

    /// The interface.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Whether the offload was on and has been switched off.
    pub fn changed(&self) -> bool {
        !self.off.features.is_empty()
    }

    /// The file in which it is written down what to restore if this process is killed. `None` where
    /// nothing was switched off, and where `/run/xskit` cannot be written.
    pub fn record(&self) -> Option<&Path> {
        self.record.as_ref().map(Record::path)
    }

    /// Whether the next process shall switch the offload on again, should this one be killed.
    pub(crate) fn set_recorded(&mut self, recorded: bool) {
        match self.record.take() {
            record @ Some(_) if recorded => self.record = record,
            None if recorded && self.changed() => {
                self.record = stale::write_down(&self.interface, &self.off);
            }
            // One that cannot be removed now could not be later.
            Some(record) => drop(record.remove()),
            None => {}
        }
    }

    /// Switches the offload on again, where it was on before. What dropping does, with its error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LinkGone`] where the interface was deleted or moved to another network namespace,
    /// [`ErrorKind::Permission`] where the process has lost CAP_NET_ADMIN.
    pub fn restore(mut self) -> Result<()> {
        self.undo()
    }

    /// Leaves the offload off for good.
    pub(crate) fn leave_off(mut self) {
        self.set_recorded(false);
        self.off.features.clear();
    }

    fn undo(&mut self) -> Result<()> {
        let undone = self.off.undo_by(&self.ethtool, &self.interface);
        self.off.features.clear();
        stale::close(self.record.take(), undone)
    }
}

impl Drop for DisabledOffload {
    fn drop(&mut self) {
        // Nobody is left to be told: `restore` is for those who want to know.
        self.undo().ok();
    }
}

impl fmt::Display for DisabledOffload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.changed() { "switched off" } else { "was off" };
        write!(f, "{} of {}: {state}", self.offload(), self.interface)
    }
}

/// The features of an offload that were on; none, once they are on again.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SwitchedOff {
    offload: Offload,
    features: Vec<String>,
}

impl SwitchedOff {
    fn undo_by(&self, ethtool: &Ethtool, interface: &Interface) -> Result<()> {
        if self.features.is_empty() {
            return Ok(());
        }
        let undo = || {
            let name = ethtool.name_of(interface.index())?;
            let mut features = ethtool.features(&name)?;
            features.retain(|feature| !feature.active && self.features.contains(&feature.name));
            // Never switched off, or on again already: that takes no privilege.
            if features.is_empty() { Ok(()) } else { ethtool.set_features(&name, &features, true) }
        };
        undo().map_err(|error| failed(interface, self.offload.words().stays_off, error))
    }
}

impl Change for SwitchedOff {
    const WHAT: &'static str = "offload";

    /// The offload, then a line for each feature.
    fn write(&self) -> String {
        let offload = match self.offload {
            Offload::RxVlan => "rx-vlan",
            Offload::TxChecksum => "tx-checksum",
        };
        let lines = iter::once(offload).chain(self.features.iter().map(String::as_str));
        lines.flat_map(|line| [line, "\n"]).collect()
    }

    fn read(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let offload = match lines.next()? {
            "rx-vlan" => Offload::RxVlan,
            "tx-checksum" => Offload::TxChecksum,
            _ => return None,
        };
        Some(Self { offload, features: lines.map(str::to_owned).collect() })
    }

    fn undo(&self, interface: &Interface) -> Result<()> {
        let ethtool = Ethtool::open()
            .map_err(|error| failed(interface, self.offload.words().stays_off, error))?;
        self.undo_by(&ethtool, interface)
    }
}

fn failed(interface: &Interface, reason: &'static str, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ENODEV | libc::ENXIO) => interface.gone(),
        Some(libc::EPERM) => Error::os(Step::Offload, reason, error)
            .on(interface.name())
            .hint("CAP_NET_ADMIN is needed"),
        _ => Error::os(Step::Offload, reason, error).on(interface.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back() {
        let features = vec!["tx-checksum-ip-generic".to_owned(), "tx-checksum-sctp".to_owned()];
        let off = SwitchedOff { offload: Offload::TxChecksum, features };
        let text = off.write();
        assert_eq!(text, "tx-checksum\ntx-checksum-ip-generic\ntx-checksum-sctp\n");
        assert_eq!(SwitchedOff::read(&text), Some(off));
        let off = SwitchedOff { offload: Offload::RxVlan, features: vec!["x".into()] };
        assert_eq!(SwitchedOff::read(&off.write()), Some(off));
        for nonsense in ["", "\n", "tx\n"] {
            assert_eq!(SwitchedOff::read(nonsense), None, "{nonsense:?}");
        }
    }
}
