//! Replays what the fuzzers have found worth keeping (`tests/corpus/`), and a few thousand random inputs, through
//! the same functions: no libFuzzer is needed. How to fuzz stands in `fuzz/README.md`.

#[path = "fuzz/bodies.rs"]
mod bodies;
#[expect(dead_code, reason = "shared with the other tests")]
mod words;

use std::path::PathBuf;

use proptest::prelude::*;
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

/// Random bytes, of which many are small numbers: those are heads and steps.
fn random(target: &str, body: fn(&[u8]), count: u64) {
    for seed in 0..count {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut bytes = vec![0; rng.random_range(0..400)];
        rng.fill_bytes(&mut bytes);
        let mask = if rng.random_bool(0.5) { 0x1f } else { 0xff };
        bytes.iter_mut().for_each(|byte| *byte &= mask);
        let ran = std::panic::catch_unwind(|| body(&bytes));
        assert!(ran.is_ok(), "{target}: seed {seed}");
    }
}

#[test]
fn bytes_of_the_corpus() {
    replay("h2_bytes", bodies::bytes);
}

#[test]
fn frames_of_the_corpus() {
    replay("h2_frames", bodies::frames);
}

#[test]
fn random_bytes() {
    random("h2_bytes", bodies::bytes, 2_000);
}

#[test]
fn random_frames() {
    random("h2_frames", bodies::frames, 2_000);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// What is counted does not depend on the cuts. A failure is shown as small as it can be.
    #[test]
    fn any_cuts_of_any_conversation(data in prop::collection::vec(any::<u8>(), 0..200), cut in 0_usize..40) {
        bodies::agree(&bodies::script(&data), cut);
    }
}
