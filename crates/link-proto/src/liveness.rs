//! How long a link may be silent: presets and their text form.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hopline_duration::{DurationError, parse_duration};

/// When a link asks whether its peer lives, and when it declares it dead.
///
/// Nothing heard for `interval`: a ping goes out. Nothing heard for `interval + timeout`: the peer is dead.
/// The text form is a preset with changes: `nat`, `nat,timeout=40s`, `default,interval=2s,timeout=4s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Liveness {
    interval: Duration,
    timeout: Duration,
}

/// The shortest bound that a hello may ask for: below it, ordinary scheduling delays look like death.
pub const MIN_BOUND: Duration = Duration::from_millis(500);
/// The longest bound that a hello may ask for.
pub const MAX_BOUND: Duration = Duration::from_secs(600);

/// Name, interval and timeout of each preset (promise P10).
const PRESETS: [(&str, Liveness); 5] = [
    ("fast", Liveness::FAST),
    ("default", Liveness::DEFAULT),
    ("nat", Liveness::NAT),
    ("datacenter", Liveness::DATACENTER),
    ("mobile", Liveness::MOBILE),
];

impl Liveness {
    /// Dead within 4.5 s: for machines that stand side by side.
    pub const FAST: Self = Self::millis(1_500, 3_000);
    /// Dead within 15 s.
    pub const DEFAULT: Self = Self::millis(5_000, 10_000);
    /// Dead within 30 s: few enough pings for a NAT, often enough to keep its entry.
    pub const NAT: Self = Self::millis(10_000, 20_000);
    /// Dead within 45 s: for networks that fail seldom and briefly.
    pub const DATACENTER: Self = Self::millis(15_000, 30_000);
    /// Dead within 60 s: for radios that sleep.
    pub const MOBILE: Self = Self::millis(20_000, 40_000);

    const fn millis(interval: u64, timeout: u64) -> Self {
        Self { interval: Duration::from_millis(interval), timeout: Duration::from_millis(timeout) }
    }

    /// Both durations in whole milliseconds, each above zero, together from 0.5 s to 10 min.
    ///
    /// # Errors
    /// Says which bound was broken.
    pub fn new(interval: Duration, timeout: Duration) -> Result<Self, LivenessError> {
        let whole = |d: Duration| d.subsec_nanos().is_multiple_of(1_000_000);
        if interval.is_zero() || timeout.is_zero() || !whole(interval) || !whole(timeout) {
            return Err(LivenessError::Part);
        }
        match interval.checked_add(timeout) {
            Some(bound) if (MIN_BOUND..=MAX_BOUND).contains(&bound) => Ok(Self { interval, timeout }),
            _ => Err(LivenessError::Bound),
        }
    }

    /// Silence after which a ping goes out.
    #[must_use]
    pub const fn interval(self) -> Duration {
        self.interval
    }

    /// Further silence after which the peer is dead.
    #[must_use]
    pub const fn timeout(self) -> Duration {
        self.timeout
    }

    /// Silence after which the peer is dead: interval and timeout together.
    #[must_use]
    pub fn bound(self) -> Duration {
        self.interval + self.timeout
    }
}

impl Default for Liveness {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What is wrong with a liveness setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LivenessError {
    /// A part is zero or finer than a millisecond.
    #[error("interval and timeout are whole milliseconds above zero")]
    Part,
    /// The sum is out of bounds.
    #[error("interval and timeout together are from 0.5 s to 10 min")]
    Bound,
    /// The text does not begin with a preset.
    #[error("{0:?} is no preset: fast, default, nat, datacenter or mobile")]
    Preset(String),
    /// The text has a part that is neither `interval=` nor `timeout=`.
    #[error("{0:?} is not understood: after the preset come interval=DURATION and timeout=DURATION")]
    Key(String),
    /// A duration that does not parse.
    #[error(transparent)]
    Duration(#[from] DurationError),
}

impl FromStr for Liveness {
    type Err = LivenessError;

