//! Two relays, two agents of the same services, two sidecars: what concerns one of two is seen at that one, and only
//! there.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use hopline_admin::status::{AgentState, FarState, LinkState, RelayState};
use hopline_demo::proto::v1::TickRequest;
use rustix::process::Signal;
use tonic::Code;

use crate::grpc::{app, client_of_socket, echo, server_on};
use crate::harness::{
    AGENTS, AT_ONCE, Conn, Kind, PATIENCE, Pairs, RELAYS, Relay, SERVICES, SIDECARS, World, WorldOptions,
    begin_drain, ends_within, exchange, grow_old, until,
};

const DRAIN: Duration = Duration::from_secs(6);

fn options() -> WorldOptions {
    WorldOptions { drain: "6s", ..WorldOptions::default() }
}

/// Waits until a mapping's last error is this one.
pub(crate) fn reason_at(pairs: &Pairs, sidecar: usize, service: usize, reason: &str, hop: u64) {
    until(&format!("{reason} at hop {hop}"), AT_ONCE, || {
        let error = pairs.mapping(sidecar, SERVICES[service]).last_error?;
        (error.reason == reason && error.hop == hop).then_some(())
    });
}

/// A cut that comes neither before the drain's deadline nor long after it.
fn cut_at_the_deadline(began: Instant, app: &mut Conn, server: &mut Conn) {
    let limit = DRAIN + AT_ONCE;
    ends_within(app, "the application's end", limit);
    let took = began.elapsed();
    ends_within(server, "the server's end", AT_ONCE);
    assert!((DRAIN - Duration::from_millis(100)..limit).contains(&took), "{took:?}");
}

/// P6 with two of each. An agent that drains is asked by nobody any more: opens go to the other one at once, without
/// having been refused by it. The one drain cuts only its own sessions.
#[test]
fn an_agent_that_drains_is_passed_over_at_once() {
    let mut pairs = Pairs::start(["127.0.8.1", "127.0.9.1"], options());
    let [(mut app, mut server), mut other] = pairs.session_at_each(0, 0);
    let began = Instant::now();
    begin_drain(&pairs.agents[0].process);
    for relay in &pairs.relays {
        until("the relay has been told", AT_ONCE, || {
            let services = relay.status().services;
            let up = |name: &str| {
                let of = services.iter().find(|service| service.name == name);
                let up = of.into_iter().flat_map(|of| &of.agents).filter(|of| of.state == AgentState::Up);
                up.map(|agent| agent.machine.clone()).collect::<Vec<_>>()
            };
            SERVICES.iter().all(|name| up(name) == [AGENTS[1]]).then_some(())
        });
    }
    until("the sidecars have been told", AT_ONCE, || {
        let told = |sidecar| {
            let agents = pairs.mapping(sidecar, SERVICES[0]).agents;
            agents.iter().filter(|of| of.state == FarState::Up).all(|of| of.machine == AGENTS[1])
        };
        (told(0) && told(1)).then_some(())
    });
    for number in 0..20 {
        let (agent, ..) = pairs.session(number % 2, number / 2 % 2);
        assert_eq!(agent, 1);
    }
    for relay in &pairs.relays {
        assert_eq!(relay.status().opens.refused.get("draining"), None, "nobody asked in vain");
    }
    exchange(&mut app, &mut server);
    cut_at_the_deadline(began, &mut app, &mut server);
    reason_at(&pairs, 0, 0, "drain_deadline", 2);
    assert_eq!(pairs.mapping(1, SERVICES[0]).last_error, None, "the other sidecar had nothing there");
    assert!(pairs.agents[0].process.wait_exit(AT_ONCE).success());
    exchange(&mut other.0, &mut other.1);
    pairs.restart_agent(0);
    pairs.wait_settled();
    drop((app, server, other));
    pairs.none_open("after an agent's drain");
}

