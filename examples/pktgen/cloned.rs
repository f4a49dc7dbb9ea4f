//! Packets that are prepared once and sent many times.

use xskit::{Clones, ErrorKind, Result};
use xskit_traffic::{Rng, Sizes, Stamp, Template};

use crate::{
    clock,
    common::{Stop, Work},
    fresh::Share,
    line::Line,
    pace::{Begin, Pace},
};

/// Packets of a mix that are prepared together.
const MOST_AT_ONCE: usize = 32;

/// Sets that may be under way while the next one is prepared.
const SETS: usize = 4;

/// A thread that sends each packet `times` times.
pub(crate) struct Cloned {
    pub(crate) line: Line,
    pub(crate) begin: Option<Begin>,
    pub(crate) template: Template,
    pub(crate) sizes: Sizes,
    pub(crate) random: Rng,
    pub(crate) share: Share,
    pub(crate) left: u64,
    /// How often each packet is sent.
    pub(crate) times: u64,
    /// Packets to send at once.
    pub(crate) most: usize,
}

/// Prepared packets: each has the next one's turn after it.
struct Set {
    clones: Clones,
    lens: Vec<usize>,
    turn: usize,
    /// How often they are still to be sent, together.
    left: u64,
}

impl Set {
    /// So many packets were sent; returns their bytes.
    fn advance(&mut self, packets: usize, pace: &mut Pace) -> u64 {
        let sent = self.lens.iter().cycle().skip(self.turn).take(packets);
        let bytes = sent.inspect(|len| pace.sent(**len)).map(|len| *len as u64).sum();
        self.turn = (self.turn + packets) % self.lens.len();
        self.left -= packets as u64;
        bytes
    }
}

impl Cloned {
    /// Packets that are prepared together.
    fn at_once(sizes: &Sizes) -> usize {
        match sizes {
            Sizes::Mix(sizes) => sizes.len().min(MOST_AT_ONCE),
            Sizes::Values(_) => 1,
        }
    }

    /// Chunks that a thread needs for its clones.
    pub(crate) fn chunks(sizes: &Sizes) -> usize {
        (SETS * Self::at_once(sizes)).max(MOST_AT_ONCE)
    }

    /// Prepares the packets from that number on. `None` if the end is wanted before there is memory for them.
    fn prepare(&mut self, stop: &Stop, first: u64) -> Result<Option<Set>> {
        let Self { template, sizes, random, share, .. } = self;
        let count = Self::at_once(sizes);
        let frames: Vec<Vec<u8>> = (first..first + count as u64)
            .map(|number| {
                let number = share.number(number);
                let mut frame = vec![0; sizes.size(number, random)];
                let stamp = Stamp { stream: 0, sequence: 0, time: 0 };
                template.write(&mut frame, number, random, stamp);
                frame
            })
            .collect();
        let lens = frames.iter().map(Vec::len).collect();
        let left = self.times.saturating_mul(count as u64);
        while !stop.wanted() {
            match self.line.socket().umem().clones(&frames) {
                Ok(clones) => return Ok(Some(Set { clones, lens, turn: 0, left })),
                // The kernel still has those before.
                Err(error) if error.kind() == ErrorKind::Limit => self.line.wait_for_frames()?,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn send(&mut self, stop: &Stop, pace: &mut Pace) -> Result<()> {
        let mut prepared = 0;
        while !stop.wanted() && self.left > 0 {
            let Some(mut group) = self.prepare(stop, prepared)? else { break };
            prepared += group.lens.len() as u64;
            while !stop.wanted() && group.left > 0 && self.left > 0 {
                let now = clock::now();
                let most = usize::try_from(self.left.min(group.left)).unwrap_or(usize::MAX);
                let ready = pace.ready(now, most.min(self.most));
                if ready == 0 {
                    self.line.reap()?;
                    pace.wait(now);
                    continue;
                }
                let sent = self.line.send_clones(&mut group.clones, ready)?;
                self.line.count(sent, group.advance(sent, pace))?;
                self.left -= sent as u64;
            }
        }
        Ok(())
    }
}

impl Work for Cloned {
    fn run(&mut self, stop: &Stop) -> Result<()> {
        let mut pace = self.line.begin(self.begin.take());
        let sent = self.send(stop, &mut pace);
        sent.and(self.line.finish(&pace))
    }
}
