//! What is wrong with a file, what is worth knowing about it, and the report that collects both.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// The most faults that are kept; of further ones only the number.
const MAX_FAULTS: usize = 1_000;
/// The longest line of a fault in characters, the file's name not counted.
const MAX_LINE: usize = 180;
const MAX_KEY: usize = 100;
const MAX_VALUE: usize = 40;

/// A place in a file. Lines and columns count from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Position {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

impl Position {
    pub(crate) const START: Self = Self { line: 1, column: 1 };
}

/// One thing that is wrong with a file.
///
/// Its text is one line such as `app.yaml:3:5: connect.ledger.mode: "660": ...`, under 200 characters where the
/// file's name is short (at most 180 without it), and holds no control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    file: Arc<str>,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// The path of keys, such as `connect.ledger.listen` or `relay[1]`; empty where the fault is the file's.
    pub key: String,
    /// The bad value and what would be right.
    pub message: String,
}

/// Something about a file that is no fault, yet that its author may not expect. `hopline check` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    file: Arc<str>,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// The path of keys.
    pub key: String,
    /// What is so.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_line(f, &self.file, self.line, self.column, &self.key, &self.message)
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_line(f, &self.file, self.line, self.column, &self.key, &self.message)
    }
}

/// All faults of a file, in the order of their places. Never empty. Its text has one line for each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Faults {
    faults: Vec<Fault>,
    omitted: usize,
}

impl Faults {
    /// The faults, in the order of their places.
    #[must_use]
    pub fn as_slice(&self) -> &[Fault] {
        &self.faults
    }

    /// How many further faults there were beyond the 1,000 that are kept.
    #[must_use]
    pub fn omitted(&self) -> usize {
        self.omitted
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.faults.iter().enumerate() {
            write!(f, "{}{fault}", if i == 0 { "" } else { "\n" })?;
        }
        if self.omitted > 0 {
            write!(f, "\nand {} more", self.omitted)?;
        }
        Ok(())
    }
}

impl<'a> IntoIterator for &'a Faults {
    type Item = &'a Fault;
    type IntoIter = std::slice::Iter<'a, Fault>;

    fn into_iter(self) -> Self::IntoIter {
        self.faults.iter()
    }
}

/// A config without faults, with the notices about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked<T> {
    /// The config, resolved.
    pub config: T,
    /// In the order of their places.
    pub notices: Vec<Notice>,
}

/// Collects what is found while a file is walked.
#[derive(Debug)]
pub(crate) struct Report {
    file: Arc<str>,
    faults: Vec<Fault>,
    omitted: usize,
    notices: Vec<Notice>,
}

impl Report {
    pub(crate) fn new(file: Arc<str>) -> Self {
        Self { file, faults: Vec::new(), omitted: 0, notices: Vec::new() }
    }

    pub(crate) fn fault(&mut self, at: Position, key: &str, message: impl fmt::Display) {
        if self.faults.len() == MAX_FAULTS {
            self.omitted += 1;
            return;
        }
        let (key, message) = (clip(&masked(key), MAX_KEY), clip(&masked(&message.to_string()), MAX_LINE));
        let (line, column) = (at.line, at.column);
        self.faults.push(Fault { file: Arc::clone(&self.file), line, column, key, message });
    }

    /// A fault that shows the value that it speaks of.
    pub(crate) fn bad_value(&mut self, at: Position, key: &str, value: &str, wanted: impl fmt::Display) {
        self.fault(at, key, format_args!("\"{}\": {wanted}", clip(value, MAX_VALUE)));
    }

    pub(crate) fn notice(&mut self, at: Position, key: &str, message: impl fmt::Display) {
        if self.notices.len() == MAX_FAULTS {
            return;
        }
        let (key, message) = (clip(key, MAX_KEY), clip(&message.to_string(), MAX_LINE));
        let (line, column) = (at.line, at.column);
        self.notices.push(Notice { file: Arc::clone(&self.file), line, column, key, message });
    }

    /// The faults if there are any, else `config`; a walk that reported no fault has made one.
    pub(crate) fn finish<T>(mut self, config: Option<T>) -> Result<Checked<T>, Faults> {
        if self.faults.is_empty() {
            if let Some(config) = config {
                self.notices.sort_by_key(|n| (n.line, n.column));
                return Ok(Checked { config, notices: self.notices });
            }
            // Not reached by any known file; a wrong refusal is better than a wrong config.
            self.fault(Position::START, "", "this file can't be read");
        }
        self.faults.sort_by_key(|f| (f.line, f.column));
        Err(Faults { faults: self.faults, omitted: self.omitted })
    }
}

/// `text` without what a join token keeps secret: one may have come to stand in a config file, and faults are logged.
fn masked(text: &str) -> Cow<'_, str> {
    const BEGIN: &str = "hopline-join-";
    if !text.contains(BEGIN) {
        return Cow::Borrowed(text);
    }
    let mut parts = text.split(BEGIN);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest =
            part.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        out.push_str(BEGIN);
        out.push_str(if rest.len() < part.len() { "…" } else { "" });
        out.push_str(rest);
    }
    Cow::Owned(out)
}

/// `text` with control characters escaped, cut to `max` characters.
pub(crate) fn clip(text: &str, max: usize) -> String {
    // The input may be a megabyte long; what is not shown is not escaped either.
    let mut out = String::new();
    let mut left = max;
    for c in text.chars() {
        // Quotes stay as they are: these are messages, not literals.
        let shown: String =
            if matches!(c, '"' | '\'' | '\\') { c.into() } else { c.escape_debug().collect() };
        let width = shown.chars().count();
        if width > left {
            out.pop();
            out.push('…');
            break;
        }
        left -= width;
        out.push_str(&shown);
    }
    out
}

fn write_line(
    f: &mut fmt::Formatter<'_>,
    file: &str,
    line: usize,
    column: usize,
    key: &str,
    message: &str,
) -> fmt::Result {
    let colon = if key.is_empty() { "" } else { ": " };
    let text = format!("{line}:{column}: {key}{colon}{message}");
    write!(f, "{file}:{}", clip(&text, MAX_LINE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clipping_counts_characters_and_escapes() {
        assert_eq!(clip("short", 5), "short");
        assert_eq!(clip("longer", 5), "long…");
        assert_eq!(clip("a\nb", 10), "a\\nb");
        assert_eq!(clip("ääääää", 3), "ää…");
        assert_eq!(clip("say \"so\"", 20), "say \"so\"");
        assert_eq!(clip(&"\u{1b}".repeat(50), 20).chars().count(), 18);
    }

    #[test]
    fn no_join_token_is_repeated() {
        let mut report = Report::new("a.yaml".into());
        let token = "hopline-join-1.CgxyZWxheS5leGFtcGxl-_0";
        report.bad_value(
            Position::START,
            &format!("relay.{token}"),
            token,
            format_args!("is {token}, so: no"),
        );
        let Err(faults) = report.finish::<()>(None) else { panic!("no fault") };
        let text = faults.to_string();
        assert!(
            !text.contains("Cgx") && text.contains("\"hopline-join-…\": is hopline-join-…, so: no"),
            "{text}"
        );
    }

    #[test]
    fn faults_beyond_the_limit_are_counted() {
        let mut report = Report::new("f".into());
        for line in 1..=1_007 {
            report.fault(Position { line, column: 1 }, "k", "bad");
        }
        let faults = report.finish::<()>(None).unwrap_err();
        assert_eq!((faults.as_slice().len(), faults.omitted()), (1_000, 7));
        assert!(faults.to_string().ends_with("f:1000:1: k: bad\nand 7 more"));
    }
}
