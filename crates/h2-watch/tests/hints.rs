//! Each hint: when it shows, with which numbers, when it goes away, and that healthy traffic is met with silence.

#[expect(dead_code, reason = "shared with the other tests")]
mod words;

use std::time::Duration;

use hopline_h2_watch::{EndedBy, HintKind, QUIET};
use words::*;

const NOTHING: [HintKind; 0] = [];

#[test]
fn a_healthy_application_hears_nothing() {
    let mut talk = Talk::begin();
    // An application that reads: its windows are given back, PINGs of a client that measures its path follow data.
    for round in 0..2_000_u32 {
        let stream = 1 + 2 * round;
        talk.client(&request(stream, "2S"));
        talk.client(&frame(DATA, END_STREAM, stream, &[0; 5]));
        talk.wait_ms(30);
        talk.server(&[response(stream), message(stream, 60_000)].concat());
        talk.client(&[ping(0, 2), window_update(0, 60_005), window_update(stream, 60_005)].concat());
        talk.wait_ms(20);
        let status = if round % 10 == 0 { "5" } else { "0" };
        talk.server(&[ping(ACK, 2), trailers(stream, status, "")].concat());
        talk.wait_ms(5);
    }
    assert_eq!(talk.hints(), []);
    // An idle stream, a keepalive each 5 minutes, and its end.
    talk.client(&request(4_001, "3H"));
    talk.server(&[response(4_001), message(4_001, 10)].concat());
    for minute in 0..30 {
        talk.wait_ms(60_000);
        if minute % 5 == 4 {
            talk.client(&ping(0, minute));
            talk.server(&ping(ACK, minute));
        }
    }
    talk.client(&reset(4_001, 8));
    talk.reconnect(EndedBy::Application);
    assert_eq!(talk.hints(), []);
    assert!(talk.mapping.raised().all(|(_, count)| count == 0));
}

/// The article's run: PINGs at 10, 20 and 30 s, and the GOAWAY.
#[test]
fn keepalive_that_draws_a_goaway() {
    let mut talk = Talk::begin();
    talk.client(&request(1, "1H"));
    talk.server(&[response(1), message(1, 10)].concat());
    // The PING with which grpc-go measures the path.
    talk.client(&ping(0, 0x0204));
    talk.server(&ping(ACK, 0x0204));
    for _ in 0..3 {
        // One PING is none too many: from the second on there is something to say.
        let pinged = talk.now.duration_since(talk.began).as_secs() / 10;
        assert_eq!(talk.kinds().len(), usize::from(pinged >= 2));
        talk.wait_ms(10_000);
        talk.client(&ping(0, 0));
        talk.server(&ping(ACK, 0));
    }
    talk.server(&goaway(1, 11, "too_many_pings"));
    let hint = talk.only(HintKind::ClientKeepalive);
    assert_eq!(hint.evidence, [("idle_pings_under_15s", 2), ("too_many_pings_goaway", 1)]);
    assert!(hint.message.contains("grpc-go: remove grpc.WithKeepaliveParams(...)"), "{}", hint.message);
    assert!(hint.message.contains("5 min"), "{}", hint.message);
    assert_eq!(hint.count, 1);
    assert_eq!(hint.last_seen, talk.now);
    talk.reconnect(EndedBy::Server);
    talk.wait(QUIET - Duration::from_secs(1));
    talk.only(HintKind::ClientKeepalive);
    talk.wait_ms(1_000);
    assert_eq!(talk.kinds(), NOTHING);
    assert_eq!(talk.mapping.raised().map(|(_, count)| count).sum::<u64>(), 1);
}

#[test]
fn keepalive_of_a_minute_is_known_by_its_goaway_alone() {
    let mut talk = Talk::begin();
    talk.client(&request(1, "1H"));
    for _ in 0..3 {
        talk.wait_ms(60_000);
        talk.client(&ping(0, 0));
        assert_eq!(talk.kinds(), NOTHING);
    }
    talk.server(&goaway(1, 11, "too_many_pings"));
    let hint = talk.only(HintKind::ClientKeepalive);
    assert_eq!(hint.evidence, [("idle_pings_under_15s", 0), ("too_many_pings_goaway", 1)]);
}