/// P6: one relay of two drains. New opens go over the other one at once; what is open at it runs to the deadline; the
/// other relay's sessions and everybody's other links are left alone. Then the other way round: the first is back.
#[test]
fn a_relay_that_drains_is_passed_over_at_once() {
    let mut pairs = Pairs::start(["127.0.8.2", "127.0.9.2"], options());
    for relay in [0, 1] {
        let other = 1 - relay;
        // Where the sidecars' sessions go while both are there is their choice.
        let (_, mut app, mut server) = pairs.session(0, 0);
        let is_here = pairs.relays[relay].status().sessions.open > 0;
        let began = Instant::now();
        begin_drain(&pairs.relays[relay].process);
        until("the sidecars have been told", AT_ONCE, || {
            let told = |sidecar: usize| {
                // Of who is behind a relay that is gone nothing is known.
                let agents = pairs.mapping(sidecar, SERVICES[0]).agents;
                if !is_here && agents.iter().any(|agent| agent.relay == RELAYS[relay]) {
                    return false;
                }
                let links = pairs.sidecars[sidecar].status().links;
                // With nothing open there it is gone at once.
                let told = if is_here { links[relay].state == LinkState::Draining } else { true };
                told && links[relay].state != LinkState::Up && links[other].state == LinkState::Up
            };
            (told(0) && told(1)).then_some(())
        });
        let before = pairs.relays[other].status().sessions.total;
        for number in 0..10 {
            let began = Instant::now();
            let (_, mut app, mut server) = pairs.session(number % 2, number / 2 % 2);
            exchange(&mut app, &mut server);
            assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
        }
        assert_eq!(pairs.relays[other].status().sessions.total, before + 10);
        assert_eq!(pairs.relays[other].status().state, RelayState::Up);
        exchange(&mut app, &mut server);
        if is_here {
            cut_at_the_deadline(began, &mut app, &mut server);
            reason_at(&pairs, 0, 0, "drain_deadline", 1);
            assert_eq!(pairs.mapping(1, SERVICES[0]).last_error, None, "the other sidecar had nothing there");
        }
        assert!(pairs.relays[relay].process.wait_exit(DRAIN + AT_ONCE).success());
        if !is_here {
            exchange(&mut app, &mut server);
        }
        pairs.restart_relay(relay);
        pairs.wait_settled();
    }
}

/// P6: one sidecar of two drains. It accepts nothing any more, so that applications can turn elsewhere; what is open there
/// runs to the deadline, and the agent is told why it was cut. The other sidecar goes on.
#[test]
fn a_sidecar_that_drains_accepts_nothing() {
    let pairs = Pairs::start(["127.0.8.3", "127.0.9.3"], options());
    let (agent, mut app, mut server) = pairs.session(0, 0);
    // Its address is known from here on.
    pairs.session(0, 1);
    let (_, mut other_app, mut other_server) = pairs.session(1, 0);
    let began = Instant::now();
    begin_drain(&pairs.sidecars[0].process);
    for service in [0, 1] {
        until("its sockets are closed", AT_ONCE, || pairs.try_dial(0, service).is_err().then_some(()));
    }
    exchange(&mut app, &mut server);
    pairs.session(1, 1);
    cut_at_the_deadline(began, &mut app, &mut server);
    until("the agent knows why", AT_ONCE, || {
        let error = pairs.service(agent, SERVICES[0]).last_error?;
        (error.reason == "drain_deadline" && error.hop == 2).then_some(())
    });
    assert!(pairs.sidecars[0].process.wait_exit(AT_ONCE).success());
    exchange(&mut other_app, &mut other_server);
    assert_eq!(pairs.mapping(1, SERVICES[0]).last_error, None);
}

/// Sessions that were opened over a relay that is killed, with a request said and nothing answered: each goes on over the
/// other relay, at the agent that has had the request. Neither agent sees one of the other's.
#[test]
fn a_young_session_goes_on_at_its_own_agent() {
    const SESSIONS: usize = 10;
    /// By then some may be too old on a machine that is very busy.
    const YOUNG: Duration = Duration::from_millis(600);
    let mut pairs = Pairs::start(["127.0.8.4", "127.0.9.4"], options());
    let (victim, mut sessions) = until("all are opened before they are old", PATIENCE, || {
        let began = Instant::now();
        let over = |relay: usize| pairs.relays[relay].status().sessions.total;
        let before = [over(0), over(1)];
        let mut sessions = Vec::new();
        for number in 0..SESSIONS {
            let mut app = pairs.dial(number % 2, 0);
            app.write_all(b"request").unwrap();
            let (agent, mut server) = pairs.accept(0);
            assert_eq!(server.chunk(7), b"request");
            sessions.push((agent, app, server));
        }
        let victim = if over(0) > before[0] { 0 } else { 1 };
        pairs.relays[victim].process.kill();
        if began.elapsed() < YOUNG {
            return Some((victim, sessions));
        }
        pairs.restart_relay(victim);
        pairs.wait_settled();
        None
    });
    for (agent, app, server) in &mut sessions {
        exchange(app, server);
        assert!(*agent < 2);
    }
    assert!(pairs.accepted(0).is_none(), "a request came to a second server");
    assert_eq!(pairs.relays[1 - victim].status().opens.refused.get("refused"), None);
    for sidecar in 0..2 {
        assert_eq!(pairs.mapping(sidecar, SERVICES[0]).last_error, None);
    }
    pairs.restart_relay(victim);
    pairs.wait_settled();
    drop(sessions);
    pairs.none_open("after the replay");
}

