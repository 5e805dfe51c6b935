//! The seeded bytes of a checked stream, as `apps/README.md` defines them: the lab's own copy, so that what the
//! applications report is held against something that is not theirs.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// The bytes of one seed: xorshift32, each word as four bytes, the lowest first.
#[derive(Debug)]
pub(crate) struct Seeded {
    word: u32,
    at: usize,
}

impl Seeded {
    /// From the start of the stream.
    pub(crate) fn new(seed: u32) -> Self {
        Self { word: seed.wrapping_mul(2_654_435_761).max(1), at: 4 }
    }

    /// The next bytes.
    pub(crate) fn take(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        for byte in &mut bytes {
            if self.at == 4 {
                self.word ^= self.word << 13;
                self.word ^= self.word >> 17;
                self.word ^= self.word << 5;
                self.at = 0;
            }
            *byte = self.word.to_le_bytes()[self.at];
            self.at += 1;
        }
        bytes
    }
}

/// SHA-256 of the first `length` bytes of the stream with this seed.
pub(crate) fn prefix_sha256(seed: u32, length: u64) -> String {
    prefixes_sha256(seed, &[length]).pop().unwrap_or_default()
}

/// SHA-256 of prefixes of these lengths, which are sorted, in one pass.
pub(crate) fn prefixes_sha256(seed: u32, lengths: &[u64]) -> Vec<String> {
    let mut source = Seeded::new(seed);
    let mut hash = Sha256::new();
    let mut done = 0;
    let mut hashes = Vec::new();
    for &length in lengths {
        while done < length {
            let bytes = source.take(usize::try_from((length - done).min(65_536)).unwrap_or(65_536));
            hash.update(&bytes);
            done += bytes.len() as u64;
        }
        hashes.push(hex(&hash.clone().finalize()));
    }
    hashes
}

/// Bytes as small hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string does not fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_that_of_the_contract() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(prefix_sha256(7, 0), empty);
        // As the Go application printed it.
        let million = "3c3a5d3baaa7675ac1ec8fd5a241803776e1ebf476ba4be28ae8f09f0e9f2380";
        assert_eq!(prefix_sha256(7, 1_000_000), million);
        let seed_3 = "47f3768467acc9ad0861829c22ac8610c7e78d3fbdf9e0f12a4920dc5189e5de";
        assert_eq!(prefix_sha256(3, 100), seed_3);
    }
}
