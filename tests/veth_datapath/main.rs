//! What a UMEM and its sockets can do beyond plain packets, on veth pairs. Needs root; says so and skips
//! where it is not.

mod multi_buffer;
mod rx_metadata;
mod shared_queue;
#[path = "../support/mod.rs"]
mod support;
mod tx_budget;
mod tx_metadata;
mod unaligned;
