//! What a process has changed and means to change back, written down: if it is killed, the next one can.
//!
//! A record is a file that its process holds locked. The kernel gives the lock up when the process ends,
//! however it ends, so that a record which nobody has locked is stale; no process id is compared.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use nix::fcntl::{Flock, FlockArg};

/// Where the records are. Only root can make it, so that nobody else can plant one.
pub(super) const DIRECTORY: &str = "/run/xskit";

/// A record, locked for as long as it is held.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    lock: Flock<File>,
}

impl Record {
    /// Writes one down. The name begins with `kind`.
    pub(super) fn write(kind: &str, content: &str) -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let directory = Path::new(DIRECTORY);
        match DirBuilder::new().mode(0o755).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{kind}-{}-{number}", process::id());
        // Under a name that nobody looks at, until it is locked and complete.
        let draft = directory.join(format!(".{name}"));
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o644)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&draft)?;
        let mut lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, errno)| io::Error::from(errno))?;
        let path = directory.join(name);
        lock.write_all(content.as_bytes()).and_then(|()| fs::rename(&draft, &path)).inspect_err(
            |_| {
                // The first error is the one to tell.
                fs::remove_file(&draft).ok();
            },
        )?;
        Ok(Self { path, lock })
    }

    /// The records of this kind whose processes have ended.
    pub(super) fn stale(kind: &str) -> io::Result<Vec<Self>> {
        let entries = match fs::read_dir(DIRECTORY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let start = format!("{kind}-");
        let mut records = Vec::new();
        for entry in entries {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&start) {
                records.extend(Self::lock(entry.path())?);
            }
        }
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

    /// What is written in it.
    pub(super) fn read(&mut self) -> io::Result<String> {
        let mut content = String::new();
        self.lock.read_to_string(&mut content)?;
        Ok(content)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Has been dealt with.
    pub(super) fn remove(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}
