//! One link and chains of links in virtual time: bytes, ends, aborts, death, drain.

use std::time::Duration;

use bytes::Bytes;
use hopline_link_proto::testkit::Chain;
use hopline_link_proto::{
    Abort, Code, Event, LinkEnd, Liveness, OpenError, Read, SendState, SessionId, SpliceEnd, Write,
};

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Writes all of `bytes` at end `from`, reading at end `to` as they come; returns what was read.
fn pump(chain: &mut Chain, from: (usize, SessionId), to: (usize, SessionId), bytes: &[u8]) -> Vec<u8> {
    let mut sent = 0;
    let mut got = Vec::new();
    while got.len() < bytes.len() {
        while sent < bytes.len() {
            match chain.link(from.0).write(from.1, &bytes[sent..]) {
                Ok(Write::Taken(n)) => sent += n,
                Ok(Write::Pending) => break,
                Err(abort) => panic!("write: {abort}"),
            }
        }
        chain.run_for(millis(2));
        let (more, end) = chain.read_all(to.0, to.1);
        assert_eq!(end, None);
        got.extend_from_slice(&more);
    }
    got
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

#[test]
fn bytes_pass_both_ways_over_one_to_four_links() {
    for links in 1..=4 {
        let mut chain = Chain::new(links, |_, _| ());
        let (near, far) = chain.open(b"x");
        let end = chain.far();
        let want = pattern(1_000_000);
        assert_eq!(pump(&mut chain, (0, near), (end, far), &want), want);
        assert_eq!(pump(&mut chain, (end, far), (0, near), &want), want);
    }
}

#[test]
fn data_goes_before_the_answer_within_the_early_credit() {
    let mut chain = Chain::new(2, |_, _| ());
    let near = chain.link(0).open(Bytes::from_static(b"h")).unwrap();
    assert_eq!(chain.link(0).write(near, &pattern(40_000)), Ok(Write::Taken(40_000)));
    chain.run_for(millis(50));
    let far = chain.far();
    let opened: Vec<_> = chain.events(far).into_iter().collect();
    let Some(Event::Opened { id, header }) = opened.into_iter().find(|e| matches!(e, Event::Opened { .. }))
    else {
        panic!("no open")
    };
    assert_eq!(header, Bytes::from_static(b"h"));
    // Unread, only the early credit of each hop has left; the other side may speak before its answer too.
    assert_eq!(chain.link(far).write(id, b"early"), Ok(Write::Taken(5)));
    chain.run_for(millis(50));
    assert_eq!(chain.read_all(0, near), (b"early".to_vec(), None));
    assert_eq!(chain.link(0).answered(near), Ok(None));
    assert_eq!(chain.link(0).bytes_sent(near), 2 * (16 << 10));
    chain.link(far).answer(id, Bytes::from_static(b"yes"));
    chain.run_for(millis(50));
    assert_eq!(chain.link(0).answered(near), Ok(Some(Bytes::from_static(b"yes"))));
    let (got, end) = chain.read_all(far, id);
    assert_eq!((got, end), (pattern(40_000), None));
}

#[test]
fn half_close_keeps_the_other_direction_and_finish_waits_for_the_far_reader() {
    for links in 1..=3 {
        let mut chain = Chain::new(links, |_, _| ());
        let (near, far) = chain.open(b"");
        let end = chain.far();
        chain.link(0).write(near, b"request").unwrap();
        chain.link(0).end(near);
        chain.run_for(secs(40));
        assert_eq!(chain.link(0).send_state(near), Ok(SendState::Ending), "nobody has read yet");
        assert_eq!(chain.read_all(end, far), (b"request".to_vec(), Some(Ok(()))));
        chain.run_for(millis(50));
        assert_eq!(chain.link(0).send_state(near), Ok(SendState::Acknowledged));
        let reply = pattern(300_000);
        assert_eq!(pump(&mut chain, (end, far), (0, near), &reply), reply);
        chain.link(end).end(far);
        chain.run_for(millis(50));
        assert_eq!(chain.read_all(0, near), (vec![], Some(Ok(()))));
        chain.link(0).release(near);
        chain.run_for(millis(50));
        chain.link(end).release(far);
        chain.run_for(millis(50));
        for number in 0..=end {
            assert_eq!(chain.link(number).open_sessions(), 0, "end {number} of {links} links");
        }
        assert_eq!(chain.splices(), 0);
        for relay in 0..links - 1 {
            assert_eq!(chain.splice_ends(relay), [SpliceEnd::Clean]);
        }
    }
}

#[test]
fn crossing_ends_are_clean() {
    let mut chain = Chain::new(3, |_, _| ());
    let (near, far) = chain.open(b"");
    let end = chain.far();
    chain.link(0).write(near, b"a").unwrap();
    chain.link(end).write(far, b"b").unwrap();
    chain.link(0).end(near);
    chain.link(end).end(far);
    chain.run_for(millis(50));
    assert_eq!(chain.read_all(0, near), (b"b".to_vec(), Some(Ok(()))));
    assert_eq!(chain.read_all(end, far), (b"a".to_vec(), Some(Ok(()))));
    chain.link(0).release(near);
    chain.link(end).release(far);
    chain.run_for(secs(60));
    assert_eq!(chain.splice_ends(0), [SpliceEnd::Clean]);
    assert_eq!(chain.splice_ends(1), [SpliceEnd::Clean]);
    assert_eq!(chain.link(0).open_sessions() + chain.link(end).open_sessions(), 0);
}

#[test]
fn an_abort_crosses_every_link_with_code_message_and_hops() {
    for links in 1..=4 {
        let mut chain = Chain::new(links, |_, _| ());
        let (near, far) = chain.open(b"");
        let end = chain.far();
        chain.link(0).write(near, b"before").unwrap();
        chain.run_for(millis(20));
        chain.link(0).abort(near, Abort::new(Code::app(7).unwrap(), "caller gave up"));
        chain.run_for(millis(20));
        let (got, why) = chain.read_all(end, far);
        assert_eq!(got, b"before", "what came before an abort stays readable");
        let abort = why.unwrap().unwrap_err();
        assert_eq!((abort.code.name().as_ref(), abort.message.as_str()), ("app_7", "caller gave up"));
        assert_eq!(abort.hops as usize, links);
        assert!(chain.link(end).write(far, b"x").is_err());
        chain.link(0).release(near);
        chain.link(end).release(far);
        assert_eq!(chain.splices(), 0);
    }
}

#[test]
fn an_abort_waits_for_no_credit() {
    let mut chain = Chain::new(3, |_, _| ());
    let (near, far) = chain.open(b"");
    let end = chain.far();
    // Fill every window and queue of the chain, and never read.
    while let Write::Taken(_) = chain.link(0).write(near, &[1; 50_000]).unwrap() {
        chain.run_for(millis(10));
    }
    chain.run_for(secs(1));
    chain.link(0).abort(near, Abort::new(Code::TIMEOUT, ""));
    chain.run_for(millis(20));
    assert!(chain.link(end).abort_reason(far).is_some_and(|abort| abort.code == Code::TIMEOUT));
}

#[test]
fn a_drop_before_the_end_is_an_abort_and_after_both_ends_is_clean() {
    let mut chain = Chain::new(1, |_, _| ());
    let (near, far) = chain.open(b"");
    chain.link(0).write(near, b"half a message").unwrap();
    chain.link(0).release(near);
    chain.run_for(millis(20));
    let (got, why) = chain.read_all(1, far);
    assert_eq!(got, b"half a message");
    assert_eq!(why.unwrap().unwrap_err().code, Code::PEER_RESET);

    let (near, far) = chain.open(b"");
    chain.link(1).end(far);
    chain.run_for(millis(20));
    assert_eq!(chain.read_all(0, near), (vec![], Some(Ok(()))));
    chain.link(0).write(near, b"all of it").unwrap();
    chain.link(0).end(near);
    chain.link(0).release(near);
    chain.run_for(millis(20));
    assert_eq!(chain.read_all(1, far), (b"all of it".to_vec(), Some(Ok(()))));
}

#[test]
fn a_link_that_loses_every_packet_is_dead_at_both_ends_at_the_presets_bound() {
    for (preset, bound) in
        [("fast", 4_500), ("default", 15_000), ("nat", 30_000), ("datacenter", 45_000), ("mobile", 60_000)]
    {
        let mut chain = Chain::new(1, |end, config| {
            config.liveness = (end == 0).then(|| preset.parse::<Liveness>().unwrap());
        });
        let (near, far) = chain.open(b"");
        chain.wires[0].cut();
        chain.wires[1].cut();
        chain.run_for(millis(bound + 1_000));
        for end in 0..2 {
            let events = chain.events(end);
            let Some(Event::Down(LinkEnd::DeadPeer { silent })) = events.last() else { panic!("{events:?}") };
            assert_eq!(silent.as_millis(), u128::from(bound), "{preset}, end {end}");
            assert!(events.contains(&Event::Suspect), "suspicion comes first");
            let id = if end == 0 { near } else { far };
            let abort = chain.read_all(end, id).1.unwrap().unwrap_err();
            assert_eq!((abort.code, abort.hops, abort.silent_ms), (Code::CONN_LOST, 0, Some(bound)));
        }
    }
}

#[test]
fn the_middle_of_three_links_dies_and_both_ends_read_conn_lost_with_hop_one() {
    let mut chain = Chain::new(3, |_, _| ());
    let (near, far) = chain.open(b"");
    let cut_at = chain.now;
    chain.wires[2].cut();
    chain.wires[3].cut();
    for (end, id) in [(0, near), (5, far)] {
        let done = |chain: &mut Chain| chain.link(end).abort_reason(id).is_some();
        assert!(chain.run_until(cut_at + millis(15_100), done), "end {end} learned nothing");
        let (_, why) = chain.read_all(end, id);
        let abort = why.unwrap().unwrap_err();
        assert_eq!((abort.code, abort.hops), (Code::CONN_LOST, 1), "{abort}");
        assert_eq!(abort.silent_ms, Some(15_000));
    }
}

#[test]
fn a_healthy_idle_link_lives_and_costs_four_rounds_in_any_twenty_seconds() {
    for sessions in [1, 500] {
        let mut chain = Chain::new(1, |_, _| ());
        for _ in 0..sessions {
            chain.open(b"");
        }
        // A ping or pong is 2 bytes, and a TLS record 22 more.
        let per_round = 2 * (2 + 22);
        let mut carried = Vec::new();
        for _ in 0..600 {
            carried.push(chain.wires[0].carried + chain.wires[1].carried);
            chain.run_for(millis(500));
        }
        assert!(chain.link(0).end_of_link().is_none());
        let rounds = |from: usize, to: usize| (carried[to] - carried[from]) / 4;
        // The last byte went a little before the first sample.
        assert!(rounds(0, 39) <= 3, "{} rounds in the 20 s after the last byte", rounds(0, 39));
        for from in 0..carried.len() - 40 {
            assert!(rounds(from, from + 40) <= 4);
        }
        assert!(rounds(0, carried.len() - 1) >= 50, "pings do go");
        assert!(per_round <= 52);
    }
}

#[test]
fn a_slow_link_saturated_both_ways_is_not_dead() {
    for rate in [32 << 10, 200 << 10] {
        let mut chain = Chain::new(1, |_, _| ());
        let (near, far) = chain.open(b"");
        for wire in &mut chain.wires {
            wire.rate = Some(rate);
        }
        let limit = chain.now + secs(600);
        chain.run_until(limit, |chain| {
            for (end, id) in [(0, near), (1, far)] {
                let _ = chain.link(end).write(id, &[7; 60_000]);
                chain.read_all(end, id);
            }
            false
        });
        assert!(chain.link(0).end_of_link().is_none() && chain.link(1).end_of_link().is_none(), "at {rate}");
        assert!(chain.link(1).counters().data_in > rate * 500);
    }
}

#[test]
fn pauses_are_no_deaths_but_one_long_pause_of_one_end_is() {
    // Both ends stand still for a minute, as on a machine that was suspended.
    let mut chain = Chain::new(1, |_, _| ());
    chain.open(b"");
    chain.run_for(millis(7_300));
    let wake = chain.now + secs(60);
    for end in &mut chain.ends {
        end.paused_until = Some(wake);
    }
    chain.run_for(secs(120));
    assert!(chain.link(0).end_of_link().is_none() && chain.link(1).end_of_link().is_none());

    // One end for 8 s.
    for end in [0, 1] {
        chain.ends[end].paused_until = Some(chain.now + secs(8));
        chain.run_for(secs(30));
        assert!(chain.link(0).end_of_link().is_none() && chain.link(1).end_of_link().is_none());
    }

    // One end for a minute: the other declares it dead, and it learns so when it wakes.
    chain.ends[1].paused_until = Some(chain.now + secs(60));
    chain.run_for(secs(61));
    assert!(matches!(chain.link(0).end_of_link(), Some(LinkEnd::DeadPeer { .. })));
    let Some(LinkEnd::Goodbye(abort)) = chain.link(1).end_of_link() else {
        panic!("{:?}", chain.link(1).end_of_link())
    };
    assert_eq!((abort.code, abort.hops), (Code::CONN_LOST, 0));
}

#[test]
fn a_reader_that_stops_holds_up_its_own_session_only() {
    let mut chain = Chain::new(2, |_, _| ());
    let (stuck, _) = chain.open(b"");
    while let Write::Taken(_) = chain.link(0).write(stuck, &[1; 60_000]).unwrap() {
        chain.run_for(millis(10));
    }
    let held = chain.link(0).bytes_sent(stuck);
    assert!(held <= 2 * (64 << 10), "one window a hop, but {held} bytes left for a reader that never read");
    let (near, far) = chain.open(b"");
    let want = pattern(2_000_000);
    assert_eq!(pump(&mut chain, (0, near), (3, far), &want), want);
}

#[test]
fn windows_grow_for_a_reader_that_keeps_up_and_not_beyond_the_budget() {
    for (budget, least, most) in [(64 << 20, 500_000, 4 << 20), (100 << 10, 16 << 10, 116 << 10)] {
        let mut chain = Chain::new(1, |_, config| config.limits.budget = budget);
        for wire in &mut chain.wires {
            wire.latency = millis(50);
        }
        let (near, far) = chain.open(b"");
        let began = chain.now;
        let want = pattern(20_000_000);
        assert_eq!(pump(&mut chain, (0, near), (1, far), &want), want);
        let rate = 20_000_000.0 / (chain.now - began).as_secs_f64();
        // One window per round trip of 100 ms.
        let window = rate / 10.0;
        assert!(window > f64::from(least), "about {window} bytes a round trip");
        assert!(chain.link(1).budget_used() <= most, "{}", chain.link(1).budget_used());
    }
}

#[test]
fn a_drain_refuses_new_sessions_and_cuts_the_rest_at_its_deadline() {
    let mut chain = Chain::new(1, |_, _| ());
    let (near, far) = chain.open(b"");
    let now = chain.now;
    chain.link(1).drain(now, secs(10));
    chain.run_for(millis(20));
    assert!(chain.events(0).contains(&Event::PeerDrains { deadline_ms: 10_000 }));
    assert_eq!(chain.link(0).open(Bytes::new()), Err(OpenError::Draining));
    chain.link(0).write(near, b"still flows").unwrap();
    chain.run_for(secs(9));
    assert_eq!(chain.read_all(1, far), (b"still flows".to_vec(), None));
    chain.run_for(millis(1_100));
    let abort = chain.read_all(0, near).1.unwrap().unwrap_err();
    assert_eq!((abort.code, abort.hops), (Code::DRAIN_DEADLINE, 1));
    assert_eq!(chain.read_all(1, far).1.unwrap().unwrap_err().hops, 0);
    assert!(chain.events(1).contains(&Event::Drained));
}

#[test]
fn an_open_that_crosses_a_drain_is_refused_as_draining() {
    let mut chain = Chain::new(1, |_, _| ());
    let now = chain.now;
    chain.link(1).drain(now, secs(10));
    let near = chain.link(0).open(Bytes::new()).unwrap();
    chain.run_for(millis(20));
    assert_eq!(chain.link(0).answered(near).unwrap_err().code, Code::DRAINING);
}

#[test]
fn a_goodbye_ends_sessions_with_its_reason_and_says_unsent_aborts_first() {
    let mut chain = Chain::new(1, |_, _| ());
    let (a, far_a) = chain.open(b"");
    let (b, far_b) = chain.open(b"");
    chain.link(1).abort(far_a, Abort::new(Code::DRAIN_DEADLINE, "late"));
    chain.link(1).close(Code::SHUTDOWN, "stopping");
    chain.run_for(millis(20));
    assert_eq!(chain.read_all(0, a).1.unwrap().unwrap_err().code, Code::DRAIN_DEADLINE);
    let abort = chain.read_all(0, b).1.unwrap().unwrap_err();
    assert_eq!((abort.code, abort.hops, abort.message.as_str()), (Code::SHUTDOWN, 1, "stopping"));
    assert_eq!(chain.read_all(1, far_b).1.unwrap().unwrap_err().hops, 0);
}

#[test]
fn limits_on_sessions_and_unanswered_opens_refuse_with_overload() {
    let mut chain = Chain::new(1, |_, config| {
        config.limits.sessions = 10;
        config.limits.unanswered_opens = 4;
    });
    let opens: Vec<_> = (0..10).map(|_| chain.link(0).open(Bytes::new()).unwrap()).collect();
    assert_eq!(chain.link(0).open(Bytes::new()), Err(OpenError::TooManySessions(10)));
    chain.run_for(millis(20));
    let refused = opens
        .iter()
        .filter(|id| matches!(chain.link(0).answered(**id), Err(a) if a.code == Code::OVERLOAD))
        .count();
    assert_eq!(refused, 6);
    assert_eq!(chain.link(1).counters().opens_over_limit, 6);
    // Refused ones have made room.
    chain.link(0).open(Bytes::new()).unwrap();
}

#[test]
fn ten_thousand_sessions_one_after_another_lose_no_slot() {
    let mut chain = Chain::new(2, |_, config| config.limits.sessions = 3);
    for round in 0..10_000 {
        let near = chain.link(0).open(Bytes::new()).unwrap_or_else(|e| panic!("round {round}: {e}"));
        chain.link(0).write(near, b"q").unwrap();
        chain.link(0).end(near);
        chain.run_for(millis(5));
        let far = chain.far();
        let id = chain
            .events(far)
            .into_iter()
            .find_map(|event| if let Event::Opened { id, .. } = event { Some(id) } else { None })
            .unwrap();
        chain.link(far).answer(id, Bytes::new());
        assert_eq!(chain.read_all(far, id), (b"q".to_vec(), Some(Ok(()))));
        chain.link(far).end(id);
        chain.link(far).release(id);
        chain.run_for(millis(5));
        assert_eq!(chain.read_all(0, near), (vec![], Some(Ok(()))));
        chain.link(0).release(near);
        chain.run_for(millis(5));
        chain.events(0);
        chain.events(1);
        chain.events(2);
    }
    assert_eq!(chain.link(0).open_sessions(), 0);
}

#[test]
fn session_ids_that_run_out_are_an_error_and_no_wrap() {
    let first = (1 << 61) - 1;
    let mut chain = Chain::new(1, |_, config| config.first_session = first);
    let (near, _) = chain.open(b"");
    assert_eq!(near.number(), (1 << 62) - 1);
    assert_eq!(chain.link(0).open(Bytes::new()), Err(OpenError::Exhausted));
}

#[test]
fn read_into_copies_and_tells_the_end() {
    let mut chain = Chain::new(1, |_, _| ());
    let (near, far) = chain.open(b"");
    chain.link(0).write(near, b"hello").unwrap();
    chain.link(0).end(near);
    chain.run_for(millis(20));
    let now = chain.now;
    let mut out = [0; 3];
    assert_eq!(chain.link(1).read_into(now, far, &mut out), Ok(Some(3)));
    assert_eq!(chain.link(1).read_into(now, far, &mut out), Ok(Some(2)));
    assert_eq!(chain.link(1).read_into(now, far, &mut out), Ok(None));
    assert_eq!(chain.link(1).read(now, far, 1), Ok(Read::End));
}

/// The session of a chain of three links whose middle one is drained by the relay next to the origin.
#[test]
fn the_middle_of_three_links_drains_and_both_ends_read_drain_deadline() {
    let mut chain = Chain::new(3, |_, _| ());
    let (near, far) = chain.open(b"");
    let now = chain.now;
    chain.link(2).drain(now, secs(10));
    chain.link(0).write(near, b"there").unwrap();
    chain.link(5).write(far, b"back").unwrap();
    chain.run_for(millis(9_900));
    assert_eq!(chain.read_all(5, far), (b"there".to_vec(), None));
    assert_eq!(chain.read_all(0, near), (b"back".to_vec(), None));
    // The relay at the near end of the middle link cuts: one link from the origin, two from the far end.
    for (end, id, hops) in [(0, near, 1), (5, far, 2)] {
        let done = |chain: &mut Chain| chain.link(end).abort_reason(id).is_some();
        assert!(chain.run_until(now + millis(10_100), done), "end {end} learned nothing");
        let (got, why) = chain.read_all(end, id);
        let abort = why.unwrap().unwrap_err();
        assert_eq!((got, abort.code, abort.hops), (vec![], Code::DRAIN_DEADLINE, hops));
    }
}

/// Whatever happens to the middle link, and whatever was under way, neither end ever reads an end of stream.
#[test]
fn a_cut_in_the_middle_never_looks_like_an_end() {
    let mut ran = 0;
    for harm in 0..4 {
        for half_closed in [false, true] {
            for busy in [false, true] {
                let mut chain = Chain::new(3, |_, _| ());
                let (near, far) = chain.open(b"");
                if half_closed {
                    chain.link(0).end(near);
                    chain.run_for(millis(50));
                    assert_eq!(chain.read_all(5, far), (vec![], Some(Ok(()))));
                }
                if busy {
                    let _ = chain.link(0).write(near, &[1; 60_000]);
                    let _ = chain.link(5).write(far, &[2; 60_000]);
                    chain.run_for(Duration::from_micros(1_500));
                }
                let now = chain.now;
                match harm {
                    0 => [2, 3].into_iter().for_each(|end| chain.wires[end].cut()),
                    1 => chain.wires[3].cut(),
                    2 => chain.end_carrier(1),
                    _ => chain.link(3).drain(now, millis(100)),
                }
                chain.run_for(secs(16));
                for (end, id) in [(0, near), (5, far)] {
                    let (_, outcome) = chain.read_all(end, id);
                    let ended_before = half_closed && end == 5;
                    let aborted = matches!(outcome, Some(Err(_))) || ended_before;
                    assert!(aborted, "harm {harm}, half closed {half_closed}, end {end}: {outcome:?}");
                    assert!(chain.link(end).abort_reason(id).is_some());
                }
                ran += 1;
            }
        }
    }
    assert_eq!(ran, 4 * 2 * 2);
}

#[test]
fn an_application_two_links_away_gives_up_and_its_words_arrive() {
    for from_near in [true, false] {
        let mut chain = Chain::new(2, |_, _| ());
        let (near, far) = chain.open(b"");
        let [(from, by), (to, reader)] =
            if from_near { [(0, near), (3, far)] } else { [(3, far), (0, near)] };
        chain.link(from).abort(by, Abort::new(Code::app(42).unwrap(), "no longer wanted"));
        chain.run_for(millis(20));
        let abort = chain.read_all(to, reader).1.unwrap().unwrap_err();
        assert_eq!(
            (abort.code, abort.message.as_str(), abort.hops),
            (Code::app(42).unwrap(), "no longer wanted", 2)
        );
    }
}
