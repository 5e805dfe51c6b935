//! Replays what the fuzzers have found worth keeping (`tests/corpus/`), and a few thousand random inputs, through
//! the same functions: no libFuzzer is needed. How to fuzz stands in `fuzz/README.md`.

#[path = "fuzz/bodies.rs"]
mod bodies;
#[expect(dead_code, reason = "the scripts need all of it")]
mod words;

use std::path::PathBuf;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn replay(target: &str, body: fn(&[u8])) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut count = 0;
    for entry in entries {
        let path = entry.unwrap_or_else(|error| panic!("{error}")).path();
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let ran = std::panic::catch_unwind(|| body(&bytes));
        assert!(ran.is_ok(), "{}", path.display());
        count += 1;
    }
    assert!(count >= 20, "{count} inputs of {target}");
}

/// Random bytes, of which many are small numbers: those are frames and steps.
fn random(target: &str, body: fn(&[u8]), count: u64) {
    for seed in 0..count {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut bytes = vec![0; rng.random_range(0..400)];
        rng.fill_bytes(&mut bytes);
        let mask = if rng.random_bool(0.5) { 0x3f } else { 0xff };
        bytes.iter_mut().for_each(|byte| *byte &= mask);
        let ran = std::panic::catch_unwind(|| body(&bytes));
        assert!(ran.is_ok(), "{target}: seed {seed}");
    }
}

#[test]
fn frames_of_the_corpus() {
    replay("frames", bodies::frames);
}

#[test]
fn decoders_of_the_corpus() {
    replay("decoders", bodies::decoders);
}

#[test]
fn random_input_for_every_decoder() {
    random("decoders", bodies::decoders, 20_000);
}

#[test]
fn two_ends_of_the_corpus() {
    replay("two_ends", bodies::two_ends);
}

#[test]
fn random_frames() {
    random("frames", bodies::frames, 1_000);
}

#[test]
fn random_schedules_of_two_ends() {
    random("two_ends", bodies::two_ends, 2_000);
}
