//! Faults that tests, the simulation or reading found, each with the test that failed before its repair. What
//! they were stands in `docs/what-our-tests-found.md`, under the same numbers.

#[expect(dead_code, reason = "the scripts need all of it, this file one function")]
mod words;

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use hopline_link_proto::testkit::Chain;
use hopline_link_proto::{
    Abort, Code, Config, ConfigError, Event, Limits, Link, LinkEnd, ProtocolError, SendState, SessionId,
    Side, Write,
};

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn app(n: u32, message: &str) -> Abort {
    let Some(code) = Code::app(n) else { panic!("no code {n}") };
    Abort::new(code, message)
}

/// Code of the abort that ends a session at this end, if one has.
fn abort_code(chain: &mut Chain, end: usize, id: SessionId) -> Option<Code> {
    chain.link(end).abort_reason(id).map(|abort| abort.code)
}

/// Finding 1: `release` cleared the queue before it asked whether it was empty, so unread input was acknowledged.
#[test]
fn f1_a_drop_with_unread_input_is_an_abort_even_behind_both_ends() {
    let mut chain = Chain::new(1, |_, _| ());
    let (near, far) = chain.open(b"");
    chain.link(0).write(near, b"never read").unwrap();
    chain.link(0).end(near);
    chain.link(1).end(far);
    chain.run_for(millis(20));
    chain.link(1).release(far);
    chain.run_for(millis(20));
    assert_eq!(chain.link(0).send_state(near).unwrap_err().code, Code::PEER_RESET);
}

/// Finding 2: a session whose abort was still to be sent when the link ended was never counted out.
#[test]
fn f2_an_abort_that_waits_when_the_link_ends_leaves_nothing_behind() {
    for closed in [true, false] {
        let mut chain = Chain::new(1, |_, _| ());
        let (near, far) = chain.open(b"");
        chain.link(1).abort(far, app(1, ""));
        if closed {
            chain.link(1).close(Code::SHUTDOWN, "");
        } else {
            let now = chain.now;
            chain.link(1).handle_carrier_end(now, "reset");
        }
        chain.link(1).release(far);
        chain.run_for(millis(20));
        chain.link(0).release(near);
        assert_eq!(chain.link(1).open_sessions(), 0);
        assert_eq!(chain.link(1).budget_used(), 0);
    }
}

/// Finding 3: a splice that waits for one direction only did not hear of an abort on the other session.
#[test]
fn f3_an_abort_after_the_end_crosses_a_splice_where_nothing_else_moves() {
    let mut chain = Chain::new(3, |_, _| ());
    let (near, far) = chain.open(b"");
    chain.link(0).write(near, b"request").unwrap();
    chain.link(0).end(near);
    chain.run_for(millis(50));
    chain.link(0).abort(near, app(1, "cancelled"));
    chain.run_for(secs(1));
    assert_eq!(abort_code(&mut chain, 5, far), Code::app(1));
}

/// Finding 3 again, where the splice waits to write because the far reader has stopped.
#[test]
fn f3_an_abort_crosses_a_splice_that_waits_to_write() {
    let mut chain = Chain::new(2, |end, config| {
        // The first link grants far more than the second.
        if end == 1 {
            config.limits.first_window = 1 << 20;
        }
    });
    let (near, far) = chain.open(b"");
    while let Write::Taken(_) = chain.link(0).write(near, &[1; 60_000]).unwrap() {
        chain.run_for(millis(10));
    }
    chain.link(0).abort(near, app(1, "cancelled"));
    chain.run_for(secs(1));
    assert_eq!(abort_code(&mut chain, 3, far), Code::app(1));
}

/// Finding 4: an answer's header was sent whatever the peer allows, which ended a relay's other link.
#[test]
fn f4_an_answer_longer_than_the_peer_allows_ends_its_session_only() {
    let mut chain = Chain::new(2, |end, config| {
        if end == 0 {
            config.limits.header_bytes = 100;
        }
    });
    let near = chain.link(0).open(Bytes::new()).unwrap();
    chain.run_for(millis(50));
    let opened = |event| if let Event::Opened { id, .. } = event { Some(id) } else { None };
    let far = chain.events(3).into_iter().find_map(opened).unwrap();
    chain.link(3).answer(far, Bytes::from(vec![7; 101]));
    chain.run_for(millis(50));
    for end in 0..4 {
        assert_eq!(chain.link(end).end_of_link(), None, "end {end}");
    }
    assert_eq!(abort_code(&mut chain, 0, near), Some(Code::INTERNAL));
    assert_eq!(abort_code(&mut chain, 3, far), Some(Code::INTERNAL));
}

