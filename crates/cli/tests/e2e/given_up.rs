//! Whoever gives up in the middle of something (an open that is held, a drain, a session that is taken up again) leaves
//! nothing behind: no count, no place, no connection, and the other end learns it within a trip.

use std::io::Write as _;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{
    AT_ONCE, Conn, Ended, PATIENCE, Pairs, SERVICES, WorldOptions, begin_drain, ends_within, exchange, until,
};
use crate::pairs::reason_at;

/// Opens that a relay holds, and those that wait at a sidecar.
fn held(pairs: &Pairs) -> u64 {
    let running = pairs.relays.iter().filter(|relay| relay.process.is_running());
    let at_relays = running.map(|relay| relay.status().budgets.held_opens.used);
    let running = pairs.sidecars.iter().filter(|edge| edge.process.is_running());
    let at_sidecars = running.map(|edge| edge.status().budgets.held_opens.used);
    at_relays.chain(at_sidecars).sum()
}

fn wait_held(pairs: &Pairs, count: u64) {
    until(&format!("{count} opens are held"), AT_ONCE, || (held(pairs) == count).then_some(()));
}

/// Applications give up: by a close, and on TCP, where a close is not told from a half-close, by a reset.
fn give_up(apps: Vec<Conn>) {
    apps.into_iter().for_each(Conn::reset);
}

/// Opens of both kinds of mapping at both sidecars.
fn dial_all(pairs: &Pairs) -> Vec<Conn> {
    [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(sidecar, service)| pairs.dial(sidecar, service)).into()
}

/// Both agents are lost, so opens are held at the relays. Those that are given up are forgotten at once, one after the
/// other, whether their application goes or their whole sidecar; those that stay are carried when an agent is back.
#[test]
fn opens_that_are_given_up_while_a_relay_holds_them_are_forgotten() {
    let mut pairs = Pairs::start(["127.0.8.11", "127.0.9.11"], WorldOptions::default());
    for agent in 0..2 {
        pairs.agents[agent].process.kill();
    }
    until("the relays know of the loss", AT_ONCE, || {
        let services = pairs.relays.iter().flat_map(|relay| relay.status().services);
        services.flat_map(|service| service.agents).next().is_none().then_some(())
    });
    let apps = dial_all(&pairs);
    wait_held(&pairs, 4);
    give_up(apps);
    wait_held(&pairs, 0);
    pairs.none_open("opens given up at the relay");

    // A sidecar that is killed takes its own along, and no others.
    let mut stays = pairs.dial(1, 0);
    stays.write_all(b"stays").unwrap();
    let lost = pairs.dial(0, 0);
    wait_held(&pairs, 2);
    pairs.sidecars[0].process.kill();
    drop(lost);
    wait_held(&pairs, 1);
    // One that has said everything and ended its direction has not given up.
    stays.end();
    pairs.restart_agent(1);
    let (agent, mut server) = until("the agent is back", PATIENCE, || pairs.accepted(0));
    assert_eq!(agent, 1);
    assert_eq!(server.read_to_eof(), b"stays");
    server.write_all(b"yes").unwrap();
    server.end();
    assert_eq!(stays.read_to_eof(), b"yes");
    wait_held(&pairs, 0);
    drop((stays, server));
    pairs.none_open("a held open that was carried");
}

/// Both relays are gone, so opens wait at the sidecars. The same there.
#[test]
fn opens_that_are_given_up_while_a_sidecar_holds_them_are_forgotten() {
    let mut pairs = Pairs::start(["127.0.8.12", "127.0.9.12"], WorldOptions::default());
    for relay in 0..2 {
        pairs.relays[relay].process.kill();
    }
    let apps = dial_all(&pairs);
    wait_held(&pairs, 4);
    give_up(apps);
    wait_held(&pairs, 0);
    pairs.none_open("opens given up at the sidecar");

    let (mut stays, lost) = (pairs.dial(1, 0), pairs.dial(1, 1));
    stays.write_all(b"stays").unwrap();
    wait_held(&pairs, 2);
    lost.reset();
    wait_held(&pairs, 1);
    stays.end();
    // Either relay will do.
    pairs.restart_relay(1);
    let (_, mut server) = until("a relay is back", PATIENCE, || pairs.accepted(0));
    assert_eq!(server.read_to_eof(), b"stays");
    server.write_all(b"yes").unwrap();
    server.end();
    assert_eq!(stays.read_to_eof(), b"yes");
    drop((stays, server));
    pairs.none_open("a held open that was carried");
    assert!(pairs.accepted(1).is_none(), "what was given up reached no server");
}

