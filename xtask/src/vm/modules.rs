//! The kernel modules that the guest loads, with those that they need.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// What the guest needs, in this order: so the virtio interfaces are found first. What is not there is
/// built into the kernel.
const WANTED: [&str; 4] = ["virtio_pci", "virtio_net", "veth", "vmxnet3"];

/// Copies the modules under `from` into `into`, each after those that it needs, named in this order.
pub(super) fn collect(from: &Path, into: &Path) -> Result<()> {
    let mut files = Vec::new();
    find(from, &mut files)?;
    let mut taken = Vec::new();
    for name in WANTED {
        take(name, &files, into, &mut taken)?;
    }
    Ok(())
}

fn take(name: &str, files: &[PathBuf], into: &Path, taken: &mut Vec<String>) -> Result<()> {
    if taken.iter().any(|known| known == name) {
        return Ok(());
    }
    let Some(file) = files.iter().find(|file| module(file).as_deref() == Some(name)) else {
        return Ok(());
    };
    let bytes = read(file)?;
    for needed in needs(&bytes) {
        take(&needed, files, into, taken)?;
    }
    fs::write(into.join(format!("{:02}-{name}.ko", taken.len())), bytes)?;
    taken.push(name.to_owned());
    Ok(())
}

/// All files under a folder.
fn find(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            find(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// The module in a file of this name, `virtio_net` for `virtio-net.ko.xz`.
fn module(file: &Path) -> Option<String> {
    let (name, _) = file.file_name()?.to_str()?.split_once(".ko")?;
    Some(name.replace('-', "_"))
}

fn read(file: &Path) -> Result<Vec<u8>> {
    if file.extension().is_none_or(|extension| extension != "xz") {
        return Ok(fs::read(file)?);
    }
    let output = Command::new("xz").arg("-dc").arg(file).output().context("cannot start xz")?;
    ensure!(output.status.success(), "xz -dc {}: {}", file.display(), output.status);
    Ok(output.stdout)
}

/// The modules that this one needs: `depends=a,b` among the strings that it carries.
fn needs(module: &[u8]) -> Vec<String> {
    module
        .split(|byte| *byte == 0)
        .filter_map(|text| str::from_utf8(text.strip_prefix(b"depends=")?).ok())
        .flat_map(|list| list.split(','))
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_module_needs_is_in_its_strings() {
        let bytes = b"\x7fELF\0license=GPL\0depends=net_failover,virtio-ring\0name=x\0";
        assert_eq!(needs(bytes), ["net_failover", "virtio_ring"]);
        assert!(needs(b"\0depends=\0").is_empty());
    }

    #[test]
    fn a_module_comes_after_those_that_it_needs() {
        let folder = tempfile();
        let (from, into) = (folder.join("from"), folder.join("into"));
        fs::create_dir_all(from.join("net")).unwrap();
        fs::create_dir_all(&into).unwrap();
        fs::write(from.join("net/virtio_net.ko"), b"\0depends=net-failover\0").unwrap();
        fs::write(from.join("net-failover.ko"), b"\0depends=failover\0").unwrap();
        fs::write(from.join("failover.ko"), b"\0depends=\0").unwrap();
        collect(&from, &into).unwrap();
        let mut names: Vec<_> =
            fs::read_dir(&into).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(names, ["00-failover.ko", "01-net_failover.ko", "02-virtio_net.ko"]);
    }

    /// A folder that no other test has.
    fn tempfile() -> PathBuf {
        std::env::temp_dir().join(format!("xskit-modules-{}", std::process::id()))
    }
}
