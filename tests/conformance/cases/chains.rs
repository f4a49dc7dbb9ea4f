//! Packets of several frames, and chains of descriptors that are none.

use std::collections::BTreeSet;

use xskit::{UmemConfig, ring::Desc};

use super::invalid::transmit;
use crate::{
    Case, Outcome,
    bench::{Bench, End, LENGTH, PACKETS, nothing_comes},
    descriptors::Frames,
    mode::Mode,
    whole::{Whole, several, stream_whole},
};

pub(super) const CASES: &[Case] = &[
    ("packets_of_9000_bytes", packets_of_9000_bytes),
    ("an_invalid_fragment_in_the_middle_zero_length", |mode| in_the_middle(mode, Bad::ZeroLength)),
    ("an_invalid_fragment_in_the_middle_bad_address", |mode| in_the_middle(mode, Bad::Address)),
    ("an_invalid_fragment_in_the_middle_bad_length", |mode| in_the_middle(mode, Bad::Length)),
    ("an_invalid_fragment_in_the_middle_bad_option", |mode| in_the_middle(mode, Bad::Option)),
    ("the_largest_number_of_fragments_and_one_more", the_largest_number_and_one_more),
];

/// More of the packet follows.
const CONTINUED: u32 = 1;
/// No option of any kernel.
const UNKNOWN: u32 = 1 << 16;

/// Jumbo packets.
pub(super) const JUMBO: usize = 9000;

pub(super) fn jumbo_bench(mode: &'static Mode) -> Bench {
    Bench::with_mtu(mode, 9000)
}

fn packets_of_9000_bytes(mode: &'static Mode) -> Outcome {
    let bench = jumbo_bench(mode);
    if let Some(cannot) = bench.lacks_several() {
        return cannot;
    }
    let mut from = bench.sender_of(UmemConfig::new(1024), several());
    let mut to = bench.receiver_of_several(UmemConfig::new(1024));
    let series = bench.to_near(JUMBO);
    stream_whole((&mut from.socket, &mut to.socket), &series, 0..PACKETS);
    nothing_comes(&mut to.socket);
    let statistics = to.socket.statistics().unwrap();
    assert_eq!((statistics.received, statistics.rx_oversized), (PACKETS, 0), "{statistics:?}");
    from.close();
    to.close();
    Outcome::Passed
}

/// What is wrong with a fragment.
#[derive(Clone, Copy)]
enum Bad {
    ZeroLength,
    Address,
    Length,
    Option,
}

impl Bad {
    /// A fragment that lies where a good one does.
    fn fragment(self, good: Desc, from: &End) -> Desc {
        let chunk = from.umem.chunk_size().bytes();
        match self {
            Self::ZeroLength => Desc { len: 0, ..good },
            Self::Address => {
                Desc { addr: u64::from(from.umem.chunks()) * u64::from(chunk), ..good }
            }
            Self::Length => Desc { len: chunk + 1, ..good },
            Self::Option => Desc { options: good.options | UNKNOWN, ..good },
        }
    }
}

fn bytes(content: &[u8]) -> u32 {
    u32::try_from(content.len()).unwrap()
}

/// A first fragment, an invalid one, and a last one; and after each such chain a packet of one frame.
fn in_the_middle(mode: &'static Mode, bad: Bad) -> Outcome {
    const CHAINS: u64 = 256;
    let bench = jumbo_bench(mode);
    if let Some(cannot) = bench.lacks_several() {
        return cannot;
    }
    let mut from = bench.sender_of(UmemConfig::new(1024), several());
    let mut to = bench.receiver_of_several(UmemConfig::new(1024));
    let whole = Whole::new(&to.socket);
    let series = bench.to_near(LENGTH);
    let (mut rest_arrived, mut came_back, mut said) = (0, 0, BTreeSet::new());
    for chain in 0..CHAINS {
        // Each would be a packet by itself, so that what arrives shows which descriptors were taken together.
        let contents: Vec<_> = (4 * chain..4 * chain + 4).map(|n| series.frame(n)).collect();
        let frames = Frames::new(&from.umem, &contents);
        let part = |index: usize, options| Desc {
            addr: frames.chunks[index],
            len: bytes(&contents[index]),
            options,
        };
        let broken = bad.fragment(part(1, CONTINUED), &from);
        let descs =
            [(part(0, CONTINUED), false), (broken, false), (part(2, 0), false), (part(3, 0), true)];
        let refused = transmit(&mut from, &descs);
        came_back += refused.came_back;
        said.extend(refused.said);
        frames.attach();
        let mut last = false;
        while !last {
            for (content, _) in whole.take(&mut to.socket) {
                assert!(!last, "something came after the last packet");
                last = content == contents[3];
                if !last {
                    assert!(content == contents[2], "a part of a broken chain arrived");
                    rest_arrived += 1;
                }
            }
        }
    }
    nothing_comes(&mut to.socket);
    let statistics = from.socket.statistics().unwrap();
    let refused = statistics.kernel.tx_invalid_descs;
    let seen = match rest_arrived {
        0 => "what follows it in the chain is dropped too",
        CHAINS => "what follows it in the chain is a packet by itself",
        some => panic!("what follows it was sent {some} times of {CHAINS}"),
    };
    let each = refused / CHAINS;
    assert!(refused.is_multiple_of(CHAINS) && (1..=3).contains(&each), "{statistics:?}");
    from.socket.rings().refused(u32::try_from(3 * CHAINS - came_back).unwrap());
    from.close();
    to.close();
    let said = match said.len() {
        0 => String::new(),
        _ => format!("; the wake-up says {said:?}"),
    };
    Outcome::Saw(format!("{seen}; counted: {each} of 3 descriptors{said}"))
}

fn the_largest_number_and_one_more(mode: &'static Mode) -> Outcome {
    const ROUNDS: u64 = 64;
    let bench = jumbo_bench(mode);
    if let Some(cannot) = bench.lacks_several() {
        return cannot;
    }
    let mut from = bench.sender_of(UmemConfig::new(1024), several());
    let mut to = bench.receiver_of_several(UmemConfig::new(1024));
    let whole = Whole::new(&to.socket);
    let most = from.socket.mode().max_frames as usize;
    let (mut invalid, mut came_back) = (0, 0);
    for round in 0..ROUNDS {
        let mut descs = Vec::new();
        let mut packets = Vec::new();
        let mut all = Vec::new();
        for (count, arrives) in [(most, true), (most + 1, false), (1, true)] {
            let packet = bench.to_near(count * LENGTH).frame(round);
            let parts: Vec<_> = packet.chunks(LENGTH).collect();
            let frames = Frames::new(&from.umem, &parts);
            for (index, (addr, part)) in frames.chunks.iter().zip(&parts).enumerate() {
                let options = if index + 1 < count { CONTINUED } else { 0 };
                descs.push((Desc { addr: *addr, len: bytes(part), options }, arrives));
            }
            all.push(frames);
            if arrives {
                packets.push(packet);
            } else {
                invalid += count as u64;
            }
        }
        came_back += transmit(&mut from, &descs).came_back;
        all.into_iter().for_each(Frames::attach);
        whole.receive(&mut to.socket, &packets);
    }
    nothing_comes(&mut to.socket);
    let statistics = from.socket.statistics().unwrap();
    assert_eq!(statistics.kernel.tx_invalid_descs, invalid, "{statistics:?}");
    from.socket.rings().refused(u32::try_from(invalid - came_back).unwrap());
    from.close();
    to.close();
    Outcome::Saw(format!("{most} fragments are a packet"))
}
