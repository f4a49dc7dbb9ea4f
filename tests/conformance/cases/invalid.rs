//! Descriptors that name no packet: dropped and counted, while those around them pass.

use std::collections::BTreeSet;

use xskit::{ChunkSize, UmemConfig, ring::Desc};

use crate::{
    Case, Outcome,
    bench::{Bench, End, LENGTH, PACKETS, nothing_comes, receive, windows},
    descriptors::{Frames, completed, drain, submit, wait_completed},
    mode::Mode,
    support::rings,
};

pub(super) const CASES: &[Case] = &[
    ("invalid_descriptors_with_chunks_of_4096", |mode| every_kind(mode, ChunkSize::K4)),
    ("invalid_descriptors_with_chunks_of_2048", |mode| every_kind(mode, ChunkSize::K2)),
    ("every_other_tx_descriptor_invalid", every_other),
];

const CHUNKS: u32 = 1024;
const BYTES: u32 = 64;

/// What became of invalid descriptors.
pub(super) struct Refused {
    /// How many came back as completed.
    pub(super) came_back: u64,
    /// The errnos that wake-ups returned.
    pub(super) said: BTreeSet<String>,
}

/// Sends descriptors of which some are invalid, and waits until the valid ones have completed.
#[track_caller]
pub(super) fn transmit(from: &mut End, descs: &[(Desc, bool)]) -> Refused {
    submit(&mut from.socket, &descs.iter().map(|(desc, _)| *desc).collect::<Vec<_>>());
    let said = drain(&mut from.socket);
    let valid = descs.iter().filter(|(_, valid)| *valid);
    let mut missing: Vec<u64> = valid.map(|(desc, _)| desc.addr).collect();
    let mut invalid: Vec<u64> =
        descs.iter().filter(|(_, valid)| !*valid).map(|(desc, _)| desc.addr).collect();
    let mut came_back = 0;
    // Linux 6.18 returns odd addresses without their lowest bit.
    let lost_bit = u64::from(from.umem.chunk_size().is_unaligned());
    let take = |list: &mut Vec<u64>, address| {
        let same = |one: &u64| *one | lost_bit == address | lost_bit;
        list.iter().position(same).map(|at| list.swap_remove(at)).is_some()
    };
    while !missing.is_empty() {
        for address in wait_completed(&mut from.socket, 1) {
            if !take(&mut missing, address) {
                assert!(take(&mut invalid, address), "{address:#x} was not submitted");
                came_back += 1;
            }
        }
    }
    for address in completed(&mut from.socket) {
        assert!(take(&mut invalid, address), "{address:#x} completed twice");
        came_back += 1;
    }
    Refused { came_back, said }
}

/// What was seen of completions.
pub(super) fn seen(came_back: u64, invalid: u64) -> Outcome {
    Outcome::Saw(match came_back {
        0 => "invalid descriptors do not complete".to_owned(),
        all if all == invalid => {
            "invalid descriptors complete too, with their addresses".to_owned()
        }
        some => format!("{some} of {invalid} invalid descriptors completed"),
    })
}

fn every_kind(mode: &'static Mode, size: ChunkSize) -> Outcome {
    let bench = Bench::new(mode);
    let umem = || UmemConfig::new(CHUNKS).chunk_size(size);
    let mut from = bench.sender_of(umem(), rings(512));
    let mut to = bench.receiver_of(umem(), rings(512));
    let chunk = u64::from(size.bytes());
    let end = chunk * u64::from(CHUNKS);
    let desc = |addr, len| Desc { addr, len, options: 0 };
    // At addresses that no valid one has.
    let invalid = [
        // Before the memory, by half a packet and by a chunk.
        desc(u64::from(BYTES / 2).wrapping_neg(), BYTES),
        desc(chunk.wrapping_neg(), BYTES),
        // Past its end, by nothing, by a chunk, and by far.
        desc(end, BYTES),
        desc(end + chunk, BYTES),
        desc(1 << 62, BYTES),
        // Straddling the end of the memory, of a chunk, of a page.
        desc(end - u64::from(BYTES / 2), BYTES),
        desc(chunk - u64::from(BYTES / 2), BYTES),
        desc(4096 - u64::from(BYTES / 2), BYTES),
        // Longer than a chunk, and than anything.
        desc(2 * chunk + 1, size.bytes() + 1),
        desc(1, u32::MAX),
    ];
    let series = bench.to_near(LENGTH);
    let (mut sent, mut came_back) = (0, 0);
    // Valid ones at a chunk's start, in its middle, and up to its last byte; with 4096 bytes, across 2048
    // of them.
    let offsets = [0, chunk / 2 - u64::from(BYTES) / 2, chunk - u64::from(BYTES)];
    let mut at_address_0 = false;
    for round in 0..PACKETS / u64::from(CHUNKS) {
        let first = round * u64::from(CHUNKS);
        let packets: Vec<_> =
            (first..first + u64::from(CHUNKS)).map(|number| series.frame(number)).collect();
        let offset_of = |index: usize| offsets[index % offsets.len()];
        let before = |index| vec![0; usize::try_from(offset_of(index)).unwrap()];
        let contents: Vec<_> = packets
            .iter()
            .enumerate()
            .map(|(index, packet)| [before(index), packet.clone()].concat())
            .collect();
        // All frames that there are, and so the first one.
        let frames = Frames::new(&from.umem, &contents);
        let valid: Vec<_> = frames
            .chunks
            .iter()
            .enumerate()
            .map(|(index, base)| desc(base + offset_of(index), BYTES))
            .collect();
        at_address_0 |= valid.iter().any(|desc| desc.addr == 0);
        for (valid, packets) in valid.chunks(64).zip(packets.chunks(64)) {
            let mut descs = Vec::new();
            for pair in valid.chunks(2) {
                descs.extend(pair.iter().map(|desc| (*desc, true)));
                descs.push((invalid[sent % invalid.len()], false));
                sent += 1;
            }
            came_back += transmit(&mut from, &descs).came_back;
            receive(&mut to.socket, packets);
        }
        frames.attach();
    }
    assert!(at_address_0, "a packet lay at address 0");
    nothing_comes(&mut to.socket);
    finish(from, to, sent as u64, came_back)
}

pub(super) fn finish(mut from: End, to: End, sent: u64, came_back: u64) -> Outcome {
    let statistics = from.socket.statistics().unwrap();
    assert_eq!(statistics.kernel.tx_invalid_descs, sent, "{statistics:?}");
    from.socket.rings().refused(u32::try_from(sent - came_back).unwrap());
    from.close();
    to.close();
    seen(came_back, sent)
}

fn every_other(mode: &'static Mode) -> Outcome {
    let bench = Bench::new(mode);
    let (mut from, mut to) = (bench.sender(), bench.receiver());
    let series = bench.to_near(LENGTH);
    let too_long = from.umem.chunk_size().bytes() + 1;
    let mut came_back = 0;
    for numbers in windows(0..PACKETS / 2) {
        let packets: Vec<_> = numbers.iter().map(|number| series.frame(*number)).collect();
        let frames = Frames::new(&from.umem, &packets);
        let pair = |addr: &u64| {
            [
                (Desc { addr: *addr, len: BYTES, options: 0 }, true),
                (Desc { addr: *addr + 1, len: too_long, options: 0 }, false),
            ]
        };
        let descs: Vec<_> = frames.chunks.iter().flat_map(pair).collect();
        came_back += transmit(&mut from, &descs).came_back;
        receive(&mut to.socket, &packets);
        frames.attach();
    }
    nothing_comes(&mut to.socket);
    finish(from, to, PACKETS / 2, came_back)
}
