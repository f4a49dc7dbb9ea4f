//! Where each chunk is, as the oracle knows it.

/// Where a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Free, in a Fill or RX ring, or completed: what xskit does with it there is its own business.
    Within,
    /// In a packet of a batch.
    Batch,
    /// Given to the kernel to send, and not completed.
    Sent,
    /// A plain address in the program's hands.
    Detached,
    /// With the kernel of a queue whose sockets are all closed.
    Held,
}

/// All chunks.
pub(crate) struct Places(Vec<Place>);

impl Places {
    pub(crate) fn new(chunks: u32) -> Self {
        Self(vec![Place::Within; chunks as usize])
    }

    /// A chunk moves from one place to another; it has to be in the first.
    #[track_caller]
    pub(crate) fn moves(&mut self, chunk: usize, from: Place, to: Place) {
        assert_eq!(self.0[chunk], from, "chunk {chunk}, on its way to {to:?}");
        self.0[chunk] = to;
    }

    /// All that the kernel of some closed queue held may be anywhere.
    pub(crate) fn release_held(&mut self) {
        for place in &mut self.0 {
            if *place == Place::Held {
                *place = Place::Within;
            }
        }
    }

    pub(crate) fn all_within(&self) -> bool {
        self.0.iter().all(|place| *place == Place::Within)
    }
}