/// Finding 5: an acceptor that ended its side before it answered left the opener waiting for an answer for ever.
#[test]
fn f5_an_end_before_the_answer_waits_for_the_answer() {
    for links in 1..=2 {
        let mut chain = Chain::new(links, |_, _| ());
        let end = chain.far();
        let near = chain.link(0).open(Bytes::new()).unwrap();
        chain.link(0).end(near);
        assert_eq!(chain.link(0).answered(near), Ok(None));
        chain.run_for(millis(50));
        let opened = |event| if let Event::Opened { id, .. } = event { Some(id) } else { None };
        let far = chain.events(end).into_iter().find_map(opened).unwrap();
        chain.link(end).end(far);
        assert_eq!(chain.read_all(end, far), (vec![], Some(Ok(()))));
        chain.run_for(millis(50));
        assert_eq!(chain.read_all(0, near), (vec![], None), "no end before the answer");
        chain.link(end).answer(far, Bytes::from_static(b"late"));
        chain.run_for(millis(50));
        assert!(chain.events(0).contains(&Event::Answered(near)));
        assert_eq!(chain.link(0).answered(near), Ok(Some(Bytes::from_static(b"late"))));
        assert_eq!(chain.read_all(0, near), (vec![], Some(Ok(()))));
    }
}

#[test]
fn f5_a_drop_without_an_answer_is_a_refusal() {
    let mut chain = Chain::new(1, |_, _| ());
    let near = chain.link(0).open(Bytes::new()).unwrap();
    chain.link(0).end(near);
    chain.run_for(millis(50));
    let opened = |event| if let Event::Opened { id, .. } = event { Some(id) } else { None };
    let far = chain.events(1).into_iter().find_map(opened).unwrap();
    chain.link(1).end(far);
    chain.read_all(1, far);
    chain.link(1).release(far);
    chain.run_for(millis(50));
    assert_eq!(chain.link(0).answered(near).unwrap_err().code, Code::PEER_RESET);
    assert_eq!(chain.link(1).open_sessions(), 0);
}

/// Finding 6: of two aborts that crossed, ours stayed and its session kept a slot that the peer thought free.
#[test]
fn f6_crossing_aborts_free_the_slot_at_both_ends() {
    let mut chain = Chain::new(1, |_, config| config.limits.sessions = 1);
    let (near, far) = chain.open(b"");
    // The acceptor's carrier takes nothing more, so that its abort waits.
    chain.wires[1].depth = 0;
    chain.link(1).abort(far, app(1, "ours"));
    chain.link(0).abort(near, app(2, "theirs"));
    chain.run_for(millis(50));
    chain.link(0).release(near);
    let next = chain.link(0).open(Bytes::new()).unwrap();
    chain.run_for(millis(50));
    chain.wires[1].depth = 256 << 10;
    chain.run_for(millis(50));
    assert_eq!(chain.link(0).answered(next), Ok(None), "not refused");
    assert_eq!(chain.link(1).counters().opens_over_limit, 0);
}

/// Finding 7: with no early credit a session could be answered with a window of nothing, and stall.
#[test]
fn f7_a_session_always_has_some_window() {
    let mut config = Config::new(Side::Dialer, [0; 16], "x");
    config.limits.early_credit = 0;
    let chain = Chain::new(1, |_, _| ());
    assert_eq!(Link::new(config, chain.now).map(|_| ()), Err(ConfigError::Windows));
}

/// Finding 8: an abort built field by field could carry a message that the peer must refuse.
#[test]
fn f8_a_long_message_is_cut_however_the_abort_was_built() {
    let mut chain = Chain::new(1, |_, _| ());
    let (near, far) = chain.open(b"");
    let abort = Abort { message: "é".repeat(5_000), ..app(1, "") };
    chain.link(0).abort(near, abort);
    chain.run_for(millis(20));
    assert_eq!(chain.link(1).end_of_link(), None);
    let (_, end) = chain.read_all(1, far);
    assert_eq!(end.unwrap().unwrap_err().message.len(), 512);
}

/// Finding 9: a deadline beyond what an instant can hold would panic.
#[test]
fn f9_a_drain_without_end_is_a_drain_of_24_days() {
    let mut chain = Chain::new(1, |_, _| ());
    let now = chain.now;
    chain.link(0).drain(now, Duration::MAX);
    chain.run_for(millis(20));
    assert!(chain.events(1).contains(&Event::PeerDrains { deadline_ms: (1 << 31) - 1 }));
}

/// Finding 10: a half-closed session kept the window of its ended direction until its other end.
#[test]
fn f10_an_ended_direction_gives_its_window_back_to_the_budget() {
    let mut chain = Chain::new(1, |_, _| ());
    let (near, far) = chain.open(b"");
    assert!(chain.link(1).budget_used() > 0);
    chain.link(0).end(near);
    chain.run_for(millis(20));
    chain.read_all(1, far);
    assert_eq!(chain.link(1).budget_used(), 0);
    assert_eq!(chain.link(0).send_state(near), Ok(SendState::Ending));
    chain.link(1).release(far);
    chain.link(0).release(near);
    chain.run_for(millis(20));
    for end in 0..2 {
        assert_eq!((chain.link(end).budget_used(), chain.link(end).open_sessions()), (0, 0));
    }
}

