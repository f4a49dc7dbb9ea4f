//! Steps that each come after a system call, as they do where every packet is sent by one.
//!
//! In a loop that does nothing else a step finds its code and its data in the caches, and its branches foreseen.
//! The kernel's way from a socket to a veth leaves less of both.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::{
    kernel::Kernel,
    peer::Peer,
    subject::{Cycle, step},
    sum::Sum,
};

/// The time of the peer alone: the median of its steps, as often as there are steps.
pub fn cold<P: Peer>(
    script: &mut Kernel,
    peer: &mut P,
    (cycle, batch): (Cycle, u32),
    steps: u32,
    call: &mut (dyn FnMut() -> Result<()> + Send),
) -> Result<(Duration, Sum)> {
    let (mut times, mut sum) = (Vec::with_capacity(steps as usize), Sum::default());
    for _ in 0..steps {
        script.transmit();
        if cycle != Cycle::Transmit {
            script.receive(batch);
        }
        call()?;
        let started = Instant::now();
        step(peer, cycle, batch, &mut sum)?;
        times.push(started.elapsed());
    }
    times.sort_unstable();
    Ok((times[times.len() / 2] * steps, sum))
}
