//! The behaviours, one function each.

mod chains;
mod counted;
mod directions;
mod invalid;
mod lifecycle;
mod metadata;
mod plain;
mod polling;
mod programs;
mod sharing;
mod unaligned;

use crate::Case;

/// All behaviours.
pub(crate) fn all() -> impl Iterator<Item = Case> {
    let modules = [
        plain::CASES,
        polling::CASES,
        invalid::CASES,
        counted::CASES,
        directions::CASES,
        sharing::CASES,
        programs::CASES,
        lifecycle::CASES,
        chains::CASES,
        unaligned::CASES,
        metadata::CASES,
    ];
    modules.into_iter().flatten().copied()
}
