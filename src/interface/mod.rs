//! What a network interface is and has: its queues, driver, MTU, XDP features and ring sizes.
//!
//! Every question goes to the kernel anew, in the network namespace that the calling thread is in,
//! so that it is answered rightly after `setns`. What is mounted on `/sys` is not
//! read about interfaces, as it keeps showing the old namespace, and no other program is run.

mod carrier;
mod deferral;
mod facts;
mod flow_table;
pub(crate) mod netlink;
mod offload;
mod promiscuous;
mod queues;
mod record;
mod spread;
mod stale;

use std::fmt;

use nix::errno::Errno;

use self::netlink::{Link, NetlinkRefusal};
use crate::error::{Error, ErrorKind, Result, Step};

use self::spread::failed as steering_failed;
pub use self::{
    deferral::{Deferral, Deferred},
    facts::{Facts, Queues, RxMetadata, TxMetadata, XdpFeatures, XdpProgram, XdpProgramMode},
    offload::{DisabledOffload, Offload},
    promiscuous::Promiscuous,
    queues::{Interrupt, Napi, QueueFacts},
    spread::Spread,
    stale::{Restored, restore_stale},
};
pub(crate) use self::{flow_table::Flows, record::Record, stale::restore_first};

/// A network interface of the calling thread's network namespace.
///
/// Only its name and index are kept; [`facts`](Self::facts) asks for the rest. The index is what
/// counts: it stays when the interface is renamed, and is not given out again soon after the
/// interface is deleted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Interface {
    name: String,
    index: u32,
}

impl Interface {
    /// The interface of this name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] where there is none, with those that there are;
    /// [`ErrorKind::InvalidInput`] where no interface can have this name.
    ///
    /// ```
    /// # use xskit::{ErrorKind, Interface};
    /// let lo = Interface::by_name("lo")?;
    /// assert_eq!(lo.name(), "lo");
    /// let error = Interface::by_name("no-such-one").unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::NotFound);
    /// # Ok::<(), xskit::Error>(())
    /// ```
    pub fn by_name(name: &str) -> Result<Self> {
        check_name(name).map_err(name_those_there)?;
        match netlink::link_by_name(name) {
            Ok(link) => Ok(Self::from(link)),
            Err(NetlinkRefusal { errno: errno @ Errno::ENODEV, .. }) => {
                Err(not_found(format!("no interface `{name}` in this network namespace"), errno)
                    .on(name))
            }
            Err(refusal) => Err(refused("cannot be asked for", refusal).on(name)),
        }
    }

    /// The interface of this index, as in `if_nametoindex`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] where there is none, with those that there are.
    pub fn by_index(index: u32) -> Result<Self> {
        // Index 0 means "any" to the kernel.
        let link =
            if index == 0 { Err(Errno::ENODEV.into()) } else { netlink::link_by_index(index) };
        match link {
            Ok(link) => Ok(Self::from(link)),
            Err(NetlinkRefusal {
                errno: errno @ (Errno::ENODEV | Errno::EINVAL | Errno::ERANGE),
                ..
            }) => Err(not_found(
                format!("no interface of index {index} in this network namespace"),
                errno,
            )),
            Err(refusal) => {
                Err(refused(format!("interface of index {index} cannot be asked for"), refusal))
            }
        }
    }

    /// The name that it had when it was looked up.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kernel's index of it.
    #[doc(alias = "ifindex")]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Whether a default route, IPv4 or IPv6, in any routing table, leaves through it: redirecting
    /// everything that it receives would cut the machine off.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LinkGone`] where it was deleted.
    pub fn carries_default_route(&self) -> Result<bool> {
        self.link()?;
        netlink::carries_default_route(self.index)
            .map_err(|refusal| self.failed("the routes cannot be read", refusal))
    }

    /// What rtnetlink says now.
    fn link(&self) -> Result<Link> {
        netlink::link_by_index(self.index)
            .map_err(|refusal| self.failed("cannot be asked for", refusal))
    }

    fn failed(&self, reason: &'static str, refusal: NetlinkRefusal) -> Error {
        match refusal.errno {
            Errno::ENODEV => self.gone(),
            _ => refused(reason, refusal).on(&self.name),
        }
    }

    fn gone(&self) -> Error {
        let reason = "it was deleted, or moved to another network namespace";
        Error::os(Step::Interface, reason, Errno::ENODEV)
            .with_kind(ErrorKind::LinkGone)
            .on(&self.name)
            .hint("once there is one of this name again, look it up anew: Interface::by_name")
    }
}

impl From<Link> for Interface {
    fn from(link: Link) -> Self {
        Self { name: link.name, index: link.index }
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

/// The kernel's rule for names (`dev_valid_name`).
fn check_name(name: &str) -> Result<()> {
    let fault = if name.is_empty() {
        "an interface's name is not empty"
    } else if name.len() >= libc::IFNAMSIZ {
        "an interface's name has at most 15 bytes"
    } else if matches!(name, "." | "..")
        || name.bytes().any(|byte| matches!(byte, 0 | b'/' | b':') || byte.is_ascii_whitespace())
    {
        "an interface's name has no NUL, slash, colon or white space"
    } else {
        return Ok(());
    };
    Err(Error::new(Step::Interface, ErrorKind::InvalidInput, fault).asked(format!("{name:?}")))
}

fn not_found(reason: String, errno: Errno) -> Error {
    name_those_there(Error::os(Step::Interface, reason, errno).with_kind(ErrorKind::NotFound))
}

fn name_those_there(error: Error) -> Error {
    /// More would bury the sentence.
    const SHOWN: usize = 16;
    match netlink::link_names() {
        Ok(names) if names.len() > SHOWN => {
            let (shown, rest) = names.split_at(SHOWN);
            error.hint(format!("there are: {} and {} more", shown.join(", "), rest.len()))
        }
        Ok(names) if !names.is_empty() => error.hint(format!("there are: {}", names.join(", "))),
        _ => error,
    }
}

fn refused(reason: impl Into<std::borrow::Cow<'static, str>>, refusal: NetlinkRefusal) -> Error {
    let error = Error::os(Step::Interface, reason, refusal.errno);
    match refusal.message {
        Some(message) => error.hint(format!("the kernel says: {message}")),
        None => error,
    }
}

/// The number of one of an interface's hardware queues, counted from 0.
///
/// It is also the key of the queue's socket in the XSKMAP, so that the two cannot differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(u32);

impl QueueId {
    /// The queue with this number. Whether an interface has it is found at bind.
    pub const fn new(id: u32) -> Self {
        Self(id)
    }

    /// The plain number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl From<u32> for QueueId {
    fn from(id: u32) -> Self {
        Self(id)
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_kernels_rule() {
        for name in ["lo", "eth0", "a-name-of-15-by", "v.100", "naïve"] {
            check_name(name).unwrap();
        }
        for name in ["", ".", "..", "a/b", "a:1", "a b", "a\0b", "a-name-of-16-byt"] {
            let error = check_name(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name:?}");
        }
    }
}
