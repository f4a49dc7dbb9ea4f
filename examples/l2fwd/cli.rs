//! What the user asks for.

use clap::Parser;
use xskit::SocketConfig;

use crate::common::{
    Failure, Setup,
    cli::{MemoryOptions, PacketOptions, ReceiveRings, RunOptions, SendRings, SocketOptions},
};

/// Forwards Ethernet frames over AF_XDP.
///
/// On one interface it reflects them: back to where they came from, MAC addresses swapped. Between two
/// it forwards both ways, frames unchanged: descriptors move from socket to socket through one UMEM,
/// and nothing is copied in between. Queue n of one interface goes with queue n (modulo their number)
/// of the other.
///
/// Once a second it tells for each queue: packets and bits (without preamble and checksum), received
/// and given to the kernel to send, and each counter of lost packets that moved, by the name that the
/// kernel or xskit gives it.
#[derive(Debug, Parser)]
#[command(name = "l2fwd", version)]
pub(crate) struct Options {
    /// One interface to reflect on, or two to forward between.
    #[arg(required = true, num_args = 1..=2, value_name = "INTERFACE")]
    interfaces: Vec<String>,
    #[command(flatten)]
    packets: PacketOptions,
    #[command(flatten)]
    sockets: SocketOptions,
    #[command(flatten)]
    receive: ReceiveRings,
    #[command(flatten)]
    send: SendRings,
    #[command(flatten)]
    memory: MemoryOptions,
    #[command(flatten)]
    pub(crate) running: RunOptions,
}

impl Options {
    /// What to open.
    pub(crate) fn setup(&self) -> Result<Setup<'_>, Failure> {
        let rules = self.packets.rules()?;
        match self.interfaces.as_slice() {
            [one, other] if one == other => {
                return Err(format!("{one} is named twice; name it once to reflect on it").into());
            }
            _ => {}
        }
        Ok(Setup {
            interfaces: &self.interfaces,
            rules,
            packets: Some(&self.packets),
            sockets: &self.sockets,
            socket: self.socket(),
            batches: 1,
            memory: &self.memory,
            running: &self.running,
        })
    }

    pub(crate) fn socket(&self) -> SocketConfig {
        self.send.of(self.receive.of(self.sockets.config(&self.running)))
    }
}
