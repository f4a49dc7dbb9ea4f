//! Packet I/O over AF_XDP.
#![deny(missing_docs)]

mod error;
#[cfg(feature = "fake")]
pub mod fake;
pub mod interface;
pub mod port;
pub mod program;
pub mod ring;
pub mod socket;
mod sync;
mod sys;
pub mod umem;

pub use error::{Error, ErrorKind, Result, Step};
pub use interface::{Facts, Interface, QueueId};
pub use port::{Port, PortConfig};
pub use program::{
    AttachMode, Attached, Counters, Program, ProgramOptions, Rule, Rules, SocketMap,
};
pub use ring::RingSize;
pub use socket::{
    CopyMode, Interest, Mode, Ready, Receiver, Sender, Socket, SocketConfig, Statistics,
};
pub use umem::{Audit, Batch, ChunkSize, NoRoom, Packet, PacketMut, Pages, Umem, UmemConfig};
