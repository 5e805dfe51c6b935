//! What the fuzz targets do with their bytes, as plain functions: `fuzz/` runs them under libFuzzer, and `corpus.rs`
//! replays what it found.

use std::time::Duration;

use hopline_h2_watch::{Cause, Counters, EndedBy, HintKind, Inspect, Limits, MappingWatch};

use crate::words::*;

/// Bounds that a few bytes can reach.
const LIMITS: Limits = Limits { streams: 4, block_bytes: 200, table_bytes: 300, mapping_bytes: MOST };
/// What a watcher of these bounds may hold, in bytes.
const MOST: usize = 16 << 10;

/// Bytes of one side, and how much time passes before them.
pub(crate) struct Step {
    pub(crate) from_client: bool,
    pub(crate) wait: Duration,
    pub(crate) bytes: Vec<u8>,
}

/// Arbitrary bytes of both sides. Of each piece the first byte says whose it is, its length and the time before it.
pub(crate) fn bytes(data: &[u8]) {
    let Some((how, mut data)) = data.split_first() else { return };
    let mut steps = Vec::new();
    if how & 1 == 0 {
        steps.push(step(true, 0, [PREFACE, &settings(&[])].concat()));
        steps.push(step(false, 0, settings(&[])));
    }
    while let Some((head, rest)) = data.split_first() {
        let (piece, rest) = rest.split_at(rest.len().min(usize::from(head >> 3)));
        let wait_ms = if head & 2 == 0 { 0 } else { 700 };
        steps.push(step(head & 1 == 0, wait_ms, piece.to_vec()));
        data = rest;
    }
    agree(&steps, usize::from(how >> 1));
}

/// A schedule of frames that are mostly right: three bytes for each.
pub(crate) fn frames(data: &[u8]) {
    let Some((how, data)) = data.split_first() else { return };
    agree(&script(data), usize::from(how >> 1));
}

fn step(from_client: bool, wait_ms: u64, bytes: Vec<u8>) -> Step {
    Step { from_client, wait: Duration::from_millis(wait_ms), bytes }
}

/// A conversation, from three bytes for each of its frames: what, which stream, how much.
pub(crate) fn script(data: &[u8]) -> Vec<Step> {
    let mut steps =
        vec![step(true, 0, [PREFACE, &settings(&[])].concat()), step(false, 0, settings(&[(3, 3)]))];
    for three in data.chunks_exact(3) {
        let [what, stream, much] = [three[0], three[1], three[2]];
        let wait_ms = u64::from(what >> 5) * 300;
        let id = 1 + 2 * u32::from(stream % 16);
        let (from_client, bytes) = spoken(what & 0x1f, id, much);
        steps.push(step(from_client, wait_ms, bytes));
    }
    steps
}

fn spoken(what: u8, id: u32, much: u8) -> (bool, Vec<u8>) {
    let large = u32::from(much) * 300;
    let number = much.to_string();
    match what {
        0 => (true, request(id, "")),
        1 => (true, request(id, &format!("{much}m"))),
        2 => (true, request_of(id, "1S", "/run/x.sock", "grpc-java-netty/1")),
        3 => (true, frame(DATA, much & 9, id, &vec![0; usize::from(much)])),
        4 => (true, reset(id, u32::from(much % 14))),
        5 => (true, ping(much & ACK, u64::from(much & 0xf0))),
        6 => (true, window_update(id - 1, large)),
        7 => (true, window_update(id, large)),
        8 => (true, settings(&[(4, large), (1, u32::from(much))])),
        9 => (true, frame(what, 0, id, &[much; 5])),
        10 => (true, frame(HEADERS, much, id, &words_block(much))),
        11 => (true, frame(CONTINUATION, much, id, &words_block(much))),
        12 => (false, response(id)),
        13 => (false, message(id, usize::from(much))),
        14 => (false, frame(DATA, much & 9, id, &vec![0; large as usize])),
        15 => (false, trailers(id, &number, "received message larger than max")),
        16 => (false, headers(id, END_STREAM, &[(":status", &number), ("grpc-status", "14")])),
        17 => (false, reset(id, u32::from(much % 14))),
        18 => (false, ping(ACK, u64::from(much & 0xf0))),
        19 => (false, goaway(id, u32::from(much % 14), "too_many_pings")),
        20 => (false, settings(&[(3, u32::from(much % 5))])),
        21 => (false, frame(HEADERS, much, id, &words_block(much))),
        22 => (false, frame(CONTINUATION, much, id, &words_block(much))),
        23 => (false, frame(5, much, id, &[&[0, 0, 0, 2][..], &words_block(much)].concat())),
        _ => (what & 1 == 0, frame(what, much, id, &vec![much; usize::from(much)])),
    }
}

