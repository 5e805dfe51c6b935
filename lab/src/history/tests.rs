//! Histories that are right, and histories that are wrong in one way each.

use super::*;

const SEED: u32 = 11;

fn report(seed: u32, sent: u64, received: u64) -> Report {
    Report { sent, received, received_sha256: seeded::prefix_sha256(seed, received) }
}

fn side(seed: u32, end: &str, ended_ms: f64, totals: &[(u64, u64)]) -> Side {
    let reports = totals.iter().map(|&(sent, received)| report(seed, sent, received)).collect();
    Side { began_ms: 1_000.0, ended_ms: Some(ended_ms), end: end.to_owned(), reports }
}

fn session() -> Session {
    Session {
        name: "s".to_owned(),
        seed: SEED,
        bytes: 500,
        client: side(SEED + 1, "OK", 2_000.0, &[(200, 100), (500, 500)]),
        server: Some(side(SEED, "returned", 1_990.0, &[(300, 200), (500, 500)])),
    }
}

fn history(session: Session) -> History {
    History { sessions: vec![session], healed_ms: 100_000.0, closed_ms: 170_000.0, ..History::default() }
}

fn injected(line: &str, from_ms: f64, to_ms: f64) -> Injected {
    Injected { step: line.parse().unwrap(), from_ms, to_ms }
}

/// The one thing that is wrong with it.
fn fault(history: &History) -> String {
    let wrong = check(history);
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    wrong[0].clone()
}

#[test]
fn a_clean_session_is_right() {
    assert_eq!(check(&history(session())), [""; 0]);
    assert_eq!(untouched(&history(session())), 1);
}

#[test]
fn a_session_that_was_cut_by_a_fault_is_right() {
    let mut cut = session();
    cut.client = side(SEED + 1, "UNAVAILABLE", 16_000.0, &[(400, 100)]);
    cut.server = Some(side(SEED, "canceled", 15_000.0, &[(300, 200)]));
    let mut history = history(cut);
    history.injected.push(injected("1s for 20s: drop web <-> relay", 1_500.0, 21_500.0));
    history.reasons.push(Reason { at_ms: 16_000.0, reason: "conn_lost".to_owned(), hop: 0 });
    assert_eq!(check(&history), [""; 0]);
    assert_eq!(untouched(&history), 0);
}

#[test]
fn a_clean_end_that_a_client_gave_up_is_no_proof_of_a_cut() {
    let mut given_up = session();
    given_up.client = side(SEED + 1, "CANCELLED", 2_000.0, &[(300, 100)]);
    given_up.server = Some(side(SEED, "returned", 2_010.0, &[(500, 300)]));
    let mut history = history(given_up);
    history.injected.push(injected("1s for 20s: drop web <-> relay", 1_500.0, 21_500.0));
    assert_eq!(check(&history), [""; 0]);
    // A broken connection is no word of the client's.
    history.sessions[0].client.end = "UNAVAILABLE".to_owned();
    assert!(fault(&history).contains("a clean end before all bytes"));
}

#[test]
fn bytes_that_were_not_sent() {
    let mut bad = session();
    bad.client.reports[0].received_sha256 = seeded::prefix_sha256(SEED + 2, 100);
    assert!(fault(&history(bad)).contains("first 100 bytes that the client received are not those"));
}

#[test]
fn a_byte_twice() {
    let mut bad = session();
    // 501 bytes arrived where 500 were sent, of a stream that would go on: only the count tells.
    bad.server = Some(side(SEED, "canceled", 1_990.0, &[(500, 501)]));
    bad.client.end = "UNAVAILABLE".to_owned();
    let mut history = history(bad);
    history.injected.push(injected("1s for 20s: kill relay", 1_500.0, 1_600.0));
    assert!(fault(&history).contains("server received more than was sent"));
}

#[test]
fn a_count_that_goes_back() {
    let mut bad = session();
    bad.client = side(SEED + 1, "OK", 2_000.0, &[(500, 500), (500, 400)]);
    assert!(fault(&history(bad)).contains("count went back"));
}