/// grpcio: two PINGs, then one a minute; a server that permits it.
#[test]
fn keepalive_that_no_server_objects_to() {
    let mut talk = Talk::begin();
    talk.client(&request_of(1, "1H", "localhost", "grpc-python/1.85.3 grpc-c/58.0.0 (linux; chttp2)"));
    talk.server(&response(1));
    for gap in [10, 10, 60, 60] {
        talk.wait(Duration::from_secs(gap));
        talk.client(&ping(0, 0));
        talk.server(&ping(ACK, 0));
    }
    let hint = talk.only(HintKind::ClientKeepalive);
    assert_eq!(hint.evidence, [("idle_pings_under_15s", 1), ("too_many_pings_goaway", 0)]);
    assert!(hint.message.contains("has not objected"), "{}", hint.message);
    assert!(hint.message.contains("grpc.http2.ping_timeout_ms"), "{}", hint.message);
}

/// Calls in between: the connection is not idle, whatever the PINGs.
#[test]
fn pings_of_a_connection_in_use() {
    let mut talk = Talk::begin();
    for call in 0..20 {
        talk.wait_ms(5_000);
        talk.client(&ping(0, 0));
        talk.server(&ping(ACK, 0));
        talk.wait_ms(4_000);
        talk.call(1 + 2 * call, "1S", 5, "0");
    }
    assert_eq!(talk.kinds(), NOTHING);
}

#[test]
fn calls_without_a_deadline() {
    let mut talk = Talk::begin();
    talk.call(1, "1S", 5, "0");
    talk.call(3, "", 5, "0");
    let hint = talk.only(HintKind::NoDeadline);
    assert_eq!(hint.evidence, [("calls", 2), ("calls_without_deadline", 1)]);
    assert!(hint.message.contains("grpc-go: ctx, cancel := context.WithTimeout"), "{}", hint.message);
    for call in 0..99 {
        talk.call(5 + 2 * call, "1S", 5, "0");
    }
    talk.only(HintKind::NoDeadline);
    talk.call(203, "1S", 5, "0");
    assert_eq!(talk.kinds(), NOTHING);
    // What tools do is not meant.
    let watch = [(":path", "/grpc.health.v1.Health/Watch"), ("content-type", "application/grpc")];
    talk.client(&headers(205, 0, &watch));
    assert_eq!(talk.kinds(), NOTHING);
}

#[test]
fn a_connection_for_each_call() {
    let mut talk = Talk::begin();
    for _ in 0..6 {
        talk.call(1, "1S", 5, "0");
        talk.reconnect(EndedBy::Application);
        talk.hello();
        talk.wait_ms(1_000);
    }
    assert_eq!(talk.kinds(), NOTHING, "judged when a minute is over");
    talk.wait_ms(60_000);
    let hint = talk.only(HintKind::ConnectionPerCall);
    assert_eq!(hint.evidence, [("connections", 6), ("connections_with_one_call", 6)]);
    assert!(hint.message.contains("grpc-go: keep the *grpc.ClientConn"), "{}", hint.message);
    for _ in 0..10 {
        talk.call(1, "1S", 5, "0");
        talk.call(3, "1S", 5, "0");
        talk.reconnect(EndedBy::Application);
        talk.hello();
    }
    assert_eq!(talk.kinds(), NOTHING, "ten that are reused");
    // A job that runs each minute.
    for _ in 0..30 {
        talk.call(1, "1S", 5, "0");
        talk.reconnect(EndedBy::Application);
        talk.hello();
        talk.wait_ms(60_000);
    }
    assert_eq!(talk.kinds(), NOTHING);
}

/// What a checker or a debugging tool asks, as it would ask it.
fn check(stream: u32, path: &str) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":path", path),
        (":authority", "/run/hopline/ledger.sock"),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.85.0"),
    ];
    headers(stream, 0, &fields)
}

/// Every service that tools ask, with its versions.
const CHECKS: [&str; 5] = [
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v2.ServerReflection/ServerReflectionInfo",
];

/// One check on a connection of its own each 8 s, as grpc_health_probe and kubelet make it; `beside` runs meanwhile.
fn check_each_8_s(mut beside: impl FnMut(&mut Talk, u32)) -> Talk {
    let mut talk = Talk::begin();
    for round in 0..45 {
        let path = CHECKS[round as usize % CHECKS.len()];
        talk.client(&check(1, path));
        talk.server(&[response(1), message(1, 2), trailers(1, "0", "")].concat());
        talk.reconnect(EndedBy::Application);
        talk.hello();
        beside(&mut talk, round);
        talk.wait_ms(8_000);
    }
    talk
}

