//! When to send.

use std::{hint, thread, time::Duration};

use xskit_traffic::{Pacer, Timeline};

use crate::{clock, common::TURN};

/// How late packets may be and still be made up for.
pub(crate) const MOST_BEHIND: Duration = Duration::from_millis(10);

/// A sleep takes longer than it is asked to, by less than this on an idle machine.
const OVERSLEEP: u64 = 100_000;

/// Makes the pace, given the time at which it begins.
pub(crate) type Begin = Box<dyn FnOnce(u64) -> Pace + Send>;

/// When packets are due.
pub(crate) enum Pace {
    /// At once.
    Flood,
    /// At a rate.
    Rate(Pacer),
    /// As captured; the number of the next packet.
    Capture(Timeline, u64),
}

impl Pace {
    /// How many packets may be sent now, at most that many.
    pub(crate) fn ready(&mut self, now: u64, most: usize) -> usize {
        match self {
            Self::Flood => most,
            Self::Rate(pacer) => usize::try_from(pacer.ready(now)).unwrap_or(most).min(most),
            Self::Capture(timeline, next) => {
                let due = |number: &u64| timeline.due(*number) <= now;
                (*next..).take(most).take_while(due).count()
            }
        }
    }

    /// A packet is sent.
    pub(crate) fn sent(&mut self, len: usize) {
        match self {
            Self::Flood => {}
            Self::Rate(pacer) => pacer.sent(len),
            Self::Capture(_, next) => *next += 1,
        }
    }

    /// Nanoseconds that the schedule has moved, since we were too late.
    pub(crate) fn behind(&self) -> u64 {
        match self {
            Self::Rate(pacer) => pacer.behind(),
            Self::Flood | Self::Capture(..) => 0,
        }
    }

    /// Waits until the next packet is due, or for a while: there may be reasons to end.
    pub(crate) fn wait(&self, now: u64) {
        let due = match self {
            Self::Flood => now,
            Self::Rate(pacer) => pacer.due(),
            Self::Capture(timeline, next) => timeline.due(*next),
        };
        let left = due.saturating_sub(now);
        if left > 2 * OVERSLEEP {
            thread::sleep(Duration::from_nanos(left - OVERSLEEP).min(TURN));
            return;
        }
        while clock::now() < due {
            hint::spin_loop();
        }
    }
}