/// How a sidecar leaves that has open sessions.
const LEAVE: [Signal; 2] = [Signal::KILL, Signal::INT];

/// A sidecar is lost, or leaves, with sessions open: relays and agents count those of the other one only, at once, and the
/// servers have their reset. A relay with nothing open drains at once.
#[test]
fn sessions_of_a_lost_sidecar_are_counted_no_more() {
    const LOST: usize = 16;
    let mut pairs = Pairs::start(["127.0.8.5", "127.0.9.5"], WorldOptions::default());
    for how in LEAVE {
        let kept: Vec<_> = (0..3).map(|_| pairs.session(1, 0)).collect();
        let mut lost: Vec<_> = (0..LOST).map(|number| pairs.session(0, number % 2)).collect();
        // They can't be taken up again, so that nobody waits for that.
        lost.iter_mut().for_each(|(_, app, server)| grow_old(app, server));
        let opened = pairs.relays.iter().map(|relay| relay.status().sessions.open).sum::<u64>();
        assert_eq!(opened, 3 + LOST as u64);
        pairs.sidecars[0].process.signal(how);
        pairs.sidecars[0].process.wait_exit(AT_ONCE);
        until("relays count the other's only", AT_ONCE, || {
            let status = pairs.relays.each_ref().map(Relay::status);
            let open = status.iter().map(|status| status.sessions.open).sum::<u64>();
            let services = status.iter().flat_map(|status| &status.services);
            let agents = services.flat_map(|service| &service.agents);
            // What a relay chooses by is the sessions of an agent's link, whatever their service.
            let most = agents.map(|agent| agent.sessions).max();
            (open == 3 && most.is_some_and(|most| most <= 3)).then_some(())
        });
        for (_, app, server) in &mut lost {
            ends_within(server, "the server's end", AT_ONCE);
            ends_within(app, "the application's end", AT_ONCE);
        }
        for agent in 0..2 {
            until("agents count the other's only", AT_ONCE, || {
                let here = kept.iter().filter(|(of, ..)| *of == agent).count() as u64;
                let open = |service| pairs.service(agent, service).sessions.open;
                (open(SERVICES[0]) == here && open(SERVICES[1]) == 0).then_some(())
            });
        }
        for (_, mut app, mut server) in kept {
            exchange(&mut app, &mut server);
        }
        pairs.restart_sidecar(0);
        pairs.wait_settled();
        pairs.none_open("after a lost sidecar");
    }
    for relay in &pairs.relays {
        relay.process.signal(Signal::TERM);
        assert!(relay.process.wait_exit(AT_ONCE).success(), "a drain with nothing to wait for");
    }
}

