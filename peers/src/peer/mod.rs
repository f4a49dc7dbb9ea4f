//! The peers, each with the same three kinds of work to do.

pub mod libxdp;
pub mod xdp;
pub mod xdpilone;
pub mod xsk_rs;
pub mod xskit;

use anyhow::Result;

use crate::sum::Sum;

/// Where a socket goes, and how large everything is.
#[derive(Clone, Debug)]
pub struct Place {
    pub interface: String,
    pub index: u32,
    pub queue: u32,
    /// Chunks of 4096 bytes. A socket that receives has them all in its Fill ring at first.
    pub frames: u32,
    /// Slots of each ring.
    pub ring: u32,
    pub receives: bool,
    pub sends: bool,
    /// Packets at most in each step.
    pub batch: u32,
}

/// Somebody with a socket. Each step handles at most a batch, reads every descriptor's address and length
/// into the sum, and returns how many packets there were.
pub trait Peer {
    /// RX, then Fill.
    fn receive(&mut self, batch: u32, sum: &mut Sum) -> Result<u32>;

    /// Out of free frames into TX, each with that length; then what has completed, back to them.
    fn transmit(&mut self, batch: u32, length: u32, sum: &mut Sum) -> Result<u32>;

    /// RX, then TX, and what has completed into Fill.
    fn forward(&mut self, batch: u32, sum: &mut Sum) -> Result<u32>;
}
