//! A plot of one figure: a row for each application and way, a dot for each run, a line for the promise and for the
//! article.

use std::fmt::Write as _;

/// One row.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) label: String,
    pub(crate) numbers: Vec<f64>,
    /// Set when some runs stopped waiting: how long they had waited.
    pub(crate) not_within: Option<f64>,
    /// Whether it is the reference rather than ours.
    pub(crate) direct: bool,
    pub(crate) broken: bool,
}

const LEFT: f64 = 120.0;
const WIDTH: f64 = 560.0;
const ROW: f64 = 22.0;
const TOP: f64 = 34.0;

/// Draws it. `promised` and `article` are positions of lines.
pub(crate) fn plot(
    title: &str,
    unit: &str,
    rows: &[Row],
    promised: Option<f64>,
    article: Option<f64>,
) -> String {
    let all = rows.iter().flat_map(|row| row.numbers.iter().copied().chain(row.not_within));
    let most = all.chain(promised).chain(article).fold(0.0, f64::max).max(1e-9) * 1.08;
    let x = |number: f64| LEFT + number / most * WIDTH;
    #[expect(clippy::cast_precision_loss, reason = "some rows")]
    let bottom = TOP + ROW * rows.len() as f64;
    let (width, height) = (LEFT + WIDTH + 20.0, bottom + 40.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"10\" y=\"20\" \
         font-weight=\"bold\">{}</text>\n",
        escaped(title)
    );
    for tick in ticks(most) {
        line(&mut svg, x(tick), bottom, "#ddd", "");
        let text = crate::result::short(tick);
        put(&mut svg, x(tick), bottom + 16.0, "middle", "#555", &format!("{text} {unit}"));
    }
    for (at, color, dash, word) in [(promised, "#2a7", "", "promised"), (article, "#a50", "4 3", "article")] {
        if let Some(at) = at {
            line(&mut svg, x(at), bottom, color, dash);
            let below = if word == "article" { 32.0 } else { 16.0 };
            put(&mut svg, x(at), bottom + below, "middle", color, word);
        }
    }
    for (index, row) in rows.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "some rows")]
        let y = TOP + ROW * (index as f64 + 0.5);
        put(&mut svg, LEFT - 10.0, y + 4.0, "end", "#000", &row.label);
        let color = match (row.direct, row.broken) {
            (true, _) => "#888",
            (false, false) => "#06c",
            (false, true) => "#c00",
        };
        for &number in &row.numbers {
            let at = x(number);
            // Writing to a string does not fail.
            let _ = writeln!(
                svg,
                "<circle cx=\"{at:.1}\" cy=\"{y}\" r=\"4\" fill=\"{color}\" fill-opacity=\"0.6\"/>"
            );
        }
        if let Some(waited) = row.not_within {
            put(&mut svg, x(waited), y + 4.0, "end", color, "not yet →");
        }
    }
    svg + "</svg>\n"
}

fn line(svg: &mut String, x: f64, bottom: f64, color: &str, dash: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"{color}\" stroke-dasharray=\"{dash}\"/>"
    );
}

fn put(svg: &mut String, x: f64, y: f64, anchor: &str, color: &str, text: &str) {
    let text = escaped(text);
    let _ =
        writeln!(svg, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"{anchor}\" fill=\"{color}\">{text}</text>");
}

/// About five round numbers from 0.
fn ticks(most: f64) -> Vec<f64> {
    let rough = most / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|&step| step >= rough);
    let step = step.unwrap_or(most);
    std::iter::successors(Some(0.0), |last| Some(last + step)).take_while(|&tick| tick <= most).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within() {
        assert_eq!(ticks(16.3), [0.0, 5.0, 10.0, 15.0]);
        assert_eq!(ticks(220.0), [0.0, 50.0, 100.0, 150.0, 200.0]);
    }

    #[test]
    fn every_run_is_a_dot_within_the_picture() {
        let row = Row {
            label: "a<b".to_owned(),
            numbers: vec![1.0, 14.9],
            not_within: Some(40.0),
            direct: false,
            broken: false,
        };
        let svg = plot("x & y", "s", &[row], Some(15.1), Some(14.9));
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("a&lt;b") && svg.contains("x &amp; y") && svg.contains("not yet"));
    }
}