/// Who has how many sessions is counted for each agent by itself, and the one with fewer gets the next ones.
#[test]
fn the_agent_with_fewer_sessions_gets_more() {
    let mut pairs = Pairs::start(["127.0.8.6", "127.0.9.6"], options());
    pairs.agents[1].process.signal(Signal::INT);
    pairs.agents[1].process.wait_exit(AT_ONCE);
    let mut open: Vec<_> = (0..12).map(|number| pairs.session(number % 2, 0)).collect();
    assert!(open.iter().all(|(agent, ..)| *agent == 0));
    pairs.restart_agent(1);
    pairs.wait_settled();
    let next: Vec<_> = (0..12).map(|number| pairs.session(number % 2, 0)).collect();
    assert!(next.iter().all(|(agent, ..)| *agent == 1), "each of these has the other agent to choose from");
    open.extend(next);
    for (agent, machine) in AGENTS.into_iter().enumerate() {
        assert_eq!(pairs.service(agent, SERVICES[0]).sessions.open, 12);
        let sessions = |relay: &Relay| {
            let services = relay.status().services;
            let of = services.into_iter().find(|service| service.name == SERVICES[0]).unwrap();
            of.agents.iter().find(|of| of.machine == machine).unwrap().sessions
        };
        assert_eq!(pairs.relays.iter().map(sessions).sum::<u64>(), 12);
    }
    for sidecar in 0..2 {
        assert_eq!(pairs.mapping(sidecar, SERVICES[0]).sessions.open, 12);
        assert_eq!(pairs.mapping(sidecar, SERVICES[1]).sessions.open, 0);
    }
    drop(open);
    pairs.none_open("after all have ended");
    // What has ended weighs nothing any more: of an even number each gets half, by each sidecar.
    let next: Vec<_> = (0..8).map(|number| pairs.session(number % 2, 0)).collect();
    assert_eq!(next.iter().filter(|(agent, ..)| *agent == 0).count(), 4);
}

/// One agent of two is killed: its sessions end with the hop that broke, the other's run on, and each sidecar sees which
/// of the two it was. With `explain: on` the application reads the names.
#[test]
fn the_one_that_is_lost_is_named() {
    let options = WorldOptions { mapping_keys: ", explain: on", ..options() };
    let pairs = Pairs::start(["127.0.8.7", "127.0.9.7"], options);
    let servers = [server_on(pairs.server(0, 0)), server_on(pairs.server(1, 0))];
    let [mut lost, mut other] = pairs.session_at_each(0, 1);
    grow_old(&mut lost.0, &mut lost.1);
    grow_old(&mut other.0, &mut other.1);
    pairs.agents[0].process.kill();
    let killed = Instant::now();
    ends_within(&mut lost.0, "the application's end", AT_ONCE);
    assert!(killed.elapsed() < AT_ONCE);
    reason_at(&pairs, 0, 1, "conn_lost", 1);
    exchange(&mut other.0, &mut other.1);
    assert_eq!(pairs.mapping(1, SERVICES[1]).last_error, None, "the other sidecar had nothing there");
    for sidecar in 0..2 {
        until("each sidecar sees which it was", AT_ONCE, || {
            let agents = pairs.mapping(sidecar, SERVICES[1]).agents;
            let state = |machine: &str, state| {
                agents.iter().filter(|of| of.machine == machine && of.state == state).count()
            };
            (state(AGENTS[0], FarState::Lost) == 2 && state(AGENTS[1], FarState::Up) == 2).then_some(())
        });
    }
    assert!(pairs.mapping(0, SERVICES[1]).sessions.open == 1);

    // The relay that this goes over, and the agent that is left.
    let path = pairs.socket(0);
    app().block_on(async {
        let mut channel = client_of_socket(path).await;
        for _ in 0..2 {
            echo(&mut channel, vec![7; 128 << 10]).await;
        }
        let one_and_then_idle = TickRequest { call_id: 0, count: 0, interval_ms: 0 };
        let mut ticks = channel.tick(one_and_then_idle).await.unwrap().into_inner();
        assert!(ticks.message().await.unwrap().is_some());
        let uses = |relay: &Relay| relay.status().sessions.open > 0;
        // A status is asked for on a runtime of its own.
        let here = std::thread::scope(|scope| scope.spawn(|| pairs.relays.iter().position(uses)).join());
        let here = here.unwrap().unwrap();
        pairs.relays[here].process.kill();
        let status = ticks.message().await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        let expected = format!("hopline: conn_lost at hop 0, {} to {}", SIDECARS[0], RELAYS[here]);
        assert_eq!(status.message(), expected);
    });
    drop(servers);
}

