//! Patterns of names.

use std::fmt;
use std::str::FromStr;

use crate::name::is_name_char;

const MAX_LEN: usize = 128;

/// A pattern of names: `*` stands for any run of characters, also an empty one; nothing else is special.
///
/// It has 1 to 128 of the characters of a name and `*`: a pattern with any other could match no name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Glob(String);

/// Why a text is no pattern of names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    /// Empty, or over 128 characters.
    #[error("a pattern has 1 to 128 characters")]
    Length,
    /// It has a character that no name has.
    #[error("a pattern consists of a-z, 0-9, '.', '_', '-' and '*'; {0:?} is none of them")]
    Character(char),
}

impl Glob {
    /// The pattern as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the whole of `name` fits. Costs at most the product of both lengths, and no memory.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut p, mut n) = (0, 0);
        // Where the last `*` stood, and how much of the name it has taken. An earlier one never needs to take
        // more: what it could gain, the later one can too.
        let mut star: Option<(usize, usize)> = None;
        while n < name.len() {
            if pattern.get(p) == Some(&b'*') {
                star = Some((p, n));
                p += 1;
            } else if pattern.get(p) == Some(&name[n]) {
                p += 1;
                n += 1;
            } else if let Some((at, taken)) = star {
                star = Some((at, taken + 1));
                p = at + 1;
                n = taken + 1;
            } else {
                return false;
            }
        }
        pattern[p..].iter().all(|byte| *byte == b'*')
    }
}

impl FromStr for Glob {
    type Err = GlobError;

    fn from_str(text: &str) -> Result<Self, GlobError> {
        if let Some(c) = text.chars().find(|c| !is_name_char(*c) && *c != '*') {
            return Err(GlobError::Character(c));
        }
        if text.is_empty() || text.len() > MAX_LEN {
            return Err(GlobError::Length);
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl AsRef<str> for Glob {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, word for word; exponential, so for short texts only.
    fn by_definition(pattern: &[u8], name: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|taken| by_definition(rest, &name[taken..])),
            Some((byte, rest)) => name.first() == Some(byte) && by_definition(rest, &name[1..]),
        }
    }

    proptest! {
        #[test]
        fn matching_is_as_defined(pattern in "[ab*]{1,8}", name in "[ab]{0,10}") {
            let glob: Glob = pattern.parse().unwrap();
            prop_assert_eq!(glob.matches(&name), by_definition(pattern.as_bytes(), name.as_bytes()));
        }
    }

    #[test]
    fn examples() {
        let matches = |pattern: &str, name: &str| pattern.parse::<Glob>().unwrap().matches(name);
        assert!(matches("batch-*", "batch-7") && matches("batch-*", "batch-") && matches("*", ""));
        assert!(!matches("batch-*", "batch") && !matches("batch-*", "a-batch-1") && !matches("a", "ab"));
        assert!(matches("a.b", "a.b") && !matches("a.b", "axb"));
    }

    #[test]
    fn patterns_are_checked() {
        assert_eq!("".parse::<Glob>(), Err(GlobError::Length));
        assert_eq!("*".repeat(129).parse::<Glob>(), Err(GlobError::Length));
        assert_eq!("web-?".parse::<Glob>(), Err(GlobError::Character('?')));
        assert_eq!("Web*".parse::<Glob>(), Err(GlobError::Character('W')));
    }
}
