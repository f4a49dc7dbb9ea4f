//! Undoing what killed processes have left behind.
//!
//! Whoever changes something of an interface that the kernel does not change back at the end of a process
//! writes it down before: a [`Change`], in a [`Record`]. What is tied to an open descriptor needs none:
//! an attached program, promiscuous mode.

use std::{fmt, io};

use super::{
    Interface,
    deferral::Settings,
    flow_table::FlowTable,
    offload::SwitchedOff,
    record::{DIRECTORY, Record},
    spread::Indirection,
};
use crate::{
    error::{Error, ErrorKind, Result, Step},
    sys::sysfs,
};

/// Something changed of an interface that its own process, or another one, can undo.
pub(crate) trait Change: Sized {
    /// What was changed, in a word.
    const WHAT: &'static str;

    /// A text to read it back from, by whole lines.
    fn write(&self) -> String;

    /// `None` for a text of another version.
    fn read(text: &str) -> Option<Self>;

    /// Undoes it, in the network namespace that the calling thread is in. What somebody else has changed
    /// since stays as it is.
    fn undo(&self, interface: &Interface) -> Result<()>;
}

/// Writes a change down that is about to be made. `None` where the directory cannot be written.
pub(crate) fn write_down<C: Change>(interface: &Interface, change: &C) -> Option<Record> {
    let namespace = sysfs::namespace().ok()?.to_string();
    Record::write(&namespace, C::WHAT, &written(interface.index, change)).ok()
}

/// Ends a record with the undoing of its change: it stays, for others, where that failed.
pub(crate) fn close(record: Option<Record>, undone: Result<()>) -> Result<()> {
    let over = undone.as_ref().map_or_else(|error| error.kind() == ErrorKind::LinkGone, |()| true);
    match record {
        Some(record) if over => undone.and(record.remove().map_err(unreachable)),
        _ => undone,
    }
}

/// Something that a killed process had changed, and that is as it was before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    interface: Interface,
    what: &'static str,
}

impl Restored {
    /// The interface.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// What was changed: `deferral`, `offload`, `rss` or `flow-rules`.
    pub fn what(&self) -> &'static str {
        self.what
    }
}

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} restored", self.what, self.interface)
    }
}

/// Restores what killed processes have changed of interfaces in the network namespace that the calling
/// thread is in: deferred interrupts, offloads, RSS and flow rules. What somebody else has changed since
/// stays as it is, and so does what living processes have changed.
///
/// A killed process restores nothing. What it changes is written down before, in a file under `/run/xskit`
/// that goes when it is restored. Whoever [opens a port](crate::PortConfig::open) or makes a guard of these
/// restores first, as far as it may; this tells what came of it. Without the right to write there (root has
/// it) nothing is written down.
///
/// ```no_run
/// for restored in xskit::interface::restore_stale()? {
///     println!("{restored}");
/// }
/// # Ok::<(), xskit::Error>(())
/// ```
///
/// # Errors
///
/// The first thing that could not be restored, [`Permission`](ErrorKind::Permission) mostly: its record
/// stays. All others are restored nevertheless.
pub fn restore_stale() -> Result<Vec<Restored>> {
    let namespace = sysfs::namespace().map_err(unreachable)?.to_string();
    let (mut restored, mut outcome) = (Vec::new(), Ok(()));
    // The newest first: what was changed twice becomes what it was in the beginning.
    for record in Record::stale(&namespace).map_err(unreachable)? {
        match restore(record) {
            Ok(one) => restored.extend(one),
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    outcome.map(|()| restored)
}

/// Restores what it may, for those who are about to change something. What it may not is no worse than it
/// was.
pub(crate) fn restore_first() {
    restore_stale().ok();
}

fn restore(mut record: Record) -> Result<Option<Restored>> {
    let content = record.read().map_err(unreachable)?;
    // Of another version: not ours to touch.
    let Some((what, index, text)) = heading(&content) else { return Ok(None) };
    let interface = match Interface::by_index(index) {
        Ok(interface) => interface,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return record.remove().map(|()| None).map_err(unreachable);
        }
        Err(error) => return Err(error),
    };
    let (what, undone) = match what {
        Settings::WHAT => undo::<Settings>(&interface, text),
        SwitchedOff::WHAT => undo::<SwitchedOff>(&interface, text),
        Indirection::WHAT => undo::<Indirection>(&interface, text),
        FlowTable::WHAT => undo::<FlowTable>(&interface, text),
        _ => return Ok(None),
    };
    let Some(undone) = undone else { return Ok(None) };
    match close(Some(record), undone) {
        Ok(()) => Ok(Some(Restored { interface, what })),
        Err(error) if error.kind() == ErrorKind::LinkGone => Ok(None),
        Err(error) => Err(error),
    }
}

fn undo<C: Change>(interface: &Interface, text: &str) -> (&'static str, Option<Result<()>>) {
    (C::WHAT, C::read(text).map(|change| change.undo(interface)))
}

/// A record's content: what, the interface's index, and the change.
fn written<C: Change>(index: u32, change: &C) -> String {
    format!("{} {index}\n{}", C::WHAT, change.write())
}

/// The parts of a record's content; `None` if it is of another version.
fn heading(content: &str) -> Option<(&str, u32, &str)> {
    let (heading, text) = content.split_once('\n')?;
    let (what, index) = heading.split_once(' ')?;
    Some((what, index.parse().ok()?, text))
}

fn unreachable(source: io::Error) -> Error {
    Error::os(Step::Restore, "records of changes cannot be reached", source).asked(DIRECTORY)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Word(String);

    impl Change for Word {
        const WHAT: &'static str = "word";

        fn write(&self) -> String {
            format!("{}\n", self.0)
        }

        fn read(text: &str) -> Option<Self> {
            Some(Self(text.strip_suffix('\n')?.into()))
        }

        fn undo(&self, _: &Interface) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_record_says_what_and_where() {
        let content = written(7, &Word("before".into()));
        assert_eq!(content, "word 7\nbefore\n");
        let (what, index, text) = heading(&content).unwrap();
        assert_eq!((what, index), (Word::WHAT, 7));
        assert_eq!(Word::read(text).unwrap().0, "before");
        for nonsense in ["", "word", "word 7", "word\n", "word x\n", "word 7 8\n"] {
            assert_eq!(heading(nonsense), None, "{nonsense:?}");
        }
    }
}