    fn from_str(text: &str) -> Result<Self, LivenessError> {
        let mut parts = text.split(',').map(str::trim);
        let preset = parts.next().unwrap_or_default();
        let Some((_, base)) = PRESETS.into_iter().find(|(name, _)| *name == preset) else {
            return Err(LivenessError::Preset(preset.to_owned()));
        };
        let (mut interval, mut timeout) = (None, None);
        for part in parts {
            let unknown = || LivenessError::Key(part.to_owned());
            let (key, value) = part.split_once('=').ok_or_else(unknown)?;
            let slot = match key.trim() {
                "interval" => &mut interval,
                "timeout" => &mut timeout,
                _ => return Err(unknown()),
            };
            if slot.replace(parse_duration(value.trim())?).is_some() {
                return Err(unknown());
            }
        }
        Self::new(interval.unwrap_or(base.interval), timeout.unwrap_or(base.timeout))
    }
}

impl fmt::Display for Liveness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((name, _)) = PRESETS.iter().find(|(_, preset)| preset == self) {
            return f.write_str(name);
        }
        // One part may still be a preset's: say only what differs from it.
        let near = PRESETS.iter().find(|(_, preset)| preset.interval == self.interval);
        if let Some((name, _)) = near {
            return write!(f, "{name},timeout={}", Text(self.timeout));
        }
        if let Some((name, _)) = PRESETS.iter().find(|(_, preset)| preset.timeout == self.timeout) {
            return write!(f, "{name},interval={}", Text(self.interval));
        }
        write!(f, "default,interval={},timeout={}", Text(self.interval), Text(self.timeout))
    }
}

struct Text(Duration);

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        if millis.is_multiple_of(1_000) { write!(f, "{}s", millis / 1_000) } else { write!(f, "{millis}ms") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_the_promised_bounds() {
        let bounds: Vec<_> = PRESETS.iter().map(|(_, p)| p.bound().as_millis()).collect();
        assert_eq!(bounds, [4_500, 15_000, 30_000, 45_000, 60_000]);
    }

    #[test]
    fn text_goes_both_ways() {
        for text in [
            "fast",
            "default",
            "nat",
            "datacenter",
            "mobile",
            "nat,timeout=40s",
            "fast,timeout=500ms",
            "mobile,interval=3s",
            "default,interval=250ms,timeout=251ms",
        ] {
            let liveness: Liveness = text.parse().unwrap();
            assert_eq!(liveness.to_string(), text);
        }
        assert_eq!("nat,timeout=1m 30s".parse::<Liveness>().unwrap().timeout(), Duration::from_secs(90));
        assert_eq!("nat,timeout=40s".parse::<Liveness>().unwrap().bound(), Duration::from_secs(50));
        assert_eq!(
            "nat, interval=1.5s , timeout=1m".parse::<Liveness>().unwrap().bound().as_millis(),
            61_500
        );
    }

    #[test]
    fn faults_are_told_apart() {
        for (text, want) in [
            ("", LivenessError::Preset(String::new())),
            ("slow", LivenessError::Preset("slow".into())),
            ("nat,40s", LivenessError::Key("40s".into())),
            ("nat,bound=40s", LivenessError::Key("bound=40s".into())),
            ("nat,timeout=40s,timeout=41s", LivenessError::Key("timeout=41s".into())),
            ("nat,timeout=40", LivenessError::Duration(DurationError::NoUnit("40".into()))),
            ("nat,timeout=-4s", LivenessError::Duration(DurationError::Syntax)),
            ("nat,timeout=1.0001s", LivenessError::Part),
            ("nat,timeout=0.5ms", LivenessError::Part),
            ("nat,timeout=9999999999s", LivenessError::Bound),
            ("nat,timeout=0s", LivenessError::Part),
            ("nat,timeout=591s", LivenessError::Bound),
            ("default,interval=100ms,timeout=399ms", LivenessError::Bound),
        ] {
            assert_eq!(text.parse::<Liveness>(), Err(want), "{text:?}");
        }
    }
}
