//! The only place that calls the kernel: socket options, memory mappings, the uapi's structs.
#![allow(unsafe_code, reason = "system calls that nix has no safe call for")]

pub(crate) mod bpf;
pub(crate) mod ethtool;
pub(crate) mod mapping;
pub(crate) mod packet;
pub(crate) mod steering;
pub(crate) mod sysfs;
pub(crate) mod uapi;
pub(crate) mod xsk;

/// Bytes of memory that this machine has, where it says so.
pub(crate) fn physical_memory() -> Option<u64> {
    use nix::unistd::{SysconfVar, sysconf};
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