#[test]
fn a_health_check_each_8_s_is_no_connection_per_call() {
    let mut talk = check_each_8_s(|_, _| ());
    assert_eq!(talk.kinds(), NOTHING);
    assert!(talk.mapping.raised().all(|(_, count)| count == 0));
    assert_eq!(talk.counters().calls, 45, "they count as calls, for `/metrics`");
}

#[test]
fn a_health_check_beside_a_good_application_is_none_either() {
    let mut good = None;
    let mut talk = check_each_8_s(|talk, round| {
        let watcher = good.get_or_insert_with(|| {
            let watcher = talk.mapping.connect(talk.now);
            std::mem::replace(&mut talk.watcher, watcher)
        });
        // The application's one connection, for a moment in the checker's place.
        std::mem::swap(watcher, &mut talk.watcher);
        if round == 0 {
            talk.hello();
        }
        talk.call(1 + 2 * round, "1S", 5, "0");
        talk.hints();
        std::mem::swap(watcher, &mut talk.watcher);
    });
    assert_eq!(talk.kinds(), NOTHING);
    assert!(talk.mapping.raised().all(|(_, count)| count == 0));
}

#[test]
fn a_health_check_beside_one_that_connects_for_each_call_does_not_hide_it() {
    let mut talk = check_each_8_s(|talk, _| {
        talk.call(1, "1S", 5, "0");
        talk.reconnect(EndedBy::Application);
        talk.hello();
    });
    let hint = talk.only(HintKind::ConnectionPerCall);
    let [(_, connections), (_, with_one_call)] = hint.evidence[..] else { panic!("{hint:?}") };
    assert_eq!(connections, with_one_call, "the checks are not among them");
}

/// Whatever a hint rests on, done by a checker alone.
#[test]
fn no_hint_rests_on_health_checks_and_reflection() {
    for path in CHECKS {
        let mut talk = Talk::begin();
        // No deadline; a socket's path as authority that is refused; an answer that is too large.
        talk.client(&check(1, path));
        talk.server(&headers(1, END_STREAM, &[(":status", "400")]));
        talk.client(&check(3, path));
        talk.server(&response(3));
        talk.server(&trailers(3, "8", "grpc: received message larger than max"));
        // PINGs on the idle connection of the checker, and the server's word on them.
        for ping_no in 0..5 {
            talk.wait_ms(8_000);
            talk.client(&ping(0, ping_no));
            talk.server(&ping(ACK, ping_no));
        }
        // An answer that is not read, by its window and by the socket.
        talk.client(&check(5, path));
        talk.server(&[response(5), message(5, 65_530)].concat());
        talk.watcher.handle_held_up(talk.now);
        talk.wait_ms(20_000);
        talk.client(&reset(5, 8));
        // Failures in a row, each repeated at once.
        for round in 0..60 {
            let stream = 7 + 2 * round;
            talk.client(&check(stream, path));
            talk.server(&[response(stream), trailers(stream, "14", "")].concat());
            talk.wait_ms(10);
        }
        talk.server(&goaway(200, 11, "too_many_pings"));
        // Later than anybody can have missed the GOAWAY.
        talk.wait_ms(30_000);
        talk.client(&check(201, path));
        assert_eq!(talk.kinds(), NOTHING, "{path}");
        talk.reconnect(EndedBy::Application);
        talk.wait_ms(120_000);
        assert_eq!(talk.kinds(), NOTHING, "{path}");
        assert!(talk.mapping.raised().all(|(_, count)| count == 0), "{path}");
    }
}

#[test]
fn connections_that_are_cut_or_carried_a_long_stream_are_not_made_for_one_call() {
    for (ended_by, ms) in [(EndedBy::Fault, 1_000), (EndedBy::Server, 1_000), (EndedBy::Application, 11_000)]
    {
        let mut talk = Talk::begin();
        for _ in 0..20 {
            talk.call(1, "1M", ms, "0");
            talk.reconnect(ended_by);
            talk.hello();
        }
        talk.wait_ms(60_000);
        assert_eq!(talk.kinds(), NOTHING, "{ended_by:?}");
    }
}

