#![no_main]

#[expect(dead_code, reason = "each target runs one of the bodies")]
#[path = "../../crates/h2-watch/tests/fuzz/bodies.rs"]
mod bodies;
#[expect(dead_code, reason = "the tests need all of it")]
#[path = "../../crates/h2-watch/tests/words/mod.rs"]
mod words;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::bytes(data));
