//! Work on batches, where it takes more than one of them.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use xskit::Batch;

use crate::{
    held::{Held, Packet, fitting},
    program::Work,
    world::{BATCHES, World},
};

impl World {
    pub(crate) fn work(&mut self, work: &Work) {
        let Self { batches, places, memory, .. } = self;
        let (Work::Alloc { batch, .. }
        | Work::AllocPacket { batch, .. }
        | Work::Append { to: batch, .. }
        | Work::SplitOff { batch, .. }
        | Work::Truncate { batch, .. }
        | Work::Clear { batch }
        | Work::Retain { batch, .. }
        | Work::Route { batch, .. }
        | Work::Change { batch, .. }
        | Work::ReleaseSpare { batch }) = *work;
        let which = usize::from(batch) % BATCHES;
        let held = &mut batches[which];
        match *work {
            Work::Alloc { count, len, .. } => held.alloc((count, len), memory, places),
            Work::AllocPacket { len, .. } => held.alloc_packet(len, memory, places),
            Work::Append { from, .. } => self.append(which, usize::from(from) % BATCHES),
            Work::SplitOff { at, .. } => self.split_off(which, usize::from(at % 40)),
            Work::Truncate { to, .. } => held.truncate(usize::from(to % 40), places),
            Work::Clear { .. } => held.clear(places),
            Work::Retain { keep, panics, .. } => held.retain(keep, panics, places),
            Work::Route { choices, panics, .. } => self.route(which, choices, panics),
            Work::Change { packet, change, .. } => held.change(packet, change),
            Work::ReleaseSpare { .. } => held.batch.release_spare(),
        }
    }

    fn append(&mut self, to: usize, from: usize) {
        let Ok([to, from]) = self.batches.get_disjoint_mut([to, from]) else { return };
        let (_, fit) = fitting(&from.packets, to.room());
        assert_eq!(to.batch.append(&mut from.batch).expect("one UMEM"), fit);
        to.packets.extend(from.packets.drain(..fit));
    }

    fn split_off(&mut self, which: usize, at: usize) {
        let held = &mut self.batches[which];
        let rest = held.batch.split_off(at);
        let packets = held.packets.split_off(at.min(held.packets.len()));
        // It takes the place of a batch that is dropped.
        let dropped = &mut self.batches[(which + 1) % BATCHES];
        dropped.forget_from(0, &mut self.places);
        *dropped = Held { batch: rest, packets };
    }

    fn route(&mut self, which: usize, choices: u32, panics: Option<u8>) {
        self.batches.swap(0, which);
        let (mut targets, mut oracles): (Vec<Batch>, Vec<VecDeque<Packet>>) =
            self.batches.drain(1..).map(|held| (held.batch, held.packets)).unzip();
        let Held { batch, packets } = &mut self.batches[0];
        let choice = |index: usize| (choices >> (4 * (index % 8)) & 0xf) as usize;
        let mut index = 0;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            batch.route(&mut targets, |_| {
                if panics.map(usize::from) == Some(index) {
                    resume_unwind(Box::new("on purpose"));
                }
                index += 1;
                choice(index - 1)
            })
        }));
        let mut moved = 0;
        let mut stay = VecDeque::new();
        for (at, packet) in packets.drain(..).enumerate() {
            let choice = if at < index { choice(at) } else { usize::MAX };
            let room = |held: &VecDeque<Packet>| {
                targets[choice].capacity() - held.iter().map(Vec::len).sum::<usize>()
            };
            match oracles.get_mut(choice) {
                Some(target) if packet.len() <= room(target) => {
                    target.push_back(packet);
                    moved += 1;
                }
                _ => stay.push_back(packet),
            }
        }
        *packets = stay;
        if let Ok(routed) = outcome {
            assert_eq!(routed.expect("one UMEM"), moved);
        }
        let held = targets.into_iter().zip(oracles);
        self.batches.extend(held.map(|(batch, packets)| Held { batch, packets }));
    }
}
