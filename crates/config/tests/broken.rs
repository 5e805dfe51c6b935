//! Broken files and the exact lines that they give.
//!
//! `tests/golden/broken.txt` has one case after another: a line `=== edge NAME` or `=== relay NAME`, the file, a line
//! `==>`, the lines expected. `HOPLINE_BLESS=1 cargo test -p hopline-config --test broken` writes what came out;
//! read the difference before it is kept.

use std::path::Path;

use hopline_config::{Env, parse_edge, parse_relay};

/// So that a case that is lost by accident is missed.
const CASES: usize = 63;

struct Case<'a> {
    head: &'a str,
    text: &'a str,
    want: &'a str,
}

fn cases(golden: &str) -> Vec<Case<'_>> {
    golden
        .split("=== ")
        .skip(1)
        .map(|case| {
            let (head, rest) = case.split_once('\n').expect("a head");
            let (text, want) = rest.split_once("==>\n").unwrap_or_else(|| panic!("{head}: no ==>"));
            Case { head, text, want }
        })
        .collect()
}

fn outcome(case: &Case<'_>) -> String {
    let env = Env::new("app.yaml").runtime_dir("/run/user/1000");
    let no_dir = Env::new("app.yaml");
    let text = case.text.as_bytes();
    let faults = match case.head.split(' ').next() {
        Some("edge") => parse_edge(text, &env).map(drop),
        Some("edge-without-dir") => parse_edge(text, &no_dir).map(drop),
        Some("relay") => parse_relay(text, &env).map(drop),
        _ => panic!("{}: which kind of file?", case.head),
    };
    match faults {
        Ok(()) => "no fault\n".to_owned(),
        Err(faults) => format!("{faults}\n"),
    }
}

#[test]
fn broken_files_give_these_lines() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/broken.txt");
    let golden = std::fs::read_to_string(&path).unwrap();
    let bless = std::env::var_os("HOPLINE_BLESS").is_some();
    let mut blessed = golden.split("=== ").next().unwrap_or_default().to_owned();
    let mut ran = 0;
    for case in cases(&golden) {
        let got = outcome(&case);
        assert_ne!(got, "no fault\n", "{}: the file is not broken", case.head);
        for line in got.lines() {
            assert!(line.chars().count() < 200, "{}: over 200 characters: {line}", case.head);
        }
        if bless {
            blessed += &format!("=== {}\n{}==>\n{got}", case.head, case.text);
        } else {
            assert_eq!(got, case.want, "{}", case.head);
        }
        ran += 1;
    }
    if bless {
        std::fs::write(&path, blessed).unwrap();
    }
    assert_eq!(ran, CASES);
}
