//! The lab: network namespaces, veth pairs and checked traffic for the tests and the demo.
//!
//! Nothing here needs the `ip` or `ethtool` programs, and nothing outlives the process: namespaces are
//! anonymous, held by a file descriptor, so that the kernel removes them and all that is in them even
//! when the process is killed.
//!
//! A privileged test starts with
//! `let Some(lab) = Lab::for_test() else { return };` and has two namespaces, joined by
//! a veth pair whose near end is for the code under test and whose far end is for a [`RawPort`].

mod bridge;
mod ethtool;
mod flow;
mod generator;
mod leaks;
mod lent;
mod link;
mod need;
mod netlink;
mod netns;
mod numbered;
mod raw;
mod sys;
mod topology;
mod xdp;

pub use ethtool::{Channels, HardwareRings, Offload};
pub use flow::{Flow, Mac, Protocol};
pub use generator::Generator;
pub use leaks::{BpfKind, dontfork_mappings, mappings, open_fds, socket_mappings};
pub use lent::{Pair, lent};
pub use link::{Link, VethEnd};
pub use need::{Need, have, require};
pub use netns::Netns;
pub use numbered::{Checker, Numbered, Tally, Verdict};
pub use raw::RawPort;
pub use sys::die_with_parent;
pub use topology::{Chain, Lab, LabConfig};
pub use xdp::{
    METADATA, Xdp, XdpAction, XdpMode, cpumap_program, detach_bpf_link, interface_program,
    replace_in_bpf_link,
};
