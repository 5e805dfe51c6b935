//! The table as text: fixed columns, so that each row can be printed as soon as it is known.

use std::fmt::Write as _;

use crate::rows::Row;

/// Columns: promise, what, expected, measured, held. With two blanks between them a line has 98 characters.
const WIDTHS: [usize; 5] = [7, 26, 23, 30, 4];

/// The head of the table with a line below it.
pub(crate) fn head() -> String {
    let titles = ["promise", "what", "expected", "measured", "held"].map(str::to_owned);
    let rule = WIDTHS.map(|width| "-".repeat(width));
    format!("{}{}", lines(&titles), lines(&rule))
}

/// One row, as many lines as its longest cell needs.
pub(crate) fn row(row: &Row) -> String {
    let held = if row.held { "yes" } else { "NO" }.to_owned();
    lines(&[row.promise.to_owned(), row.what.clone(), row.expected.clone(), row.measured.clone(), held])
}

fn lines(cells: &[String; 5]) -> String {
    let wrapped: Vec<Vec<String>> = cells.iter().zip(WIDTHS).map(|(cell, width)| wrap(cell, width)).collect();
    let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
    let mut text = String::new();
    for index in 0..height {
        let mut line = String::new();
        for (cell, width) in wrapped.iter().zip(WIDTHS) {
            let part = cell.get(index).map_or("", String::as_str);
            // Writing to a string cannot fail.
            let _ = write!(line, "{part:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Breaks `text` at blanks into lines of at most `width` characters; a longer word is broken too.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        for (index, piece) in letters.chunks(width).enumerate() {
            let gap = usize::from(index == 0 && used > 0);
            if used + gap + piece.len() > width {
                lines.push(String::new());
                used = 0;
            } else if gap == 1 {
                push(&mut lines, &[' ']);
                used += 1;
            }
            push(&mut lines, piece);
            used += piece.len();
        }
    }
    lines
}

fn push(lines: &mut [String], piece: &[char]) {
    if let Some(line) = lines.last_mut() {
        line.extend(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_kept_whole_where_they_fit() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(wrap("", 3), [""]);
        assert_eq!(wrap("é é", 3), ["é é"]);
    }

    #[test]
    fn no_line_is_wider_than_a_terminal_and_columns_line_up() {
        let long = Row {
            name: "unary",
            promise: "P1",
            what: "a thing that takes a good many words to say, more than fit".to_owned(),
            expected: "x".repeat(60),
            measured: "42 ms".to_owned(),
            held: false,
            tries: 1,
        };
        let text = format!("{}{}", head(), row(&long));
        assert!(text.lines().all(|line| line.chars().count() <= 98), "{text}");
        let column = text.lines().next().unwrap().find("held").unwrap();
        assert_eq!(text.lines().nth(2).unwrap().find("NO"), Some(column));
        assert!(text.lines().count() > 4);
    }
}
