use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::*;
use crate::status::Status;

/// An edge on which everything has happened once, and with names that try to break the format.
fn eventful() -> Status {
    Status::from_value(serde_json::json!({
        "machine": "web-1", "version": "0.1.0", "uptime_s": 12.5,
        "links": [
            { "peer": "evil\"}\n", "relay": "relay-a:7443", "address": "192.0.2.1:7443", "state": "suspect",
              "window_bytes": { "used": 9, "limit": 10 }, "rtt_us": 1500, "last_heard_ms": 7250, "sessions": 3, "bytes": { "sent": 5, "received": 6 },
              "dials": { "up": 2, "failed": 7 }, "ends": { "dead_peer": 1, "goodbye": 4 },
              "last_error": { "reason": "conn_lost", "hop": 0, "message": "m\n# TYPE x y", "age_s": 1.0 } },
            { "peer": "other", "relay": "relay-b:7443", "address": "x", "state": "connecting" }
        ],
        "mappings": [
            { "name": "a\"b\\c\nd", "listen": "unix:x", "state": "ready", "sessions": { "open": 1, "total": 9 },
              "opens": { "accepted": 4, "refused": { "offline": 2, "app_3": 1, "app_4": 1, "made up": 5 } },
              "aborts": [ { "reason": "conn_lost", "hop": 1, "count": 3 }, { "reason": "app_1", "hop": 9, "count": 1 } ],
              "bytes": { "sent": 10, "received": 20 },
              "agents": [ { "machine": "db-1", "relay": "r", "state": "lost", "rtt_us": 100, "last_heard_ms": 9000 },
                          { "machine": "db-2", "relay": "r", "state": "suspect", "rtt_us": 300, "last_heard_ms": 8000 } ] }
        ],
        "services": [
            { "name": "s", "target": "t:1", "state": "up", "sessions": { "open": 2, "total": 3 },
              "opens": { "accepted": 3, "refused": { "dial_failed": 1 } },
              "aborts": [ { "reason": "dial_failed", "hop": 0, "count": 1 } ] }
        ],
        "budgets": { "held_opens": { "used": 1, "limit": 4096 }, "kept_bytes": { "used": 2, "limit": 3 },
                     "window_bytes": { "used": 9, "limit": 10 } },
        "limits_reached": { "sessions": 2 },
    }))
    .unwrap()
}

fn relay() -> Status {
    Status::from_value(serde_json::json!({
        "role": "relay", "name": "relay-a", "version": "0.1.0", "uptime_s": 3, "state": "up",
        "links": [
            { "machine": "web-1", "address": "x", "state": "up", "window_bytes": { "used": 5, "limit": 9 }, "rtt_us": 10, "last_heard_ms": 30, "sessions": 1 },
            { "machine": "db-1", "address": "y", "state": "suspect", "rtt_us": 20, "last_heard_ms": 20, "sessions": 1 },
        ],
        "services": [
            { "name": "ledger", "agents": [ { "machine": "db-1", "state": "up", "sessions": 1 } ] },
            { "name": "gone", "agents": [] },
        ],
        "sessions": { "open": 1, "total": 2 }, "opens": { "accepted": 1, "refused": { "not_found": 3 } },
        "aborts": [ { "reason": "conn_lost", "hop": 0, "count": 2 } ],
        "bytes": { "sent": 7, "received": 8 }, "link_ends": { "dead_peer": 2, "carrier_lost": 1 },
        "budgets": { "held_opens": { "used": 0, "limit": 4096 }, "links": { "used": 2, "limit": 16384 },
                     "registrations": { "used": 1, "limit": 131_072 }, "handshakes": { "used": 3, "limit": 256 },
                     "window_bytes": { "used": 5, "limit": 18 } },
        "limits_reached": { "max_links": 1 },
    }))
    .unwrap()
}

