//! `docs/config.md` says what is so: its files and the example of each key are accepted.

use hopline_config::{Env, Faults, parse_edge, parse_relay};

const PAGE: &str = include_str!("../../../docs/config.md");

fn edge(text: &str) -> Result<(), Faults> {
    parse_edge(text.as_bytes(), &Env::new("example").runtime_dir("/run/user/1000")).map(drop)
}

fn relay(text: &str) -> Result<(), Faults> {
    parse_relay(text.as_bytes(), &Env::new("example")).map(drop)
}

#[test]
fn whole_files_are_accepted() {
    let mut ran = 0;
    for block in PAGE.split("```yaml\n").skip(1) {
        let (text, _) = block.split_once("```").expect("a block ends");
        let result = if text.starts_with("# relay.yaml") { relay(text) } else { edge(text) };
        result.unwrap_or_else(|faults| panic!("{faults}\n{text}"));
        ran += 1;
    }
    assert_eq!(ran, 2);
}

/// The example of a key, made a file: heading of its table, key, example.
fn accept(heading: &str, key: &str, example: &str) -> Result<(), Faults> {
    match (heading, key) {
        ("The file of an edge", "connect" | "services") => edge(example),
        ("The file of an edge", _) => edge(&format!("{example}\nconnect: {{ a: {{}} }}")),
        ("services.NAME", "allow") => edge(&format!("services: {{ a: {{ tcp: {{ tcp: 1 }}, {example} }} }}")),
        ("services.NAME", _) => edge(&format!("services: {{ a: {{ {example} }} }}")),
        ("services.NAME.grpc", _) => edge(&format!("services: {{ a: {{ grpc: {{ {example} }} }} }}")),
        ("connect.NAME", _) => edge(&format!("connect: {{ a: {{ {example} }} }}")),
        ("status", _) => {
            edge(&format!("status: {{ {example} }}\nconnect: {{ a: {{}} }}"))?;
            relay(&format!("admin: {{ {example} }}"))
        }
        ("log", _) => relay(&format!("log: {{ {example} }}")),
        ("The file of a relay", _) => relay(example),
        _ => panic!("{heading}: a table that is not known here"),
    }
}

#[test]
fn the_example_of_each_key_is_accepted() {
    let mut ran = 0;
    let mut heading = "";
    for line in PAGE.lines() {
        if line.starts_with("##") {
            heading = line.trim_start_matches(['#', ' ']);
        }
        let cells: Vec<_> = line.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let &[_, key, _, _, example, _, _] = cells.as_slice() else { continue };
        if key == "key" || key.starts_with('-') {
            continue;
        }
        assert!(example.contains(&format!("{key}: ")), "{heading}.{key}: the example is of something else");
        accept(heading, key, example).unwrap_or_else(|faults| panic!("{heading}.{key}: {faults}"));
        ran += 1;
    }
    assert_eq!(ran, 35);
}
