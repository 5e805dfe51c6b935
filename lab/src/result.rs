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
    /// At most this, or where the same program is later directly, the direct maximum plus the second number.
    AtMostOrDirectPlus(f64, f64),
    /// At least this, or where the same program directly has less, the direct minimum less the second number.
    AtLeastOrDirectLess(f64, f64),
    /// At least this share of the least that the same program gets directly.
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

    /// Whether a value is as promised; none when there is nothing to judge by.
    pub(crate) fn holds(self, value: &Value, reference: &Reference<'_>) -> Option<bool> {
        let number = |value: &Value| match value {
            Value::Number(number) => Some(*number),
            Value::Word(_) | Value::NotWithin { .. } => None,
        };
        let direct: Vec<f64> = reference.direct.iter().filter_map(number).collect();
        let most_direct = direct.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least_direct = direct.iter().copied().fold(f64::INFINITY, f64::min);
        let compared = |good: &dyn Fn(f64) -> bool| Some(number(value).is_some_and(good));
        let is = |word: &str| Some(matches!(value, Value::Word(own) if own == word));
        match self {
            Self::None => None,
            Self::AtMost(most) => compared(&|own| own <= most),
            Self::AtLeast(least) => compared(&|own| own >= least),
            Self::Within(least, most) => compared(&|own| own >= least && own <= most),
            Self::Word(words) => Some(matches!(value, Value::Word(own) if words.contains(&own.as_str()))),
            Self::AtMostOrDirectPlus(most, plus) => compared(&|own| own <= most.max(most_direct + plus)),
            Self::AtLeastOrDirectLess(least, less) => compared(&|own| own >= least.min(least_direct - less)),
            Self::AtLeastOfDirect(_) | Self::LikeDirect(_) if reference.direct.is_empty() => None,
            Self::AtLeastOfDirect(share) => compared(&|own| own >= share * least_direct),
            Self::LikeDirect(far) => match value {
                Value::Number(own) => Some(*own >= least_direct - far && *own <= most_direct + far),
                Value::Word(_) => Some(reference.direct.contains(value)),
                Value::NotWithin { .. } => {
                    Some(reference.direct.iter().any(|other| matches!(other, Value::NotWithin { .. })))
                }
            },
            Self::BrokenStatus => is(reference.broken),
            Self::DeadlineStatus => is(reference.deadline),
        }
    }
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
    /// Why there is no measurement.
    pub(crate) error: Option<String>,
    pub(crate) took_s: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(Bound::AtMost(15.1).holds(&Value::Number(15.1), &none), Some(true));
        assert_eq!(Bound::AtMost(15.1).holds(&Value::Number(15.2), &none), Some(false));
        assert_eq!(Bound::AtMost(15.1).holds(&late, &none), Some(false));
        assert_eq!(Bound::AtLeast(2_990.0).holds(&Value::Number(2_989.0), &none), Some(false));
        assert_eq!(Bound::Within(1.0, 2.0).holds(&Value::Number(2.5), &none), Some(false));
        assert_eq!(Bound::None.holds(&late, &none), None);
    }

    #[test]
    fn words_are_held_against_theirs() {
        let none = against(&[]);
        assert_eq!(Bound::BrokenStatus.holds(&word("UNAVAILABLE"), &none), Some(true));
        assert_eq!(Bound::DeadlineStatus.holds(&word("UNAVAILABLE"), &none), Some(false));
        assert_eq!(Bound::Word(&["a", "b"]).holds(&word("c"), &none), Some(false));
        assert_eq!(Bound::Word(&["a"]).holds(&Value::Number(1.0), &none), Some(false));
    }

    #[test]
    fn what_is_late_directly_may_be_later_by_the_allowance() {
        let direct = [Value::Number(1_012.0), Value::Number(1_020.0)];
        let bound = Bound::AtMostOrDirectPlus(1_010.0, 5.0);
        assert_eq!(bound.holds(&Value::Number(1_024.0), &against(&direct)), Some(true));
        assert_eq!(bound.holds(&Value::Number(1_026.0), &against(&direct)), Some(false));
        assert_eq!(bound.holds(&Value::Number(1_024.0), &against(&[])), Some(false));
        let low = Bound::AtLeastOrDirectLess(990.0, 5.0);
        assert_eq!(low.holds(&Value::Number(950.0), &against(&[Value::Number(951.0)])), Some(true));
        assert_eq!(low.holds(&Value::Number(940.0), &against(&[Value::Number(951.0)])), Some(false));
    }

    #[test]
    fn a_share_is_of_the_least_direct_value() {
        let direct = [Value::Number(40.0), Value::Number(60.0)];
        let half = Bound::AtLeastOfDirect(0.5);
        assert_eq!(half.holds(&Value::Number(20.0), &against(&direct)), Some(true));
        assert_eq!(half.holds(&Value::Number(19.0), &against(&direct)), Some(false));
        assert_eq!(half.holds(&Value::Number(19.0), &against(&[])), None);
    }

    #[test]
    fn like_direct_needs_a_direct_run() {
        let direct = [Value::Number(31.0)];
        assert_eq!(Bound::LikeDirect(1.0).holds(&Value::Number(31.9), &against(&direct)), Some(true));
        assert_eq!(Bound::LikeDirect(1.0).holds(&Value::Number(41.0), &against(&direct)), Some(false));
        assert_eq!(Bound::LikeDirect(1.0).holds(&Value::Number(31.0), &against(&[])), None);
        assert_eq!(Bound::LikeDirect(0.0).holds(&word("x"), &against(&[word("y")])), Some(false));
    }
}
