//! Names of machines and relays, and the patterns that a token grants.

/// The longest name, in bytes.
pub const NAME_MAX_LEN: usize = 63;

/// How much of a refused name an error repeats, in characters.
const SHOWN_CHARS: usize = 64;

/// A name or pattern that breaks the rule; its text repeats at most 64 characters of it, escaped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Not the name of a machine, relay or service.
    #[error(
        "{0} is not a valid name: 1 to 63 of a-z, 0-9, \".\", \"_\", \"-\", the first a letter or a digit"
    )]
    Name(String),
    /// Not a pattern over names.
    #[error(
        "{0} is not a valid pattern: 1 to 63 of a-z, 0-9, \".\", \"_\", \"-\", \"*\", the first a letter, a digit or \"*\""
    )]
    Pattern(String),
}

/// Checks a name: 1 to 63 of `[a-z0-9._-]`, the first a letter or a digit.
///
/// A name that passes is safe as a file name and inside a certificate's URI: it holds no slash, no `%`, and is
/// neither `.` nor `..`.
///
/// # Errors
///
/// [`NameError::Name`] for anything else.
pub fn check_name(name: &str) -> Result<(), NameError> {
    let first_is_plain = name.bytes().next().is_some_and(is_alphanumeric);
    if first_is_plain && name.len() <= NAME_MAX_LEN && name.bytes().all(is_name_byte) {
        Ok(())
    } else {
        Err(NameError::Name(shown(name)))
    }
}

/// Checks a pattern that a token grants: a name in which `*` may stand anywhere.
///
/// # Errors
///
/// [`NameError::Pattern`] for anything else.
pub fn check_pattern(pattern: &str) -> Result<(), NameError> {
    let first_is_plain = pattern.bytes().next().is_some_and(|b| is_alphanumeric(b) || b == b'*');
    let all_allowed = pattern.bytes().all(|b| is_name_byte(b) || b == b'*');
    if first_is_plain && all_allowed && pattern.len() <= NAME_MAX_LEN {
        Ok(())
    } else {
        Err(NameError::Pattern(shown(pattern)))
    }
}

fn is_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn is_name_byte(byte: u8) -> bool {
    is_alphanumeric(byte) || matches!(byte, b'.' | b'_' | b'-')
}

/// Quoted and escaped, since the text may come from a peer and go to a terminal.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(SHOWN_CHARS).collect();
    format!("{short:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let longest = "a".repeat(63);
        for good in ["a", "0", "web-1", "a.b_c-d", "a..b", longest.as_str()] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        let too_long = "a".repeat(64);
        for bad in ["", ".", "..", ".a", "-a", "_a", "A", "a/b", "a b", "a*", "a%2f", "ä", "a\n", &too_long]
        {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn patterns() {
        for good in ["*", "batch-*", "*-db", "a*b*c", "web-1"] {
            assert_eq!(check_pattern(good), Ok(()), "{good}");
        }
        for bad in ["", "-*", "a?", "[a]", "A*", "a/*"] {
            assert!(check_pattern(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn errors_are_bounded_and_escaped() {
        let hostile = format!("\u{1b}[31m{}", "x".repeat(10_000));
        let text = check_name(&hostile).unwrap_err().to_string();
        assert!(text.len() < 300, "{}", text.len());
        assert!(!text.contains('\u{1b}'));
    }
}
