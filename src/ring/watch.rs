//! Watches over slots, which are plain memory: in a model, each has a tracked cell.

/// Who may touch which slot. With `--cfg loom` two threads that may touch one at once end the model, as a
/// race; otherwise it is nothing.
///
/// A slot counts as touched when its slice is made. The guard that the slice is borrowed from ends with its
/// `submit` or `release`, so that all that is done with the slice comes before the index moves.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    #[cfg(all(test, loom))]
    cells: crate::sync::Arc<[crate::sync::UnsafeCell<()>]>,
}

#[cfg(all(test, loom))]
impl Watch {
    pub(super) fn new(slots: u32) -> Self {
        Self { cells: (0..slots).map(|_| crate::sync::UnsafeCell::new(())).collect() }
    }

    pub(super) fn read(&self, slots: impl Iterator<Item = u32>) {
        slots.for_each(|slot| self.cells[slot as usize].with(|_| ()));
    }

    pub(super) fn write(&self, slots: impl Iterator<Item = u32>) {
        slots.for_each(|slot| self.cells[slot as usize].with_mut(|_| ()));
    }
}

#[cfg(not(all(test, loom)))]
#[expect(clippy::unused_self, reason = "its twin keeps the cells")]
impl Watch {
    pub(super) fn new(_slots: u32) -> Self {
        Self {}
    }

    #[inline(always)]
    pub(super) fn read(&self, _slots: impl Iterator<Item = u32>) {}

    #[inline(always)]
    pub(super) fn write(&self, _slots: impl Iterator<Item = u32>) {}
}
