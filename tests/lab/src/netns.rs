//! [`Netns`]: a network namespace that only this process knows.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    panic,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
};

use netlink_packet_route::RouteNetlinkMessage;
use nix::sched::{CloneFlags, setns, unshare};

use crate::{
    netlink::Netlink,
    sys::{self, EthtoolCommand},
};

/// An anonymous network namespace with IPv6 off. Cheap to clone.
///
/// It has no name under `/run/netns`: open file descriptors and the processes in it keep it alive, and
/// when the last of them is gone the kernel removes it with all its interfaces.
#[derive(Clone, Debug)]
pub struct Netns(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: File,
    /// Both sockets were made inside, so that requests need no thread there.
    netlink: Mutex<Netlink>,
    control: OwnedFd,
}

impl Netns {
    /// A new, empty namespace. Needs CAP_SYS_ADMIN.
    pub fn new() -> io::Result<Self> {
        let namespace = on_a_thread(|| -> io::Result<Self> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Self::current()
        })?;
        // Router solicitations and neighbour discovery would mix with the tests' frames.
        for scope in ["all", "default"] {
            match namespace.set_sysctl(&format!("net/ipv6/conf/{scope}/disable_ipv6"), "1") {
                // A kernel without IPv6 has nothing to switch off.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(namespace)
    }

    /// The namespace of the calling thread, as it is.
    pub fn current() -> io::Result<Self> {
        Ok(Self(Arc::new(Inner {
            file: File::open("/proc/thread-self/ns/net")?,
            netlink: Mutex::new(Netlink::open()?),
            control: sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?,
        })))
    }

    /// Runs `work` on a thread inside the namespace and waits for it; its panics come through.
    ///
    /// Sockets and child processes that it makes stay in the namespace when they leave the closure.
    ///
    /// # Panics
    ///
    /// When the thread cannot enter, or `work` panics.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        on_a_thread(|| {
            self.join_current_thread();
            work()
        })
    }

    /// Starts `work` on a thread inside the namespace.
    ///
    /// # Panics
    ///
    /// The new thread does, when it cannot enter.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let namespace = self.clone();
        thread::spawn(move || {
            namespace.join_current_thread();
            work()
        })
    }

    /// Writes below `/proc/sys`, as seen from inside (`net/…` there is the calling thread's namespace).
    pub fn set_sysctl(&self, path: &str, value: &str) -> io::Result<()> {
        self.enter(|| fs::write(format!("/proc/sys/{path}"), value))
    }

    /// Reads below `/proc/sys`, as seen from inside.
    pub fn sysctl(&self, path: &str) -> io::Result<String> {
        self.enter(|| fs::read_to_string(format!("/proc/sys/{path}")))
            .map(|value| value.trim().to_owned())
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.0.file.as_raw_fd()
    }

    pub(crate) fn change(&self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.0.netlink.lock().unwrap_or_else(PoisonError::into_inner).change(message, flags)
    }

    pub(crate) fn get(&self, message: RouteNetlinkMessage) -> io::Result<RouteNetlinkMessage> {
        self.0.netlink.lock().unwrap_or_else(PoisonError::into_inner).get(message)
    }

    pub(crate) fn ethtool(
        &self,
        interface: &str,
        command: &mut impl EthtoolCommand,
    ) -> io::Result<()> {
        sys::ethtool(self.0.control.as_fd(), interface, command)
    }

    fn join_current_thread(&self) {
        setns(&self.0.file, CloneFlags::CLONE_NEWNET).expect("enter the network namespace");
    }
}

/// Runs `work` on a thread of its own: a thread's namespace is its own, and ends with it.
fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        scope.spawn(work).join().unwrap_or_else(|panic| panic::resume_unwind(panic))
    })
}
