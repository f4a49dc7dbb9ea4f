//! What a packet takes on the wire.

/// Bytes of the frame check sequence, which the NIC adds.
const FCS: u64 = 4;
/// Bytes of the shortest Ethernet frame, without its check sequence: shorter ones are padded.
const SHORTEST: u64 = 60;
/// Preamble, start of frame and the gap after it.
const PREAMBLE_AND_GAP: u64 = 8 + 12;

/// Where bits are counted. Sizes of packets are without the check sequence, as programs see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// All that takes time on the wire: the frame with its check sequence, the preamble, the gap.
    One,
    /// The frame with its check sequence.
    Two,
}

impl Layer {
    /// Bits of all these packets, that have so many bytes together. Packets shorter than 60 bytes have to be
    /// given one by one.
    pub fn bits(self, packets: u64, bytes: u64) -> u64 {
        let bytes = bytes.max(packets * SHORTEST) + packets * FCS;
        match self {
            Self::One => 8 * (bytes + packets * PREAMBLE_AND_GAP),
            Self::Two => 8 * bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 64 bytes at 10 Gbit/s are 14.88 million packets a second, as everybody knows.
    #[test]
    fn line_rate() {
        assert_eq!(10_000_000_000 / Layer::One.bits(1, 60), 14_880_952);
        assert_eq!(10_000_000_000 / Layer::One.bits(1, 1514), 812_743);
        assert_eq!(Layer::Two.bits(2, 120), 2 * 64 * 8);
        assert_eq!(Layer::Two.bits(1, 42), 64 * 8, "padded");
    }
}
