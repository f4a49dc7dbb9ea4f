//! The initial file system of a guest, in memory all its life: an uncompressed cpio archive.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use cpio::{
    NewcBuilder,
    newc::{self, ModeFileType},
};

/// Files in the making.
pub(super) struct Image {
    out: BufWriter<File>,
    folders: Vec<PathBuf>,
    inode: u32,
}

impl Image {
    /// An image that is written to this file.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        Ok(Self { out: BufWriter::new(file), folders: Vec::new(), inode: 1 })
    }

    /// Adds an empty folder, and those that it is in.
    pub(super) fn folder(&mut self, at: &str) -> Result<()> {
        for folder in Path::new(at).ancestors().collect::<Vec<_>>().into_iter().rev() {
            if folder.as_os_str().is_empty() || self.folders.iter().any(|known| known == folder) {
                continue;
            }
            self.folders.push(folder.to_owned());
            let name = folder.to_string_lossy().into_owned();
            self.entry(&name, ModeFileType::Directory, &[])?;
        }
        Ok(())
    }

    /// Adds a copy of this file, executable.
    pub(super) fn copy(&mut self, at: &str, from: &Path) -> Result<()> {
        let bytes = fs::read(from).with_context(|| from.display().to_string())?;
        self.file(at, &bytes)
    }

    /// Adds a file of these bytes, executable.
    pub(super) fn file(&mut self, at: &str, bytes: &[u8]) -> Result<()> {
        let parent = Path::new(at).parent().context("a file has a name")?;
        self.folder(&parent.to_string_lossy())?;
        self.entry(at, ModeFileType::Regular, bytes)
    }

    fn entry(&mut self, name: &str, kind: ModeFileType, bytes: &[u8]) -> Result<()> {
        self.inode += 1;
        let size = u32::try_from(bytes.len()).context("too large for a guest")?;
        let mut writer = NewcBuilder::new(name)
            .ino(self.inode)
            .mode(0o755)
            .set_mode_file_type(kind)
            .write(&mut self.out, size);
        writer.write_all(bytes)?;
        writer.finish()?;
        Ok(())
    }

    /// Writes what is left.
    pub(super) fn finish(self) -> io::Result<()> {
        newc::trailer(self.out)?.flush()
    }
}