#[test]
fn data_that_waits_on_a_stream() {
    let mut talk = Talk::begin();
    talk.client(&[window_update(0, 1 << 20), request(1, "1M")].concat());
    talk.server(&[response(1), message(1, 65_530)].concat());
    talk.wait_ms(4_999);
    assert_eq!(talk.kinds(), NOTHING);
    talk.wait_ms(2);
    let hint = talk.only(HintKind::AppNotReading);
    assert_eq!(hint.evidence, [("stalls_over_5s", 1), ("longest_stall_ms", 5_001)]);
    assert!(hint.message.contains("stream.Recv()"), "{}", hint.message);
    talk.wait_ms(2_000);
    assert!(talk.watcher.has_news());
    assert_eq!(talk.hints()[0].evidence, [("stalls_over_5s", 1), ("longest_stall_ms", 7_001)]);
    talk.wait_ms(1_000);
    talk.client(&window_update(1, 65_535));
    talk.wait_ms(10_000);
    assert_eq!(talk.hints()[0].evidence, [("stalls_over_5s", 1), ("longest_stall_ms", 8_001)]);
    assert!(!talk.watcher.has_news(), "nothing grows any longer");
}

#[test]
fn data_that_waits_on_the_connection() {
    let mut talk = Talk::begin();
    talk.client(&settings(&[(4, 1 << 20)]));
    talk.client(&[request(1, "1M"), request(3, "1M")].concat());
    talk.server(&[response(1), message(1, 65_530), trailers(1, "0", "")].concat());
    talk.wait_ms(6_000);
    // A setting does not touch the connection's window.
    talk.client(&settings(&[(4, 2 << 20)]));
    talk.wait_ms(1_000);
    talk.client(&window_update(0, 1));
    let hint = talk.only(HintKind::AppNotReading);
    assert_eq!(hint.evidence, [("stalls_over_5s", 1), ("longest_stall_ms", 7_000)]);
}

/// A stopped process, or an event loop that is blocked: nothing reads the socket, so data never fills a large window.
#[test]
fn data_that_waits_on_the_socket() {
    let mut talk = Talk::begin();
    let plenty = [settings(&[(4, 1 << 20)]), window_update(0, 1 << 20)].concat();
    talk.client(&[plenty, request(1, "1M")].concat());
    talk.server(&[response(1), message(1, 100_000)].concat());
    talk.watcher.handle_held_up(talk.now);
    talk.wait_ms(4_999);
    talk.watcher.handle_held_up(talk.now);
    assert_eq!(talk.kinds(), NOTHING);
    talk.wait_ms(2);
    let hint = talk.only(HintKind::AppNotReading);
    assert_eq!(hint.evidence, [("stalls_over_5s", 1), ("longest_stall_ms", 5_001)]);
    talk.wait_ms(2_000);
    assert!(talk.watcher.has_news());
    assert_eq!(talk.hints()[0].evidence, [("stalls_over_5s", 1), ("longest_stall_ms", 7_001)]);
    talk.server(&message(1, 10));
    talk.wait_ms(10_000);
    assert_eq!(talk.hints()[0].evidence, [("stalls_over_5s", 1), ("longest_stall_ms", 7_001)]);
    assert!(!talk.watcher.has_news(), "nothing grows any longer");
    talk.watcher.handle_held_up(talk.now);
    talk.wait_ms(6_000);
    talk.reconnect(EndedBy::Application);
    assert_eq!(talk.hints()[0].evidence, [("stalls_over_5s", 2), ("longest_stall_ms", 7_001)]);
}

#[test]
fn a_socket_that_is_read_slowly() {
    let mut talk = Talk::begin();
    talk.watcher.handle_held_up(talk.now);
    talk.wait_ms(20_000);
    assert_eq!(talk.kinds(), NOTHING, "no response waits");
    talk.client(&[window_update(0, 1 << 20), request(1, "1M")].concat());
    talk.server(&response(1));
    for _ in 0..5 {
        talk.watcher.handle_held_up(talk.now);
        talk.wait_ms(4_000);
        talk.server(&message(1, 1_000));
    }
    talk.watcher.handle_held_up(talk.now);
    talk.server(&trailers(1, "0", ""));
    talk.wait_ms(20_000);
    assert_eq!(talk.kinds(), NOTHING);
}

