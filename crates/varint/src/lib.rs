//! LEB128 unsigned integers of up to 64 bits, in their one shortest form: pure.
//!
//! # The main decision
//!
//! A number has one encoding. Whatever is longer than need be is a fault, so what was read can be written again byte for
//! byte, and no two encodings of one message exist. Frames of links and routing headers use this one codec; a link takes
//! 62 bits at most, which is its own rule.

use bytes::BufMut;

/// The longest encoding of a `u64`.
const MAX_LEN: usize = 10;

/// Why bytes are not a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VarintError {
    /// The bytes end inside the number.
    #[error("the number is cut short")]
    Incomplete,
    /// The number is over 64 bits or takes more than 10 bytes.
    #[error("the number does not fit 64 bits")]
    TooLarge,
    /// The number is written longer than need be.
    #[error("the number is not in its shortest form")]
    NotCanonical,
}

/// Reads the number at the start of `input`; returns it and how many bytes it takes.
///
/// # Errors
///
/// [`VarintError`]: more bytes are needed, or these are no number.
#[inline]
pub fn read(input: &[u8]) -> Result<(u64, usize), VarintError> {
    let mut value = 0u64;
    for (index, &byte) in input.iter().take(MAX_LEN).enumerate() {
        let bits = u64::from(byte & 0x7f);
        // The tenth byte holds the 64th bit alone.
        if index == MAX_LEN - 1 && byte > 1 {
            return Err(VarintError::TooLarge);
        }
        value |= bits << (7 * index);
        if byte & 0x80 == 0 {
            if byte == 0 && index > 0 {
                return Err(VarintError::NotCanonical);
            }
            return Ok((value, index + 1));
        }
    }
    Err(VarintError::Incomplete)
}

/// Appends `value` in its shortest form.
#[inline]
pub fn write(mut value: u64, out: &mut impl BufMut) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_values() {
        let cases: [(u64, &[u8]); 6] = [
            (0, &[0]),
            (127, &[0x7f]),
            (128, &[0x80, 1]),
            (300, &[0xac, 2]),
            (u64::from(u32::MAX), &[0xff, 0xff, 0xff, 0xff, 0x0f]),
            (u64::MAX, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
        ];
        for (value, bytes) in cases {
            let mut out = Vec::new();
            write(value, &mut out);
            assert_eq!(out, bytes);
            assert_eq!(read(bytes), Ok((value, bytes.len())));
        }
    }

    #[test]
    fn faults() {
        assert_eq!(read(&[]), Err(VarintError::Incomplete));
        assert_eq!(read(&[0x80]), Err(VarintError::Incomplete));
        assert_eq!(read(&[0x80, 0]), Err(VarintError::NotCanonical));
        assert_eq!(read(&[0xff, 0x80, 0x00]), Err(VarintError::NotCanonical));
        assert_eq!(read(&[0xff; 9]), Err(VarintError::Incomplete));
        assert_eq!(read(&[0xff; 10]), Err(VarintError::TooLarge));
        assert_eq!(read(&[0xff; 11]), Err(VarintError::TooLarge));
        let two_to_the_64 = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2];
        assert_eq!(read(&two_to_the_64), Err(VarintError::TooLarge));
        let zero_in_ten = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0];
        assert_eq!(read(&zero_in_ten), Err(VarintError::NotCanonical));
    }

    proptest! {
        #[test]
        fn round_trip(value: u64, tail: Vec<u8>) {
            let mut out = Vec::new();
            write(value, &mut out);
            let len = out.len();
            prop_assert!(len <= MAX_LEN);
            out.extend_from_slice(&tail);
            prop_assert_eq!(read(&out), Ok((value, len)));
        }

        /// Whatever reads as a number is the one way to write it.
        #[test]
        fn one_form_only(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            if let Ok((value, len)) = read(&bytes) {
                let mut out = Vec::new();
                write(value, &mut out);
                prop_assert_eq!(&out[..], &bytes[..len]);
            }
        }
    }
}
