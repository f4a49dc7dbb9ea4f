//! The Internet checksum.

/// Adds the 16-bit words of `bytes`, the last one padded with zero.
pub(crate) fn add(mut sum: u32, bytes: &[u8]) -> u32 {
    for word in bytes.chunks(2) {
        let word = u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]);
        sum += u32::from(word);
    }
    sum
}

/// Of the sum of fewer than 2^16 words.
pub(crate) fn finish(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !u16::try_from(sum).expect("the carry has been added twice")
}