#[test]
fn a_full_window_that_nobody_waits_for() {
    let mut talk = Talk::begin();
    talk.client(&request(1, "1M"));
    talk.server(&[response(1), message(1, 65_530), trailers(1, "0", "")].concat());
    talk.wait_ms(20_000);
    assert_eq!(talk.kinds(), NOTHING, "the response has ended");
    talk.client(&[window_update(0, 65_535), request(3, "1M")].concat());
    talk.server(&[response(3), message(3, 65_530)].concat());
    talk.wait_ms(3_000);
    talk.client(&settings(&[(4, 65_536)]));
    talk.client(&window_update(0, 1));
    talk.wait_ms(20_000);
    assert_eq!(talk.kinds(), NOTHING, "the setting opened it in time");
}

#[test]
fn a_late_timer_counts_the_same() {
    let mut talk = Talk::begin();
    talk.client(&[window_update(0, 1 << 20), request(1, "1M")].concat());
    talk.server(&[response(1), message(1, 65_530)].concat());
    talk.now += Duration::from_secs(9);
    talk.client(&reset(1, 8));
    talk.watcher.handle_timeout(talk.now);
    let hint = talk.only(HintKind::AppNotReading);
    assert_eq!(hint.evidence, [("stalls_over_5s", 1), ("longest_stall_ms", 9_000)]);
}

#[test]
fn an_authority_that_is_a_path() {
    for (authority, agent, fix) in [
        ("/run/app/u7", "grpc-java-netty/1.85.1", "grpc-java: .overrideAuthority(\"localhost\")"),
        (
            "run%2Fapp%2Fu13",
            "grpc-python/1.85.3 grpc-c/58.0.0",
            "(\"grpc.default_authority\", \"localhost\")",
        ),
    ] {
        let mut talk = Talk::begin();
        talk.client(&request_of(1, "1S", authority, agent));
        talk.server(&[response(1), trailers(1, "0", "")].concat());
        assert_eq!(talk.kinds(), NOTHING, "this server takes it");
        assert_eq!(talk.counters().calls_with_a_path, 1);
        talk.client(&request_of(3, "1S", authority, agent));
        talk.server(&reset(3, 1));
        talk.client(&request_of(5, "1S", authority, agent));
        talk.server(&headers(5, END_STREAM, &[(":status", "400")]));
        let hint = talk.only(HintKind::AuthorityIsPath);
        assert_eq!(hint.evidence, [("calls", 3), ("calls_with_a_path", 3), ("calls_refused", 2)]);
        assert!(hint.message.contains(fix), "{}", hint.message);
        for call in 0..100 {
            let stream = 7 + 2 * call;
            talk.client(&request(stream, "1S"));
            talk.server(&[response(stream), trailers(stream, "0", "")].concat());
        }
        assert_eq!(talk.kinds(), NOTHING);
    }
}

#[test]
fn calls_that_wait_for_a_stream() {
    let mut talk = Talk::fresh();
    talk.client(&[PREFACE, &settings(&[])].concat());
    talk.server(&settings(&[(3, 2)]));
    // Six calls of a second, two at a time.
    for pair in 0..3 {
        let (one, two) = (1 + 4 * pair, 3 + 4 * pair);
        talk.client(&[request(one, "1M"), request(two, "1M")].concat());
        talk.wait_ms(1_000);
        for stream in [one, two] {
            talk.server(&[response(stream), trailers(stream, "0", "")].concat());
        }
        talk.wait_ms(1);
    }
    let hint = talk.only(HintKind::StreamLimit);
    assert_eq!(hint.evidence, [("limit", 2), ("calls_that_waited", 4), ("at_limit_ms", 3_000)]);
    // One after the other, far from the limit.
    let mut calm = Talk::fresh();
    calm.client(&[PREFACE, &settings(&[])].concat());
    calm.server(&settings(&[(3, 2)]));
    (0..20).for_each(|call| calm.call(1 + 2 * call, "1S", 200, "0"));
    assert_eq!(calm.kinds(), NOTHING);
}

