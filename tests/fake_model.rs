//! Random programs of everything that batches and sockets can do, against an oracle that holds each
//! frame's place and content: `xskit_model` has both. `cargo xtask fuzz` looks for the same programs, guided
//! by coverage; here they are as random as they come. `PROPTEST_CASES` sets how many.

use proptest::{array::uniform16, collection::vec, prelude::*};
use xskit_model::Program;

/// Operations of a program, at most.
const OPS: usize = 600;

fn programs() -> impl Strategy<Value = Program> {
    vec(uniform16(any::<u8>()), 1..=OPS).prop_map(|records| Program::of(records.as_flattened()))
}

proptest! {
    // Every step of one that fails can be left out: give it the time to.
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn any_program_keeps_its_packets_and_frames(program in programs()) {
        program.run();
    }
}
