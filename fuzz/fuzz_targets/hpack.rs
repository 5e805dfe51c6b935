#![no_main]
//! Our decoder of header blocks beside `loona-hpack`: both read the same blocks, and take the same from them.

use hopline_h2_watch::testkit::{HeaderReader, expected};
use loona_hpack::Decoder;
use loona_hpack::decoder::DecoderError;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (mut ours, mut theirs) = (HeaderReader::default(), Decoder::new());
    theirs.set_max_allowed_table_size(64 << 10);
    let mut rest = data;
    // A block for each length byte.
    while let Some((length, after)) = rest.split_first() {
        let (block, after) = after.split_at(after.len().min(usize::from(*length)));
        rest = after;
        let read = ours.read(block);
        match theirs.decode(block) {
            Ok(fields) => {
                let fields = fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
                assert_eq!(read, Some(expected(fields)));
            }
            // Ours is laxer: it ends the connection all the same.
            Err(DecoderError::SizeUpdateAtEnd) => assert!(read.is_some()),
            Err(_) => {
                assert_eq!(read, None);
                return;
            }
        }
    }
});
