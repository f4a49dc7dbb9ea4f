//! What a packet says about itself.

/// The first bytes of a stamp.
const MAGIC: u16 = 0x7867;

/// Which packet of which stream, and when it was made: the first bytes of a UDP packet's payload.
///
/// A stream is what one thread sends in one run. Times are nanoseconds of `CLOCK_MONOTONIC`, which two
/// programs on one host have in common and two hosts have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Chosen by the sender: another one for each thread and run.
    pub stream: u16,
    /// The packet's number in its stream, from 0 on, beginning anew after 2^32.
    pub sequence: u32,
    /// When it was made.
    pub time: u64,
}

impl Stamp {
    /// Bytes that it takes.
    pub const LEN: usize = 16;

    pub(crate) fn write(self, to: &mut [u8]) {
        to[..2].copy_from_slice(&MAGIC.to_be_bytes());
        to[2..4].copy_from_slice(&self.stream.to_be_bytes());
        to[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        to[8..16].copy_from_slice(&self.time.to_be_bytes());
    }

    /// The stamp of an Ethernet frame with UDP over IPv4 or IPv6, behind up to two VLAN tags.
    pub fn find(frame: &[u8]) -> Option<Self> {
        let half = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
        let mut at = 12;
        let mut ether_type = half(at)?;
        for _ in 0..2 {
            if matches!(ether_type, 0x8100 | 0x88a8) {
                at += 4;
                ether_type = half(at)?;
            }
        }
        at += 2;
        let (protocol, header) = match ether_type {
            // No fragment: it has no UDP header of its own, or has lost the rest.
            0x0800 if matches!(half(at + 6)?, 0 | 0x4000) => {
                (*frame.get(at + 9)?, usize::from(*frame.get(at)? & 15) * 4)
            }
            0x86dd => (*frame.get(at + 6)?, 40),
            _ => return None,
        };
        if protocol != 17 {
            return None;
        }
        Self::read(frame.get(at + header + 8..)?)
    }

    fn read(from: &[u8]) -> Option<Self> {
        let (stamp, _) = from.split_first_chunk::<{ Self::LEN }>()?;
        let [m0, m1, s0, s1, n0, n1, n2, n3, time @ ..] = *stamp;
        (u16::from_be_bytes([m0, m1]) == MAGIC).then(|| Self {
            stream: u16::from_be_bytes([s0, s1]),
            sequence: u32::from_be_bytes([n0, n1, n2, n3]),
            time: u64::from_be_bytes(time),
        })
    }
}
