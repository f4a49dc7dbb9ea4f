//! The only place that calls the kernel directly.

pub(crate) mod ethtool;
