//! What a run measured, and whether that is as promised.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// One measured thing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Value {
    /// A number in its figure's unit.
    Number(f64),
    /// A word, such as a status.
    Word(String),
    /// It had not happened after so many units, when the run stopped waiting.
    NotWithin { not_within: f64 },
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => f.write_str(&short(*number)),
            Self::Word(word) => f.write_str(word),
            Self::NotWithin { not_within } => write!(f, "not within {}", short(*not_within)),
        }
    }
}

/// A number with as many digits as one reads.
pub(crate) fn short(number: f64) -> String {
    if (number - number.round()).abs() < 1e-9 {
        format!("{number:.0}")
    } else if number.abs() >= 100.0 {
        format!("{number:.1}")
    } else {
        format!("{number:.2}")
    }
}

/// When a figure is as promised, for runs through the chain. Direct runs are the reference and have no bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    /// Shown only.
    None,
    AtMost(f64),
    AtLeast(f64),
    Within(f64, f64),
    /// One of these words.
    Word(&'static [&'static str]),
    /// At most this, or where the same program is later directly, the direct median plus the second number. This and what
    /// follows down to [`Bound::LikeDirect`] is asked of medians.
    AtMostOrDirectPlus(f64, f64),
    /// At least this, or where the same program directly has less, the direct median less the second number.
    AtLeastOrDirectLess(f64, f64),
    /// At least this share of what the same program gets directly.
    AtLeastOfDirect(f64),
    /// No further from what the same program says directly than this; a word must be one that was read directly.
    LikeDirect(f64),
    /// The status that this client gives a broken connection.
    BrokenStatus,
    /// The status that this client gives a passed deadline.
    DeadlineStatus,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::None => Ok(()),
            Self::AtMost(most) => write!(f, "≤ {}", short(most)),
            Self::AtLeast(least) => write!(f, "≥ {}", short(least)),
            Self::Within(least, most) => write!(f, "{} to {}", short(least), short(most)),
            Self::Word(words) => f.write_str(&words.join(" or ")),
            Self::AtMostOrDirectPlus(most, plus) => {
                write!(f, "≤ {}, or direct + {}", short(most), short(plus))
            }
            Self::AtLeastOrDirectLess(least, less) => {
                write!(f, "≥ {}, or direct − {}", short(least), short(less))
            }
            Self::AtLeastOfDirect(share) => write!(f, "≥ {} % of direct", short(share * 100.0)),
            Self::LikeDirect(0.0) => f.write_str("as direct"),
            Self::LikeDirect(far) => write!(f, "direct ± {}", short(far)),
            Self::BrokenStatus => f.write_str("as for a broken connection"),
            Self::DeadlineStatus => f.write_str("as for a passed deadline"),
        }
    }
}

/// What a bound is judged against.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reference<'a> {
    /// The same figure of the same language, measured directly.
    pub(crate) direct: &'a [Value],
    pub(crate) broken: &'a str,
    pub(crate) deadline: &'a str,
}

impl Bound {
    /// The number that a plot shows as the promise.
    pub(crate) fn line(self) -> Option<f64> {
        match self {
            Self::AtMost(line)
            | Self::AtLeast(line)
            | Self::Within(_, line)
            | Self::AtMostOrDirectPlus(line, _)
            | Self::AtLeastOrDirectLess(line, _) => Some(line),
            Self::None
            | Self::Word(_)
            | Self::AtLeastOfDirect(_)
            | Self::LikeDirect(_)
            | Self::BrokenStatus
            | Self::DeadlineStatus => None,
        }
    }

    /// The bound without what it allows for the direct run: for that run itself.
    pub(crate) fn alone(self) -> Self {
        match self {
            Self::AtMostOrDirectPlus(most, _) => Self::AtMost(most),
            Self::AtLeastOrDirectLess(least, _) => Self::AtLeast(least),
            Self::AtLeastOfDirect(_) | Self::LikeDirect(_) | Self::None => Self::None,
            Self::AtMost(_)
            | Self::AtLeast(_)
            | Self::Within(..)
            | Self::Word(_)
            | Self::BrokenStatus
            | Self::DeadlineStatus => self,
        }
    }

