//! Sysfs of the calling thread's network namespace, whatever is mounted on `/sys`; and a name for that
//! namespace.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        linux::fs::MetadataExt,
    },
    ptr,
};

use libc::c_long;
use nix::{
    fcntl::{OFlag, openat},
    sys::{
        socket::{AddressFamily, SockFlag, SockType, socket},
        stat::Mode,
    },
};

use super::xsk;

const FSOPEN_CLOEXEC: c_long = 1;
const FSCONFIG_CMD_CREATE: c_long = 6;
const FSMOUNT_CLOEXEC: c_long = 1;

/// A sysfs of the network namespace that the thread is in, mounted nowhere. Linux 5.2, CAP_SYS_ADMIN.
#[derive(Debug)]
pub(crate) struct Sysfs(OwnedFd);

impl Sysfs {
    pub(crate) fn mount() -> io::Result<Self> {
        // SAFETY: the name is a live C string, which the kernel only reads.
        let context = descriptor(unsafe {
            libc::syscall(libc::SYS_fsopen, c"sysfs".as_ptr(), FSOPEN_CLOEXEC)
        })?;
        let raw = c_long::from(context.as_raw_fd());
        let (none, zero) = (ptr::null::<u8>(), c_long::from(0));
        // SAFETY: this command takes neither key nor value.
        let created = unsafe {
            libc::syscall(libc::SYS_fsconfig, raw, FSCONFIG_CMD_CREATE, none, none, zero)
        };
        nix::errno::Errno::result(created)?;
        // SAFETY: no memory is passed.
        descriptor(unsafe { libc::syscall(libc::SYS_fsmount, raw, FSMOUNT_CLOEXEC, zero) })
            .map(Self)
    }

    /// Opens an interface's attribute to read and write: the file stays that of this interface, whatever
    /// it is called later, from any namespace.
    pub(crate) fn attribute(&self, interface: &str, attribute: &str) -> io::Result<File> {
        let path = format!("class/net/{interface}/{attribute}");
        let fd = openat(&self.0, path.as_str(), OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(fd.into())
    }

    /// The index of the interface of this name.
    pub(crate) fn index(&self, interface: &str) -> io::Result<Option<u32>> {
        let path = format!("class/net/{interface}/ifindex");
        let fd = openat(&self.0, path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
        let mut text = String::new();
        File::from(fd).read_to_string(&mut text)?;
        Ok(text.trim().parse().ok())
    }
}

fn descriptor(result: c_long) -> io::Result<OwnedFd> {
    let fd = nix::errno::Errno::result(result)?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just given us this descriptor; nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A network namespace, by its name among all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Namespace {
    /// Its cookie, which no other one gets until the next boot.
    Cookie(u64),
    /// Its inode number, which may be given out again.
    Inode(u64),
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cookie(cookie) => write!(f, "cookie-{cookie}"),
            Self::Inode(inode) => write!(f, "inode-{inode}"),
        }
    }
}

/// The network namespace that the thread is in: by its cookie since Linux 5.14.
pub(crate) fn namespace() -> io::Result<Namespace> {
    let socket = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    if let Some(namespace) = namespace_of(socket.as_fd()) {
        return Ok(namespace);
    }
    Ok(Namespace::Inode(fs::metadata("/proc/thread-self/ns/net")?.st_ino()))
}

/// The network namespace in which a socket was made, since Linux 5.14.
pub(crate) fn namespace_of(socket: BorrowedFd<'_>) -> Option<Namespace> {
    let cookie = xsk::get::<u64>(socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE);
    cookie.ok().map(|(cookie, _)| Namespace::Cookie(cookie))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_one_name() {
        let name = namespace().unwrap();
        assert_eq!(namespace().unwrap(), name);
        let elsewhere = std::thread::spawn(|| namespace().unwrap()).join().unwrap();
        assert_eq!(elsewhere, name, "threads begin where their parent is");
    }
}
