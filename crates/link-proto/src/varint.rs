//! The numbers of a link: of 62 bits at most, else as [`hopline_varint`] has them.

use bytes::BytesMut;
use hopline_varint::VarintError;

/// The highest number on the wire: leaves room so that sums of two never overflow a `u64`.
pub(crate) const MAX: u64 = (1 << 62) - 1;
/// The longest encoding in bytes.
pub(crate) const MAX_LEN: usize = 9;

/// Appends `value`, which is at most [`MAX`].
pub(crate) fn put(buf: &mut BytesMut, value: u64) {
    debug_assert!(value <= MAX);
    hopline_varint::write(value, buf);
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
    match hopline_varint::read(bytes) {
        Ok((value, len)) if value <= MAX => Varint::Value(value, len),
        Err(VarintError::Incomplete) if bytes.len() < MAX_LEN => Varint::Partial,
        Ok(_) | Err(_) => Varint::Malformed,
    }
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