    /// Whether values are as promised, all runs of one application on one way; none when there is nothing to judge by.
    ///
    /// A bound of its own holds for every value. One that leans on the direct runs compares medians, so that neither one
    /// late run of ours nor one of theirs decides; a value that is no number is not within it.
    pub(crate) fn holds(self, values: &[Value], reference: &Reference<'_>) -> Option<bool> {
        let number = |value: &Value| match value {
            Value::Number(number) => Some(*number),
            Value::Word(_) | Value::NotWithin { .. } => None,
        };
        let numbers = |of: &[Value]| of.iter().map(number).collect::<Option<Vec<f64>>>();
        let each =
            |good: &dyn Fn(f64) -> bool| Some(values.iter().all(|value| number(value).is_some_and(good)));
        let is =
            |word: &str| Some(values.iter().all(|value| matches!(value, Value::Word(own) if own == word)));
        // A direct run that did not come to an end has no number, and allows nothing.
        let direct = median(reference.direct.iter().filter_map(number).collect());
        let middle = |good: &dyn Fn(f64) -> bool| Some(numbers(values).and_then(median).is_some_and(good));
        match self {
            Self::None => None,
            Self::AtMost(most) => each(&|own| own <= most),
            Self::AtLeast(least) => each(&|own| own >= least),
            Self::Within(least, most) => each(&|own| own >= least && own <= most),
            Self::Word(words) => Some(
                values.iter().all(|value| matches!(value, Value::Word(own) if words.contains(&own.as_str()))),
            ),
            Self::AtMostOrDirectPlus(most, plus) => {
                let most = direct.map_or(most, |direct| most.max(direct + plus));
                middle(&|own| own <= most)
            }
            Self::AtLeastOrDirectLess(least, less) => {
                let least = direct.map_or(least, |direct| least.min(direct - less));
                middle(&|own| own >= least)
            }
            Self::AtLeastOfDirect(_) | Self::LikeDirect(_) if reference.direct.is_empty() => None,
            Self::AtLeastOfDirect(share) => middle(&|own| direct.is_some_and(|direct| own >= share * direct)),
            Self::LikeDirect(far) => Some(like(values, reference.direct, far)),
            Self::BrokenStatus => is(reference.broken),
            Self::DeadlineStatus => is(reference.deadline),
        }
    }

    /// Whether values hold only since the same program is later, or gets less, directly: then the noise of the direct runs
    /// has moved the bound.
    pub(crate) fn leans(self, values: &[Value], reference: &Reference<'_>) -> bool {
        matches!(self, Self::AtMostOrDirectPlus(..) | Self::AtLeastOrDirectLess(..))
            && self.holds(values, reference) == Some(true)
            && self.holds(values, &Reference { direct: &[], ..*reference }) == Some(false)
    }
}

/// Numbers by their medians; words, and what did not end, must have been seen directly too.
fn like(values: &[Value], direct: &[Value], far: f64) -> bool {
    let numbers = |of: &[Value]| {
        let numbers = of.iter().filter_map(|value| match value {
            Value::Number(number) => Some(*number),
            Value::Word(_) | Value::NotWithin { .. } => None,
        });
        median(numbers.collect())
    };
    let near = match (numbers(values), numbers(direct)) {
        (Some(own), Some(other)) => (own - other).abs() <= far,
        (Some(_), None) => false,
        (None, _) => true,
    };
    near && values.iter().all(|value| match value {
        Value::Number(_) => true,
        Value::Word(_) => direct.contains(value),
        Value::NotWithin { .. } => direct.iter().any(|other| matches!(other, Value::NotWithin { .. })),
    })
}

/// The middle one; of two the mean.
pub(crate) fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    let upper = *numbers.get(middle)?;
    Some(if numbers.len() % 2 == 1 { upper } else { f64::midpoint(numbers[middle - 1], upper) })
}

/// One run of one scenario.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) scenario: String,
    /// The language, or `raw` where no gRPC is spoken.
    pub(crate) app: String,
    pub(crate) way: String,
    pub(crate) run: u32,
    pub(crate) values: BTreeMap<String, Value>,
    /// Why there is no measurement, or no whole one: what was measured before that counts.
    pub(crate) error: Option<String>,
    pub(crate) took_s: f64,
    /// When it began.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) at: String,
    /// The load average of the minute when it ended.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) load: String,
    /// A fault of it came late, and another run took its place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) replaced: bool,
    /// The build that was measured: that of its pass.
    #[serde(skip)]
    pub(crate) build: String,
}

impl Run {
    /// What it is a run of.
    pub(crate) fn cell(&self) -> (&str, &str, &str) {
        (&self.scenario, &self.app, &self.way)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A run of one figure.
    pub(crate) fn run(way: &str, number: u32, seconds: f64) -> Run {
        Run {
            scenario: "dead-path-sidecar".to_owned(),
            app: "go".to_owned(),
            way: way.to_owned(),
            run: number,
            values: [("client_s".to_owned(), Value::Number(seconds))].into(),
            error: None,
            took_s: 1.0,
            at: String::new(),
            load: String::new(),
            replaced: false,
            build: "abc".to_owned(),
        }
    }

    fn against(direct: &[Value]) -> Reference<'_> {
        Reference { direct, broken: "UNAVAILABLE", deadline: "DEADLINE_EXCEEDED" }
    }

    fn word(word: &str) -> Value {
        Value::Word(word.to_owned())
    }

