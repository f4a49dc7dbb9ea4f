//! Packet I/O over AF_XDP.
#![deny(missing_docs)]

mod error;
pub mod interface;
pub mod program;
mod sys;

pub use error::{Error, ErrorKind, Result, Step};
pub use interface::{Facts, Interface, QueueId};
pub use program::{
    AttachMode, Attached, Counters, Program, ProgramOptions, Rule, Rules, SocketMap,
};
