//! The bytes that are sent: each place of a stream has its own, so that lost, doubled or swapped ones show.

use std::sync::LazyLock;

use anyhow::{Result, ensure};
use bytes::Bytes;

/// A prime, so that no power of two is a multiple of the period.
const PERIOD: usize = 65_521;
/// Most bytes of one [`at`].
pub const PIECE: usize = 64 << 10;

static BYTES: LazyLock<Bytes> = LazyLock::new(|| {
    let one: Vec<u8> = (0..PERIOD).map(|i| (i * 31 + i / 251) as u8).collect();
    one.repeat(3).into()
});

/// What stands at `offset` of every stream, by reference.
pub fn at(offset: u64, len: usize) -> Bytes {
    let from = (offset % PERIOD as u64) as usize;
    BYTES.slice(from..from + len)
}

/// Checks all of `piece`.
pub fn check(offset: u64, mut piece: &[u8]) -> Result<()> {
    let mut offset = offset;
    while !piece.is_empty() {
        let len = piece.len().min(PIECE);
        ensure!(piece[..len] == at(offset, len), "bytes differ from those sent, near offset {offset}");
        piece = &piece[len..];
        offset += len as u64;
    }
    Ok(())
}

/// Checks the piece's first and last byte: a measurement should not be one of `memcmp`.
pub fn spot_check(offset: u64, piece: &[u8]) -> Result<()> {
    if let (Some(first), Some(last)) = (piece.first(), piece.last()) {
        let end = offset + piece.len() as u64 - 1;
        ensure!(*first == at(offset, 1)[0] && *last == at(end, 1)[0], "bytes differ near offset {offset}");
    }
    Ok(())
}
