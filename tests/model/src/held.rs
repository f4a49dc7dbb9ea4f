//! A batch, and what the oracle knows to be in it.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use xskit::{Batch, Umem};

use crate::{
    memory::Memory,
    places::{Place, Places},
    program::Change,
};

/// A frame's chunk and bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) chunk: usize,
    pub(crate) bytes: Vec<u8>,
}

/// A packet, frame by frame.
pub(crate) type Packet = Vec<Frame>;

pub(crate) fn content(packet: &Packet) -> Vec<u8> {
    packet.iter().flat_map(|frame| frame.bytes.iter().copied()).collect()
}

/// How many frames of whole packets from the front fit, and how many packets that is.
pub(crate) fn fitting(packets: &VecDeque<Packet>, room: usize) -> (usize, usize) {
    let (mut frames, mut count) = (0, 0);
    for packet in packets {
        if frames + packet.len() > room {
            break;
        }
        frames += packet.len();
        count += 1;
    }
    (frames, count)
}

pub(crate) struct Held {
    pub(crate) batch: Batch,
    pub(crate) packets: VecDeque<Packet>,
}

impl Held {
    pub(crate) fn new(umem: &Umem, capacity: u8) -> Self {
        Self { batch: umem.batch(1 + usize::from(capacity % 48)), packets: VecDeque::new() }
    }

    pub(crate) fn frames(&self) -> usize {
        self.packets.iter().map(Vec::len).sum()
    }

    pub(crate) fn room(&self) -> usize {
        self.batch.capacity() - self.frames()
    }

    /// Takes note of packets that have appeared at the end.
    pub(crate) fn note_new(&mut self, memory: &Memory, places: &mut Places) {
        for packet in self.batch.packets().skip(self.packets.len()) {
            let frames = packet.frames().map(|bytes| {
                let chunk = memory.chunk(bytes);
                places.moves(chunk, Place::Within, Place::Batch);
                Frame { chunk, bytes: bytes.to_vec() }
            });
            self.packets.push_back(frames.collect());
        }
    }

    /// Compares: every packet in its order, every frame in its chunk, every byte.
    pub(crate) fn check(&self, memory: &Memory) {
        assert_eq!(self.batch.packet_count(), self.packets.len());
        assert_eq!(self.batch.len(), self.frames());
        for (packet, expected) in self.batch.packets().zip(&self.packets) {
            assert_eq!(packet.frames().len(), expected.len());
            for (bytes, expected) in packet.frames().zip(expected) {
                assert_eq!(memory.chunk(bytes), expected.chunk, "another frame");
                assert!(bytes == expected.bytes, "chunk {} has changed", expected.chunk);
            }
        }
    }

    pub(crate) fn alloc(&mut self, (count, len): (u8, u8), memory: &Memory, places: &mut Places) {
        let (count, room) = (usize::from(count % 40), self.room());
        let allocated = self.batch.alloc(count);
        assert!(allocated <= count.min(room));
        let before = self.packets.len();
        for (number, mut packet) in self.batch.packets_mut().skip(before).enumerate() {
            // Some stay empty, and are refused by `send`.
            if (number + usize::from(len)) % 4 != 0 {
                packet.write(&pattern(usize::from(len), number)).expect("255 bytes fit");
            }
        }
        self.note_new(memory, places);
        assert_eq!(self.packets.len(), before + allocated);
    }

    pub(crate) fn alloc_packet(&mut self, len: u16, memory: &Memory, places: &mut Places) {
        let len = usize::from(len % 16_000);
        let before = self.packets.len();
        let room = self.room();
        let Some(mut packet) = self.batch.alloc_packet(len) else { return };
        assert_eq!(packet.len(), len);
        packet.write(&pattern(len, before)).expect("as long as it is");
        self.note_new(memory, places);
        assert_eq!(self.packets.len(), before + 1);
        assert!(self.packets[before].len() <= room);
        assert!(content(&self.packets[before]) == pattern(len, before), "as written");
    }