#[test]
fn a_clean_end_at_the_client_only() {
    let mut bad = session();
    bad.server.as_mut().unwrap().end = "canceled".to_owned();
    assert!(fault(&history(bad)).contains("a clean end at the client, canceled at the server"));
}

#[test]
fn a_clean_end_without_all_bytes() {
    let mut bad = session();
    bad.client = side(SEED + 1, "OK", 2_000.0, &[(500, 400)]);
    assert!(fault(&history(bad)).contains("a clean end without all bytes"));
}

#[test]
fn a_cut_that_looked_like_an_end_to_the_handler() {
    let mut bad = session();
    bad.client = side(SEED + 1, "UNAVAILABLE", 2_000.0, &[(500, 100)]);
    bad.server = Some(side(SEED, "returned", 1_990.0, &[(500, 400)]));
    let mut history = history(bad);
    history.injected.push(injected("1s for 20s: kill relay", 1_500.0, 1_600.0));
    assert!(fault(&history).contains("handler read a clean end before all bytes"));
}

#[test]
fn a_clean_end_of_a_call_that_never_arrived() {
    let mut bad = session();
    bad.server = None;
    bad.client.reports.truncate(0);
    assert!(fault(&history(bad)).contains("no handler has seen"));
}

#[test]
fn a_failure_without_a_fault() {
    let mut bad = session();
    bad.client.end = "UNAVAILABLE".to_owned();
    assert!(fault(&history(bad)).contains("met no fault"));
    // A fault whose aftermath was over, and one that came later, do not excuse it.
    let mut bad = session();
    bad.client.end = "UNAVAILABLE".to_owned();
    let mut history = history(bad);
    history.injected.push(injected("1s for 1s: kill relay", -30_000.0, -29_000.0));
    history.injected.push(injected("1s for 1s: kill relay", 3_000.0, 4_000.0));
    assert!(fault(&history).contains("met no fault"));
}

#[test]
fn a_session_that_waits_for_ever() {
    let mut bad = session();
    bad.server.as_mut().unwrap().ended_ms = None;
    bad.client.end = "UNAVAILABLE".to_owned();
    let mut history = history(bad);
    history.injected.push(injected("1s for 20s: kill relay", 1_500.0, 1_600.0));
    assert!(fault(&history).contains("open at the server 60 s after the healing"));
}

#[test]
fn reasons_must_name_a_fault_that_was_there() {
    let cases = [
        ("1s for 1s: drop web <-> relay", "conn_lost", 0, true),
        ("1s for 1s: drop web <-> relay", "conn_lost", 1, false),
        ("1s for 1s: drop relay <-> db", "conn_lost", 1, true),
        ("1s for 1s: freeze agent", "conn_lost", 1, true),
        ("1s for 1s: freeze agent", "conn_lost", 0, false),
        ("1s for 1s: drain relay", "drain_deadline", 1, true),
        ("1s for 1s: kill relay", "drain_deadline", 1, false),
        ("1s for 1s: kill agent", "offline", 1, true),
        ("1s for 1s: drop web <-> relay", "protocol", 0, false),
    ];
    for (line, reason, hop, right) in cases {
        let mut history = history(session());
        history.injected.push(injected(line, 30_000.0, 31_000.0));
        history.reasons.push(Reason { at_ms: 40_000.0, reason: reason.to_owned(), hop });
        assert_eq!(check(&history).is_empty(), right, "{line} {reason}@{hop}");
    }
    let mut late = history(session());
    late.injected.push(injected("1s for 1s: drop web <-> relay", 30_000.0, 31_000.0));
    late.reasons.push(Reason { at_ms: 60_000.0, reason: "conn_lost".to_owned(), hop: 0 });
    assert!(fault(&late).contains("no such fault was there"));
}

#[test]
fn a_history_survives_its_file() {
    let mut before = history(session());
    before.injected.push(injected("1s for 1s: drop web <-> relay", 30_000.0, 31_000.0));
    let text = serde_json::to_string(&before).unwrap();
    let after: History = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&after).unwrap(), text);
}
