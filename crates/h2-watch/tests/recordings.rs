//! Real clients and servers, recorded byte for byte with their times, replayed in virtual time.
//!
//! Made with a proxy between grpc-go 1.85.0 as the server (receive limit 4,096 bytes) and grpc-go 1.85.0, grpcio
//! 1.85.3, grpc-js 1.14.7 and tonic 0.14.9 as clients; the window of `go-unread` is fixed at 65,535: it would grow to
//! hold all that was sent; `python-authority` is grpcio on a unix socket and tonic as the
//! server. A record is a direction (`C` or `S`), microseconds since the beginning, a length, and the bytes in turns:
//! two bytes of length and literal bytes, four bytes of a count of zeros. A record of no bytes is the end.

#[expect(dead_code, reason = "shared with the other tests")]
mod words;

use std::path::PathBuf;
use std::time::Duration;

use hopline_h2_watch::{EndedBy, HintKind, Inspect};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use words::Talk;

struct Record {
    from_client: bool,
    at: Duration,
    bytes: Vec<u8>,
}

fn number(data: &mut &[u8], bytes: usize) -> u32 {
    let (taken, rest) = data.split_at(bytes);
    *data = rest;
    taken.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn read(name: &str) -> Vec<Record> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recordings").join(format!("{name}.bin"));
    let file = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (mut data, mut records) = (file.as_slice(), Vec::new());
    while !data.is_empty() {
        let from_client = number(&mut data, 1) == u32::from(b'C');
        let at = Duration::from_micros(number(&mut data, 4).into());
        let length = number(&mut data, 4) as usize;
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let literal = number(&mut data, 2) as usize;
            bytes.extend_from_slice(&data[..literal]);
            data = &data[literal..];
            let zeros = number(&mut data, 4) as usize;
            bytes.resize(bytes.len() + zeros, 0);
        }
        records.push(Record { from_client, at, bytes });
    }
    assert!(records.len() > 5, "{name}");
    records
}

/// Plays a recording into the talk's connection, with each record cut by `cut`.
fn play(talk: &mut Talk, name: &str, mut cut: impl FnMut(usize) -> usize) {
    let began = talk.now;
    for record in read(name) {
        talk.wait((began + record.at).duration_since(talk.now));
        let mut bytes = record.bytes.as_slice();
        if bytes.is_empty() {
            let by = if record.from_client { EndedBy::Application } else { EndedBy::Server };
            talk.reconnect(by);
            return;
        }
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(cut(bytes.len()).clamp(1, bytes.len()));
            if record.from_client {
                talk.client(piece)
            } else {
                talk.server(piece)
            }
            bytes = rest;
        }
        // Servers of grpc-go speak first.
        let inspect = talk.watcher.inspect();
        assert!(inspect == Inspect::H2c || !record.from_client && inspect == Inspect::Unknown, "{name}");
    }
    panic!("{name}: no end");
}

fn played(name: &str) -> Talk {
    let mut talk = Talk::fresh();
    play(&mut talk, name, |whole| whole);
    talk
}

const ALL: [&str; 18] = [
    "go-calls",
    "go-keepalive",
    "go-limit",
    "go-percall",
    "go-percall-1",
    "go-percall-2",
    "go-percall-3",
    "go-percall-4",
    "go-percall-5",
    "go-storm",
    "go-unread",
    "node-calls",
    "node-keepalive",
    "python-authority",
    "python-calls",
    "python-keepalive",
    "tonic-calls",
    "tonic-keepalive",
];

/// The list above is what the folder holds.
#[test]
fn no_recording_is_left_out() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    assert_eq!(names, ALL);
}

/// Six calls of which one has no deadline, a deadline that passes, three failures, a cancelled stream, a burst.
#[test]
fn the_same_calls_in_four_languages() {
    for (client, setting) in [
        ("go", "grpc-go: ctx, cancel := "),
        ("python", "grpcio: stub.Get(request, timeout=2)"),
        ("node", "grpc-js: client.get(request, { deadline: "),
        ("tonic", "tonic: request.set_timeout("),
    ] {
        let mut talk = played(&format!("{client}-calls"));
        let counters = talk.counters();
        assert_eq!(counters.calls, 12, "{client}");
        let ended: Vec<_> = talk.ended();
        let expected = [
            ("OK", 7),
            ("CANCELLED", 1),
            ("DEADLINE_EXCEEDED", 1),
            ("RESOURCE_EXHAUSTED", 1),
            ("UNIMPLEMENTED", 1),
            ("UNAVAILABLE", 1),
        ];
        assert_eq!(ended, expected, "{client}");
        assert_eq!(counters.deadline_left.total(), 10, "{client}");
        let hints = talk.hints();
        let kinds: Vec<_> = hints.iter().map(|hint| hint.kind).collect();
        assert_eq!(kinds, [HintKind::NoDeadline, HintKind::MessageTooLarge], "{client}");
        assert_eq!(hints[0].evidence, [("calls", 12), ("calls_without_deadline", 2)], "{client}");
        assert!(hints[0].message.contains(setting), "{client}: {}", hints[0].message);
        assert_eq!(hints[1].evidence, [("calls", 12), ("calls_refused", 1)], "{client}");
    }
}

