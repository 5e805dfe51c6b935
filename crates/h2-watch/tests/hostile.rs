//! What two hostile ends can make a watcher hold: by its own count, and by the process's memory.

#[expect(dead_code, reason = "shared with the other tests")]
mod words;

use hopline_h2_watch::{EndedBy, GaveUp, Inspect, Limits, MappingWatch, Watcher};
use words::*;

/// What one connection may cost: streams, two blocks that are incomplete, two tables.
const MOST: usize = 640 << 10;
const CONNECTIONS: usize = 40;

/// Fills everything that can be filled: 2,000 open streams with stalls, both tables, both unfinished blocks.
fn worst(watcher: &mut Watcher, now: std::time::Instant) {
    watcher.handle_from_client(&[PREFACE, &settings(&[(4, 1)])].concat(), now);
    watcher.handle_from_server(&settings(&[]), now);
    // A table of 64 KiB with as many entries as it can hold, made of empty fields.
    let mut table = vec![0x3f, 0xe1, 0xff, 3];
    for _ in 0..3_000 {
        table.extend_from_slice(&[0x40, 0, 0]);
    }
    watcher.handle_from_client(&frame(HEADERS, END_HEADERS, 1, &table), now);
    watcher.handle_from_server(&frame(HEADERS, END_HEADERS, 1, &table), now);
    let mut most = 0;
    for stream in 0..2_000 {
        let id = 3 + 2 * stream;
        watcher.handle_from_client(&request(id, "1S"), now);
        watcher.handle_from_server(&frame(DATA, 0, id, &[0; 2]), now);
        most = most.max(watcher.held_bytes());
    }
    let flood =
        [frame(HEADERS, 0, 300_001, &[0x82; 30_000]), frame(CONTINUATION, 0, 300_001, &[0x82; 35_000])];
    watcher.handle_from_client(&flood.concat(), now);
    watcher.handle_from_server(&flood.concat(), now);
    for _ in 0..1_000 {
        watcher.handle_from_client(&frame(CONTINUATION, 0, 300_001, &[]), now);
    }
    assert_eq!(watcher.inspect(), Inspect::H2c);
    assert!(most.max(watcher.held_bytes()) <= MOST, "{most}, {}", watcher.held_bytes());
}

/// Bytes of memory that the process has.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("Linux tells the number of resident pages") * 4_096
}

#[test]
fn the_worst_that_one_connection_holds() {
    let now = now();
    // One first, so that the buffers of the test are there before anything is measured.
    let mut warm = Watcher::new(&Limits::default(), now);
    worst(&mut warm, now);
    let before = resident();
    let watchers: Vec<Watcher> = (0..CONNECTIONS)
        .map(|_| {
            let mut watcher = Watcher::new(&Limits::default(), now);
            worst(&mut watcher, now);
            watcher
        })
        .collect();
    let each = resident().saturating_sub(before) / CONNECTIONS;
    let counted = watchers[0].held_bytes();
    println!("held by its own count {counted} bytes, by the process {each} bytes for each");
    assert!(each <= MOST, "{each}");
    assert!(counted * 4 >= each * 3, "the count is honest: {counted} and {each}");
}

#[test]
fn a_flood_of_continuations_ends_the_watching() {
    let mut talk = Talk::begin();
    talk.client(&frame(HEADERS, 0, 1, &[]));
    let piece = frame(CONTINUATION, 0, 1, &[0; 1_024]);
    for _ in 0..65 {
        talk.client(&piece);
    }
    assert_eq!(talk.watcher.inspect(), Inspect::GaveUp(GaveUp::HeaderBlock));
    assert!(talk.watcher.held_bytes() < 4_096, "everything is let go: {}", talk.watcher.held_bytes());
}

#[test]
fn all_connections_of_a_mapping_together() {
    let now = now();
    let limits = Limits { mapping_bytes: 3 << 20, ..Limits::default() };
    let mut mapping = MappingWatch::new(true, limits, now);
    let mut watchers: Vec<Watcher> = (0..10).map(|_| mapping.connect(now)).collect();
    for watcher in &mut watchers {
        worst(watcher, now);
        mapping.fold(watcher, now);
    }
    let held: usize = watchers.iter().map(Watcher::held_bytes).sum();
    assert!(held <= 3 << 20, "{held}");
    let gave_up = mapping.inspected().gave_up[GaveUp::Memory as usize];
    assert_eq!(gave_up, 5, "five of them fit");
    for watcher in &mut watchers {
        watcher.close(EndedBy::Fault, now);
        mapping.fold(watcher, now);
    }
    let mut another = mapping.connect(now);
    worst(&mut another, now);
    mapping.fold(&mut another, now);
    assert_eq!(another.inspect(), Inspect::H2c, "closed ones make room");
}

#[test]
fn an_opaque_connection_holds_nothing() {
    let mut talk = Talk::fresh();
    talk.client(b"\x16\x03\x01");
    assert!(talk.watcher.held_bytes() < 4_096, "{}", talk.watcher.held_bytes());
    let mut off = Watcher::off();
    off.handle_from_client(PREFACE, talk.now);
    assert!(off.held_bytes() < 4_096);
}
