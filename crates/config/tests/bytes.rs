//! No bytes make the reader panic, and whatever it says of them keeps the form of a fault.

use hopline_config::{Env, MAX_FILE_BYTES, parse_edge, parse_relay};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

const EDGE: &str = "\
relay: [relay-a.example:7443, \"[::1]:7443\"]
status: 127.0.0.1:7801
keepalive: nat,timeout=40s
services:
  ledger: { grpc: { tcp: 50051 }, allow: [web-1, \"batch-*\"] }
  audit:
    grpc:
      tcp: 50051
      forward: 'audit.internal:50051'
connect:
  ledger: {}
  audit: { listen: \"unix:/run/a.sock\", open_timeout: 1m 30s, mode: 0660, group: app, outage: 0s }
log: { format: text, level: info }
";

const RELAY: &str = "\
listen: 0.0.0.0:7443
state: /var/lib/hopline
admin: 127.0.0.1:7800
keepalive: fast
answer_timeout: 5s
log: { format: json }
";

/// What is likely to mean something to a YAML reader, or to ours.
const PIECES: [&str; 40] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    ": ",
    "- ",
    "? ",
    "\n",
    "\n  ",
    "\r\n",
    "\t",
    " ",
    "#",
    "&a ",
    "*a",
    "!t ",
    "!!str ",
    "|\n",
    ">-\n",
    "'",
    "\"",
    "\\",
    "---\n",
    "...\n",
    "%YAML 1.2\n",
    "<<: ",
    "~",
    "\0",
    "\u{feff}",
    "\u{85}",
    "\u{2028}",
    "ä",
    "null",
    "connect: ",
    "services: ",
    "listen: ",
    "unix:",
    "0",
];

/// Parses as both kinds; returns how many faults there were.
fn check(bytes: &[u8]) -> usize {
    let env = Env::new("f.yaml").runtime_dir("/run/user/1000");
    let faults = [parse_edge(bytes, &env).err(), parse_relay(bytes, &env).err()];
    let mut count = 0;
    for faults in faults.iter().flatten() {
        assert!(!faults.as_slice().is_empty());
        assert!(faults.as_slice().is_sorted_by_key(|f| (f.line, f.column)));
        let lines = bytes.iter().filter(|b| matches!(b, b'\n' | b'\r')).count() + 1;
        for fault in faults {
            assert!(fault.line >= 1 && fault.line <= lines + 1 && fault.column >= 1, "{fault:?}");
            let text = fault.to_string();
            assert!(text.chars().count() < 200 && !text.contains(char::is_control), "{text:?}");
            assert!(!text.contains("can't be read"), "no config and no reason: {text:?}");
            count += 1;
        }
    }
    count
}

fn mutated(text: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let edit = (any::<prop::sample::Index>(), 0_usize..4, prop::sample::select(PIECES.to_vec()));
    prop::collection::vec(edit, 1..6).prop_map(move |edits| {
        let mut bytes = text.as_bytes().to_vec();
        for (index, cut, piece) in edits {
            let at = index.index(bytes.len() + 1);
            let end = (at + cut).min(bytes.len());
            bytes.splice(at..end, piece.bytes());
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        check(&bytes);
    }

    #[test]
    fn arbitrary_pieces(pieces in prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..60)) {
        check(pieces.concat().as_bytes());
    }

    #[test]
    fn mutated_files(bytes in prop_oneof![mutated(EDGE), mutated(RELAY)]) {
        check(&bytes);
    }
}

#[test]
fn the_files_that_are_mutated_are_good() {
    let env = Env::new("f.yaml").runtime_dir("/run/user/1000");
    parse_edge(EDGE.as_bytes(), &env).unwrap();
    parse_relay(RELAY.as_bytes(), &env).unwrap();
}

#[test]
fn files_made_to_cost_a_lot_are_refused() {
    let aliases = (1..40).fold("a0: &a0 x\n".to_owned(), |text, i| {
        let line = format!("*a{}, ", i - 1).repeat(10);
        text + &format!("a{i}: &a{i} [{line}]\n")
    });
    let mut ran = 0;
    for piece in [
        "[",
        "{",
        "[[]",
        "{a: ",
        "- ",
        "? ",
        "- - ",
        "a: ",
        "a:\n",
        "[,",
        "[a,",
        "{a,",
        "{a: b, ",
        "'",
        "\"\\",
        "&a ",
        "*a ",
        "!a ",
        "|\n",
        ">\n ",
        "#\n",
        "---\n",
        "--- a\n",
        "\n",
        " ",
        "\t",
        "\r",
        "\u{feff}",
        "a",
        "aa: 1\n",
        "%TAG ! a\n",
        "- &a *a\n",
        "[]: ",
        "? [\n",
        "a b\n",
        "\u{2028}",
    ] {
        let text = piece.repeat(MAX_FILE_BYTES / piece.len());
        assert!(check(text.as_bytes()) > 0, "{piece:?}");
        // Deep, and well formed.
        if let Some(close) = match piece {
            "[" => Some("]"),
            "{a: " => Some("}"),
            _ => None,
        } {
            check(format!("connect: {}{}", piece.repeat(200_000), close.repeat(200_000)).as_bytes());
        }
        ran += 1;
    }
    assert_eq!(ran, 36);
    assert!(check(aliases.as_bytes()) > 0);
}
