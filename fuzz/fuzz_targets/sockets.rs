//! Programs of everything that sockets and batches can do, as `tests/fake_model.rs` runs them at random, here
//! towards code that no program has reached. `cargo xtask fuzz` builds and runs it.
#![no_main]

libfuzzer_sys::fuzz_target!(|program: xskit_model::Program| program.run());
