//! Durations as people write them: pure.
//!
//! # The main decision
//!
//! One grammar for flags, config files and the text form of a link's liveness: whoever has learned it in one place can
//! use it in every other. Each number has a unit, since a bare one means seconds to one reader and milliseconds to
//! another.

use std::time::Duration;

/// Why a text is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// A bare number: seconds to one reader, milliseconds to another.
    #[error("a duration needs a unit, such as {0}s, 500ms or 1m 30s")]
    NoUnit(String),
    /// Anything else.
    #[error("not a duration: write one such as 10s, 500ms or 1m 30s")]
    Syntax,
}

/// Reads `10s`, `500ms`, `1m 30s`, `1.5s`, `2h`: numbers, each with its unit, added up.
///
/// # Errors
/// A bare number, also `0`, is refused, as is anything that is no duration or is too large for one.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let text = text.trim();
    if !text.is_empty() && text.len() <= 12 && text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(DurationError::NoUnit(text.to_owned()));
    }
    humantime::parse_duration(text).map_err(|_| DurationError::Syntax)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_units() {
        for (text, millis) in
            [("10s", 10_000), ("500ms", 500), ("1m 30s", 90_000), (" 1.5s ", 1_500), ("0s", 0)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text:?}");
        }
        for text in ["0", "10", "1.5"] {
            assert_eq!(parse_duration(text), Err(DurationError::NoUnit(text.to_owned())));
        }
        for text in
            ["", "s", "-1s", "10 parsecs", "99999999999999999999s", "9999999999999999999999", "999999999999y"]
        {
            assert_eq!(parse_duration(text), Err(DurationError::Syntax), "{text:?}");
        }
    }
}
