//! The dashboard and the alert rules name metrics and labels that exist.

use std::collections::{BTreeMap, BTreeSet};

use hopline_admin::metrics::{Kind, families};

const ALERTS: &str = include_str!("../../../../deploy/prometheus/alerts.yaml");
const ALERTS_TEST: &str = include_str!("../../../../deploy/prometheus/alerts.test.yaml");
const DASHBOARD: &str = include_str!("../../../../deploy/grafana/hopline.json");

/// What stands for a sample of a family, with its labels: histograms have three kinds of samples.
fn samples() -> BTreeMap<String, BTreeSet<&'static str>> {
    let mut samples = BTreeMap::new();
    for family in families::all() {
        let labels: BTreeSet<_> = family.labels.iter().copied().chain(["job", "instance"]).collect();
        if family.kind == Kind::Histogram {
            for suffix in ["_sum", "_count"] {
                samples.insert(format!("{}{suffix}", family.name), labels.clone());
            }
            let labels = labels.into_iter().chain(["le"]).collect();
            samples.insert(format!("{}_bucket", family.name), labels);
        } else {
            samples.insert(family.name.to_owned(), labels);
        }
    }
    samples
}

/// Every metric that a text names, with the labels that stand in braces behind it.
fn named(text: &str) -> Vec<(String, Vec<String>)> {
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("hopline_") {
        rest = &rest[at..];
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let name = rest[..end].to_owned();
        rest = &rest[end..];
        let braces = rest.strip_prefix('{').and_then(|braces| braces.split_once('}'));
        let labels = braces.map_or_else(Vec::new, |(labels, _)| {
            // Quotes are escaped in JSON.
            let labels = labels.replace("\\\"", "\"");
            let matchers = labels.split("\",").map(str::trim);
            matchers.filter_map(|matcher| Some(matcher.split(['=', '!']).next()?.trim().to_owned())).collect()
        });
        found.push((name, labels));
    }
    found
}

#[test]
fn every_metric_and_label_that_is_named_exists() {
    let samples = samples();
    for (file, text, at_least) in
        [("alerts", ALERTS, 20), ("their test", ALERTS_TEST, 10), ("dashboard", DASHBOARD, 40)]
    {
        let named = named(text);
        assert!(named.len() >= at_least, "{file}: {} metrics", named.len());
        for (name, labels) in named {
            let known = samples.get(&name).unwrap_or_else(|| panic!("{file}: there is no metric {name}"));
            for label in labels {
                assert!(known.contains(label.as_str()), "{file}: {name} has no label {label}");
            }
        }
    }
}

#[test]
fn a_name_is_found_with_its_labels() {
    let text = r#"sum(rate(hopline_x_total{a="b",c!~"d,e"}[5m])) / hopline_y > {{ $labels.z }}"#;
    let labels = ["a", "c"].map(str::to_owned).to_vec();
    assert_eq!(named(text), [("hopline_x_total".to_owned(), labels), ("hopline_y".to_owned(), vec![])]);
}

#[test]
fn every_alert_says_what_is_wrong_and_how_bad_it_is() {
    let alerts: Vec<_> = ALERTS.split("- alert: ").skip(1).collect();
    assert_eq!(alerts.len(), 13);
    for alert in alerts {
        for part in ["expr:", "severity:", "summary:"] {
            assert!(alert.contains(part), "{part} is missing: {alert}");
        }
    }
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.iter().all(|panel| panel["title"].is_string() && panel["gridPos"].is_object()));
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
}