/// A keepalive of 10 s against the default server of grpc-go; the stream has no deadline.
#[test]
fn the_same_keepalive_in_four_languages() {
    for (client, idle_pings) in [("go", 2), ("python", 1), ("node", 3), ("tonic", 3)] {
        let mut talk = played(&format!("{client}-keepalive"));
        let hints = talk.hints();
        assert_eq!(hints[0].kind, HintKind::ClientKeepalive, "{client}");
        let numbers = [("idle_pings_under_15s", idle_pings), ("too_many_pings_goaway", 1)];
        assert_eq!(hints[0].evidence, numbers, "{client}");
        assert_eq!(hints[1].kind, HintKind::NoDeadline, "{client}");
        assert_eq!(hints.len(), 2, "{client}");
        assert_eq!(talk.ended(), [("UNAVAILABLE", 1)], "{client}");
    }
}

#[test]
fn a_stream_that_was_not_read() {
    let mut talk = played("go-unread");
    let hint = talk.only(HintKind::AppNotReading);
    let [("stalls_over_5s", 1), ("longest_stall_ms", longest)] = hint.evidence[..] else {
        panic!("{:?}", hint.evidence)
    };
    assert!((6_400..6_600).contains(&longest), "{longest}");
    assert_eq!(talk.ended(), [("OK", 1)]);
}

/// Six calls of a second, two at a time.
#[test]
fn calls_that_waited_for_a_stream() {
    let mut talk = played("go-limit");
    let hint = talk.only(HintKind::StreamLimit);
    assert_eq!(hint.evidence[..2], [("limit", 2), ("calls_that_waited", 4)]);
    assert!((2_900..3_100).contains(&hint.evidence[2].1), "{:?}", hint.evidence);
}

#[test]
fn a_channel_for_each_call() {
    let mut talk = Talk::fresh();
    for name in ALL.into_iter().filter(|name| name.starts_with("go-percall")) {
        play(&mut talk, name, |whole| whole);
    }
    talk.wait(Duration::from_secs(60));
    let hint = talk.only(HintKind::ConnectionPerCall);
    assert_eq!(hint.evidence, [("connections", 6), ("connections_with_one_call", 6)]);
}

#[test]
fn forty_calls_that_fail() {
    let mut talk = played("go-storm");
    talk.wait(Duration::from_secs(10));
    let hint = talk.only(HintKind::RetryStorm);
    assert_eq!(hint.evidence[0], ("calls_failed", 40));
    assert!(hint.evidence[1].1 >= 38, "{:?}", hint.evidence);
}

#[test]
fn a_unix_sockets_path_as_authority() {
    let mut talk = played("python-authority");
    let hint = talk.only(HintKind::AuthorityIsPath);
    assert_eq!(hint.evidence, [("calls", 2), ("calls_with_a_path", 2), ("calls_refused", 2)]);
    assert!(hint.message.contains("(\"grpc.default_authority\", \"localhost\")"), "{}", hint.message);
}

/// What is counted depends on the bytes and the times, not on how they were cut.
#[test]
fn cuts_change_nothing() {
    for name in ALL {
        let mut whole = played(name);
        let (hints, counters) = (whole.hints(), whole.counters());
        let shown: Vec<_> = hints.into_iter().map(|hint| (hint.kind, hint.evidence, hint.message)).collect();
        for seed in 0..8 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut talk = Talk::fresh();
            play(&mut talk, name, |left| match seed {
                0 => 1,
                1..4 => rng.random_range(1..=left.min(12)),
                _ => rng.random_range(1..=left),
            });
            assert_eq!(talk.counters(), counters, "{name}, seed {seed}");
            let again: Vec<_> =
                talk.hints().into_iter().map(|hint| (hint.kind, hint.evidence, hint.message)).collect();
            assert_eq!(again, shown, "{name}, seed {seed}");
        }
    }
}