/// A process that drains waits for the last of its sessions and for no longer: when that is given up, it goes at once.
#[test]
fn a_drain_ends_with_the_last_session_that_is_given_up() {
    let mut pairs =
        Pairs::start(["127.0.8.13", "127.0.9.13"], WorldOptions { drain: "60s", ..WorldOptions::default() });
    for (service, how) in [(0, "closes"), (1, "resets"), (0, "server resets"), (1, "ends in order")] {
        let sessions = [pairs.session_at_each(0, service), pairs.session_at_each(1, service)];
        let drains = [&pairs.agents[0].process, &pairs.relays[0].process];
        for process in drains {
            begin_drain(process);
        }
        for [first, second] in sessions {
            for (mut app, mut server) in [first, second] {
                exchange(&mut app, &mut server);
                match how {
                    "closes" => drop(app),
                    "resets" => app.reset(),
                    "server resets" => {
                        server.reset();
                        ends_within(&mut app, "the application is told", AT_ONCE);
                        continue;
                    }
                    _ => {
                        app.end();
                        server.end();
                        assert_eq!((app.drain().1, server.drain().1), (Ended::Eof, Ended::Eof));
                        continue;
                    }
                }
                ends_within(&mut server, "the server is told", AT_ONCE);
            }
        }
        // The last bytes of a connection that was closed may take 3 s to be given up.
        for process in drains {
            assert!(process.wait_exit(AT_ONCE + Duration::from_secs(3)).success(), "{how}");
        }
        pairs.restart_agent(0);
        pairs.restart_relay(0);
        pairs.wait_settled();
    }
    let (_, app, mut server) = pairs.session(0, 0);
    begin_drain(&pairs.sidecars[0].process);
    drop(app);
    ends_within(&mut server, "the server is told", AT_ONCE);
    drop(server);
    assert!(pairs.sidecars[0].process.wait_exit(AT_ONCE + Duration::from_secs(3)).success());
    pairs.none_open("after all drains");
}

/// A process that drains is killed, or told a second time: its sessions end then, at both ends, and not at the deadline.
#[test]
fn a_drain_that_is_cut_short_ends_its_sessions_at_once() {
    let mut pairs =
        Pairs::start(["127.0.8.14", "127.0.9.14"], WorldOptions { drain: "60s", ..WorldOptions::default() });
    let [(mut app, mut server), mut other] = pairs.session_at_each(0, 0);
    begin_drain(&pairs.agents[0].process);
    exchange(&mut app, &mut server);
    pairs.agents[0].process.signal(Signal::TERM);
    ends_within(&mut app, "the application is told", AT_ONCE);
    ends_within(&mut server, "the server is told", AT_ONCE);
    reason_at(&pairs, 0, 0, "shutdown", 2);
    assert!(pairs.agents[0].process.wait_exit(AT_ONCE).success());
    exchange(&mut other.0, &mut other.1);
    pairs.restart_agent(0);
    pairs.wait_settled();

    begin_drain(&pairs.sidecars[0].process);
    exchange(&mut other.0, &mut other.1);
    pairs.sidecars[0].process.signal(Signal::TERM);
    ends_within(&mut other.0, "the application is told", AT_ONCE);
    ends_within(&mut other.1, "the server is told", AT_ONCE);
    assert!(pairs.sidecars[0].process.wait_exit(AT_ONCE).success());
    pairs.restart_sidecar(0);
    pairs.wait_settled();
    drop((app, server, other));
    pairs.none_open("after both drains");
}

/// Young sessions whose relays are gone, so that they wait to be taken up again. Applications that give up then are
/// forgotten by their sidecar at once, and their servers are told when nobody can come for them any more, not before; a
/// server that gives up is told to the application once there is a path.
#[test]
fn young_sessions_that_are_given_up_leave_nothing_behind() {
    /// For how long an agent expects a session again.
    const EXPECTED: Duration = Duration::from_secs(10);
    let mut pairs = Pairs::start(["127.0.8.15", "127.0.9.15"], WorldOptions::default());
    let mut sessions: Vec<_> = (0..6).map(|number| pairs.session(number % 2, number / 2 % 2)).collect();
    for relay in 0..2 {
        pairs.relays[relay].process.kill();
    }
    let lost = Instant::now();
    let (mut gone_apps, mut given_up) = (Vec::new(), Vec::new());
    for (_, app, server) in sessions.drain(..) {
        gone_apps.push(app);
        given_up.push(server);
    }
    give_up(gone_apps);
    for sidecar in 0..2 {
        for service in SERVICES {
            until("the sidecar has forgotten it", AT_ONCE, || {
                (pairs.mapping(sidecar, service).sessions.open == 0).then_some(())
            });
        }
    }
    for server in &mut given_up {
        let left = (EXPECTED + AT_ONCE).saturating_sub(lost.elapsed()).max(AT_ONCE);
        ends_within(server, "the server is told", left);
    }
    for relay in 0..2 {
        pairs.restart_relay(relay);
    }
    pairs.wait_settled();
    drop(given_up);
    pairs.none_open("after sessions that nobody took up again");
    assert!((0..2).all(|service| pairs.accepted(service).is_none()), "nothing came twice");
}
