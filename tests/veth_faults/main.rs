//! Faults on the real kernel, one kind to a file: what a socket says, what its counters say, and that nothing
//! of it is left afterwards ([`after`]). Every test runs in a process of its own, so that what it holds can be
//! counted. Needs root; says so and skips where it is not.

mod after;
#[path = "../support/bench.rs"]
mod bench;
mod census;
mod child;
mod descriptors;
mod full;
mod killed;
mod links;
mod memlock;
mod mtu;
mod programs;
mod refused_calls;
mod stopped;
#[path = "../support/mod.rs"]
mod support;
mod wakeups;
