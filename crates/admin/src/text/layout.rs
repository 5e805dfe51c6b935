//! Rows, sentences and colours within a number of columns.

use std::fmt::Write as _;

use super::sanitise;

/// Narrower terminals than this get lines of this length.
const MIN_WIDTH: usize = 40;
/// The first column is at most this part of a line; a longer name has a line of its own, so that it is whole and does not
/// push the table apart.
const NAME_PART: usize = 3;
const INDENT: usize = 2;
const GAP: usize = 2;

/// How a word is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Good,
    Doubtful,
    Bad,
}

/// One word or phrase of a table.
#[derive(Debug)]
pub(super) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    pub(super) fn plain(text: &str) -> Self {
        Self::toned(text, Tone::Plain)
    }

    pub(super) fn toned(text: &str, tone: Tone) -> Self {
        let text = if text.is_empty() { "-".to_owned() } else { sanitise(text) };
        Self { text, tone }
    }
}

/// A text that grows line by line; no line is longer than its width.
#[derive(Debug)]
pub(super) struct Page {
    width: usize,
    colour: bool,
    out: String,
}

impl Page {
    pub(super) fn new(width: usize, colour: bool) -> Self {
        Self { width: width.max(MIN_WIDTH), colour, out: String::new() }
    }

    pub(super) fn finish(self) -> String {
        self.out
    }

    /// One sentence, broken between words.
    pub(super) fn sentence(&mut self, text: &str) {
        self.wrap(&sanitise(text), 0);
    }

    /// A short line that says it all, in its colour if it fits.
    pub(super) fn headline(&mut self, text: &str, tone: Tone) {
        let text = sanitise(text);
        if columns_of(&text) > self.width {
            return self.wrap(&text, 0);
        }
        let painted = self.paint(&text, tone);
        self.out.push_str(&painted);
        self.out.push('\n');
    }

    /// Sentences under a title; nothing when there are none.
    pub(super) fn list(&mut self, title: &str, sentences: Vec<String>) {
        if sentences.is_empty() {
            return;
        }
        self.title(title);
        for sentence in sentences {
            self.wrap(&sanitise(&sentence), INDENT);
        }
    }

    /// Rows under a title. A row's last cell goes to a line of its own where it does not fit beside the others.
    pub(super) fn table(&mut self, title: &str, empty: &str, rows: Vec<Vec<Cell>>) {
        self.title(title);
        if rows.is_empty() {
            self.wrap(empty, INDENT);
        }
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let most = |index| if index == 0 { self.width / NAME_PART } else { usize::MAX };
        let widths: Vec<usize> = (0..columns)
            .map(|index| {
                let sizes = rows.iter().filter_map(|row| row.get(index)).map(|cell| columns_of(&cell.text));
                sizes.filter(|size| *size <= most(index)).max()
            })
            .map(Option::unwrap_or_default)
            .collect();
        for row in &rows {
            self.row(row, &widths);
        }
    }

    fn row(&mut self, row: &[Cell], widths: &[usize]) {
        let mut line = String::new();
        let mut at = 0;
        for (index, (cell, column)) in row.iter().zip(widths).enumerate() {
            let last = index + 1 == row.len();
            let size = columns_of(&cell.text);
            let start = if at == 0 { INDENT } else { at + GAP };
            if start + size > self.width {
                self.out.push_str(line.trim_end());
                self.out.push('\n');
                line.clear();
                at = 0;
            }
            let start = if at == 0 { INDENT } else { at + GAP };
            // Only a line's first cell can still be too long: its start says less than its end (a file's name).
            let text = keep_end(&cell.text, self.width - start);
            let pad = start - at;
            let _ = write!(line, "{:pad$}{}", "", self.paint(&text, cell.tone));
            at = start + columns_of(&text);
            if index == 0 && !last && size > *column {
                self.out.push_str(line.trim_end());
                self.out.push('\n');
                at = INDENT + column;
                line = format!("{:at$}", "");
            } else if !last {
                let fill = column.saturating_sub(columns_of(&text)).min(self.width - at);
                let _ = write!(line, "{:fill$}", "");
                at += fill;
            }
        }
        self.out.push_str(line.trim_end());
        self.out.push('\n');
    }

    fn title(&mut self, title: &str) {
        let _ = writeln!(self.out, "\n{title}:");
    }

    /// Breaks clean text between words, and within a word only where it alone is longer than a line.
    fn wrap(&mut self, text: &str, indent: usize) {
        let mut indent = indent;
        let mut line = String::new();
        for word in text.split_whitespace() {
            let mut word = word;
            loop {
                let used = columns_of(&line);
                let start = if line.is_empty() { indent } else { indent + used + 1 };
                if start + columns_of(word) <= self.width {
                    break;
                }
                if line.is_empty() {
                    let (head, tail) = split_at_columns(word, self.width - indent);
                    line.push_str(head);
                    word = tail;
                }
                let _ = writeln!(self.out, "{:indent$}{line}", "");
                line.clear();
                indent = 2 * INDENT;
            }
            if !line.is_empty() && !word.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        if !line.is_empty() {
            let _ = writeln!(self.out, "{:indent$}{line}", "");
        }
    }

    fn paint(&self, text: &str, tone: Tone) -> String {
        let code = match tone {
            Tone::Good if self.colour => 32,
            Tone::Doubtful if self.colour => 33,
            Tone::Bad if self.colour => 31,
            Tone::Plain | Tone::Good | Tone::Doubtful | Tone::Bad => return text.to_owned(),
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

/// Columns that a terminal may need for clean text. All but ASCII counts as two: too many for most, but never too
/// few, and no table of widths is needed.
fn columns_of(text: &str) -> usize {
    text.chars().map(columns_of_char).sum()
}

fn columns_of_char(c: char) -> usize {
    // The mark of our own shortening is one column wide.
    if c.is_ascii() || c == '…' { 1 } else { 2 }
}

/// The longest head of at most `columns`, but at least one character, and the rest.
fn split_at_columns(text: &str, columns: usize) -> (&str, &str) {
    let mut used = 0;
    for (index, c) in text.char_indices() {
        used += columns_of_char(c);
        if used > columns && index > 0 {
            return text.split_at(index);
        }
    }
    (text, "")
}

fn keep_end(text: &str, columns: usize) -> String {
    let mut excess = columns_of(text);
    if excess <= columns {
        return text.to_owned();
    }
    let kept = text.chars().skip_while(|c| {
        let skip = excess > columns - 1;
        excess -= if skip { columns_of_char(*c) } else { 0 };
        skip
    });
    std::iter::once('…').chain(kept).collect()
}
