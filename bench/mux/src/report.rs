//! What was measured, as a Markdown table and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

/// One figure of one round.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Value(f64),
    /// Nothing moved within the bound.
    Stalled,
    Failed(String),
}

/// A kind of figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    pub key: &'static str,
    pub title: &'static str,
    /// Digits behind the point.
    pub digits: usize,
}

#[derive(Default)]
pub struct Report {
    /// Row, peer, one cell for each round.
    cells: Vec<(Row, &'static str, Vec<Cell>)>,
}

impl Report {
    pub fn add(&mut self, row: Row, peer: &'static str, cell: Cell) {
        match self.cells.iter_mut().find(|(of, by, _)| *of == row && *by == peer) {
            Some((_, _, cells)) => cells.push(cell),
            None => self.cells.push((row, peer, vec![cell])),
        }
    }

    fn of(&self, row: Row, peer: &str) -> Option<&[Cell]> {
        self.cells.iter().find(|(of, by, _)| *of == row && *by == peer).map(|(_, _, cells)| &cells[..])
    }

    pub fn has(&self, row: Row) -> bool {
        self.cells.iter().any(|(of, _, _)| *of == row)
    }

    /// One table: a line for each peer that has any figure of these rows.
    pub fn table(&self, rows: &[Row], peers: &[&'static str]) -> String {
        let mut out = String::from("| peer |");
        for row in rows {
            write!(out, " {} |", row.title).expect("a string takes all");
        }
        out.push_str("\n|---|");
        out.push_str(&"---|".repeat(rows.len()));
        out.push('\n');
        for peer in peers.iter().filter(|peer| rows.iter().any(|row| self.of(*row, peer).is_some())) {
            write!(out, "| {peer} |").expect("a string takes all");
            for row in rows {
                let text = self.of(*row, peer).map_or("–".to_owned(), |cells| summary(cells, row.digits));
                write!(out, " {text} |").expect("a string takes all");
            }
            out.push('\n');
        }
        out
    }

    pub fn json(&self) -> Value {
        let results: Vec<Value> = self
            .cells
            .iter()
            .map(|(row, peer, cells)| {
                let rounds: Vec<Value> = cells
                    .iter()
                    .map(|cell| match cell {
                        Cell::Value(value) => json!(value),
                        Cell::Stalled => json!("stalled"),
                        Cell::Failed(why) => json!({ "failed": why }),
                    })
                    .collect();
                let mut result =
                    json!({ "row": row.key, "title": row.title, "peer": peer, "rounds": rounds });
                if let Some((min, median, max)) = spread(cells) {
                    result["min"] = json!(min);
                    result["median"] = json!(median);
                    result["max"] = json!(max);
                }
                result
            })
            .collect();
        json!(results)
    }
}

fn spread(cells: &[Cell]) -> Option<(f64, f64, f64)> {
    let mut values: Vec<f64> = cells
        .iter()
        .filter_map(|cell| if let Cell::Value(value) = cell { Some(*value) } else { None })
        .collect();
    values.sort_by(f64::total_cmp);
    Some((*values.first()?, values[values.len() / 2], *values.last()?))
}

fn summary(cells: &[Cell], digits: usize) -> String {
    let mut text = match spread(cells) {
        // What is counted, not timed, does not vary.
        Some((min, _, max)) if min == max => number(min, digits),
        Some((min, median, max)) => {
            format!("{} / {} / {}", number(min, digits), number(median, digits), number(max, digits))
        }
        None => String::new(),
    };
    let stalled = cells.iter().filter(|cell| **cell == Cell::Stalled).count();
    let failed = cells.iter().filter(|cell| matches!(cell, Cell::Failed(_))).count();
    for (count, word) in [(stalled, "stalled"), (failed, "failed")] {
        if count > 0 {
            let of =
                if count == cells.len() { String::new() } else { format!(" in {count} of {}", cells.len()) };
            let comma = if text.is_empty() { "" } else { ", " };
            write!(text, "{comma}**{word}**{of}").expect("a string takes all");
        }
    }
    text
}

/// With thousands apart.
fn number(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let (whole, rest) =
        text.split_once('.').map_or((&text[..], String::new()), |(w, r)| (w, format!(".{r}")));
    let mut out = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 && digit.is_ascii_digit() && !out.ends_with('-') {
            out.push(',');
        }
        out.push(digit);
    }
    out + &rest
}