/// A page of the text format, as a strict reader takes it: each family once, with help and type before its samples, each
/// sample of the family that it stands under, no series twice, labels and numbers well formed.
fn parse(page: &str) -> BTreeMap<String, (String, Vec<String>)> {
    let mut families: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
    let mut series = BTreeSet::new();
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        let (name, help) = line.strip_prefix("# HELP ").unwrap().split_once(' ').unwrap();
        assert!(!help.is_empty(), "{line}");
        let kind = lines.next().unwrap().strip_prefix(&format!("# TYPE {name} ")).unwrap();
        let mut samples = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let (id, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok() || value == "+Inf", "{line}");
            let own = id.split('{').next().unwrap();
            let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.iter().any(|suffix| own == format!("{name}{suffix}")), "{line} under {name}");
            check_labels(&id[own.len()..]);
            assert!(series.insert(id.to_owned()), "twice: {line}");
            samples.push(line.to_owned());
        }
        assert!(!samples.is_empty(), "{name} has no sample");
        let twice = families.insert(name.to_owned(), (kind.to_owned(), samples));
        assert!(twice.is_none(), "{name} stands twice");
    }
    assert!(page.ends_with('\n'));
    families
}

/// `{name="value",...}` or nothing; in a value only `\\`, `\"` and `\n` are escaped.
fn check_labels(text: &str) {
    let Some(rest) = text.strip_prefix('{') else { return assert_eq!(text, "") };
    let mut rest = rest.strip_suffix('}').unwrap();
    loop {
        let (name, after) = rest.split_once("=\"").unwrap();
        assert!(!name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{text}");
        let mut escaped = false;
        let end = after.find(|c: char| {
            let ends = c == '"' && !escaped;
            assert!(!escaped || matches!(c, '\\' | '"' | 'n'), "{text}");
            escaped = c == '\\' && !escaped;
            ends
        });
        rest = &after[end.unwrap() + 1..];
        match rest.strip_prefix(',') {
            Some(next) => rest = next,
            None => return assert_eq!(rest, "", "{text}"),
        }
    }
}

#[test]
fn the_page_is_well_formed_whatever_names_say() {
    for status in [eventful(), relay()] {
        let families = parse(&Metrics::of(&status).render());
        let described: BTreeMap<_, _> = families::all().iter().map(|family| (family.name, *family)).collect();
        for (name, (kind, _)) in &families {
            assert_eq!(described[name.as_str()].kind.name(), kind, "{name}");
        }
    }
}

#[test]
fn every_family_is_shown_by_one_role_at_least() {
    let shown = |status| parse(&Metrics::of(&status).render()).into_keys().collect::<BTreeSet<_>>();
    let shown = shown(eventful()).union(&shown(relay())).cloned().collect::<BTreeSet<_>>();
    let described: BTreeSet<_> = families::all().iter().map(|family| family.name.to_owned()).collect();
    // What the edge adds, and its own test looks for.
    let added: Vec<_> = described.difference(&shown).map(String::as_str).collect();
    let of_calls = |name: &&str| {
        ["hopline_call", "hopline_hints_", "hopline_inspect"].iter().any(|start| name.starts_with(start))
    };
    assert_eq!(added.iter().filter(|name| !of_calls(name)).collect::<Vec<_>>(), Vec::<&&str>::new());
    assert_eq!(added.len(), 7);
    assert!(shown.is_subset(&described));
}

#[test]
fn samples_are_those_of_the_status() {
    let page = Metrics::of(&eventful()).render();
    for line in [
        "hopline_link_up{relay=\"relay-a:7443\"} 1",
        "hopline_link_state{relay=\"relay-a:7443\",state=\"suspect\"} 1",
        "hopline_link_state{relay=\"relay-a:7443\",state=\"up\"} 0",
        "hopline_link_round_trip_seconds{relay=\"relay-a:7443\"} 0.0015",
        "hopline_link_last_heard_seconds{relay=\"relay-a:7443\"} 7.25",
        "hopline_link_dials_total{relay=\"relay-a:7443\",result=\"failed\"} 7",
        "hopline_link_liveness_deaths_total{relay=\"relay-a:7443\"} 1",
        "hopline_mapping_opens_total{mapping=\"a\\\"b\\\\c\\nd\",result=\"accepted\"} 4",
        "hopline_mapping_opens_total{mapping=\"a\\\"b\\\\c\\nd\",result=\"application\"} 2",
        "hopline_mapping_opens_total{mapping=\"a\\\"b\\\\c\\nd\",result=\"other\"} 5",
        "hopline_mapping_aborts_total{mapping=\"a\\\"b\\\\c\\nd\",reason=\"application\",hop=\"3+\"} 1",
        "hopline_mapping_aborts_total{mapping=\"a\\\"b\\\\c\\nd\",reason=\"conn_lost\",hop=\"1\"} 3",
        "hopline_mapping_agents{mapping=\"a\\\"b\\\\c\\nd\",state=\"lost\"} 1",
        "hopline_mapping_far_round_trip_seconds{mapping=\"a\\\"b\\\\c\\nd\"} 0.0003",
        "hopline_service_opens_total{service=\"s\",result=\"dial_failed\"} 1",
        "hopline_held_opens 1",
        "hopline_limit_reached_total{limit=\"sessions\"} 2",
        "hopline_link_window_bytes{relay=\"relay-a:7443\"} 9",
        "hopline_link_window_bytes_limit{relay=\"relay-a:7443\"} 10",
        "hopline_window_bytes 9",
        "hopline_window_bytes_limit 10",
        "hopline_healthy 0",
        "hopline_findings{level=\"bad\",place=\"relay_agent\",reason=\"none\"} 1",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    assert!(!page.contains("evil") && !page.contains("db-1"), "a peer's words are a label:\n{page}");
    let page = Metrics::of(&relay()).render();
    for line in [
        "hopline_relay_links{state=\"suspect\"} 1",
        "hopline_relay_link_round_trip_max_seconds 0.00002",
        "hopline_relay_link_last_heard_max_seconds 0.03",
        "hopline_relay_aborts_total{reason=\"conn_lost\",hop=\"0\"} 2",
        "hopline_relay_liveness_deaths_total 2",
        "hopline_relay_link_window_bytes_max 5",
        "hopline_window_bytes_limit 18",
        "hopline_findings{level=\"doubtful\",place=\"relay_agent\",reason=\"conn_lost\"} 1",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    assert!(!page.contains("web-1") && !page.contains("ledger"), "a machine's words are a label:\n{page}");
}

#[test]
fn what_peers_say_makes_no_series() {
    let mut value = serde_json::to_value(eventful()).unwrap();
    let before = parse(&Metrics::of(&Status::from_value(value.clone()).unwrap()).render());
    let mapping = &mut value["mappings"][0];
    for n in 0..1_000 {
        mapping["opens"]["refused"][format!("app_{n}")] = 1.into();
        mapping["opens"]["refused"][format!("unknown_{n}")] = 1.into();
        let agent =
            serde_json::json!({ "machine": format!("m{n}"), "relay": format!("r{n}"), "state": "up" });
        mapping["agents"].as_array_mut().unwrap().push(agent);
        let abort = serde_json::json!({ "reason": format!("app_{n}"), "hop": n, "count": 1 });
        mapping["aborts"].as_array_mut().unwrap().push(abort);
    }
    let after = parse(&Metrics::of(&Status::from_value(value).unwrap()).render());
    let count = |families: &BTreeMap<String, (String, Vec<String>)>| {
        families.values().map(|(_, s)| s.len()).sum::<usize>()
    };
    // The application's own code at hops 0, 1 and 2.
    assert_eq!(count(&after), count(&before) + 3);
}

/// How many series a family has at most, as it is documented, for so many relays, mappings and services.
fn bound(series: &str, [relays, mappings, services]: [usize; 3]) -> usize {
    let factor = |factor: &str| match factor.split([' ', ':']).next().unwrap() {
        "relays" => relays,
        "mappings" => mappings,
        "services" => services,
        number => number.parse().unwrap(),
    };
    series.split(" x ").map(factor).product()
}

/// An edge on which everything has happened that can: each reason at each hop, each cause, each limit.
fn full_edge([relays, mappings, services]: [usize; 3]) -> Status {
    use hopline_accounting::HOPS;
    use hopline_link_proto::{EndCause, Reason};
    let reasons: Vec<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
    let causes: Vec<_> = EndCause::ALL.iter().map(|cause| cause.name()).chain(["replaced"]).collect();
    let each = |words: &[&str]| words.iter().map(|word| ((*word).to_owned(), 1)).collect::<BTreeMap<_, _>>();
    let aborts: Vec<_> = reasons
        .iter()
        .flat_map(|reason| {
            (0..HOPS.len()).map(move |hop| serde_json::json!({ "reason": reason, "hop": hop, "count": 1 }))
        })
        .collect();
    let counts = serde_json::json!({
        "sessions": { "open": 0, "total": 1 }, "opens": { "accepted": 1, "refused": each(&reasons) }, "aborts": aborts,
    });
    let with = |mut value: serde_json::Value| {
        value.as_object_mut().unwrap().extend(counts.as_object().unwrap().clone());
        value
    };
    let link = |n| {
        serde_json::json!({
            "peer": "r", "relay": format!("relay-{n}:1"), "address": "x", "state": "up", "rtt_us": 1, "last_heard_ms": 1,
            "ends": each(&causes), "window_bytes": { "used": 1, "limit": 2 },
        })
    };
    let agent =
        serde_json::json!({ "machine": "a", "relay": "r", "state": "up", "rtt_us": 1, "last_heard_ms": 1 });
    let mapping = |n| {
        with(
            serde_json::json!({ "name": format!("m{n}"), "listen": "x", "state": "ready", "agents": [agent] }),
        )
    };
    let service = |n| with(serde_json::json!({ "name": format!("s{n}"), "target": "x", "state": "up" }));
    Status::from_value(serde_json::json!({
        "machine": "web-1", "version": "1", "uptime_s": 1, "links": (0..relays).map(link).collect::<Vec<_>>(),
        "mappings": (0..mappings).map(mapping).collect::<Vec<_>>(),
        "services": (0..services).map(service).collect::<Vec<_>>(),
        "limits_reached": (0..35).map(|n| (format!("limit {n}"), 1)).collect::<BTreeMap<_, _>>(),
    }))
    .unwrap()
}

/// F161: what the table says of the number of series is exact, for an edge of any size, and so is the sum in the text.
#[test]
fn the_documented_numbers_of_series_are_exact() {
    let mut checked = BTreeSet::new();
    for size in [[1, 1, 1], [2, 3, 5], [4, 10, 7]] {
        let shown = parse(&Metrics::of(&full_edge(size)).render());
        for family in families::all() {
            let Some((_, samples)) = shown.get(family.name) else { continue };
            assert_eq!(samples.len(), bound(family.series, size), "{} of {size:?}", family.name);
            checked.insert(family.name);
        }
    }
    let edge = |family: &&Described| !family.name.starts_with("hopline_relay_");
    let left: Vec<_> = families::all().iter().filter(edge).map(|family| family.name).collect();
    let left: Vec<_> = left.into_iter().filter(|name| !checked.contains(name)).collect();
    // None when all is well; and what the edge adds, whose lists its own test counts.
    let added = ["hopline_findings", "hopline_calls", "hopline_call_", "hopline_hints", "hopline_inspect"];
    assert_eq!(left.len(), 8, "{left:?}");
    assert!(left.iter().all(|name| added.iter().any(|start| name.starts_with(start))), "{left:?}");

    let sum = |relay: bool, size| -> usize {
        let of_relay = |family: &Described| family.name.starts_with("hopline_relay_");
        let of_edge = |family: &Described| {
            bound(family.series, [0; 3]) == 0 || family.name.starts_with("hopline_kept_")
        };
        let shown = |family: &&Described| if relay { !of_edge(family) } else { !of_relay(family) };
        families::all().iter().filter(shown).map(|family| bound(family.series, size)).sum()
    };
    let base = sum(false, [0; 3]);
    let each = [[1, 0, 0], [0, 1, 0], [0, 0, 1]].map(|size| sum(false, size) - base);
    let text = format!(
        "An edge has at most {base} series, and {} for each relay, {} for each mapping, {} for each service. A relay has at\n\
         most {}.",
        each[0],
        each[1],
        each[2],
        sum(true, [0; 3])
    );
    let page = include_str!("../../../../docs/metrics.md");
    assert!(page.contains(&text), "docs/metrics.md does not say:\n{text}");
}

#[test]
fn histograms_add_up_and_counters_of_one_series_too() {
    static CALLS: Histogram<1> =
        Histogram::new("hopline_test_seconds", "Help with a \\ in it.", ["mapping"], "1");
    static SEEN: Counter<0> = Counter::new("hopline_test_total", "Help.", [], "1");
    let mut metrics = Metrics::default();
    let buckets = Buckets { bounds: &[0.1, 1.0], counts: &[2, 3, 4], sum: 12.5 };
    metrics.histogram(&CALLS, ["a"], buckets);
    metrics.counter(&SEEN, [], 2);
    metrics.counter(&SEEN, [], 3);
    let page = metrics.render();
    assert_eq!(
        page,
        "# HELP hopline_test_seconds Help with a \\\\ in it.\n# TYPE hopline_test_seconds histogram\n\
         hopline_test_seconds_bucket{mapping=\"a\",le=\"0.1\"} 2\n\
         hopline_test_seconds_bucket{mapping=\"a\",le=\"1\"} 5\n\
         hopline_test_seconds_bucket{mapping=\"a\",le=\"+Inf\"} 9\n\
         hopline_test_seconds_sum{mapping=\"a\"} 12.5\nhopline_test_seconds_count{mapping=\"a\"} 9\n\
         # HELP hopline_test_total Help.\n# TYPE hopline_test_total counter\nhopline_test_total 5\n"
    );
    parse(&page);
}

#[test]
fn names_follow_the_conventions() {
    let mut names = BTreeSet::new();
    for family in families::all() {
        let Described { name, kind, help, labels, series } = family;
        assert!(names.insert(name), "{name} twice");
        assert!(
            name.starts_with("hopline_") && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
            "{name}"
        );
        assert_eq!(name.ends_with("_total"), kind == Kind::Counter, "{name}");
        assert!(!help.is_empty() && help.ends_with('.') && !help.contains('\n'), "{name}: {help}");
        assert!(!series.is_empty(), "{name}");
        for label in labels {
            assert!(
                label.bytes().all(|b| b.is_ascii_lowercase())
                    && !["le", "quantile", "job", "instance"].contains(label)
            );
        }
        for other in ["milli", "micro", "minutes", "kilo"] {
            assert!(!name.contains(other), "{name}: only base units");
        }
    }
    assert_eq!(names.len(), families::all().len());
}

/// The table of `docs/metrics.md` is that of the code; `HOPLINE_BLESS=1` writes it.
#[test]
fn the_documented_families_are_those_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    let mut table =
        "| family | type | labels | series at most | what it says |\n|---|---|---|---|---|\n".to_owned();
    for family in families::all() {
        let labels: Vec<_> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = if labels.is_empty() { "none".to_owned() } else { labels.join(", ") };
        let Described { name, kind, help, series, .. } = family;
        table += &format!("| `{name}` | {} | {labels} | {series} | {help} |\n", kind.name());
    }
    let begin = page.find("| family |").expect("docs/metrics.md has a table of families");
    let end = begin + page[begin..].find("\n\n").map_or(page.len() - begin, |end| end + 1);
    if page[begin..end] != table && std::env::var_os("HOPLINE_BLESS").is_some() {
        std::fs::write(&path, format!("{}{table}{}", &page[..begin], &page[end..])).unwrap();
        return;
    }
    assert_eq!(page[begin..end], table, "docs/metrics.md; HOPLINE_BLESS=1 writes it anew");
}
