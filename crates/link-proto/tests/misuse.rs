//! Calls that an owner should not make: they must harm neither this link nor its peer.

use std::time::Duration;

use bytes::Bytes;
use hopline_link_proto::testkit::{Chain, Held};
use hopline_link_proto::{Abort, Code, SendState, Write};

fn rest(chain: &mut Chain) {
    chain.run_for(Duration::from_millis(50));
}

#[test]
fn credit_for_bytes_that_never_came_grants_nothing() {
    let mut chain = Chain::new(1, |_, config| {
        config.limits.first_window = 20_000;
        config.limits.max_window = 20_000;
    });
    let (near, far) = chain.open(b"");
    let now = chain.now;
    chain.link(1).credit(now, far, u64::MAX / 2);
    assert!(matches!(chain.link(0).write(near, &[1; 60_000]), Ok(Write::Taken(60_000))));
    rest(&mut chain);
    assert_eq!(chain.link(0).bytes_sent(near), 20_000, "one window");
    assert_eq!(chain.link(1).held().received, 20_000);
}

#[test]
fn every_call_twice_is_as_once() {
    let mut chain = Chain::new(1, |_, _| ());
    let (near, far) = chain.open(b"");
    for _ in 0..2 {
        chain.link(1).answer(far, Bytes::from_static(b"again"));
        chain.link(0).answer(near, Bytes::from_static(b"not mine"));
        chain.link(0).end(near);
        chain.link(1).acknowledge_end(far);
        rest(&mut chain);
    }
    assert_eq!(chain.link(0).answered(near), Ok(Some(Bytes::new())));
    assert_eq!(chain.link(0).send_state(near), Ok(SendState::Acknowledged));
    assert!(chain.link(0).write(near, b"behind the end").is_err());
    for _ in 0..2 {
        chain.link(1).abort(far, Abort::new(Code::TIMEOUT, "first"));
        chain.link(1).abort(far, Abort::new(Code::REFUSED, "second"));
        chain.link(1).release(far);
        rest(&mut chain);
    }
    assert_eq!(chain.link(0).abort_reason(near).map(|abort| abort.code), Some(Code::TIMEOUT));
    chain.link(0).release(near);
    chain.link(0).release(near);
    rest(&mut chain);
    for end in 0..2 {
        assert_eq!(chain.link(end).end_of_link(), None, "end {end}");
        let held = Held { events: 0, ..chain.link(end).held() };
        assert_eq!(
            (held, chain.link(end).open_sessions(), chain.link(end).budget_used()),
            (Held::default(), 0, 0)
        );
    }
}

#[test]
fn a_session_that_was_let_go_is_unknown_and_nothing_else() {
    let mut chain = Chain::new(1, |_, _| ());
    let (near, _) = chain.open(b"");
    chain.link(0).release(near);
    rest(&mut chain);
    let now = chain.now;
    let link = chain.link(0);
    link.end(near);
    link.answer(near, Bytes::new());
    link.abort(near, Abort::new(Code::TIMEOUT, ""));
    link.credit(now, near, 10);
    link.acknowledge_end(near);
    assert_eq!(link.read(now, near, 10).map_err(|abort| abort.code), Err(Code::INTERNAL));
    assert_eq!(link.write(near, b"x").map_err(|abort| abort.code), Err(Code::INTERNAL));
    assert_eq!(link.send_state(near).map_err(|abort| abort.code), Err(Code::INTERNAL));
    assert_eq!((link.bytes_sent(near), link.bytes_queued(near), link.abort_reason(near)), (0, 0, None));
    assert_eq!(link.held().sessions, 0);
}

#[test]
fn a_link_that_is_closed_twice_says_goodbye_once() {
    let mut chain = Chain::new(1, |_, _| ());
    let before = chain.wires[0].carried;
    chain.link(0).close(Code::SHUTDOWN, "bye");
    chain.link(0).close(Code::INTERNAL, "again");
    let now = chain.now;
    chain.link(0).handle_carrier_end(now, "late");
    chain.link(0).drain(now, Duration::from_secs(1));
    rest(&mut chain);
    // Type, session, length, code, hops, length, "bye".
    assert_eq!(chain.wires[0].carried - before, 1 + 1 + 1 + 1 + 1 + 1 + 3);
    let end = chain.link(1).end_of_link().map(ToString::to_string);
    assert_eq!(end.as_deref(), Some("peer said goodbye (shutdown): bye"));
}
