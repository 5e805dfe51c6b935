//! The decoder of header blocks by itself, to compare it with others and to measure it.

use crate::field::{Fields, VALUE_BYTES};
use crate::hpack::{Decoder, meaning_of};

/// Reads header blocks one after the other, with a table of at most 64 KiB.
pub struct HeaderReader(Decoder);

impl std::fmt::Debug for HeaderReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeaderReader").finish_non_exhaustive()
    }
}

impl Default for HeaderReader {
    fn default() -> Self {
        Self(Decoder::new(64 << 10))
    }
}

impl HeaderReader {
    /// What is taken from a block, as text; none where it can't be read.
    pub fn read(&mut self, block: &[u8]) -> Option<String> {
        self.0.decode(block).ok().map(|fields| text(&fields))
    }

    /// The same without the text, for measurements: whether it can be read.
    pub fn pass(&mut self, block: &[u8]) -> bool {
        self.0.decode(block).is_ok()
    }
}

/// What would be taken from a block with these fields.
pub fn expected<'a>(fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> String {
    let mut taken = Fields::default();
    for (name, value) in fields {
        taken.take(meaning_of(name, &value[..value.len().min(VALUE_BYTES)]));
    }
    text(&taken)
}

fn text(fields: &Fields) -> String {
    format!("{:?}", Fields { resized: false, ..*fields })
}
