//! What a process holds, and the kernel for it, to be compared before and after.

use std::{fs, io};

use crate::sys;

/// A kind of objects that the kernel numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BpfKind {
    /// A loaded program.
    Program,
    /// A map.
    Map,
    /// A link, which keeps a program attached.
    Link,
}

impl BpfKind {
    /// The ids of all of them, whoever has made them. An id is not used again soon.
    ///
    /// Nothing is opened: whoever has a descriptor of somebody else's link keeps its program attached.
    pub fn ids(self) -> io::Result<Vec<u32>> {
        let get_next_id = match self {
            Self::Program => 11,
            Self::Map => 12,
            Self::Link => 31,
        };
        let mut ids = Vec::new();
        loop {
            match sys::next_bpf_id(get_next_id, ids.last().copied().unwrap_or(0)) {
                Ok(id) => ids.push(id),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(ids),
                Err(error) => return Err(error),
            }
        }
    }
}

/// The file descriptors that are open in this process.
pub fn open_fds() -> io::Result<usize> {
    // One of them is the directory that is being read.
    Ok(fs::read_dir("/proc/self/fd")?.count().saturating_sub(1))
}

/// The memory mappings of this process.
///
/// Threads and the allocator make some as well: compare after a warm-up.
pub fn mappings() -> io::Result<usize> {
    Ok(fs::read_to_string("/proc/self/maps")?.lines().count())
}

/// The mappings of sockets alone: the rings of AF_XDP.
pub fn socket_mappings() -> io::Result<usize> {
    Ok(fs::read_to_string("/proc/self/maps")?
        .lines()
        .filter(|line| line.contains("socket:"))
        .count())
}

/// The mappings that a child would not inherit: the rings and the UMEMs of AF_XDP, and nothing else that
/// a test maps.
pub fn dontfork_mappings() -> io::Result<usize> {
    Ok(fs::read_to_string("/proc/self/smaps")?
        .lines()
        .filter_map(|line| line.strip_prefix("VmFlags:"))
        .filter(|flags| flags.split_whitespace().any(|flag| flag == "dc"))
        .count())
}
