//! Unsigned numbers of 62 bits at most, seven bits a byte, least significant first, shortest form only.

use bytes::{BufMut, BytesMut};

/// The highest number on the wire: leaves room so that sums of two never overflow a `u64`.
pub(crate) const MAX: u64 = (1 << 62) - 1;
/// The longest encoding in bytes.
pub(crate) const MAX_LEN: usize = 9;

/// Appends `value`, which is at most [`MAX`].
pub(crate) fn put(buf: &mut BytesMut, mut value: u64) {
    debug_assert!(value <= MAX);
    while value >= 0x80 {
        buf.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    buf.put_u8(value as u8);
}

/// What stands at the beginning of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Varint {
    /// A number and the count of its bytes.
    Value(u64, usize),
    /// The bytes end before the number does.
    Partial,
    /// Not the shortest form, or above [`MAX`].
    Malformed,
}

/// Reads the number at the beginning of `bytes`.
pub(crate) fn get(bytes: &[u8]) -> Varint {
    let mut value = 0u64;
    for (index, byte) in bytes.iter().take(MAX_LEN).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            let padded = *byte == 0 && index > 0;
            return if padded || value > MAX { Varint::Malformed } else { Varint::Value(value, index + 1) };
        }
    }
    if bytes.len() >= MAX_LEN { Varint::Malformed } else { Varint::Partial }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_at_every_length() {
        for shift in 0..62 {
            for value in [(1u64 << shift) - 1, 1 << shift, (1 << shift) + 1] {
                let mut buf = BytesMut::new();
                put(&mut buf, value);
                assert_eq!(get(&buf), Varint::Value(value, buf.len()));
                for cut in 0..buf.len() {
                    assert_eq!(get(&buf[..cut]), Varint::Partial, "{value} cut at {cut}");
                }
            }
        }
    }

    #[test]
    fn only_the_shortest_form_and_62_bits() {
        assert_eq!(get(&[0x80, 0x00]), Varint::Malformed);
        assert_eq!(get(&[0xff; 9]), Varint::Malformed);
        assert_eq!(get(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]), Varint::Malformed);
        assert_eq!(get(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f]), Varint::Value(MAX, 9));
    }
}
