//! `/metrics`: what `/status` says, for a machine that scrapes it, in the text format of Prometheus.
//!
//! **The main decision: `/metrics` is written from the same snapshot as `/status`**, so that the two can never name two
//! culprits. What a status does not hold, such as a histogram, a [`Source`](crate::Source) adds by the same builder.
//!
//! **Whatever the traffic, the number of series is bounded.** A label's values come from the config file (a mapping, a
//! service, a relay as it is written there) or from a closed list (a reason, a state). Nothing that a peer can choose
//! is a label. Counters of reasons appear with their first event, so a quiet process is a short page.
//! [`families`] lists every family with its bound, and `docs/metrics.md` is written from that list.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write as _;

use hopline_accounting::log_lines;
use hopline_link_proto::Reason;

mod edge;
pub mod families;
mod relay;

use crate::status::{Budget, Finding, Status};

/// What a family's samples are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows, from the process's start.
    Counter,
    /// A number as it is now.
    Gauge,
    /// How often something fell between fixed bounds.
    Histogram,
}

impl Kind {
    /// The word of the text format.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A family as it is described to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Described {
    /// Its name, unit included.
    pub name: &'static str,
    /// What its samples are.
    pub kind: Kind,
    /// What it means, in one sentence.
    pub help: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// How many series it has at most.
    pub series: &'static str,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $type:ident = $kind:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $type<const N: usize> {
            name: &'static str,
            help: &'static str,
            labels: [&'static str; N],
            series: &'static str,
        }

        impl<const N: usize> $type<N> {
            /// A family: its name with its unit, its help, its labels, and how many series it has at most.
            #[must_use]
            pub const fn new(
                name: &'static str,
                help: &'static str,
                labels: [&'static str; N],
                series: &'static str,
            ) -> Self {
                Self { name, help, labels, series }
            }

            /// For people.
            #[must_use]
            pub const fn described(&'static self) -> Described {
                Described {
                    name: self.name,
                    kind: $kind,
                    help: self.help,
                    labels: &self.labels,
                    series: self.series,
                }
            }
        }
    )*};
}

kinds! {
    /// A family of counters with `N` labels.
    Counter = Kind::Counter;
    /// A family of gauges with `N` labels.
    Gauge = Kind::Gauge;
    /// A family of histograms with `N` labels.
    Histogram = Kind::Histogram;
}

/// How often something fell between fixed bounds.
#[derive(Debug, Clone, Copy)]
pub struct Buckets<'a> {
    /// The upper bounds, growing, in the family's unit.
    pub bounds: &'a [f64],
    /// A count for each bound, without those below it, and one more for what is above all.
    pub counts: &'a [u64],
    /// The sum of everything that was counted, in the family's unit.
    pub sum: f64,
}

#[derive(Debug, Clone, PartialEq)]
enum Value {
    Count(u64),
    Number(f64),
    /// Upper bounds with the counts up to each of them, all together, and the sum.
    Histogram(Vec<(f64, u64)>, u64, f64),
}

/// The page of `/metrics` while it is put together. The order of the calls does not matter: a family's samples stand
/// together, and a series stands once. Of counters with the same labels the sum is shown, of others the last.
#[derive(Debug, Default)]
pub struct Metrics {
    families: BTreeMap<&'static str, (Described, BTreeMap<Vec<String>, Value>)>,
}

impl Metrics {
    /// The samples that follow from a status.
    #[must_use]
    pub fn of(status: &Status) -> Self {
        let mut metrics = Self::default();
        match status {
            Status::Edge(edge) => edge::fill(&mut metrics, edge),
            Status::Relay(relay) => relay::fill(&mut metrics, relay),
        }
        metrics
    }

    /// One sample of a counter.
    pub fn counter<const N: usize>(&mut self, family: &'static Counter<N>, labels: [&str; N], value: u64) {
        let series = self.series(family.described(), &labels).or_insert(Value::Count(0));
        if let Value::Count(count) = series {
            *count = count.saturating_add(value);
        }
    }

    /// One sample of a gauge.
    pub fn gauge<const N: usize>(&mut self, family: &'static Gauge<N>, labels: [&str; N], value: f64) {
        self.series(family.described(), &labels).insert_entry(Value::Number(value));
    }

    /// A gauge for each of `words`: 1 where it is `now`, else 0. The word is the last label.
    pub fn state(&mut self, family: &'static Gauge<2>, of: &str, words: &[&str], now: &str) {
        for word in words {
            self.gauge(family, [of, word], f64::from(u8::from(*word == now)));
        }
    }