/// A transfer through a window of 64 KiB over 100 ms, `bandwidth` bytes a millisecond on the way.
fn transfer(talk: &mut Talk, stream: u32, seconds: u64, window: u32) {
    talk.client(
        &[settings(&[(4, window)]), window_update(0, window - 65_535), request(stream, "1H")].concat(),
    );
    talk.server(&response(stream));
    talk.client(&ping(0, 1));
    talk.wait_ms(100);
    talk.server(&ping(ACK, 1));
    let end = talk.now + Duration::from_secs(seconds);
    let mut underway = std::collections::VecDeque::from([(talk.now, window)]);
    // 10,000 bytes a millisecond at most; the client gives back what it read at once, and that takes 100 ms.
    while talk.now < end {
        talk.wait_ms(1);
        let mut may = 10_000;
        while may > 0
            && let Some((at, credit)) = underway.front_mut()
            && *at <= talk.now
        {
            let bytes = may.min(*credit);
            may -= bytes;
            *credit -= bytes;
            if *credit == 0 {
                underway.pop_front();
            }
            talk.server(&frame(DATA, 0, stream, &vec![0; bytes as usize]));
            talk.client(&[window_update(0, bytes), window_update(stream, bytes)].concat());
            underway.push_back((talk.now + Duration::from_millis(100), bytes));
        }
        if talk.now.duration_since(talk.began).as_millis().is_multiple_of(500) {
            talk.hints();
        }
    }
}

#[test]
fn a_window_too_small_for_the_path() {
    let mut talk = Talk::begin();
    transfer(&mut talk, 1, 10, 65_536);
    let hint = talk.only(HintKind::SmallWindow);
    let numbers: std::collections::BTreeMap<_, _> = hint.evidence.iter().copied().collect();
    assert_eq!(numbers["round_trip_us"], 100_000);
    assert!((65_535..=65_536).contains(&numbers["window_bytes"]), "{numbers:?}");
    assert!((500_000..=700_000).contains(&numbers["bytes_per_s"]), "{numbers:?}");
    assert!(numbers["held_up_ms"] >= 3_000, "{numbers:?}");
    assert!(hint.message.contains("grpc.WithInitialWindowSize"), "{}", hint.message);
}

#[test]
fn a_window_that_is_large_enough() {
    // 10 MB/s over 100 ms need 1 MB.
    let mut talk = Talk::begin();
    transfer(&mut talk, 1, 10, 2 << 20);
    assert_eq!(talk.kinds(), NOTHING);
}

#[test]
fn a_retry_storm() {
    let mut talk = Talk::begin();
    for call in 0..40 {
        talk.call(1 + 2 * call, "1S", 5, "14");
        talk.wait_ms(5);
    }
    assert_eq!(talk.kinds(), NOTHING, "judged when ten seconds are over");
    talk.wait_ms(10_000);
    let hint = talk.only(HintKind::RetryStorm);
    let numbers = [("calls_failed", 40), ("repeats_within_100ms", 39), ("connections_failed", 0)];
    assert_eq!(hint.evidence, numbers);
    // With a pause, or few failures among many calls, or answers that are no faults.
    for (pause, status, other) in [(400, "14", "14"), (1, "14", "0"), (1, "5", "5")] {
        let mut calm = Talk::begin();
        for call in 0..400 {
            let status = if call % 4 == 0 { status } else { other };
            calm.call(1 + 2 * call, "1S", 5, status);
            calm.wait_ms(pause);
        }
        calm.wait_ms(10_000);
        assert_eq!(calm.kinds(), NOTHING, "{pause} {status} {other}");
    }
}

#[test]
fn a_storm_of_connections() {
    let mut talk = Talk::fresh();
    for _ in 0..40 {
        talk.client(&[PREFACE, &settings(&[])].concat());
        talk.wait_ms(10);
        talk.reconnect(EndedBy::Fault);
    }
    talk.wait_ms(10_000);
    let hint = talk.only(HintKind::RetryStorm);
    let numbers = [("calls_failed", 0), ("repeats_within_100ms", 40), ("connections_failed", 40)];
    assert_eq!(hint.evidence, numbers);
}

