//! Packet I/O over AF_XDP.
#![deny(missing_docs)]

mod error;
pub mod interface;

pub use error::{Error, ErrorKind, Result, Step};