    #[test]
    fn numbers_are_held_against_their_bound() {
        let none = against(&[]);
        let late = Value::NotWithin { not_within: 60.0 };
        assert_eq!(Bound::AtMost(15.1).holds(std::slice::from_ref(&Value::Number(15.1)), &none), Some(true));
        assert_eq!(Bound::AtMost(15.1).holds(std::slice::from_ref(&Value::Number(15.2)), &none), Some(false));
        assert_eq!(Bound::AtMost(15.1).holds(std::slice::from_ref(&late), &none), Some(false));
        assert_eq!(
            Bound::AtLeast(2_990.0).holds(std::slice::from_ref(&Value::Number(2_989.0)), &none),
            Some(false)
        );
        assert_eq!(
            Bound::Within(1.0, 2.0).holds(std::slice::from_ref(&Value::Number(2.5)), &none),
            Some(false)
        );
        assert_eq!(Bound::None.holds(std::slice::from_ref(&late), &none), None);
    }

    #[test]
    fn words_are_held_against_theirs() {
        let none = against(&[]);
        assert_eq!(Bound::BrokenStatus.holds(std::slice::from_ref(&word("UNAVAILABLE")), &none), Some(true));
        assert_eq!(
            Bound::DeadlineStatus.holds(std::slice::from_ref(&word("UNAVAILABLE")), &none),
            Some(false)
        );
        assert_eq!(Bound::Word(&["a", "b"]).holds(std::slice::from_ref(&word("c")), &none), Some(false));
        assert_eq!(Bound::Word(&["a"]).holds(std::slice::from_ref(&Value::Number(1.0)), &none), Some(false));
    }

    #[test]
    fn what_is_late_directly_may_be_later_by_the_allowance() {
        let direct = [Value::Number(1_012.0), Value::Number(1_026.0)];
        let bound = Bound::AtMostOrDirectPlus(1_010.0, 5.0);
        assert_eq!(bound.holds(std::slice::from_ref(&Value::Number(1_024.0)), &against(&direct)), Some(true));
        assert_eq!(
            bound.holds(std::slice::from_ref(&Value::Number(1_026.0)), &against(&direct)),
            Some(false)
        );
        assert_eq!(bound.holds(std::slice::from_ref(&Value::Number(1_024.0)), &against(&[])), Some(false));
        let low = Bound::AtLeastOrDirectLess(990.0, 5.0);
        assert_eq!(
            low.holds(std::slice::from_ref(&Value::Number(950.0)), &against(&[Value::Number(951.0)])),
            Some(true)
        );
        assert_eq!(
            low.holds(std::slice::from_ref(&Value::Number(940.0)), &against(&[Value::Number(951.0)])),
            Some(false)
        );
    }

    #[test]
    fn a_share_is_of_the_direct_median() {
        let direct = [Value::Number(40.0), Value::Number(60.0)];
        let half = Bound::AtLeastOfDirect(0.5);
        assert_eq!(half.holds(std::slice::from_ref(&Value::Number(25.0)), &against(&direct)), Some(true));
        assert_eq!(half.holds(std::slice::from_ref(&Value::Number(24.0)), &against(&direct)), Some(false));
        assert_eq!(half.holds(std::slice::from_ref(&Value::Number(19.0)), &against(&[])), None);
    }

    #[test]
    fn what_leans_on_the_direct_runs_compares_medians() {
        let numbers = |numbers: &[f64]| numbers.iter().copied().map(Value::Number).collect::<Vec<_>>();
        let bound = Bound::AtMostOrDirectPlus(2_010.0, 5.0);
        // One slow direct run allows nothing, and one slow run of ours spoils nothing.
        let direct = numbers(&[2_003.0, 2_004.0, 2_020.0]);
        let late = numbers(&[2_008.0, 2_019.0, 2_021.0]);
        assert_eq!(bound.holds(&late, &against(&direct)), Some(false));
        let once = numbers(&[2_007.8, 2_008.4, 2_019.9]);
        assert_eq!(bound.holds(&once, &against(&direct)), Some(true));
        assert!(!bound.leans(&once, &against(&direct)));
        let slow = numbers(&[2_015.0, 2_016.0, 2_017.0]);
        assert_eq!(bound.holds(&late, &against(&slow)), Some(true));
        assert!(bound.leans(&late, &against(&slow)));
        let stuck = [Value::Number(2_000.0), Value::NotWithin { not_within: 9_000.0 }];
        assert_eq!(bound.holds(&stuck, &against(&slow)), Some(false));
    }

    #[test]
    fn like_direct_needs_a_direct_run() {
        let direct = [Value::Number(31.0)];
        assert_eq!(
            Bound::LikeDirect(1.0).holds(std::slice::from_ref(&Value::Number(31.9)), &against(&direct)),
            Some(true)
        );
        assert_eq!(
            Bound::LikeDirect(1.0).holds(std::slice::from_ref(&Value::Number(41.0)), &against(&direct)),
            Some(false)
        );
        assert_eq!(
            Bound::LikeDirect(1.0).holds(std::slice::from_ref(&Value::Number(31.0)), &against(&[])),
            None
        );
        assert_eq!(
            Bound::LikeDirect(0.0).holds(std::slice::from_ref(&word("x")), &against(&[word("y")])),
            Some(false)
        );
    }
}