/// Header fields with entries of the table: literals that are kept, and what is kept before.
fn words_block(much: u8) -> Vec<u8> {
    let mut block = vec![0x40, 11];
    block.extend_from_slice(b"grpc-statusx");
    block[13] = 1;
    block.push(b'0' + much % 10);
    block.extend_from_slice(&[0x80 | much, 0x88]);
    block
}

/// A hint without its times: kind, numbers, count.
type Shown = (HintKind, Vec<(&'static str, u64)>, u64);

/// Everything that can be seen from outside.
#[derive(Debug, PartialEq)]
struct Outcome {
    inspect: Inspect,
    counters: Counters,
    hints: Vec<Shown>,
    explained: Option<Vec<u8>>,
}

/// Plays a conversation whole and in pieces: the same comes out, and in between all bounds hold.
pub(crate) fn agree(steps: &[Step], cut: usize) {
    let whole = play(steps, usize::MAX);
    let cut = play(steps, 1 + cut);
    assert_eq!(whole, cut);
}

fn play(steps: &[Step], cut: usize) -> Outcome {
    let mut talk = Talk::fresh();
    talk.mapping = MappingWatch::new(true, LIMITS, talk.now);
    talk.watcher = talk.mapping.connect(talk.now);
    talk.watcher.set_path_round_trip(Some(Duration::from_millis(20)));
    let mut before = talk.watcher.inspect();
    for step in steps {
        talk.wait(step.wait);
        // Long bodies in single bytes would only take time.
        for piece in step.bytes.chunks(cut.max(step.bytes.len() / 256)) {
            if step.from_client {
                talk.client(piece)
            } else {
                talk.server(piece)
            }
            assert!(talk.watcher.held_bytes() <= MOST, "{}", talk.watcher.held_bytes());
            let inspect = talk.watcher.inspect();
            let gave_up = matches!((before, inspect), (Inspect::H2c, Inspect::GaveUp(_)));
            assert!(inspect == before || before == Inspect::Unknown || gave_up, "{before:?}, {inspect:?}");
            before = inspect;
            if let Some(bytes) = talk.watcher.explain(&CAUSE) {
                check_end(&bytes);
            }
        }
    }
    let explained = talk.watcher.explain(&CAUSE);
    talk.wait_ms(20_000);
    talk.reconnect(EndedBy::Fault);
    talk.wait_ms(60_000);
    let hints = talk.hints().into_iter().map(|hint| (hint.kind, hint.evidence, hint.count)).collect();
    Outcome { inspect: before, counters: talk.counters(), hints, explained }
}

const CAUSE: Cause<'static> = Cause { reason: "conn_lost", hop: 1, between: None, silent: None };

/// Whole frames: settings at most at the beginning, then headers that end their streams, each once, then a GOAWAY.
fn check_end(mut bytes: &[u8]) {
    let mut newest = 0;
    loop {
        let (head, rest) = bytes.split_at(9);
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        bytes = &rest[length..];
        match (head[3], head[4]) {
            (SETTINGS, 0) => assert!(stream == 0 && length == 0 && newest == 0),
            (HEADERS, flags) => {
                assert_eq!(flags, END_STREAM | END_HEADERS);
                assert!(stream > newest);
                newest = stream;
            }
            (GOAWAY, 0) => {
                assert!(bytes.is_empty() && stream == 0);
                return;
            }
            other => panic!("{other:?}"),
        }
    }
}
