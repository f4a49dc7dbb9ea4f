//! What a network interface is and has: its queues, driver, MTU, XDP features and ring sizes.

use std::fmt;

/// The number of one of an interface's hardware queues, counted from 0.
///
/// It is also the key of the queue's socket in the XSKMAP, so that the two cannot differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(u32);

impl QueueId {
    /// The queue with this number. Whether an interface has it is found at bind.
    pub const fn new(id: u32) -> Self {
        Self(id)
    }

    /// The plain number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl From<u32> for QueueId {
    fn from(id: u32) -> Self {
        Self(id)
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
