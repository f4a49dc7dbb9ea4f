//! The only place that calls the kernel: socket options, memory mappings, the uapi's structs.
#![allow(unsafe_code, reason = "system calls that nix has no safe call for")]

pub(crate) mod bpf;
pub(crate) mod cpus;
pub(crate) mod ethtool;
pub(crate) mod mapping;
pub(crate) mod numa;
pub(crate) mod packet;
pub(crate) mod steering;
pub(crate) mod sysfs;
pub(crate) mod uapi;
#[cfg(feature = "tokio")]
pub(crate) mod watch;
pub(crate) mod xsk;

/// Bytes of memory that this machine has, where it says so.
pub(crate) fn physical_memory() -> Option<u64> {
    use nix::unistd::{SysconfVar, sysconf};
    if cfg!(miri) {
        return None; // Miri does not know this variable
    }
    let pages = u64::try_from(sysconf(SysconfVar::_PHYS_PAGES).ok()??).ok()?;
    Some(pages * page_size() as u64)
}

/// Bytes in a page.
pub(crate) fn page_size() -> usize {
    use nix::unistd::{SysconfVar, sysconf};
    sysconf(SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|size| size.try_into().ok())
        .unwrap_or(4096)
}

/// Bytes in a huge page of the default size.
pub(crate) fn huge_page_size() -> std::io::Result<usize> {
    let info = std::fs::read_to_string("/proc/meminfo")?;
    info.lines()
        .find_map(|line| {
            line.strip_prefix("Hugepagesize:")?.trim().strip_suffix(" kB")?.parse().ok()
        })
        .map(|kilobytes: usize| kilobytes * 1024)
        .ok_or_else(|| std::io::ErrorKind::Unsupported.into())
}

/// `membarrier(MEMBARRIER_CMD_GLOBAL)`: returns once every RCU reader that was at work in the kernel has
/// finished. Linux 4.3; refused on a kernel that runs with `nohz_full`.
pub(crate) fn wait_for_rcu() -> std::io::Result<()> {
    // SAFETY: no memory is passed.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}