/// A link that is up, with raw bytes for a peer, whose carrier takes nothing.
fn up(limits: Limits) -> (Link, Instant) {
    let now = Chain::new(1, |_, _| ()).now;
    let mut config = Config::new(Side::Listener, [0; 16], "x");
    config.limits = limits;
    let mut link = Link::new(config, now).unwrap_or_else(|error| panic!("{error}"));
    let hello = "hello 1..1 instance=00000000000000000000000000000000 early=16384 sessions=4096 header=4096 name=\"\"";
    feed(&mut link, now, hello);
    (link, now)
}

fn feed(link: &mut Link, now: Instant, words: &str) {
    link.handle_bytes(now, &mut BytesMut::from(&words::encode(words)[..]));
}

/// Finding 11: a peer that opened beyond its limit, and read nothing, made this side keep a refusal for each
/// (WIRE-16, WIRE-47).
#[test]
fn f11_refusals_that_nobody_reads_are_bounded() {
    for draining in [true, false] {
        let (mut link, now) = up(Limits { sessions: 10, ..Limits::default() });
        if draining {
            link.drain(now, secs(10));
        }
        for id in 0..10_000 {
            feed(&mut link, now, &format!("open {} \"\"", 2 * id + 1));
        }
        assert!(link.held().sessions <= 20, "{:?}", link.held());
        assert!(matches!(link.end_of_link(), Some(LinkEnd::Protocol(ProtocolError::TooManyOpens(41)))));
    }
}

/// Finding 12: sessions that were over stayed in the queues of what has something to send while nothing could go.
#[test]
fn f12_sessions_that_are_over_leave_the_queues_though_nothing_can_be_sent() {
    let (mut link, now) = up(Limits::default());
    for id in (1..40_000).step_by(2) {
        feed(&mut link, now, &format!("open {id} \"\""));
        feed(&mut link, now, &format!("data {id} 12000*x"));
        let Some(Event::Opened { id: session, .. }) = last_event(&mut link) else { panic!("no open") };
        link.answer(session, Bytes::new());
        let _ = link.read(now, session, usize::MAX);
        feed(&mut link, now, &format!("abort {id} timeout hops=0 \"\""));
        link.release(session);
        while link.poll_event().is_some() {}
        assert!(link.held().queued <= 200, "{:?} after {id}", link.held());
    }
    assert_eq!((link.held().sessions, link.budget_used()), (0, 0));
}

fn last_event(link: &mut Link) -> Option<Event> {
    std::iter::from_fn(|| link.poll_event()).last()
}

/// Finding 14: the goodbye of a side that had declared its peer dead did not say for how long it had been silent, so
/// that after a loss of one direction only the other side's sessions could not tell.
#[test]
fn f14_a_goodbye_for_a_dead_peer_says_how_long_it_was_silent() {
    let mut chain = Chain::new(1, |_, _| ());
    let (_, far) = chain.open(b"");
    chain.wires[1].cut();
    chain.run_for(secs(20));
    let (_, end) = chain.read_all(1, far);
    let abort = end.unwrap().unwrap_err();
    assert_eq!((abort.code, abort.silent_ms), (Code::CONN_LOST, Some(15_000)));
}

/// Finding 15: an abort between the last read and the sending of its acknowledgement counted the session as over, and
/// so sent neither.
#[test]
fn f15_an_abort_behind_the_last_read_does_not_swallow_the_acknowledgement() {
    let mut chain = Chain::new(1, |_, _| ());
    let (near, far) = chain.open(b"");
    chain.link(1).end(far);
    chain.run_for(millis(20));
    assert_eq!(chain.read_all(0, near), (vec![], Some(Ok(()))));
    chain.link(0).end(near);
    chain.run_for(millis(20));
    // The acceptor's carrier takes nothing while its reader reads the end and gives up.
    chain.wires[1].depth = 0;
    assert_eq!(chain.read_all(1, far), (vec![], Some(Ok(()))));
    chain.link(1).abort(far, app(1, "too late to matter"));
    chain.link(1).release(far);
    chain.wires[1].depth = 256 << 10;
    chain.run_for(millis(20));
    assert_eq!(chain.link(0).send_state(near), Ok(SendState::Acknowledged));
    assert_eq!((chain.link(0).open_sessions(), chain.link(1).open_sessions()), (0, 0));
    assert_eq!(chain.link(1).held().sessions, 0);
}
