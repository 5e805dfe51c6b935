//! What a watcher sees of calls, whatever else a connection carries.

#[expect(dead_code, reason = "shared with the other tests")]
mod words;

use std::time::Duration;

use hopline_h2_watch::{EndedBy, GaveUp, Inspect, Limits, MappingWatch, Status, Watcher};
use words::*;

#[test]
fn decides_once_on_the_preface() {
    let cases: [(&[u8], Inspect); 6] = [
        (PREFACE, Inspect::H2c),
        (&PREFACE[..23], Inspect::Unknown),
        (b"\x16\x03\x01\x02\x00", Inspect::Tls),
        (b"GET / HTTP/1.1\r\n", Inspect::Other),
        (b"PRI * HTTP/1.1", Inspect::Other),
        (b"", Inspect::Unknown),
    ];
    for (bytes, expected) in cases {
        for cut in 1..=bytes.len().max(1) {
            let mut talk = Talk::fresh();
            bytes.chunks(cut).for_each(|piece| talk.client(piece));
            assert_eq!(talk.watcher.inspect(), expected, "{bytes:?} in pieces of {cut}");
        }
    }
}

#[test]
fn what_was_decided_stays() {
    let mut talk = Talk::fresh();
    talk.client(b"GET /");
    talk.client(PREFACE);
    talk.server(&settings(&[]));
    assert_eq!(talk.watcher.inspect(), Inspect::Other);
    let mut off = Watcher::off();
    off.handle_from_client(PREFACE, talk.now);
    assert_eq!(off.inspect(), Inspect::Off);
    assert_eq!(off.inspect().name(), "off");
    assert!(!MappingWatch::new(false, Limits::default(), talk.now).connect(talk.now).has_news());
}

