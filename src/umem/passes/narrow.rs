//! One after the other, field by field: for short runs, and for CPUs without wide registers.

use std::mem::MaybeUninit;

use super::Seen;
use crate::sys::uapi::Desc;

/// Reads each field once and by itself: never more bytes at once than somebody may just have written.
#[inline]
fn read(desc: &Desc) -> Desc {
    let Desc { addr, len, options } = desc;
    // SAFETY: the fields of a reference.
    unsafe {
        Desc {
            addr: std::ptr::from_ref(addr).read_volatile(),
            len: std::ptr::from_ref(len).read_volatile(),
            options: std::ptr::from_ref(options).read_volatile(),
        }
    }
}

pub(super) fn take(from: &[Desc], to: &mut [MaybeUninit<Desc>]) -> Seen {
    let mut seen = Seen::default();
    for (desc, to) in from.iter().zip(to) {
        let Desc { addr, len, .. } = read(desc);
        seen = seen.and(Seen { addresses: addr, longest: len });
        to.write(Desc { addr, len, options: 0 });
    }
    seen
}

pub(super) fn put(from: &[Desc], to: &mut [MaybeUninit<Desc>]) -> bool {
    let mut empty = false;
    for (desc, to) in from.iter().zip(to) {
        let desc = read(desc);
        empty |= desc.len == 0;
        to.write(desc);
    }
    empty
}

pub(super) fn write_bases(from: &[Desc], mask: u64, to: &mut [MaybeUninit<u64>]) {
    for (desc, to) in from.iter().zip(to) {
        to.write(desc.addr & !mask);
    }
}

pub(super) fn write_chunks(from: &[u64], mask: u64, to: &mut [MaybeUninit<u64>]) -> u64 {
    let mut all = 0;
    for (address, to) in from.iter().zip(to) {
        let base = address & !mask;
        all |= base;
        to.write(base);
    }
    all
}

pub(super) fn write_fresh(from: &[u64], first: u64, to: &mut [MaybeUninit<Desc>]) {
    for (base, to) in from.iter().rev().zip(to) {
        to.write(Desc { addr: base + first, len: 0, options: 0 });
    }
}
