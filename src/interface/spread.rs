//! Which queues RSS spreads packets over.

use std::{fmt, io, path::Path};

use super::{
    Interface, QueueId,
    record::Record,
    stale::{self, Change},
};
use crate::{
    error::{Error, ErrorKind, Result, Step},
    sys::ethtool::Ethtool,
};

/// What is changed, in errors.
const TABLE: &str = "the RSS indirection table";

/// Keeps RSS to some of an interface's queues, so that packets arrive where there are sockets.
///
/// A NIC hashes each flow to an entry of its indirection table, which names a queue. The guard makes all
/// entries name the given queues in turn, and dropping it puts the old table back, in the network namespace
/// in which it was made, unless somebody else has changed it since. After a killed process,
/// [`restore_stale`](super::restore_stale) does, or `ethtool -X eth0 default`.
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
    /// `None` once restored.
    table: Option<Indirection>,
    record: Option<Record>,
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
        stale::restore_first();
        let failed = |source| failed(interface, TABLE, source);
        let ethtool = Ethtool::open().map_err(failed)?;
        let name = ethtool.name_of(interface.index()).map_err(failed)?;
        let before = ethtool.indirection(&name).map_err(failed)?;
        let set = table(before.len(), queues);
        let all: Vec<QueueId> = (0..active).map(QueueId::new).collect();
        let default = before == table(before.len(), &all);
        let table = Indirection { default, before, set: set.clone() };
        let record = stale::write_down(interface, &table);
        // From here on dropping it undoes what was done.
        let spread = Self { ethtool, interface: interface.clone(), table: Some(table), record };
        spread.ethtool.set_indirection(&name, &set).map_err(failed)?;
        Ok(spread)
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
    }

    /// The file in which it is written down what to restore if this process is killed. `None` where
    /// `/run/xskit` cannot be written.
    pub fn record(&self) -> Option<&Path> {
        self.record.as_ref().map(Record::path)
    }

    fn undo(&mut self) -> Result<()> {
        let Some(table) = self.table.take() else { return Ok(()) };
        let undone = table.undo_by(&self.ethtool, &self.interface);
        stale::close(self.record.take(), undone)
    }
}

/// What the table was, and what was made of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Indirection {
    /// It was the driver's own, which goes on adapting it when channels change.
    default: bool,
    before: Vec<u32>,
    set: Vec<u32>,
}

impl Indirection {
    fn undo_by(&self, ethtool: &Ethtool, interface: &Interface) -> Result<()> {
        let undo = || {
            let name = ethtool.name_of(interface.index())?;
            if ethtool.indirection(&name)? != self.set {
                return Ok(());
            }
            ethtool.set_indirection(&name, if self.default { &[] } else { &self.before })
        };
        undo().map_err(|source| failed(interface, TABLE, source))
    }
}

impl Change for Indirection {
    const WHAT: &'static str = "rss";

    /// Whose table it was, the table before, the one that was set: a line for each.
    fn write(&self) -> String {
        let whose = if self.default { "default" } else { "own" };
        let line =
            |table: &[u32]| table.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        format!("{whose}\n{}\n{}\n", line(&self.before), line(&self.set))
    }

    fn read(text: &str) -> Option<Self> {
        let lines: Vec<&str> = text.lines().collect();
        let [whose, before, set] = lines[..] else { return None };
        let default = match whose {
            "default" => true,
            "own" => false,
            _ => return None,
        };
        let table = |line: &str| -> Option<Vec<u32>> {
            line.split(' ').map(|queue| queue.parse().ok()).collect()
        };
        Some(Self { default, before: table(before)?, set: table(set)? })
    }

    fn undo(&self, interface: &Interface) -> Result<()> {
        let ethtool = Ethtool::open().map_err(|source| failed(interface, TABLE, source))?;
        self.undo_by(&ethtool, interface)
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
        let mut queues: Vec<u32> = self.table.iter().flat_map(|table| table.set.clone()).collect();
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

pub(super) fn failed(interface: &Interface, what: &'static str, source: io::Error) -> Error {
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
    fn a_record_is_read_back() {
        let table = Indirection { default: true, before: vec![0, 1, 0, 1], set: vec![1; 4] };
        assert_eq!(table.write(), "default\n0 1 0 1\n1 1 1 1\n");
        assert_eq!(Indirection::read(&table.write()), Some(table));
        let table = Indirection { default: false, before: vec![3], set: vec![0] };
        assert_eq!(Indirection::read(&table.write()), Some(table));
        for nonsense in ["", "own\n0\n", "mine\n0\n1\n", "own\n0\nx\n", "own\n\n\n"] {
            assert_eq!(Indirection::read(nonsense), None, "{nonsense:?}");
        }
    }

    /// Restoring goes as far as the device, which has no table.
    #[test]
    fn a_table_that_is_not_there_is_not_restored() {
        let lo = Interface::by_name("lo").unwrap();
        let table = Indirection { default: true, before: vec![0], set: vec![0] };
        assert_eq!(table.undo(&lo).unwrap_err().kind(), ErrorKind::Unsupported);
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