#[test]
fn a_server_may_speak_first() {
    let mut talk = Talk::fresh();
    talk.server(&settings(&[(3, 100)]));
    assert_eq!(talk.watcher.inspect(), Inspect::Unknown);
    talk.client(&[PREFACE, &settings(&[])].concat());
    talk.call(1, "1S", 5, "0");
    assert_eq!(talk.ended(), [("OK", 1)]);

    let mut mail = Talk::fresh();
    mail.server(b"220 mail.example ESMTP\r\n");
    assert_eq!(mail.watcher.inspect(), Inspect::Other);
    let mut wrong = Talk::fresh();
    wrong.client(PREFACE);
    wrong.server(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    assert_eq!(wrong.watcher.inspect(), Inspect::GaveUp(GaveUp::Server));
}

#[test]
fn calls_by_status() {
    let mut talk = Talk::begin();
    talk.call(1, "1S", 5, "0");
    talk.call(3, "1S", 5, "5");
    talk.call(5, "1S", 5, "99");
    talk.call(7, "1S", 5, "x");
    // Trailers only.
    talk.client(&request(9, "1S"));
    talk.server(&headers(9, END_STREAM, &[(":status", "200"), ("grpc-status", "12")]));
    // An informational response before the real one.
    talk.client(&request(11, "1S"));
    talk.server(&headers(11, 0, &[(":status", "103")]));
    talk.server(&[response(11), trailers(11, "0", "")].concat());
    // Resets of the server, and a proxy's answer.
    for (stream, code) in [(13, 7), (15, 8), (17, 11), (19, 2)] {
        talk.client(&request(stream, "1S"));
        talk.server(&reset(stream, code));
    }
    talk.client(&request(21, "1S"));
    talk.server(&headers(21, END_STREAM, &[(":status", "503")]));
    talk.client(&request(23, "1S"));
    talk.server(&[headers(23, 0, &[(":status", "404")]), frame(DATA, END_STREAM, 23, b"no")].concat());
    let expected = [
        ("OK", 2),
        ("CANCELLED", 1),
        ("NOT_FOUND", 1),
        ("RESOURCE_EXHAUSTED", 1),
        ("UNIMPLEMENTED", 2),
        ("INTERNAL", 1),
        ("UNAVAILABLE", 2),
        ("other", 2),
    ];
    assert_eq!(talk.ended(), expected);
    let counters = talk.counters();
    assert_eq!((counters.calls, counters.duration.total()), (12, 12));
    assert_eq!(counters.deadline_left.total(), 12);
    assert_eq!(talk.watcher.inspect(), Inspect::H2c);
}

#[test]
fn a_deadline_is_told_from_a_cancellation() {
    let mut talk = Talk::begin();
    talk.client(&request(1, "1000m"));
    talk.wait_ms(998);
    talk.client(&reset(1, 8));
    talk.client(&request(3, "1000m"));
    talk.wait_ms(500);
    talk.client(&reset(3, 8));
    talk.server(&response(3));
    assert_eq!(talk.ended(), [("CANCELLED", 1), ("DEADLINE_EXCEEDED", 1)]);
    assert_eq!(talk.counters().deadline_left.sum(), Duration::from_millis(502));
}

#[test]
fn open_calls_end_with_their_connection() {
    for (by, status) in [
        (EndedBy::Application, "CANCELLED"),
        (EndedBy::Server, "UNAVAILABLE"),
        (EndedBy::Fault, "UNAVAILABLE"),
    ] {
        let mut talk = Talk::begin();
        talk.client(&request(1, "1S"));
        talk.watcher.close(by, talk.now);
        talk.watcher.close(by, talk.now);
        assert_eq!(talk.ended(), [(status, 1)]);
    }
}

#[test]
fn what_else_a_connection_may_carry() {
    let mut talk = Talk::fresh();
    let huge: Vec<(u16, u32)> = (0..3_000).map(|id| (0x4000 + id, 7)).collect();
    talk.client(&[PREFACE, &settings(&huge), &window_update(0, 1 << 20)].concat());
    talk.server(&settings(&huge));
    // A priority frame, an extension, a header block with priority and padding in four pieces.
    talk.client(&frame(2, 0, 1, &[0, 0, 0, 0, 16]));
    talk.client(&frame(0xfa, 0xff, 77, &[1; 300]));
    let block = block(&[(":path", "/a/B"), ("content-type", "application/grpc"), ("grpc-timeout", "1S")]);
    let (first, rest) = block.split_at(7);
    let mut payload = vec![4, 0x80, 0, 0, 0, 16];
    payload.extend_from_slice(first);
    payload.extend_from_slice(&[0; 4]);
    talk.client(&frame(HEADERS, 0x8 | 0x20, 1, &payload));
    talk.client(&frame(CONTINUATION, 0, 1, &rest[..3]));
    talk.client(&frame(CONTINUATION, 0, 1, &[]));
    talk.client(&frame(CONTINUATION, END_HEADERS, 1, &rest[3..]));
    // Padded data both ways, trailers of the client, a promise of the server.
    talk.client(&frame(DATA, 0x8, 1, &[3, 9, 9, 0, 0, 0]));
    talk.client(&headers(1, END_STREAM, &[("x", "y")]));
    let promise = [&[0, 0, 0, 2][..], &words::block(&[(":path", "/p")])].concat();
    talk.server(&frame(5, END_HEADERS, 1, &promise));
    talk.server(
        &[response(1), frame(DATA, 0x8, 1, &[2, 0, 0, 0, 0, 0, 0, 0]), trailers(1, "0", "")].concat(),
    );
    assert_eq!(talk.watcher.inspect(), Inspect::H2c);
    assert_eq!(talk.ended(), [("OK", 1)]);
    assert_eq!(talk.counters().deadline_left.total(), 1);
}

#[test]
fn requests_that_are_no_calls() {
    let mut talk = Talk::begin();
    talk.client(&headers(1, END_STREAM, &[(":method", "GET"), (":path", "/")]));
    talk.server(&headers(1, END_STREAM, &[(":status", "200")]));
    let counters = talk.counters();
    assert_eq!((counters.calls, counters.other_requests), (0, 1));
    assert_eq!(talk.ended(), []);
    assert_eq!(talk.hints(), []);
}

#[test]
fn giving_up_is_for_good_and_counted() {
    let cases: [(&str, Vec<u8>, GaveUp); 10] = [
        ("a PING of 7 bytes", frame(PING, 0, 0, &[0; 7]), GaveUp::Framing),
        ("headers on stream 0", headers(0, 0, &[]), GaveUp::Framing),
        ("more padding than frame", frame(DATA, 0x8, 1, &[9, 0]), GaveUp::Framing),
        ("one byte more of padding than frame", frame(DATA, 0x8, 1, &[1]), GaveUp::Framing),
        ("a padded frame without a byte", frame(DATA, 0x8, 1, &[]), GaveUp::Framing),
        ("a continuation of nothing", frame(CONTINUATION, 4, 1, &[]), GaveUp::Framing),
        (
            "a header block that is interrupted",
            [frame(HEADERS, 0, 1, &[]), ping(0, 0)].concat(),
            GaveUp::Framing,
        ),
        ("an index that is in no table", frame(HEADERS, END_HEADERS, 1, &[0xff, 0x7f]), GaveUp::Hpack),
        (
            "a table of 64 KiB and 1",
            frame(HEADERS, END_HEADERS, 1, &[0x3f, 0xe2, 0xff, 3]),
            GaveUp::HeaderTable,
        ),
        ("a block of 64 KiB and 1", frame(HEADERS, END_HEADERS, 1, &vec![0x82; 65_537]), GaveUp::HeaderBlock),
    ];
    for (what, bytes, reason) in cases {
        let mut talk = Talk::begin();
        talk.call(1, "1S", 5, "0");
        talk.client(&bytes);
        assert_eq!(talk.watcher.inspect(), Inspect::GaveUp(reason), "{what}");
        talk.call(3, "1S", 5, "0");
        assert_eq!(talk.ended(), [("OK", 1)], "{what}: what was counted before stays, nothing is added");
        let inspected = talk.mapping.inspected();
        assert_eq!((inspected.h2c, inspected.gave_up.iter().sum::<u64>()), (1, 1), "{what}");
        assert_eq!(inspected.gave_up[reason as usize], 1, "{what}");
        assert_eq!(talk.watcher.poll_timeout(), None);
        assert!(talk.watcher.held_bytes() < 4_096, "{what}: {}", talk.watcher.held_bytes());
    }
}

#[test]
fn a_table_of_64_kib_is_followed() {
    let mut talk = Talk::begin();
    let mut block = vec![0x3f, 0xe1, 0xff, 3];
    block.extend_from_slice(&words::block(&[("content-type", "application/grpc")]));
    talk.client(&frame(HEADERS, END_HEADERS, 1, &block));
    assert_eq!(talk.watcher.inspect(), Inspect::H2c);
    assert_eq!(talk.counters().calls, 1);
}

#[test]
fn the_oldest_streams_are_forgotten_and_counted() {
    let mut talk = Talk::fresh();
    let limits = Limits { streams: 4, ..Limits::default() };
    talk.mapping = MappingWatch::new(true, limits, talk.now);
    talk.watcher = talk.mapping.connect(talk.now);
    talk.hello();
    for stream in [1, 3, 5, 7, 9, 11] {
        talk.client(&request(stream, "1S"));
    }
    for stream in [1, 3, 5, 7, 9, 11] {
        talk.server(&headers(stream, END_STREAM, &[(":status", "200"), ("grpc-status", "0")]));
    }
    assert_eq!(talk.counters().streams_forgotten, 2);
    assert_eq!(talk.ended(), [("OK", 4)]);
}

#[test]
fn statuses_have_their_names() {
    let names: Vec<_> = Status::all().map(Status::name).collect();
    assert_eq!(names.len(), Status::COUNT);
    assert_eq!((names[0], names[14], names[17]), ("OK", "UNAVAILABLE", "other"));
}
