//! Chunks across the borders of pages.

use xskit::{Batch, ChunkSize, UmemConfig, ring::Desc};

use super::{
    chains::{JUMBO, jumbo_bench},
    invalid::{finish, transmit},
};
use crate::{
    Case, Outcome,
    bench::{Bench, LENGTH, PACKETS, nothing_comes, windows},
    descriptors::Frames,
    mode::Mode,
    support::{rings, settle},
    whole::{Whole, send_batch, several, stream_whole},
};

pub(super) const CASES: &[Case] = &[
    ("unaligned_chunks_with_half_the_packets_straddling_a_page", half_straddling),
    ("invalid_descriptors_in_unaligned_mode_with_chunks_of_4096", |mode| invalid(mode, 4096)),
    ("invalid_descriptors_in_unaligned_mode_with_chunks_of_4001", |mode| invalid(mode, 4001)),
    ("packets_of_9000_bytes_in_unaligned_mode", packets_of_9000_bytes),
];

const CHUNKS: u32 = 1024;
const PAGE: usize = 4096;

fn umem(bytes: u32) -> UmemConfig {
    UmemConfig::new(CHUNKS).chunk_size(ChunkSize::unaligned(bytes).unwrap())
}

/// Whether bytes at this address straddle a page.
fn straddles(address: usize, length: usize) -> bool {
    address % PAGE + length > PAGE
}

/// Appends the packet, straddling a page or not as wished if its chunk lets it; returns what it does.
#[track_caller]
fn append(batch: &mut Batch, content: &[u8], wish: bool) -> bool {
    let room = batch.umem().chunk_size().bytes() as usize;
    let length = content.len();
    let mut packet = batch.alloc_packet(room).unwrap();
    let base = packet.head_mut().as_ptr().addr();
    let last = room - length;
    let across = (PAGE - base % PAGE).saturating_sub(length / 2).min(last);
    let place = [0, across, last];
    let offset = place.iter().find(|offset| straddles(base + **offset, length) == wish);
    let offset = *offset.unwrap_or(&0);
    packet.write(&[&*vec![0; offset], content].concat()).unwrap();
    packet.trim_front(offset).unwrap();
    straddles(packet.head().as_ptr().addr(), length)
}

fn half_straddling(mode: &'static Mode) -> Outcome {
    let bench = Bench::with_mtu(mode, 3000);
    let mut seen = Vec::new();
    // Chunks of 3000 bytes begin everywhere in pages, so of 2048 bytes in them half straddle one where they
    // arrive, too.
    for length in [LENGTH, 2048] {
        let mut from = bench.sender_of(umem(3000), rings(512));
        let mut to = bench.receiver_of(umem(3000), rings(512));
        let whole = Whole::new(&to.socket);
        let series = bench.to_near(length);
        let (mut sent, mut straddling, mut arrived) = (0, 0, 0);
        for numbers in windows(0..PACKETS) {
            let packets: Vec<_> = numbers.iter().map(|number| series.frame(*number)).collect();
            let mut batch = from.umem.batch(packets.len());
            for packet in &packets {
                let too_few = 2 * straddling <= sent;
                straddling += u64::from(append(&mut batch, packet, too_few));
                sent += 1;
            }
            send_batch(&mut from.socket, &mut batch);
            arrived += whole.receive(&mut to.socket, &packets);
        }
        settle(&mut from.socket);
        nothing_comes(&mut to.socket);
        assert!(straddling.abs_diff(PACKETS / 2) <= 4, "{straddling} of {PACKETS} straddle a page");
        let statistics = from.socket.statistics().unwrap();
        assert_eq!(statistics.kernel.tx_invalid_descs, 0, "{statistics:?}");
        from.close();
        to.close();
        seen.push(format!(
            "of {PACKETS} packets of {length} bytes {straddling} straddled a page where they were sent \
             and {arrived} where they arrived"
        ));
    }
    Outcome::Saw(seen.join("; "))
}

fn invalid(mode: &'static Mode, size: u32) -> Outcome {
    let bench = Bench::new(mode);
    let mut from = bench.sender_of(umem(size), rings(512));
    let mut to = bench.receiver_of(umem(size), rings(512));
    let whole = Whole::new(&to.socket);
    let length = u32::try_from(LENGTH).unwrap();
    let (chunk, half) = (u64::from(size), u64::from(length / 2));
    let end = chunk * u64::from(CHUNKS);
    let desc = |addr, len| Desc { addr, len, options: 0 };
    // At addresses that no valid one has.
    let invalid = [
        // Before the memory, by half a packet and by a chunk.
        desc(half.wrapping_neg(), length),
        desc(chunk.wrapping_neg(), length),
        // Past its end, by nothing, by a chunk, and by far.
        desc(end, length),
        desc(end + chunk, length),
        desc(1 << 47, length),
        // In the memory, but for the offset in the upper bits.
        desc((end - chunk) | chunk << 48, length),
        // Straddling the end of the memory; longer than a chunk, and than anything.
        desc(end - half, length),
        desc(2 * chunk + 1, size + 1),
        desc(1, u32::MAX),
    ];
    let series = bench.to_near(LENGTH);
    let (mut sent, mut came_back) = (0, 0);
    // At a chunk's start, in its middle, and up to its last byte. The first byte of a chunk of odd size is
    // never a packet's.
    let start = chunk % 2;
    let offsets = [start, chunk / 2 - half, chunk - u64::from(length)];
    for numbers in windows(0..PACKETS) {
        let packets: Vec<_> = numbers.iter().map(|number| series.frame(*number)).collect();
        let offset_of = |index: usize| offsets[index % offsets.len()];
        let contents: Vec<_> = packets
            .iter()
            .enumerate()
            .map(|(index, packet)| {
                [&*vec![0; usize::try_from(offset_of(index) - start).unwrap()], packet.as_slice()]
                    .concat()
            })
            .collect();
        let frames = Frames::new(&from.umem, &contents);
        let mut descs = Vec::new();
        for (index, base) in frames.chunks.iter().enumerate() {
            let valid = desc(base + offset_of(index), length);
            descs.push((valid, true));
            if index % 2 == 1 {
                descs.push((invalid[sent % invalid.len()], false));
                sent += 1;
            }
        }
        came_back += transmit(&mut from, &descs).came_back;
        whole.receive(&mut to.socket, &packets);
        frames.attach();
    }
    nothing_comes(&mut to.socket);
    finish(from, to, sent as u64, came_back)
}

fn packets_of_9000_bytes(mode: &'static Mode) -> Outcome {
    for size in [3000, 4001] {
        let bench = jumbo_bench(mode);
        if let Some(cannot) = bench.lacks_several() {
            return cannot;
        }
        let mut from = bench.sender_of(umem(size), several());
        let mut to = bench.receiver_of_several(umem(size));
        let series = bench.to_near(JUMBO);
        stream_whole((&mut from.socket, &mut to.socket), &series, 0..PACKETS / 2);
        nothing_comes(&mut to.socket);
        let statistics = to.socket.statistics().unwrap();
        assert_eq!(statistics.rx_oversized, 0, "{statistics:?}");
        from.close();
        to.close();
    }
    Outcome::Passed
}
