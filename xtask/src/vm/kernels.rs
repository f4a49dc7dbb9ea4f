//! Debian's kernels, unpacked and ready to boot, in a cache outside the repository.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, anyhow};

use super::{
    archive::{Archive, age},
    modules,
    series::{Series, version},
    vmlinux,
};

/// Where the kernels are kept, instead of the user's cache folder.
const CACHE: &str = "XSKIT_VM_CACHE";

/// How long a kernel is used before a newer one of its series is looked for.
const KERNEL_LASTS: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// A kernel that QEMU can boot.
#[derive(Clone, Debug)]
pub(super) struct Kernel {
    /// What `uname -r` says.
    pub(super) release: String,
    /// Major and minor.
    pub(super) version: (u32, u32),
    /// The uncompressed image.
    pub(super) image: PathBuf,
    /// The modules, in the order of loading.
    pub(super) modules: Vec<PathBuf>,
}

/// The kernel of this series: from the cache, or fetched.
pub(super) fn get(series: Series) -> Result<Kernel> {
    let cache = cache()?;
    let folder = cache.join(series.to_string());
    let cached = Kernel::read(&folder);
    if let Ok(kernel) = &cached {
        if age(&folder.join("release")).is_some_and(|age| age < KERNEL_LASTS) {
            return Ok(kernel.clone());
        }
    }
    match fetch(series, &cache, &folder) {
        Ok(kernel) => Ok(kernel),
        // Better the old one than none.
        Err(error) => cached.map_err(|_| {
            error.context(format!("the kernel {series} cannot be fetched (cache: {CACHE})"))
        }),
    }
}

fn fetch(series: Series, cache: &Path, folder: &Path) -> Result<Kernel> {
    let archive = Archive::open(&cache.join("apt"))?;
    let names = archive.names("^linux-image-[0-9].*-cloud-amd64$")?;
    let unpacked = cache.join(format!("{series}.unpacked"));
    let mut failure = None;
    for name in series.choose(&names)?.into_iter().take(3) {
        remove(&unpacked)?;
        fs::create_dir_all(&unpacked)?;
        match unpack(&archive, name, &unpacked) {
            Ok(()) => {
                let kernel = prepare(&unpacked, folder)?;
                remove(&unpacked)?;
                return Ok(kernel);
            }
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| anyhow!("no package")))
}

/// The image, and what it is split into since 7.0.
fn unpack(archive: &Archive, name: &str, into: &Path) -> Result<()> {
    archive.unpack(name, into)?;
    for package in archive.dependencies(name)? {
        if package.starts_with("linux-binary-") || package.starts_with("linux-modules-") {
            archive.unpack(&package, into)?;
        }
    }
    Ok(())
}

/// Makes the folder of the cache from what the packages hold.
fn prepare(unpacked: &Path, folder: &Path) -> Result<Kernel> {
    let modules = ["lib/modules", "usr/lib/modules"]
        .iter()
        .map(|path| unpacked.join(path))
        .filter_map(|path| fs::read_dir(path).ok())
        .flatten()
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.join("kernel").is_dir())
        .context("the packages hold no modules")?;
    let release =
        modules.file_name().context("a folder has a name")?.to_string_lossy().into_owned();
    let compressed = [modules.join("vmlinuz"), unpacked.join(format!("boot/vmlinuz-{release}"))]
        .into_iter()
        .find(|path| path.is_file())
        .context("the packages hold no kernel")?;
    remove(folder)?;
    fs::create_dir_all(folder.join("modules"))?;
    vmlinux::extract(&compressed, &folder.join("vmlinux"))
        .with_context(|| format!("the kernel {release}"))?;
    modules::collect(&modules.join("kernel"), &folder.join("modules"))?;
    // Last: it says that the folder is complete.
    fs::write(folder.join("release"), release)?;
    Kernel::read(folder)
}

impl Kernel {
    /// Reads a folder of the cache.
    fn read(folder: &Path) -> Result<Self> {
        let release = fs::read_to_string(folder.join("release"))?;
        let mut modules = fs::read_dir(folder.join("modules"))?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<Vec<_>>>()?;
        modules.sort();
        Ok(Self { version: version(&release)?, release, image: folder.join("vmlinux"), modules })
    }
}

fn cache() -> Result<PathBuf> {
    if let Some(folder) = env::var_os(CACHE) {
        return Ok(folder.into());
    }
    let folder = match (env::var_os("XDG_CACHE_HOME"), env::var_os("HOME")) {
        (Some(folder), _) => PathBuf::from(folder),
        (None, Some(home)) => PathBuf::from(home).join(".cache"),
        (None, None) => return Err(anyhow!("no HOME: name a folder for kernels in {CACHE}")),
    };
    Ok(folder.join("xskit").join("kernels"))
}

/// Removes a folder, if it is there.
fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    Ok(())
}
