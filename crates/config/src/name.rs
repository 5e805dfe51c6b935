//! Names of services and machines.

use std::fmt;
use std::str::FromStr;

const MAX_LEN: usize = 63;

/// Why a text is no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Empty, or over 63 characters.
    #[error("a name has 1 to 63 characters")]
    Length,
    /// It begins with a dot, an underscore or a hyphen.
    #[error("a name starts with a letter or a digit")]
    Start,
    /// It has a character that names don't have.
    #[error("a name consists of a-z, 0-9, '.', '_' and '-'; {0:?} is none of them")]
    Character(char),
}

/// True for the characters that names consist of.
pub(crate) fn is_name_char(c: char) -> bool {
    matches!(c, 'a'..='z' | '0'..='9' | '.' | '_' | '-')
}

fn check(text: &str) -> Result<(), NameError> {
    // The odd character first: it is what to say of "Web 1", however long it is.
    if let Some(c) = text.chars().find(|c| !is_name_char(*c)) {
        return Err(NameError::Character(c));
    }
    match text.as_bytes() {
        [] => Err(NameError::Length),
        _ if text.len() > MAX_LEN => Err(NameError::Length),
        [b'a'..=b'z' | b'0'..=b'9', ..] => Ok(()),
        _ => Err(NameError::Start),
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        ///
        /// 1 to 63 of `a-z`, `0-9`, `.`, `_` and `-`; the first is a letter or a digit.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(String);

        impl $type {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                check(text).map(|()| Self(text.to_owned()))
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name! {
    /// The name of a service, as agents publish it and sidecars dial it.
    ServiceName
}

name! {
    /// The name of a machine, as its certificate says it.
    MachineName
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        let longest = "a".repeat(63);
        for good in ["a", "7", "ledger", "web-1", "a.b_c-d", longest.as_str()] {
            assert_eq!(good.parse::<ServiceName>().unwrap().to_string(), good);
            assert_eq!(good.parse::<MachineName>().unwrap().as_ref(), good);
        }
        for (bad, want) in [
            ("", NameError::Length),
            (&"a".repeat(64), NameError::Length),
            ("-a", NameError::Start),
            (".a", NameError::Start),
            ("Web", NameError::Character('W')),
            ("a/b", NameError::Character('/')),
            ("ä", NameError::Character('ä')),
            ("a\n", NameError::Character('\n')),
        ] {
            assert_eq!(bad.parse::<ServiceName>(), Err(want), "{bad:?}");
        }
    }
}
