//! Two descriptors, or four addresses, at a time. What is left over at a run's end is
//! [`narrow`](super::narrow)'s.

use std::{
    arch::x86_64::{
        __m256i, _mm256_add_epi64, _mm256_and_si256, _mm256_andnot_si256, _mm256_lddqu_si256,
        _mm256_loadu_si256, _mm256_max_epu32, _mm256_min_epu32, _mm256_or_si256,
        _mm256_permute4x64_epi64, _mm256_set1_epi64x, _mm256_setr_epi32, _mm256_setzero_si256,
        _mm256_storeu_si256, _mm256_unpackhi_epi64, _mm256_unpacklo_epi64,
    },
    mem::{MaybeUninit, transmute},
    slice,
};

use bytemuck::Pod;

use super::{Seen, narrow};
use crate::sys::uapi::Desc;

/// A register's bytes in memory: two descriptors, each an address and a length below options, or four
/// addresses.
type Words = [u64; 4];

/// Steps in one turn of a loop.
const TURN: usize = 4;

/// As many groups of elements as there are, and the rest.
#[inline]
fn split<T: Pod, G: Pod>(from: &[T]) -> (&[G], &[T]) {
    let (whole, rest) = from.split_at(from.len() - from.len() % (size_of::<G>() / size_of::<T>()));
    (bytemuck::cast_slice(whole), rest)
}

