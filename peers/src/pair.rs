//! The veth pair that everything here runs on.

use anyhow::{Context, Result};
use xskit_lab::{Lab, LabConfig};

/// A pair in namespaces of its own, which go away with it.
pub fn pair(queues: u32) -> Result<Lab> {
    Lab::new(&LabConfig { queues, ..LabConfig::default() })
        .context("a veth pair in network namespaces of its own: run as root")
}