    /// Keeps so many packets.
    pub(crate) fn truncate(&mut self, to: usize, places: &mut Places) {
        self.batch.truncate(to);
        self.forget_from(to, places);
    }

    pub(crate) fn clear(&mut self, places: &mut Places) {
        self.batch.clear();
        self.forget_from(0, places);
    }

    pub(crate) fn forget_from(&mut self, at: usize, places: &mut Places) {
        let gone = self.packets.split_off(at.min(self.packets.len()));
        for packet in &gone {
            free(packet, places);
        }
    }

    pub(crate) fn retain(&mut self, keep: u16, panics: Option<u8>, places: &mut Places) {
        let kept = |index: usize| keep >> (index % 16) & 1 == 1;
        let mut index = 0;
        // Not by `panic!`, whose hook would end a fuzzer.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            self.batch.retain(|_| {
                if panics.map(usize::from) == Some(index) {
                    resume_unwind(Box::new("on purpose"));
                }
                index += 1;
                kept(index - 1)
            });
        }));
        assert_eq!(outcome.is_err(), index < self.packets.len());
        let mut at = 0;
        self.packets.retain(|packet| {
            at += 1;
            let keep = at > index || kept(at - 1);
            if !keep {
                free(packet, places);
            }
            keep
        });
    }

    /// Shortens, lengthens or writes a packet, whether there is room or not.
    pub(crate) fn change(&mut self, which: u8, change: Change) {
        if self.packets.is_empty() {
            return;
        }
        let which = usize::from(which) % self.packets.len();
        let oracle = &mut self.packets[which];
        let mut packet = self.batch.packets_mut().nth(which).expect("as many as the oracle has");
        let before: usize = oracle[..oracle.len() - 1].iter().map(|frame| frame.bytes.len()).sum();
        match change {
            Change::SetLen(len) => {
                let len = usize::from(len % 9000);
                let possible = len >= before && len <= packet.max_len();
                assert_eq!(packet.set_len(len).is_ok(), possible);
                if possible {
                    // What appears is what the chunk happened to hold.
                    let last = packet.frames().last().expect("a packet has one");
                    oracle.last_mut().expect("likewise").bytes = last.to_vec();
                }
            }
            Change::Trim(count) => {
                let count = usize::from(count) % (oracle[0].bytes.len() + 2);
                if packet.trim_front(count).is_ok() {
                    oracle[0].bytes.drain(..count);
                }
            }
            Change::Grow(count) => {
                let count = usize::from(count % 600);
                if packet.grow_front(count).is_ok() {
                    let front = packet.head()[..count].to_vec();
                    oracle[0].bytes.splice(..0, front);
                }
            }
            Change::Write(len) => {
                let written = pattern(usize::from(len % 5000), which);
                if packet.write(&written).is_ok() {
                    let frames: Vec<Vec<u8>> = packet.frames().map(<[u8]>::to_vec).collect();
                    assert!(frames.concat() == written, "as written");
                    for (frame, bytes) in oracle.iter_mut().zip(frames) {
                        frame.bytes = bytes;
                    }
                }
            }
            Change::Touch(by) => {
                for (ours, oracle) in packet.frames_mut().zip(oracle) {
                    for (ours, oracle) in ours.iter_mut().zip(&mut oracle.bytes) {
                        *ours = ours.wrapping_add(by);
                        *oracle = *ours;
                    }
                }
            }
        }
    }
}

/// A packet's frames are anybody's again.
pub(crate) fn free(packet: &Packet, places: &mut Places) {
    for frame in packet {
        places.moves(frame.chunk, Place::Batch, Place::Within);
    }
}

/// `len` bytes unlike those of other numbers.
pub(crate) fn pattern(len: usize, number: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 7 + at / 251 + number * 31) % 256).to_le_bytes()[0]).collect()
}