#[test]
fn messages_that_are_too_large() {
    for (status, message) in [
        ("8", "grpc: received message larger than max (8000 vs. 4096)"),
        ("8", "gRPC message exceeds maximum size 4194304: 4194309"),
        ("8", "SERVER: Received message larger than max (5 vs. 4)"),
        ("11", "Error, decoded message length too large: found 5 bytes, the limit is: 4 bytes"),
        // As grpc-js and tonic write a space.
        ("8", "Received%20message%20larger%20than%20max%20(5%20vs%204)"),
        ("11", "Error,%20decoded%20message%20length%20too%20large:%20found%205%20bytes"),
    ] {
        let mut talk = Talk::begin();
        talk.client(&request(1, "1S"));
        talk.server(&[response(1), trailers(1, status, message)].concat());
        let hint = talk.only(HintKind::MessageTooLarge);
        assert_eq!(hint.evidence, [("calls", 1), ("calls_refused", 1)], "{message}");
    }
    let mut other = Talk::begin();
    other.client(&request(1, "1S"));
    other.server(&[response(1), trailers(1, "8", "quota")].concat());
    assert_eq!(other.kinds(), NOTHING);
}

#[test]
fn deadlines_below_the_round_trip() {
    let mut talk = Talk::begin();
    for call in 0..3 {
        talk.call(1 + 2 * call, "20m", 50, "0");
    }
    assert_eq!(talk.kinds(), NOTHING, "the round trip is not known");
    talk.watcher.set_path_round_trip(Some(Duration::from_millis(50)));
    for call in 3..6 {
        talk.call(1 + 2 * call, "20m", 50, "0");
    }
    let hint = talk.only(HintKind::DeadlineTooShort);
    let numbers = [
        ("calls", 6),
        ("calls_below_round_trip", 3),
        ("shortest_deadline_us", 20_000),
        ("round_trip_us", 50_000),
    ];
    assert_eq!(hint.evidence, numbers);
    for call in 6..106 {
        talk.call(1 + 2 * call, "60m", 50, "0");
    }
    assert_eq!(talk.kinds(), NOTHING);
}

#[test]
fn streams_after_a_goaway() {
    let mut talk = Talk::begin();
    talk.call(1, "1S", 5, "0");
    talk.server(&goaway(0x7fff_ffff, 0, ""));
    talk.client(&request(3, "1S"));
    talk.wait_ms(900);
    talk.server(&[goaway(3, 0, ""), response(3), trailers(3, "0", "")].concat());
    assert_eq!(talk.kinds(), NOTHING, "it had not read it yet");
    talk.wait_ms(200);
    talk.call(5, "1S", 5, "0");
    let hint = talk.only(HintKind::GoawayIgnored);
    assert_eq!(hint.evidence, [("goaways", 2), ("streams_after_goaway", 1)]);
    // Going away and coming back is what a client should do.
    let mut calm = Talk::begin();
    for _ in 0..20 {
        (0..5).for_each(|call| calm.call(1 + 2 * call, "1S", 5, "0"));
        calm.server(&goaway(9, 0, ""));
        calm.reconnect(EndedBy::Server);
        calm.hello();
        calm.wait_ms(3_000);
    }
    assert_eq!(calm.kinds(), NOTHING);
}

#[test]
fn each_implementation_is_told_its_own_setting() {
    let mut talk = Talk::begin();
    let agents = [
        ("grpc-go/1.85.0", "grpc-go: ctx, cancel"),
        ("grpc-java-netty/1.85.1", "grpc-java: stub.withDeadlineAfter"),
        ("grpc-python/1.85.3 grpc-c/58.0.0", "grpcio: stub.Get(request, timeout=2)"),
        ("grpc-node-js/1.14.7", "grpc-js: client.get(request, { deadline:"),
        ("tonic/0.14.9", "tonic: request.set_timeout"),
        ("grpc-dotnet/2.70.0", "grpc-dotnet: client.GetAsync(request, deadline:"),
    ];
    for (agent, _) in agents {
        talk.client(&request_of(1, "", "localhost", agent));
        talk.server(&[response(1), trailers(1, "0", "")].concat());
        talk.reconnect(EndedBy::Application);
        talk.hello();
    }
    let hint = talk.only(HintKind::NoDeadline);
    for (_, setting) in agents {
        assert!(hint.message.contains(setting), "{setting}: {}", hint.message);
    }
    assert_eq!(hint.count, 6);
}
