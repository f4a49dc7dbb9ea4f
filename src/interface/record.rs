//! What a process has changed and means to change back, written down: if it is killed, the next one can.
//!
//! A record is a file that its process holds locked. The kernel gives the lock up when the process ends,
//! however it ends, so that a record which nobody has locked is stale; no process id is compared.

use std::{
    cmp::Reverse,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process,
};

use nix::fcntl::{Flock, FlockArg};

use crate::sync::{Ordering, global::AtomicU32};

/// Where the records are. Only root can make it, so that nobody else can plant one.
pub(super) const DIRECTORY: &str = "/run/xskit";

/// Names that are tried for a new record.
const ATTEMPTS: usize = 1000;

/// How the names of a network namespace's records begin.
fn prefix(namespace: &str) -> String {
    format!("{namespace}.")
}

/// A record, locked for as long as it is held.
#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
    lock: Flock<File>,
}

impl Record {
    /// Writes one down, of something changed in this network namespace.
    pub(super) fn write(namespace: &str, what: &str, content: &str) -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let directory = Path::new(DIRECTORY);
        match DirBuilder::new().mode(0o755).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // In containers that share the directory, processes have the same number: never the other's file.
        for _ in 0..ATTEMPTS {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("{}{what}.{}.{number}", prefix(namespace), process::id());
            match Self::create(directory, &name, content) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                outcome => return outcome,
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// A new file of this name, that is seen only once it is locked and complete.
    fn create(directory: &Path, name: &str, content: &str) -> io::Result<Self> {
        let draft = directory.join(format!(".{name}"));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&draft)?;
        let path = directory.join(name);
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, errno)| io::Error::from(errno))
            .and_then(|mut lock| {
                lock.write_all(content.as_bytes())?;
                fs::hard_link(&draft, &path)?;
                Ok(lock)
            });
        // The first error is the one to tell.
        fs::remove_file(&draft).ok();
        Ok(Self { path, lock: lock? })
    }

    /// The records of a network namespace whose processes have ended, the newest first. Those of others are
    /// not even locked, so that whoever looks there finds them free.
    pub(super) fn stale(namespace: &str) -> io::Result<Vec<Self>> {
        let entries = match fs::read_dir(DIRECTORY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let prefix = prefix(namespace);
        let mut records = Vec::new();
        for entry in entries {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()) {
                records.extend(Self::lock(entry.path())?);
            }
        }
        records.sort_by_cached_key(|record: &Self| {
            Reverse(record.lock.metadata().and_then(|metadata| metadata.modified()).ok())
        });
        Ok(records)
    }

    /// `None` where somebody else has it, or has removed it meanwhile.
    fn lock(path: PathBuf) -> io::Result<Option<Self>> {
        let file = match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { return Ok(None) };
        let is_there = lock.metadata()?.nlink() > 0;
        Ok(is_there.then_some(Self { path, lock }))
    }

    /// Adds to what is written in it.
    pub(crate) fn append(&mut self, text: &str) -> io::Result<()> {
        self.lock.write_all(text.as_bytes())
    }

    /// What is written in it.
    pub(super) fn read(&mut self) -> io::Result<String> {
        let mut content = String::new();
        self.lock.read_to_string(&mut content)?;
        Ok(content)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Has been dealt with.
    pub(crate) fn remove(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    #[test]
    fn a_record_is_never_put_in_the_place_of_another() {
        let directory = env::temp_dir().join(format!("xskit-record-{}", process::id()));
        fs::create_dir(&directory).unwrap();
        let first = Record::create(&directory, "a", "first").unwrap();
        let error = Record::create(&directory, "a", "second").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        // The draft of one that was killed is in nobody's way for ever either: another name is taken.
        fs::write(directory.join(".b"), "").unwrap();
        let error = Record::create(&directory, "b", "third").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(first.path()).unwrap(), "first");
        assert!(Record::lock(first.path().to_owned()).unwrap().is_none(), "it is in use");
        let path = first.path().to_owned();
        drop(first);
        let mut stale = Record::lock(path).unwrap().expect("its process is gone");
        assert_eq!(stale.read().unwrap(), "first");
        stale.remove().unwrap();
        fs::remove_dir_all(&directory).unwrap();
    }
}
