//! Which queues RSS spreads packets over.

use std::{fmt, io};

use super::{Interface, QueueId};
use crate::{
    error::{Error, ErrorKind, Result, Step},
    sys::ethtool::Ethtool,
};

/// Keeps RSS to some of an interface's queues, so that packets arrive where there are sockets.
///
/// A NIC hashes each flow to an entry of its indirection table, which names a queue. The guard makes all
/// entries name the given queues in turn, and dropping it puts the old table back, in the network namespace
/// in which it was made, unless somebody else has changed it since. A killed process cannot do so:
/// `ethtool -X eth0 default` does.
///
/// Make it after a program is attached and channels are set: drivers reset the table then.
///
/// ```no_run
/// use xskit::{Interface, QueueId, interface::Spread};
///
/// let eth0 = Interface::by_name("eth0")?;
/// let spread = Spread::over(&eth0, &[QueueId::new(0), QueueId::new(1)])?;
/// # drop(spread);
/// # Ok::<(), xskit::Error>(())
/// ```
#[doc(alias = "RSS")]
#[doc(alias = "ETHTOOL_SRXFHINDIR")]
#[derive(Debug)]
#[must_use = "dropping it puts the old table back"]
pub struct Spread {
    ethtool: Ethtool,
    interface: Interface,
    before: Vec<u32>,
    set: Vec<u32>,
    active: u32,
}

impl Spread {
    /// Spreads all packets that the NIC hashes over these queues.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for no queues, [`NotFound`](ErrorKind::NotFound) for one that
    /// is not active, [`Unsupported`](ErrorKind::Unsupported) where the device has no indirection table (veth
    /// has none), [`Permission`](ErrorKind::Permission) without CAP_NET_ADMIN,
    /// [`LinkGone`](ErrorKind::LinkGone) where the interface was deleted. Nothing is changed then.
    pub fn over(interface: &Interface, queues: &[QueueId]) -> Result<Self> {
        let active = interface.active_queues(queues)?;
        let failed = |source| failed(interface, "the RSS indirection table", source);
        let ethtool = Ethtool::open().map_err(failed)?;
        let name = ethtool.name_of(interface.index()).map_err(failed)?;
        let before = ethtool.indirection(&name).map_err(failed)?;
        let set = table(before.len(), queues);
        ethtool.set_indirection(&name, &set).map_err(failed)?;
        Ok(Self { ethtool, interface: interface.clone(), before, set, active })
    }

    /// The interface.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Puts the old table back. What dropping does, with its error.
    ///
    /// # Errors
    ///
    /// [`LinkGone`](ErrorKind::LinkGone) where the interface was deleted,
    /// [`Permission`](ErrorKind::Permission) where the process has lost CAP_NET_ADMIN.
    pub fn restore(mut self) -> Result<()> {
        self.undo()
            .map_err(|source| failed(&self.interface, "the old RSS indirection table", source))
    }

    fn undo(&mut self) -> io::Result<()> {
        let set = std::mem::take(&mut self.set);
        if set.is_empty() {
            return Ok(());
        }
        let name = self.ethtool.name_of(self.interface.index())?;
        if self.ethtool.indirection(&name)? != set {
            return Ok(());
        }
        let all: Vec<QueueId> = (0..self.active).map(QueueId::new).collect();
        if self.before == table(self.before.len(), &all) {
            // The default: the driver goes on adapting it when channels change.
            return self.ethtool.set_indirection(&name, &[]);
        }
        self.ethtool.set_indirection(&name, &self.before)
    }
}

impl Drop for Spread {
    fn drop(&mut self) {
        // Nobody is left to be told: `restore` is for those who want to know.
        self.undo().ok();
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut queues = self.set.clone();
        queues.sort_unstable();
        queues.dedup();
        let queues: Vec<String> = queues.iter().map(ToString::to_string).collect();
        write!(f, "RSS of {} spreads over queues {}", self.interface, queues.join(", "))
    }
}

/// The queues in turn.
fn table(size: usize, queues: &[QueueId]) -> Vec<u32> {
    queues.iter().map(|queue| queue.get()).cycle().take(size).collect()
}

pub(crate) fn failed(interface: &Interface, what: &'static str, source: io::Error) -> Error {
    let error = Error::os(Step::Steer, format!("{what} cannot be changed"), source);
    match error.raw_os_error() {
        Some(libc::ENODEV | libc::ENXIO) => interface.gone(),
        Some(libc::EPERM) => error.on(interface.name()).hint("CAP_NET_ADMIN is needed"),
        Some(libc::EOPNOTSUPP) => error.on(interface.name()).hint(
            "the device has none; open all of its queues, or set fewer channels (ethtool -L): the counters \
             per queue (`Port::counters`) show where packets arrive",
        ),
        Some(libc::ENOSPC) => error
            .with_kind(ErrorKind::Limit)
            .on(interface.name())
            .hint("the device's table is full; prefixes cover many addresses with one rule"),
        _ => error.on(interface.name()).hint("the driver does not take this; its log may say why"),
    }
}

impl Interface {
    /// The number of active queues, where all of these are.
    pub(crate) fn active_queues(&self, queues: &[QueueId]) -> Result<u32> {
        if queues.is_empty() {
            return Err(Error::new(Step::Steer, ErrorKind::InvalidInput, "no queue is named")
                .on(self.name())
                .hint("name those that have sockets"));
        }
        let facts = self.facts()?;
        match queues.iter().find(|queue| queue.get() >= facts.queues.active) {
            Some(queue) => {
                Err(Error::new(Step::Steer, ErrorKind::NotFound, "there is no such queue")
                    .on(self.name())
                    .queue_is(*queue)
                    .hint(format!("{} has {}", self.name(), facts.queues)))
            }
            None => Ok(facts.queues.active),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_take_turns() {
        let queues = [QueueId::new(1), QueueId::new(3), QueueId::new(4)];
        assert_eq!(table(8, &queues), [1, 3, 4, 1, 3, 4, 1, 3]);
        assert_eq!(table(2, &queues), [1, 3]);
        assert_eq!(table(0, &queues), []);
    }

    #[test]
    fn a_device_without_a_table_is_named() {
        let interface = Interface { name: "eth0".into(), index: 7 };
        let error = failed(&interface, "the table", io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("the device has none"), "{error}");
        let full = failed(&interface, "the table", io::Error::from_raw_os_error(libc::ENOSPC));
        assert_eq!(full.kind(), ErrorKind::Limit);
    }
}
