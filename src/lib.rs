//! Packet I/O over AF_XDP.
#![deny(missing_docs)]

mod error;
pub mod interface;
pub mod ring;
mod sync;
mod sys;
pub mod umem;

pub use error::{Error, ErrorKind, Result, Step};
pub use interface::{Facts, Interface, QueueId};
pub use ring::RingSize;
pub use umem::{Audit, Batch, ChunkSize, NoRoom, Packet, PacketMut, Pages, Umem, UmemConfig};
