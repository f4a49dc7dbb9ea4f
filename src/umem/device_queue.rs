//! Which queue of which device a socket is bound to.

use crate::sys::sysfs::Namespace;

/// A queue, among those of all interfaces in all network namespaces that this process may be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceQueue {
    /// Where the interface is: each namespace counts its interfaces anew. None where it cannot be told, and
    /// for the fake kernel's.
    pub(crate) namespace: Option<Namespace>,
    pub(crate) ifindex: u32,
    pub(crate) queue: u32,
}
