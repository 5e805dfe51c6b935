//! Random histories of chains of one to five links, each from a seed, against a model of what an application may
//! see. See `sim/model.rs` for what is promised, `sim/world.rs` for what is done to the chain.
//!
//! `cargo xtask sim --seeds N [--seed FIRST]` runs many in release mode. A failure prints its seed:
//! `cargo xtask sim --seed SEED` repeats it.

#[path = "sim/model.rs"]
mod model;
#[path = "sim/world.rs"]
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use world::{Tally, World};

/// Runs the seeds. What a failing one says comes from its own panic; at the end all are named.
fn run(seeds: std::ops::Range<u64>) -> Tally {
    let mut tally = Tally::default();
    let mut failed = Vec::new();
    for seed in seeds {
        match catch_unwind(AssertUnwindSafe(|| World::new(seed).run())) {
            Ok(one) => tally.add(&one),
            Err(_) => {
                eprintln!("broken: cargo xtask sim --seed {seed}");
                failed.push(seed);
            }
        }
    }
    assert!(failed.is_empty(), "{} seeds failed: {failed:?}", failed.len());
    tally
}

#[test]
fn random_histories_keep_every_promise() {
    let tally = run(0..200);
    // What ran at all: a simulation that opens nothing would pass.
    assert!(tally.sessions > 1_000 && tally.bytes > 10_000_000, "{tally:?}");
    assert!(tally.clean > 500 && tally.aborted > 200 && tally.cut > 50, "{tally:?}");
    assert!(tally.longest_stall.as_secs() > 0);
}

/// Many seeds, from the environment: see `cargo xtask sim`.
#[test]
#[ignore = "takes as long as it is told to"]
fn many() {
    let number = |name: &str, other: u64| {
        std::env::var(name).map_or(other, |text| text.parse().unwrap_or_else(|e| panic!("{name}: {e}")))
    };
    let first = number("HOPLINE_SIM_SEED", 0);
    let count = number("HOPLINE_SIM_SEEDS", 1_000);
    println!("{:?}", run(first..first + count));
}
