//! The core's sources name nothing that would make a run depend on more than its input.

use std::path::Path;

#[test]
fn the_core_reads_no_clock_does_no_io_and_has_no_random_order() {
    let banned = [
        "HashMap",
        "HashSet",
        "SystemTime",
        "Instant::now",
        "tokio",
        "std::net",
        "std::fs",
        "std::env",
        "std::thread",
        "Mutex",
        "RwLock",
        "Atomic",
        "rand::rng",
        "tracing",
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/core");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // The tests themselves are `tests.rs` and the folder `tests`.
        if path.is_dir() || path.ends_with("tests.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        files += 1;
        for word in banned {
            assert!(!text.contains(word), "{} names {word}", path.display());
        }
    }
    assert_eq!(files, 10);
}
