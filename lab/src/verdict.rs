//! Brings runs together: for each scenario, application, way and figure the values and whether they are as promised.

use crate::apps;
use crate::result::{Reference, Run, Value, median, short};
use crate::scenario::{Figure, Scenario};

/// One figure of one application on one way.
#[derive(Debug)]
pub(crate) struct Cell<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) figure: &'a Figure,
    pub(crate) app: &'a str,
    pub(crate) way: &'a str,
    pub(crate) values: Vec<Value>,
    /// The build that was measured.
    pub(crate) build: &'a str,
    /// Whether all hold; none for direct runs, and where nothing is promised.
    pub(crate) holds: Option<bool>,
    /// The direct values, where the cell holds only by what they allow.
    pub(crate) leans: Option<Vec<Value>>,
}

impl Cell<'_> {
    /// Minimum, median and maximum of the numbers; other values counted behind.
    pub(crate) fn text(&self) -> String {
        text(&self.values)
    }
}

/// Minimum, median and maximum of the numbers; other values counted behind.
pub(crate) fn text(values: &[Value]) -> String {
    let numbers = sorted(values);
    let mut text = match numbers[..] {
        [] => String::new(),
        [one] => short(one),
        [first, .., last] => {
            format!(
                "{} / {} / {}",
                short(first),
                short(median(numbers.clone()).unwrap_or(first)),
                short(last)
            )
        }
    };
    let mut words: Vec<(String, usize)> = Vec::new();
    for value in values.iter().filter(|value| !matches!(value, Value::Number(_))) {
        let word = value.to_string();
        match words.iter_mut().find(|(other, _)| *other == word) {
            Some((_, count)) => *count += 1,
            None => words.push((word, 1)),
        }
    }
    for (word, count) in words {
        if !text.is_empty() {
            text += ", ";
        }
        text += &word;
        if count < values.len() {
            text += &format!(" ×{count}");
        }
    }
    text
}

/// The numbers among values, smallest first.
pub(crate) fn sorted(values: &[Value]) -> Vec<f64> {
    let mut numbers: Vec<f64> = values
        .iter()
        .filter_map(|value| match value {
            Value::Number(number) => Some(*number),
            Value::Word(_) | Value::NotWithin { .. } => None,
        })
        .collect();
    numbers.sort_by(f64::total_cmp);
    numbers
}

/// All cells that were measured, in the scenarios' order.
pub(crate) fn cells<'a>(scenarios: &'a [Scenario], runs: &'a [Run]) -> Vec<Cell<'a>> {
    let mut cells = Vec::new();
    for scenario in scenarios {
        let own: Vec<&Run> = runs.iter().filter(|run| run.scenario == scenario.name).collect();
        let mut who: Vec<(&str, &str)> = Vec::new();
        for run in &own {
            let pair = (run.app.as_str(), run.way.as_str());
            if !who.contains(&pair) {
                who.push(pair);
            }
        }
        for figure in scenario.figures {
            for &(app, way) in &who {
                let of = |way: &str| -> Vec<Value> {
                    let mine = own.iter().filter(|run| run.app == app && run.way == way);
                    mine.filter_map(|run| run.values.get(figure.id).cloned()).collect()
                };
                let values = of(way);
                if values.is_empty() {
                    continue;
                }
                let direct = of("direct");
                let (broken, deadline) = apps::statuses(app);
                let reference = Reference { direct: &direct, broken, deadline };
                let holds = if way == "direct" { None } else { figure.bound.holds(&values, &reference) };
                let leans = figure.bound.leans(&values, &reference) && way != "direct";
                let leans = leans.then(|| direct.clone());
                let build = own.iter().find(|run| run.app == app && run.way == way);
                let build = build.map_or("", |run| run.build.as_str());
                cells.push(Cell { scenario, figure, app, way, values, build, holds, leans });
            }
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(way: &str, number: u32, value: Value) -> Run {
        Run {
            scenario: "dead-path-agent".to_owned(),
            values: [("client_s".to_owned(), value)].into(),
            ..crate::result::tests::run(way, number, 0.0)
        }
    }

    #[test]
    fn one_late_run_spoils_a_cell() {
        let scenarios = crate::scenario::all();
        let runs = [
            run("unix", 1, Value::Number(14.5)),
            run("unix", 2, Value::Number(15.5)),
            run("unix", 3, Value::Number(13.5)),
            run("direct", 1, Value::NotWithin { not_within: 40.0 }),
        ];
        let cells = cells(&scenarios, &runs);
        let texts: Vec<(String, Option<bool>)> = cells.iter().map(|cell| (cell.text(), cell.holds)).collect();
        assert_eq!(
            texts,
            [("13.50 / 14.50 / 15.50".to_owned(), Some(false)), ("not within 40".to_owned(), None)]
        );
    }

    #[test]
    fn words_are_counted() {
        let scenarios = crate::scenario::all();
        let late = Value::NotWithin { not_within: 40.0 };
        let runs = [run("unix", 1, Value::Number(14.0)), run("unix", 2, late.clone()), run("unix", 3, late)];
        let cells = cells(&scenarios, &runs);
        assert_eq!(cells[0].text(), "14, not within 40 ×2");
        assert_eq!(cells[0].holds, Some(false));
    }
}