    /// One histogram.
    pub fn histogram<const N: usize>(
        &mut self,
        family: &'static Histogram<N>,
        labels: [&str; N],
        value: Buckets<'_>,
    ) {
        let mut up_to = 0;
        let buckets = value.bounds.iter().zip(value.counts).map(|(bound, count)| {
            up_to += count;
            (*bound, up_to)
        });
        let buckets = buckets.collect();
        let all = value.counts.iter().sum();
        self.series(family.described(), &labels).insert_entry(Value::Histogram(buckets, all, value.sum));
    }

    /// The page, in version 0.0.4 of the text format.
    #[must_use]
    pub fn render(&self) -> String {
        let mut page = String::new();
        for (family, series) in self.families.values() {
            // Writing to a string can't fail.
            let _ = writeln!(page, "# HELP {} {}", family.name, escape(family.help, false));
            let _ = writeln!(page, "# TYPE {} {}", family.name, family.kind.name());
            for (labels, value) in series {
                let labels: Vec<_> =
                    family.labels.iter().copied().zip(labels.iter().map(String::as_str)).collect();
                match value {
                    Value::Count(count) => sample(&mut page, family.name, "", &labels, &count.to_string()),
                    Value::Number(number) => sample(&mut page, family.name, "", &labels, &text(*number)),
                    Value::Histogram(buckets, all, sum) => {
                        let bounds = buckets.iter().map(|(bound, up_to)| (text(*bound), *up_to));
                        for (bound, up_to) in bounds.chain([("+Inf".to_owned(), *all)]) {
                            let labels = [&labels[..], &[("le", bound.as_str())]].concat();
                            sample(&mut page, family.name, "_bucket", &labels, &up_to.to_string());
                        }
                        sample(&mut page, family.name, "_sum", &labels, &text(*sum));
                        sample(&mut page, family.name, "_count", &labels, &all.to_string());
                    }
                }
            }
        }
        page
    }

    fn series(&mut self, family: Described, labels: &[&str]) -> Entry<'_, Vec<String>, Value> {
        let (_, series) = self.families.entry(family.name).or_insert_with(|| (family, BTreeMap::new()));
        series.entry(labels.iter().map(|label| (*label).to_owned()).collect())
    }
}

/// What both roles have.
fn common(
    metrics: &mut Metrics,
    role: &str,
    version: &str,
    uptime_s: f64,
    healthy: bool,
    findings: &[Finding],
) {
    metrics.gauge(&families::BUILD_INFO, [version, role], 1.0);
    metrics.gauge(&families::UPTIME, [], uptime_s);
    metrics.gauge(&families::HEALTHY, [], f64::from(u8::from(healthy)));
    metrics.counter(&families::LOG_LINES_DROPPED, [], log_lines::dropped());
    let mut counts = BTreeMap::new();
    for finding in findings {
        let word = finding.reason.as_deref().map_or("none", |word| Reason::from_name(word).name());
        *counts.entry([finding.level.word(), finding.place.word(), word]).or_insert(0.0) += 1.0;
    }
    for (labels, count) in counts {
        metrics.gauge(&families::FINDINGS, labels, count);
    }
}

fn windows(metrics: &mut Metrics, all: Budget) {
    metrics.gauge(&families::WINDOW, [], all.used as f64);
    metrics.gauge(&families::WINDOW_LIMIT, [], all.limit as f64);
}

fn limits(metrics: &mut Metrics, reached: &BTreeMap<String, u64>) {
    for (limit, count) in reached {
        metrics.counter(&families::LIMIT_REACHED, [limit], *count);
    }
}

fn sample(page: &mut String, name: &str, suffix: &str, labels: &[(&str, &str)], value: &str) {
    page.push_str(name);
    page.push_str(suffix);
    for (index, (label, value)) in labels.iter().enumerate() {
        let before = if index == 0 { '{' } else { ',' };
        let _ = write!(page, "{before}{label}=\"{}\"", escape(value, true));
    }
    if !labels.is_empty() {
        page.push('}');
    }
    let _ = writeln!(page, " {value}");
}

/// A number as the format wants it.
fn text(number: f64) -> String {
    if number.is_nan() {
        "NaN".to_owned()
    } else if number.is_infinite() {
        if number > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() }
    } else {
        number.to_string()
    }
}

fn escape(value: &str, quotes: bool) -> String {
    let mut escaped = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '"' if quotes => escaped.push_str("\\\""),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
