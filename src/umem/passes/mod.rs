//! Passes over the descriptors and addresses of a batch: each copies them to where they belong and looks at
//! them on the way.
//!
//! What is asked of all of them is gathered and compared once, since a branch for each costs several times as
//! much. Long runs go through [`avx2`] where the CPU has it, everything else through [`narrow`].

#[cfg(target_arch = "x86_64")]
mod avx2;
mod narrow;
#[cfg(test)]
mod tests;

use std::mem::MaybeUninit;

use crate::sys::uapi::Desc;

/// Up to here [`narrow`] is the faster one.
///
/// Descriptors that somebody has just written field by field (the kernel on this CPU, `set_len`) are still in
/// the CPU's store buffer. A load of a whole descriptor then waits until they have left it, for longer than a
/// short run takes field by field.
const SHORT: usize = 4;

/// A pass into slots of which there are at least as many: the wide one where there is one and the run is long,
/// the narrow one else. Both get as many slots as there are to fill.
macro_rules! pass {
    (
        $(#[$doc:meta])*
        fn $name:ident($from:ident: $from_type:ty $(, $argument:ident: $type:ty)* => $to:ident: $to_type:ty)
        $(-> $result:ty)?
    ) => {
        $(#[$doc])*
        #[inline]
        pub(super) fn $name($from: $from_type, $($argument: $type,)* $to: $to_type) $(-> $result)? {
            let $to = &mut $to[..$from.len()];
            #[cfg(target_arch = "x86_64")]
            if $from.len() > SHORT && std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: this CPU has what the function is compiled for.
                return unsafe { avx2::$name($from, $($argument,)* $to) };
            }
            narrow::$name($from, $($argument,)* $to)
        }
    };
}

/// What [`take`] sees of descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// All bits that an address has.
    pub(super) addresses: u64,
    /// The greatest length.
    pub(super) longest: u32,
}

impl Seen {
    /// Of these and of those.
    #[inline]
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            addresses: self.addresses | other.addresses,
            longest: self.longest.max(other.longest),
        }
    }
}

pass! {
    /// Copies descriptors without their options into the first slots; says what was copied.
    fn take(from: &[Desc] => to: &mut [MaybeUninit<Desc>]) -> Seen
}

pass! {
    /// Copies descriptors into the first slots; whether one of them has no bytes, which the kernel would
    /// refuse.
    fn put(from: &[Desc] => to: &mut [MaybeUninit<Desc>]) -> bool
}

pass! {
    /// Writes the first addresses of these packets' chunks into the first slots, in any order; `mask` has the
    /// bits of an offset in a chunk.
    fn write_bases(from: &[Desc], mask: u64 => to: &mut [MaybeUninit<u64>])
}

pass! {
    /// Writes the first addresses of the chunks in which these addresses lie into the first slots; returns all
    /// bits that one has.
    fn write_chunks(from: &[u64], mask: u64 => to: &mut [MaybeUninit<u64>]) -> u64
}

pass! {
    /// Writes descriptors of packets without bytes into the first slots, `first` bytes into each of these
    /// chunks, the last chunk first.
    fn write_fresh(from: &[u64], first: u64 => to: &mut [MaybeUninit<Desc>])
}

/// Appends what `write` writes.
///
/// # Safety
///
/// It writes all of the room for `count` that it gets.
#[inline]
pub(super) unsafe fn append<T, R>(
    to: &mut Vec<T>,
    count: usize,
    write: impl FnOnce(&mut [MaybeUninit<T>]) -> R,
) -> R {
    to.reserve(count);
    let room = to.spare_capacity_mut();
    // SAFETY: at least as many as have just been reserved.
    let result = write(unsafe { room.get_unchecked_mut(..count) });
    // SAFETY: there is room for as many more, which have been written, by the caller's word.
    unsafe { to.set_len(to.len() + count) };
    result
}