/// A server that resets its own connection is no fault of the path: with `explain: on` too the application reads what it
/// would read directly, and not a word of ours.
#[test]
fn a_reset_of_the_server_is_not_explained() {
    /// An empty SETTINGS, and a request on stream 1: POST, http, /.
    const REQUEST: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00\
        \x00\x00\x03\x01\x05\x00\x00\x00\x01\x83\x86\x84";
    const SETTINGS: &[u8] = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    let options = WorldOptions { mapping_keys: ", explain: on", ..options() };
    let pairs = Pairs::start(["127.0.8.8", "127.0.9.8"], options);
    for service in [0, 1] {
        let mut app = pairs.dial(0, service);
        app.write_all(REQUEST).unwrap();
        let (_, mut server) = pairs.accept(service);
        assert_eq!(server.chunk(REQUEST.len()), REQUEST);
        server.write_all(SETTINGS).unwrap();
        assert_eq!(app.chunk(SETTINGS.len()), SETTINGS);
        server.reset();
        let (last, _) = app.drain();
        assert!(last.is_empty(), "{:?}", String::from_utf8_lossy(&last));
        reason_at(&pairs, 0, service, "peer_reset", 2);
    }
}

/// SIGHUP to one sidecar of two: what is the same in both files is not touched, not even for a moment; a new mapping is
/// told to both relays, which tell its agents in turn. The other sidecar hears nothing of it.
#[test]
fn a_reload_touches_what_has_changed_and_nothing_else() {
    let options = WorldOptions { services: "  third: { tcp: { tcp: 9 } }\n", ..options() };
    let pairs = Pairs::start(["127.0.8.9", "127.0.9.9"], options);
    let socket = |sidecar| {
        let inode = std::fs::metadata(pairs.socket(sidecar)).unwrap().ino();
        (inode, pairs.mapping(sidecar, SERVICES[1]).listen)
    };
    let before = [socket(0), socket(1)];
    let (_, mut app, mut server) = pairs.session(0, 0);
    let path = pairs.folder().join(SIDECARS[0]).with_extension("yaml");
    let file = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{file}  third: {{ listen: \"127.0.0.1:0\" }}\n")).unwrap();
    pairs.sidecars[0].process.signal(Signal::HUP);
    pairs.sidecars[0].process.logged("config file reloaded");
    until("the agents of the new mapping are known at both relays", AT_ONCE, || {
        (pairs.mapping(0, "third").agents.len() == 4).then_some(())
    });
    assert_eq!([socket(0), socket(1)], before);
    exchange(&mut app, &mut server);
    assert_eq!(pairs.sidecars[1].status().mappings.len(), 2);
    // Taken away again, it is not told of any more.
    std::fs::write(&path, &file).unwrap();
    pairs.sidecars[0].process.signal(Signal::HUP);
    until("it is gone", AT_ONCE, || (pairs.sidecars[0].status().mappings.len() == 2).then_some(()));
    assert_eq!([socket(0), socket(1)], before);

    // SIGHUP to one agent: the service that it drops is left to the other one.
    let path = pairs.folder().join(AGENTS[0]).with_extension("yaml");
    let file = std::fs::read_to_string(&path).unwrap();
    let kept: Vec<&str> = file.lines().filter(|line| !line.starts_with("  second:")).collect();
    std::fs::write(&path, kept.join("\n")).unwrap();
    pairs.agents[0].process.signal(Signal::HUP);
    until("both relays know", AT_ONCE, || {
        let agents = pairs.mapping(1, SERVICES[1]).agents;
        let up =
            |machine| agents.iter().filter(|of| of.machine == machine && of.state == FarState::Up).count();
        (up(AGENTS[0]) == 0 && up(AGENTS[1]) == 2).then_some(())
    });
    for _ in 0..6 {
        assert_eq!(pairs.session(0, 1).0, 1);
    }
    pairs.session_at_each(1, 0);
    exchange(&mut app, &mut server);
}

/// A cut of the path behind the server's end is still a cut: an application that has more to say is told, though it has
/// read its end already.
#[test]
fn a_cut_behind_the_servers_end_is_told() {
    let world = World::start(WorldOptions::default());
    let (mut app, mut server) = world.slots[0].answered_pair(Kind::Tcp);
    grow_old(&mut app, &mut server);
    server.end();
    assert_eq!(app.read_to_eof(), b"");
    world.agent.process.kill();
    let Conn::Tcp(app) = &mut app else { panic!("a TCP application") };
    // It says nothing meanwhile: a write would be answered by the kernel, whatever was done here.
    until("the application is told", AT_ONCE, || app.take_error().unwrap());
    assert!(app.read(&mut [0]).is_ok_and(|read| read == 0));
}
