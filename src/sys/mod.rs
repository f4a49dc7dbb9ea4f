//! The only place that calls the kernel directly.

pub(crate) mod bpf;
pub(crate) mod ethtool;
