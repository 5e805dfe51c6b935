//! The scenarios by name: what each promises, and how it is run.

mod calls;
mod delay;
mod examples;
mod explain;
mod field;
mod hints;
mod http2;
mod machines;
mod paths;
mod processes;
mod relay;
mod sessions;
mod streams;
mod truth;
mod writing;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use crate::apps::Language;
use crate::result::{Bound, Value};
use crate::world::{Options, Programs, Way, World};

/// One thing that a scenario measures.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figure {
    pub(crate) id: &'static str,
    pub(crate) what: &'static str,
    pub(crate) unit: &'static str,
    /// The article's figure, in its words; empty when it has none.
    pub(crate) article: &'static str,
    pub(crate) bound: Bound,
}

/// Whether runs disturb each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// It mostly waits, for seconds: many side by side.
    Waits,
    /// It measures milliseconds, or fills the CPU: alone on the machine.
    Alone,
}

/// A scenario. Its text is what the report says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) promise: &'static str,
    pub(crate) what: &'static str,
    pub(crate) figures: &'static [Figure],
    pub(crate) ways: &'static [Way],
    /// Whether it is run with each language, or speaks no gRPC.
    pub(crate) speaks_grpc: bool,
    pub(crate) pace: Pace,
    pub(crate) runs: u32,
    /// About how long one run takes.
    pub(crate) seconds: u32,
    /// Part of the short subset of CI.
    pub(crate) smoke: bool,
    /// Why it is known not to hold yet; such a run is shown and fails nothing.
    pub(crate) open: Option<&'static str>,
    pub(crate) run: fn(&mut Case<'_>) -> anyhow::Result<()>,
}

impl Scenario {
    /// Whether it tries a row of the field reports. Its name begins with the row's id then, and its figures stand on
    /// their page, not in the lab's report.
    pub(crate) fn is_field_report(&self) -> bool {
        self.promise.starts_with('F')
    }
}

/// All scenarios, in the report's order.
pub(crate) fn all() -> Vec<Scenario> {
    [
        calls::SCENARIOS,
        hints::SCENARIOS,
        truth::SCENARIOS,
        explain::SCENARIOS,
        http2::SCENARIOS,
        examples::SCENARIOS,
        paths::SCENARIOS,
        relay::SCENARIOS,
        processes::SCENARIOS,
        machines::SCENARIOS,
        writing::SCENARIOS,
        delay::SCENARIOS,
        sessions::SCENARIOS,
    ]
    .concat()
    .into_iter()
    .chain(field::all())
    .collect()
}

/// One run of a scenario: with whom, which way, and what came out.
#[derive(Debug)]
pub(crate) struct Case<'a> {
    /// None where no gRPC is spoken.
    pub(crate) language: Option<&'a Language>,
    pub(crate) way: Way,
    pub(crate) seed: u64,
    pub(crate) programs: &'a Programs,
    pub(crate) folder: PathBuf,
    pub(crate) values: BTreeMap<String, Value>,
}

impl Case<'_> {
    /// A world with the defaults of the product, for this case's way.
    ///
    /// # Errors
    ///
    /// As [`World::build`].
    pub(crate) fn world(&self) -> anyhow::Result<World> {
        self.world_with(Options::plain(self.way))
    }

    /// A world with these options.
    ///
    /// # Errors
    ///
    /// As [`World::build`].
    pub(crate) fn world_with(&self, options: Options) -> anyhow::Result<World> {
        World::build(number_of_world(), &self.folder, self.programs, options)
    }

    /// A world whose edges have not been started: [`World::start_edges`] does.
    ///
    /// # Errors
    ///
    /// As [`World::build`].
    pub(crate) fn world_before_edges(&self, options: Options) -> anyhow::Result<World> {
        World::build_before_edges(number_of_world(), &self.folder, self.programs, options)
    }

    /// The language of this case.
    ///
    /// # Errors
    ///
    /// When the scenario speaks no gRPC.
    pub(crate) fn language(&self) -> anyhow::Result<Language> {
        self.language.cloned().context("this scenario has no language")
    }

    /// The random numbers of this run: they follow from the seed and from which run it is, so that no two runs hit the same
    /// moment.
    pub(crate) fn random(&self) -> ChaCha8Rng {
        let name = self.folder.file_name().unwrap_or_default().as_encoded_bytes();
        // FNV-1a: only to tell runs apart.
        let mixed = name.iter().fold(self.seed ^ 0xcbf2_9ce4_8422_2325, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        ChaCha8Rng::seed_from_u64(mixed)
    }

    /// Records a number.
    pub(crate) fn number(&mut self, id: &str, number: f64) {
        self.values.insert(id.to_owned(), Value::Number(number));
    }

    /// Records a count.
    pub(crate) fn count(&mut self, id: &str, count: usize) {
        self.number(id, u32::try_from(count).map_or(f64::INFINITY, f64::from));
    }

    /// Records a word.
    pub(crate) fn word(&mut self, id: &str, word: impl Into<String>) {
        self.values.insert(id.to_owned(), Value::Word(word.into()));
    }

    /// Records that something had not happened after so many units.
    pub(crate) fn not_within(&mut self, id: &str, not_within: f64) {
        self.values.insert(id.to_owned(), Value::NotWithin { not_within });
    }
}

/// A number for a world that no other has.
fn number_of_world() -> usize {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_figures_too() {
        let mut names = Vec::new();
        for scenario in all() {
            assert!(!names.contains(&scenario.name), "{}", scenario.name);
            names.push(scenario.name);
            let mut ids: Vec<&str> = scenario.figures.iter().map(|figure| figure.id).collect();
            ids.sort_unstable();
            let count = ids.len();
            ids.dedup();
            assert_eq!(ids.len(), count, "{}", scenario.name);
            assert!(!scenario.ways.is_empty() && scenario.runs > 0, "{}", scenario.name);
        }
        assert!(!names.is_empty());
    }
}
