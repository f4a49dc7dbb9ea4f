//! Counts of what a process holds, to be compared before and after.

use std::{fs, io};

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
