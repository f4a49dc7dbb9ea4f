//! What a packet generator is made of, without any socket: packets, pace, and what became of them.
//!
//! `pktgen` sends and receives with it; so can a benchmark or a test. Nothing here looks at a clock: who
//! calls says what time it is.
//!
//! | | |
//! |---|---|
//! | [`Sizes`], [`Values`] | sizes, and ranges of addresses and ports: counted through, or drawn |
//! | [`Flows`], [`Template`] | UDP packets over IPv4 and IPv6, with right lengths and checksums |
//! | [`Stamp`] | stream, sequence number and time, in a packet's first bytes |
//! | [`Account`] | what a receiver makes of them: loss, reordering, duplicates, latency |
//! | [`Rate`], [`Pacer`], [`Timeline`] | when a packet is due: evenly spaced, or as it was captured |
//! | [`Layer`] | what a packet takes on the wire |
//! | [`capture`] | packets out of a pcap or pcapng file |

mod account;
pub mod capture;
mod checksum;
mod flows;
mod pacer;
mod rate;
mod sizes;
mod stamp;
mod stream;
mod template;
mod timeline;
mod values;
mod wire;

pub use account::{Account, Latency};
/// Draws: the same ones for the same seed.
pub use fastrand::Rng;
pub use flows::{Addresses, Flows, parse_mac, parse_port, parse_vlan};
pub use pacer::Pacer;
pub use rate::Rate;
pub use sizes::Sizes;
pub use stamp::Stamp;
pub use stream::{Arrival, Stream};
pub use template::Template;
pub use timeline::Timeline;
pub use values::Values;
pub use wire::Layer;

/// Nanoseconds in a second.
const SECOND: u128 = 1_000_000_000;
