#![no_main]

#[expect(dead_code, reason = "each target runs one of the bodies")]
#[path = "../../crates/link-proto/tests/fuzz/bodies.rs"]
mod bodies;
#[expect(dead_code, reason = "the scripts need all of it")]
#[path = "../../crates/link-proto/tests/words/mod.rs"]
mod words;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::decoders(data));
