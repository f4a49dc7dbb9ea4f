//! Both ways of each pass come to the same, for runs of any length.

use std::mem::MaybeUninit;

use super::{SHORT, Seen, narrow, put, take, write_bases, write_chunks, write_fresh};
use crate::sys::uapi::Desc;

/// Runs of every length up to where all loops have gone round several times.
const LENGTHS: std::ops::Range<usize> = 0..70;

const MASK: u64 = 2047;

/// Descriptors of which no two are alike.
fn descs(count: usize) -> Vec<Desc> {
    let number = |index: usize| u64::try_from(index).unwrap() + 1;
    let desc = |index| Desc {
        addr: number(index).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        len: u32::try_from(number(index) * 7919 % 4096).unwrap(),
        options: u32::try_from(number(index) % 2).unwrap() << (index % 32),
    };
    (0..count).map(desc).collect()
}

/// What a pass writes into the first slots, and what it returns. It writes into no other.
fn written<T: bytemuck::Pod + PartialEq + std::fmt::Debug, R>(
    count: usize,
    pass: impl FnOnce(&mut [MaybeUninit<T>]) -> R,
) -> (Vec<T>, R) {
    let mut to = vec![MaybeUninit::new(T::zeroed()); count + 3 * SHORT];
    let result = pass(&mut to);
    // SAFETY: initialised above, whatever the pass has done.
    let mut all: Vec<T> = to.iter().map(|one| unsafe { one.assume_init() }).collect();
    assert_eq!(all.split_off(count), vec![T::zeroed(); 3 * SHORT]);
    (all, result)
}

#[test]
fn descriptors_are_copied_and_seen() {
    for count in LENGTHS {
        let from = descs(count);
        let bare: Vec<Desc> = from.iter().map(|desc| Desc { options: 0, ..*desc }).collect();
        let seen = Seen {
            addresses: from.iter().fold(0, |all, desc| all | desc.addr),
            longest: from.iter().map(|desc| desc.len).max().unwrap_or(0),
        };
        assert_eq!(written(count, |to| narrow::take(&from, to)), (bare.clone(), seen));
        assert_eq!(written(count, |to| take(&from, to)), (bare, seen));
    }
}

#[test]
fn each_empty_packet_is_found() {
    for count in LENGTHS {
        let full: Vec<Desc> =
            descs(count).iter().map(|desc| Desc { len: desc.len.max(1), ..*desc }).collect();
        assert_eq!(written(count, |to| put(&full, to)), (full.clone(), false));
        for index in 0..count {
            let mut from = full.clone();
            from[index].len = 0;
            assert_eq!(written(count, |to| put(&from, to)), (from.clone(), true), "{index}");
        }
    }
}

#[test]
fn chunks_begin_where_the_mask_says() {
    for count in LENGTHS {
        let from = descs(count);
        let addresses: Vec<u64> = from.iter().map(|desc| desc.addr).collect();
        let bases: Vec<u64> = addresses.iter().map(|address| address & !MASK).collect();
        let all = bases.iter().fold(0, |all, one| all | one);
        assert_eq!(written(count, |to| write_chunks(&addresses, MASK, to)), (bases.clone(), all));
        let sorted = |mut bases: Vec<u64>| {
            bases.sort_unstable();
            bases
        };
        let (written, ()) = written(count, |to| write_bases(&from, MASK, to));
        assert_eq!(sorted(written), sorted(bases), "in any order");
    }
}

#[test]
fn fresh_packets_begin_behind_the_headroom_last_chunk_first() {
    for count in LENGTHS {
        let bases: Vec<u64> = descs(count).iter().map(|desc| desc.addr & !MASK).collect();
        let fresh: Vec<Desc> =
            bases.iter().rev().map(|base| Desc { addr: base + 256, len: 0, options: 0 }).collect();
        assert_eq!(written(count, |to| write_fresh(&bases, 256, to)).0, fresh);
    }
}
