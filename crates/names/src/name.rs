//! Names of services and machines, and patterns that match them.

use std::fmt;
use std::sync::Arc;

/// The longest name and the longest pattern, in bytes.
pub const MAX_LEN: usize = 63;

/// A text that is no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a name is 1 to {MAX_LEN} of a-z, 0-9, '.', '_' and '-', and starts with a letter or a digit")]
pub struct NameError;

/// A text that is no pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a pattern is 1 to {MAX_LEN} of a-z, 0-9, '.', '_', '-' and '*', and starts with a letter, a digit or '*'"
)]
pub struct PatternError;

macro_rules! text {
    ($(#[$doc:meta])* $type:ident, $error:ident, $may_start:ident) => {
        $(#[$doc])*
        ///
        /// Cheap to clone; ordered and compared like its text.
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Arc<str>);

        impl $type {
            /// The value that `text` is.
            ///
            /// # Errors
            ///
            #[doc = concat!("[`", stringify!($error), "`] if the text breaks the rule.")]
            pub fn new(text: &str) -> Result<Self, $error> {
                let is_good = text.len() <= MAX_LEN
                    && text.bytes().next().is_some_and($may_start)
                    && text.bytes().all(|byte| $may_start(byte) || is_inner(byte));
                if is_good { Ok(Self(text.into())) } else { Err($error) }
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $type {
            type Err = $error;

            fn from_str(text: &str) -> Result<Self, $error> {
                Self::new(text)
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        // A map by name can be asked with a `&str`.
        impl std::borrow::Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        #[cfg(feature = "serde")]
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        #[cfg(feature = "serde")]
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::new(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

text! {
    /// The name of a service, as agents publish it and sidecars dial it: 1 to 63 of `a-z`, `0-9`, `.`, `_` and `-`, the
    /// first a letter or a digit.
    ServiceName, NameError, is_alphanumeric
}

text! {
    /// The name of a machine or a relay, as its certificate proves it: 1 to 63 of `a-z`, `0-9`, `.`, `_` and `-`, the
    /// first a letter or a digit.
    MachineName, NameError, is_alphanumeric
}

text! {
    /// A pattern of names: `*` stands for any run of characters, none included; every other character for itself.
    ///
    /// It has the rule of a name, but `*` may stand anywhere: a pattern with any other character, or start, could match
    /// no name.
    Pattern, PatternError, may_start_a_pattern
}

impl Pattern {
    /// Whether the pattern matches the whole of `name`.
    ///
    /// Costs at most the product of the two lengths (63 by 63), whatever the pattern, and no memory.
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
}

const fn is_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

const fn may_start_a_pattern(byte: u8) -> bool {
    is_alphanumeric(byte) || byte == b'*'
}

/// Characters that may stand anywhere but at the start.
const fn is_inner(byte: u8) -> bool {
    matches!(byte, b'.' | b'_' | b'-')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_rule_for_names() {
        let longest = "a".repeat(63);
        for good in ["a", "0", "ledger", "web-1", "db-1.eu_west", "a..b", longest.as_str()] {
            assert_eq!(ServiceName::new(good).unwrap().as_str(), good);
            assert_eq!(good.parse::<MachineName>().unwrap().to_string(), good);
        }
        let too_long = "a".repeat(64);
        let bad = [
            "",
            ".",
            "..",
            ".a",
            "-a",
            "_a",
            "A",
            "aB",
            "a b",
            "a/b",
            "caf\u{e9}",
            "a*",
            "a%2f",
            "a\0",
            "a\n",
            &too_long,
        ];
        for text in bad {
            assert_eq!(ServiceName::new(text), Err(NameError), "{text:?}");
            assert_eq!(text.parse::<MachineName>(), Err(NameError), "{text:?}");
        }
    }

    #[test]
    fn the_rule_for_patterns() {
        for good in ["*", "batch-*", "*-db", "a*b*c", "web-1", &"*".repeat(63)] {
            assert_eq!(Pattern::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "-*", "a?", "[a-z]", "A*", "a/*", &"*".repeat(64)] {
            assert_eq!(bad.parse::<Pattern>(), Err(PatternError), "{bad:?}");
        }
    }

    #[test]
    fn errors_give_the_whole_rule_and_repeat_nothing() {
        let rule = "1 to 63 of a-z, 0-9, '.', '_'";
        assert!(NameError.to_string().contains(rule) && PatternError.to_string().contains(rule));
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
            ("a.b", "axb", false),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(Pattern::new(pattern).unwrap().matches(name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_hostile_pattern_is_no_work() {
        // Tried with every way to split the name, these would not end in a lifetime.
        assert!(Pattern::new(&"a*".repeat(31)).unwrap().matches(&"a".repeat(63)));
        assert!(!Pattern::new(&format!("{}c", "a*".repeat(31))).unwrap().matches(&"a".repeat(63)));
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
        fn matches_as_defined(pattern in "[ab*]{1,8}", name in "[ab]{0,10}") {
            prop_assert_eq!(
                Pattern::new(&pattern).unwrap().matches(&name),
                reference(pattern.as_bytes(), name.as_bytes())
            );
        }
    }
}
