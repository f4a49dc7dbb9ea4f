//! The scripted kernel on another CPU than its peer, as the kernel's is as a rule.
//!
//! On one CPU the peer reads what has just been written there. Entries that were written in narrower pieces than
//! they are read in are then not forwarded from the store buffer, and the reader waits: an artefact of such a
//! script. Here it reads what another CPU has written.

use std::{
    hint, io,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use xskit_report::{pin, prefer};

use crate::{
    kernel::Kernel,
    peer::Peer,
    subject::{Cycle, step},
    sum::Sum,
};

/// What goes round.
#[derive(Clone, Copy)]
pub struct Work {
    pub cycle: Cycle,
    pub batch: u32,
    /// How many packets the script has done when it is the peer's turn.
    pub packets: u32,
    pub turns: u32,
}

/// Whose turn it is: the script's at even numbers, the peer's at odd ones.
struct Turn(AtomicU32);

/// Nobody's any more.
const OVER: u32 = u32::MAX;

impl Turn {
    /// Waits for this turn; whether it comes.
    fn wait(&self, turn: u32) -> bool {
        loop {
            match self.0.load(Ordering::Acquire) {
                OVER => return false,
                now if now == turn => return true,
                _ => hint::spin_loop(),
            }
        }
    }

    fn set(&self, turn: u32) {
        self.0.store(turn, Ordering::Release);
    }
}

/// Ends the turns, however its scope ends: the other side would wait for ever.
struct Last<'a>(&'a Turn);

impl Drop for Last<'_> {
    fn drop(&mut self) {
        self.0.set(OVER);
    }
}

/// The time of the peer alone: the median of its turns, as often as there are turns. One in which it was preempted
/// takes a thousand times as long, and says nothing.
pub fn across<P: Peer>(
    script: &mut Kernel,
    peer: &mut P,
    work: Work,
    cpu: usize,
) -> Result<(Duration, Sum)> {
    let turn = &Turn(AtomicU32::new(0));
    thread::scope(|scope| {
        let kernel = scope.spawn(move || -> io::Result<()> {
            prefer();
            if let Err(error) = pin(cpu) {
                turn.set(OVER);
                return Err(error);
            }
            for number in 0..work.turns {
                if !turn.wait(2 * number) {
                    break;
                }
                script.transmit();
                script.receive(work.packets);
                turn.set(2 * number + 1);
            }
            Ok(())
        });
        let last = Last(turn);
        let result = take_turns(turn, peer, work);
        drop(last);
        kernel.join().expect("the script does not panic")?;
        result
    })
}

fn take_turns<P: Peer>(turn: &Turn, peer: &mut P, work: Work) -> Result<(Duration, Sum)> {
    let (mut times, mut sum) = (Vec::with_capacity(work.turns as usize), Sum::default());
    for number in 0..work.turns {
        ensure!(turn.wait(2 * number + 1), "the script has ended");
        let started = Instant::now();
        for _ in 0..work.packets / work.batch {
            step(peer, work.cycle, work.batch, &mut sum)?;
        }
        times.push(started.elapsed());
        turn.set(2 * number + 2);
    }
    times.sort_unstable();
    Ok((times[times.len() / 2] * work.turns, sum))
}
