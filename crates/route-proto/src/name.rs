//! Names of services and machines, and patterns that match them.

use std::fmt;
use std::sync::Arc;

/// The longest name, in bytes.
pub const MAX_NAME_LEN: usize = 63;
/// The longest pattern, in bytes.
pub const MAX_GLOB_LEN: usize = 255;

/// The name of a service or a machine: 1 to 63 of `a-z`, `0-9`, `.`, `_` and `-`, the first a letter or a digit.
///
/// Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// Why a text is no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// There is no text.
    #[error("a name must not be empty")]
    Empty,
    /// More than 63 bytes.
    #[error("a name has at most {MAX_NAME_LEN} bytes, not {0}")]
    TooLong(usize),
    /// The first character is not a lower-case letter or a digit.
    #[error("a name starts with a lower-case letter or a digit")]
    BadStart,
    /// A character that no name has, at this byte.
    #[error("a name has only lower-case letters, digits, '.', '_' and '-' (see byte {0})")]
    BadCharacter(usize),
}

impl Name {
    /// The name that `text` is.
    ///
    /// # Errors
    ///
    /// [`NameError`] says which part of the rule the text breaks.
    pub fn new(text: &str) -> Result<Self, NameError> {
        let Some(&first) = text.as_bytes().first() else {
            return Err(NameError::Empty);
        };
        if text.len() > MAX_NAME_LEN {
            return Err(NameError::TooLong(text.len()));
        }
        if let Some(at) = text.bytes().position(|byte| !is_name_byte(byte)) {
            return Err(NameError::BadCharacter(at));
        }
        if !first.is_ascii_alphanumeric() {
            return Err(NameError::BadStart);
        }
        Ok(Self(text.into()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-')
}

impl std::str::FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

// `str` and `Name` order and compare alike, so a map by name can be asked with a `&str`.
impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A pattern for names: `*` stands for any run of characters, none included; every other character for itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Glob(Box<str>);

/// Why a text is no pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    /// There is no text.
    #[error("a pattern must not be empty")]
    Empty,
    /// More than 255 bytes.
    #[error("a pattern has at most {MAX_GLOB_LEN} bytes, not {0}")]
    TooLong(usize),
    /// A character that neither is `*` nor can stand in a name, at this byte: the pattern could match nothing.
    #[error("a pattern has only '*', lower-case letters, digits, '.', '_' and '-' (see byte {0})")]
    BadCharacter(usize),
}

impl Glob {
    /// The pattern that `text` is.
    ///
    /// # Errors
    ///
    /// [`GlobError`] says what is wrong with the text.
    pub fn new(text: &str) -> Result<Self, GlobError> {
        if text.is_empty() {
            return Err(GlobError::Empty);
        }
        if text.len() > MAX_GLOB_LEN {
            return Err(GlobError::TooLong(text.len()));
        }
        if let Some(at) = text.bytes().position(|byte| byte != b'*' && !is_name_byte(byte)) {
            return Err(GlobError::BadCharacter(at));
        }
        Ok(Self(text.into()))
    }

    /// Whether the pattern matches the whole of `name`.
    ///
    /// Costs at most the product of the two lengths (255 by 63), whatever the pattern.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut p, mut n) = (0, 0);
        // The last star, and where the text after it was last tried. Earlier stars need no second try: if the part
        // between two stars matched once, an earlier match of it leaves the later star at least as much.
        let mut retry: Option<(usize, usize)> = None;
        while n < name.len() {
            if pattern.get(p) == Some(&b'*') {
                retry = Some((p, n));
                p += 1;
            } else if pattern.get(p) == Some(&name[n]) {
                p += 1;
                n += 1;
            } else if let Some((star, from)) = retry {
                retry = Some((star, from + 1));
                p = star + 1;
                n = from + 1;
            } else {
                return false;
            }
        }
        pattern[p..].iter().all(|&byte| byte == b'*')
    }

    /// The pattern as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for Glob {
    type Err = GlobError;

    fn from_str(text: &str) -> Result<Self, GlobError> {
        Self::new(text)
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_rule_for_names() {
        for good in ["a", "0", "ledger", "db-1.eu_west", &"x".repeat(63)] {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
        assert_eq!(Name::new(""), Err(NameError::Empty));
        assert_eq!(Name::new(&"x".repeat(64)), Err(NameError::TooLong(64)));
        for bad in [".a", "-a", "_a"] {
            assert_eq!(Name::new(bad), Err(NameError::BadStart));
        }
        for (bad, at) in
            [("A", 0), ("aB", 1), ("a b", 1), ("a/b", 1), ("caf\u{e9}", 3), ("a*", 1), ("a\0", 1)]
        {
            assert_eq!(Name::new(bad), Err(NameError::BadCharacter(at)));
        }
    }

    #[test]
    fn the_rule_for_patterns() {
        assert!(Glob::new("*").is_ok());
        assert!(Glob::new("-*").is_ok());
        assert_eq!(Glob::new(""), Err(GlobError::Empty));
        assert_eq!(Glob::new(&"*".repeat(256)), Err(GlobError::TooLong(256)));
        assert_eq!(Glob::new("a?"), Err(GlobError::BadCharacter(1)));
        assert_eq!(Glob::new("[a-z]"), Err(GlobError::BadCharacter(0)));
    }

    #[test]
    fn a_star_matches_any_run() {
        let cases = [
            ("*", "ledger", true),
            ("ledger", "ledger", true),
            ("ledger", "ledger-2", false),
            ("ledger", "my-ledger", false),
            ("ledger*", "ledger", true),
            ("ledger-*", "ledger-2", true),
            ("ledger-*", "ledger", false),
            ("*-eu", "ledger-eu", true),
            ("*-eu", "ledger-eu-2", false),
            ("a*b*c", "abc", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("**a", "bba", true),
            (".", "a", false),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(Glob::new(pattern).unwrap().matches(name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_hostile_pattern_is_no_work() {
        let name = "a".repeat(63);
        // Tried with every way to split the name, these would not end in a lifetime.
        assert!(Glob::new(&"a*".repeat(63)).unwrap().matches(&name));
        assert!(!Glob::new(&"a*".repeat(64)).unwrap().matches(&name));
        assert!(!Glob::new(&format!("{}c", "a*".repeat(63))).unwrap().matches(&name));
    }

    /// The definition, without care for cost.
    fn reference(pattern: &[u8], name: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|n| reference(rest, &name[n..])),
            Some((byte, rest)) => name.first() == Some(byte) && reference(rest, &name[1..]),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn matches_as_defined(pattern in "[ab*]{1,8}", name in "[ab]{1,10}") {
            prop_assert_eq!(
                Glob::new(&pattern).unwrap().matches(&name),
                reference(pattern.as_bytes(), name.as_bytes())
            );
        }
    }
}
