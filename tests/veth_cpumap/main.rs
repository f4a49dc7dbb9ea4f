//! Packets for the kernel's stack, spread over CPUs. Needs root; says so and skips where it is not.

mod refusals;
mod spread;
#[path = "../support/mod.rs"]
mod support;
mod traffic;
