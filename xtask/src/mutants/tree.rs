//! The copy of the tree that faults are put into.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use super::faults::{Edit, Fault};
use crate::cargo;

/// The version of the package in the copy. Cargo tells packages in one build folder apart by name and version,
/// not by where they are: with the same version, what was built with a fault would be taken for what the
/// workspace itself builds later.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "+fault");

/// Under the folder in which cargo builds, so that what it is built from, and what git ignores, are there
/// already. Files that are as they were are left alone, and are not built again.
pub(super) struct Tree {
    root: PathBuf,
}

impl Tree {
    /// Makes the copy what the workspace is now.
    pub(super) fn copy() -> Result<Self> {
        let tree = Self { root: cargo::target()?.join("mutants") };
        let mut kept = HashSet::new();
        copy_folder(cargo::workspace(), &tree.root, &mut kept)?;
        remove_others(&tree.root, &kept)?;
        Ok(tree)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Whether the fault fits.
    pub(super) fn check(&self, fault: &Fault) -> Result<()> {
        self.edited(fault).map(drop)
    }

    /// Puts the fault into the copy.
    pub(super) fn apply(&self, fault: &Fault) -> Result<Applied> {
        let mut applied = Applied { originals: Vec::new() };
        for (path, original, edited) in self.edited(fault)? {
            applied.originals.push((path.clone(), original));
            write(&path, edited.as_bytes())?;
        }
        Ok(applied)
    }

    /// The files that the fault is in: path, content before and after.
    fn edited(&self, fault: &Fault) -> Result<Vec<(PathBuf, String, String)>> {
        let mut files: Vec<(PathBuf, String, String)> = Vec::new();
        for Edit { file, from, to } in fault.edits {
            let path = self.root.join(file);
            if !files.iter().any(|(known, ..)| *known == path) {
                let content = fs::read_to_string(&path)
                    .with_context(|| format!("`{}`: cannot read {file}", fault.name))?;
                files.push((path.clone(), content.clone(), content));
            }
            let known = files.iter_mut().find(|(known, ..)| *known == path);
            let (_, _, content) = known.context("it was added above")?;
            let count = content.matches(from).count();
            ensure!(
                count == 1,
                "`{}`: {file} has what is to be replaced {count} times, not once:\n{from}",
                fault.name
            );
            *content = content.replace(from, to);
        }
        Ok(files)
    }
}

/// A fault in the copy.
#[must_use = "the next fault needs a tree without this one"]
pub(super) struct Applied {
    originals: Vec<(PathBuf, String)>,
}

impl Applied {
    pub(super) fn undo(self) -> Result<()> {
        self.originals.iter().try_for_each(|(path, original)| write(path, original.as_bytes()))
    }
}

fn copy_folder(from: &Path, to: &Path, kept: &mut HashSet<PathBuf>) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let (source, copy) = (entry.path(), to.join(entry.file_name()));
        if entry.file_name() == "target" || entry.file_name() == ".git" {
            continue;
        }
        kept.insert(copy.clone());
        if entry.file_type()?.is_dir() {
            copy_folder(&source, &copy, kept)?;
            continue;
        }
        let content = fs::read(&source).with_context(|| source.display().to_string())?;
        let content = with_version(&source, content)?;
        if !fs::read(&copy).is_ok_and(|old| old == content) {
            write(&copy, &content)?;
        }
    }
    Ok(())
}

/// The content with the copy's version, in the two files of the workspace where it stands.
fn with_version(source: &Path, content: Vec<u8>) -> Result<Vec<u8>> {
    let ours = concat!("name = \"xskit\"\nversion = \"", env!("CARGO_PKG_VERSION"), "\"\n");
    let (from, to) = match source.strip_prefix(cargo::workspace()).ok().and_then(Path::to_str) {
        Some("Cargo.toml") => {
            ("\nversion.workspace = true\n", format!("\nversion = \"{VERSION}\"\n"))
        }
        Some("Cargo.lock") => (ours, format!("name = \"xskit\"\nversion = \"{VERSION}\"\n")),
        _ => return Ok(content),
    };
    let content = String::from_utf8(content)?;
    ensure!(content.matches(from).count() == 1, "{}: `{from}` is not there once", source.display());
    Ok(content.replace(from, &to).into_bytes())
}

fn remove_others(folder: &Path, kept: &HashSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        match (kept.contains(&path), entry.file_type()?.is_dir()) {
            (true, true) => remove_others(&path, kept)?,
            (true, false) => {}
            (false, true) => fs::remove_dir_all(&path)?,
            (false, false) => fs::remove_file(&path)?,
        }
    }
    Ok(())
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_is_another_package() {
        for file in ["Cargo.toml", "Cargo.lock"] {
            let path = cargo::workspace().join(file);
            let content = with_version(&path, fs::read(&path).unwrap()).unwrap();
            assert!(String::from_utf8(content).unwrap().contains(VERSION), "{file}");
        }
        let path = cargo::workspace().join("xtask/Cargo.toml");
        let content = fs::read(&path).unwrap();
        assert_eq!(with_version(&path, content.clone()).unwrap(), content);
    }
}
