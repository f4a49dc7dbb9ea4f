//! Programs of everything that sockets and batches can do, on the fake kernel, beside an oracle that holds
//! the place and the content of every frame.
//!
//! A [`Program`] is made from any bytes, so that proptest and the fuzz target share one interpreter:
//! [`Program::run`] does each step to xskit and to the oracle, compares the two after every step, and panics
//! where they differ.
//!
//! The UMEM is memory of the heap, so that AddressSanitizer and memcheck see who leaves it.

mod flow;
mod held;
mod life;
mod memory;
mod places;
mod program;
mod queue;
mod rings;
mod whim;
mod work;
mod world;

pub use program::{Op, Program, Setup};

/// Bytes of one operation.
pub const RECORD: usize = 16;

impl Program {
    /// Runs it.
    ///
    /// # Panics
    ///
    /// Where xskit does what the oracle does not expect.
    pub fn run(&self) {
        let mut world = world::World::new(&self.setup);
        for op in &self.ops {
            world.step(op);
            world.check();
        }
        world.end();
    }
}