/// As [`split`].
#[inline]
fn split_mut<T: Pod, G: Pod>(
    to: &mut [MaybeUninit<T>],
) -> (&mut [MaybeUninit<G>], &mut [MaybeUninit<T>]) {
    const { assert!(align_of::<G>() <= align_of::<T>() && size_of::<G>().is_multiple_of(size_of::<T>())) }
    let (whole, rest) = to.split_at_mut(to.len() - to.len() % (size_of::<G>() / size_of::<T>()));
    let groups = size_of_val(whole) / size_of::<G>();
    // SAFETY: the same memory, borrowed exclusively, as plain words that need not be initialised.
    (unsafe { slice::from_raw_parts_mut(whole.as_mut_ptr().cast(), groups) }, rest)
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(from: &Words) -> __m256i {
    // SAFETY: a register's bytes, at any alignment.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

/// As [`load`], for what is stored as it is: of a plain load and a store the compiler would make a call of
/// `memcpy`, and of the rest of the pass a second one.
#[inline]
#[target_feature(enable = "avx2")]
fn load_to_copy(from: &Words) -> __m256i {
    // SAFETY: as there.
    unsafe { _mm256_lddqu_si256(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(to: &mut MaybeUninit<Words>, value: __m256i) {
    // SAFETY: a register's bytes, at any alignment.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), value) }
}

/// A register as the two descriptors in it.
#[inline]
#[target_feature(enable = "avx2")]
fn descs(register: __m256i) -> [Desc; 2] {
    // SAFETY: both are plain bits, and as many.
    unsafe { transmute(register) }
}

/// Takes the steps of a pass, several in each turn of the loop.
#[inline]
#[target_feature(enable = "avx2")]
fn each<F, T>(from: &[F], to: &mut [T], mut step: impl FnMut(&F, &mut T)) {
    // Said once, so that the loops need to look at one length only.
    let to = &mut to[..from.len()];
    let turns = from.len() - from.len() % TURN;
    let ((from, from_rest), (to, to_rest)) = (from.split_at(turns), to.split_at_mut(turns));
    for (from, to) in from.chunks_exact(TURN).zip(to.chunks_exact_mut(TURN)) {
        for (from, to) in from.iter().zip(to) {
            step(from, to);
        }
    }
    for (from, to) in from_rest.iter().zip(to_rest) {
        step(from, to);
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn take(from: &[Desc], to: &mut [MaybeUninit<Desc>]) -> Seen {
    let ((from, from_rest), (to, to_rest)) = (split::<_, Words>(from), split_mut(to));
    let no_options = _mm256_setr_epi32(-1, -1, -1, 0, -1, -1, -1, 0);
    let (mut all, mut greatest) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    each(from, to, |from, to| {
        let descs = _mm256_and_si256(load(from), no_options);
        store(to, descs);
        all = _mm256_or_si256(all, descs);
        greatest = _mm256_max_epu32(greatest, descs);
    });
    let (all, greatest) = (descs(all), descs(greatest));
    let seen = |number: usize| Seen { addresses: all[number].addr, longest: greatest[number].len };
    let seen = seen(0).and(seen(1));
    if from_rest.is_empty() { seen } else { seen.and(narrow::take(from_rest, to_rest)) }
}

#[target_feature(enable = "avx2")]
pub(super) fn put(from: &[Desc], to: &mut [MaybeUninit<Desc>]) -> bool {
    let ((from, from_rest), (to, to_rest)) = (split::<_, Words>(from), split_mut(to));
    let mut least = _mm256_set1_epi64x(-1);
    each(from, to, |from, to| {
        let descs = load_to_copy(from);
        store(to, descs);
        least = _mm256_min_epu32(least, descs);
    });
    let empty = descs(least).iter().any(|least| least.len == 0);
    empty | (!from_rest.is_empty() && narrow::put(from_rest, to_rest))
}

#[target_feature(enable = "avx2")]
pub(super) fn write_bases(from: &[Desc], mask: u64, to: &mut [MaybeUninit<u64>]) {
    let ((from, from_rest), (to, to_rest)) = (split::<_, [Words; 2]>(from), split_mut(to));
    let wide_mask = _mm256_set1_epi64x(mask.cast_signed());
    each(from, to, |[first, second], to| {
        // Of descriptors 0, 2, 1 and 3: to bring them into order would take one instruction more.
        let addresses = _mm256_unpacklo_epi64(load(first), load(second));
        store(to, _mm256_andnot_si256(wide_mask, addresses));
    });
    if !from_rest.is_empty() {
        narrow::write_bases(from_rest, mask, to_rest);
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn write_chunks(from: &[u64], mask: u64, to: &mut [MaybeUninit<u64>]) -> u64 {
    let ((from, from_rest), (to, to_rest)) = (split::<_, Words>(from), split_mut(to));
    let wide_mask = _mm256_set1_epi64x(mask.cast_signed());
    let mut all = _mm256_setzero_si256();
    each(from, to, |from, to| {
        let bases = _mm256_andnot_si256(wide_mask, load(from));
        store(to, bases);
        all = _mm256_or_si256(all, bases);
    });
    // SAFETY: both are plain bits, and as many.
    let all = unsafe { transmute::<__m256i, Words>(all) }.into_iter().fold(0, |all, one| all | one);
    if from_rest.is_empty() { all } else { all | narrow::write_chunks(from_rest, mask, to_rest) }
}

#[target_feature(enable = "avx2")]
pub(super) fn write_fresh(from: &[u64], first: u64, to: &mut [MaybeUninit<Desc>]) {
    let (from_rest, from) = from.split_at(from.len() % (size_of::<Words>() / size_of::<u64>()));
    let (to, to_rest) = to.split_at_mut(from.len());
    let (from, to) = (split::<_, Words>(from).0, split_mut::<_, Words>(to).0);
    let wide_first = _mm256_set1_epi64x(first.cast_signed());
    let zero = _mm256_setzero_si256();
    for (from, to) in from.iter().rev().zip(to.chunks_exact_mut(2)) {
        // Chunks 3, 1, 2 and 0: the lower one of each half goes first.
        let bases = _mm256_permute4x64_epi64::<0b00_10_01_11>(load(from));
        let addresses = _mm256_add_epi64(bases, wide_first);
        store(&mut to[0], _mm256_unpacklo_epi64(addresses, zero));
        store(&mut to[1], _mm256_unpackhi_epi64(addresses, zero));
    }
    if !from_rest.is_empty() {
        narrow::write_fresh(from_rest, first, to_rest);
    }
}
