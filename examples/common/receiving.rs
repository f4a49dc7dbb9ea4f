//! The options of tools that only receive.

use clap::Args;
use xskit::Rules;

use super::{
    Setup,
    cli::{MemoryOptions, PacketOptions, ReceiveRings, RunOptions, SocketOptions},
};

/// From where, what, into which memory, and how.
#[derive(Debug, Args)]
pub(crate) struct ReceivingOptions {
    /// The interfaces to receive on.
    #[arg(required = true, value_name = "INTERFACE")]
    interfaces: Vec<String>,
    #[command(flatten)]
    pub(crate) packets: PacketOptions,
    #[command(flatten)]
    sockets: SocketOptions,
    #[command(flatten)]
    receive: ReceiveRings,
    #[command(flatten)]
    memory: MemoryOptions,
    #[command(flatten)]
    pub(crate) running: RunOptions,
}

impl ReceivingOptions {
    /// What to open, for so many batches with a queue at the same time.
    pub(crate) fn setup(&self, rules: Rules, batches: u32) -> Setup<'_> {
        Setup {
            interfaces: &self.interfaces,
            rules,
            packets: Some(&self.packets),
            sockets: &self.sockets,
            socket: self.receive.of(self.sockets.config(&self.running)).receive_only(),
            batches,
            memory: &self.memory,
            running: &self.running,
        }
    }
}
