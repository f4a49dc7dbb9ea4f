//! Bad input, item by item: what is refused, in which words, and that nothing of the attempt stays.
//!
//! Every test runs in a process of its own ([`bench::alone`]), so that descriptors and mappings can be
//! counted and capabilities and limits be given up, however many tests run at once.

#[path = "../support/bench.rs"]
mod bench;
mod counted;
mod handed;
mod interfaces;
mod privileges;
mod programs;
mod queues;
mod rules;
mod values;
