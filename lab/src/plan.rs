//! Plans of faults: drawn from a seed, written as text, read back.
//!
//! One step a line: `12.5s for 8.0s: drop web <-> relay`. A step begins so long after the start and is undone when its
//! time is over. `kill` and `drain` start the process again then. Empty lines and lines with `#` say nothing.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::fault::Fault;

/// How long nothing is done between two bouts of faults: long enough for sessions that meet none.
const QUIET: Duration = Duration::from_secs(40);

/// Something that is done to a world, and undone.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Harm {
    /// A fault that is put in force.
    Fault(Fault),
    /// A process of the chain is killed with -9, and started again.
    Kill(String),
    /// A process of the chain gets SIGTERM, and is started again.
    Drain(String),
}

/// One line of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Step {
    pub(crate) at: Duration,
    pub(crate) lasts: Duration,
    pub(crate) harm: Harm,
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => fault.fmt(f),
            Self::Kill(process) => write!(f, "kill {process}"),
            Self::Drain(process) => write!(f, "drain {process}"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}s for {:.1}s: {}", self.at.as_secs_f64(), self.lasts.as_secs_f64(), self.harm)
    }
}

impl FromStr for Step {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        let (times, harm) = line.split_once(": ").with_context(|| format!("{line:?}: no colon"))?;
        let (at, lasts) = times.split_once(" for ").with_context(|| format!("{line:?}: no `for`"))?;
        let seconds = |text: &str| -> anyhow::Result<Duration> {
            let number = text.strip_suffix('s').and_then(|text| text.parse().ok());
            let number: f64 = number.with_context(|| format!("{text:?}: seconds, such as 12.5s"))?;
            Duration::try_from_secs_f64(number).with_context(|| format!("{text:?}"))
        };
        let words: Vec<&str> = harm.split_whitespace().collect();
        let harm = match words[..] {
            ["kill" | "drain", process] if !["relay", "agent", "sidecar"].contains(&process) => {
                bail!("{process:?} is no process of the chain")
            }
            ["kill", process] => Harm::Kill(process.to_owned()),
            ["drain", process] => Harm::Drain(process.to_owned()),
            _ => Harm::Fault(harm.parse()?),
        };
        Ok(Self { at: seconds(at)?, lasts: seconds(lasts)?, harm })
    }
}

impl TryFrom<String> for Step {
    type Error = anyhow::Error;

    fn try_from(line: String) -> anyhow::Result<Self> {
        line.parse()
    }
}

impl From<Step> for String {
    fn from(step: Step) -> Self {
        step.to_string()
    }
}

/// Reads a plan.
///
/// # Errors
///
/// Names the first line that is no step.
pub(crate) fn read(text: &str) -> anyhow::Result<Vec<Step>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.parse().with_context(|| line.to_owned())).collect()
}

/// Draws a plan of about this length: bouts of one to three steps, each followed by quiet.
pub(crate) fn draw(seed: u64, length: Duration) -> Vec<Step> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut steps = Vec::new();
    let mut at = Duration::from_secs(5);
    while at < length {
        let mut end = at;
        for _ in 0..random.random_range(1..=3) {
            let harm = draw_harm(&mut random);
            let lasts = match &harm {
                Harm::Fault(Fault::Cut { .. }) => Duration::ZERO,
                // As long as a drain, or time to notice.
                Harm::Kill(_) | Harm::Drain(_) => tenths(&mut random, 5, 60),
                Harm::Fault(_) => tenths(&mut random, 10, 220),
            };
            steps.push(Step { at: end, lasts, harm });
            // One after the other, or the next while the last is healing.
            end += lasts + tenths(&mut random, 0, 80);
        }
        at = end + QUIET;
    }
    steps
}

fn tenths(random: &mut ChaCha8Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(random.random_range(from..=to) * 100)
}

fn draw_harm(random: &mut ChaCha8Rng) -> Harm {
    let pick = |random: &mut ChaCha8Rng, from: &[&str]| (*from.choose(random).unwrap_or(&"relay")).to_owned();
    let process = pick(random, &["relay", "agent", "sidecar"]);
    let other = pick(random, &["web", "db"]);
    let relay = "relay".to_owned();
    match random.random_range(0..12) {
        0 | 1 => Harm::Fault(Fault::Drop { from: other, to: relay, both: true }),
        2 => Harm::Fault(Fault::Drop { from: other, to: relay, both: false }),
        3 => Harm::Fault(Fault::Drop { from: relay, to: other, both: false }),
        4 => Harm::Fault(Fault::Loss { from: other, to: relay, percent: random.random_range(1..=30) }),
        5 => {
            let kib_per_s = random.random_range(32..=512);
            Harm::Fault(Fault::Limit { host: other, kib_per_s, queue_kib: 256 })
        }
        6 => Harm::Fault(Fault::Cut { from: other, to: relay }),
        7 => Harm::Fault(Fault::Freeze { process }),
        8 => Harm::Kill(process),
        9 => {
            let (delay_ms, jitter_ms) = (random.random_range(5..=300), random.random_range(0..=300));
            Harm::Fault(Fault::Delay { from: other, to: relay, delay_ms, jitter_ms })
        }
        10 => {
            let (percent, by_ms) = (random.random_range(1..=20), random.random_range(1..=50));
            Harm::Fault(Fault::Reorder { from: other, to: relay, percent, by_ms })
        }
        _ => Harm::Drain(process),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_reads_back_as_it_was_drawn() {
        for seed in 0..50 {
            let steps = draw(seed, Duration::from_secs(600));
            assert!(!steps.is_empty());
            let text: String = steps.iter().map(|step| format!("{step}\n")).collect();
            assert_eq!(read(&text).unwrap(), steps);
        }
    }

    #[test]
    fn a_seed_is_a_plan() {
        let length = Duration::from_secs(600);
        assert_eq!(draw(7, length), draw(7, length));
        assert_ne!(draw(7, length), draw(8, length));
    }

    #[test]
    fn every_kind_of_harm_is_drawn() {
        let length = Duration::from_secs(600);
        let all: String = (0..50).flat_map(|seed| draw(seed, length)).map(|step| step.to_string()).collect();
        let words = [
            "<->",
            "web -> relay",
            "relay -> db",
            "loss",
            "delay",
            "reorder",
            "limit",
            "cut",
            "freeze",
            "kill",
            "drain",
        ];
        for word in words {
            assert!(all.contains(word), "{word}");
        }
    }

    #[test]
    fn comments_are_skipped_and_faults_named() {
        assert_eq!(read("# nothing\n\n").unwrap(), []);
        for line in
            ["1s: kill relay", "1s for 2: kill relay", "1s for 2s: kill server", "x for 1s: kill relay"]
        {
            let error = format!("{:#}", read(line).unwrap_err());
            assert!(error.contains(line), "{error}");
        }
    }
}
