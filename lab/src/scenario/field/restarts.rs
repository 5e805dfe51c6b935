//! Servers, agents and relays that go and come back, and registrations that are still there.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rand::RngExt as _;
use rustix::process::Signal;
use serde_json::json;

use super::kit::{BASE, figure};
use super::shape::{app, count, cut, metric, metrics, note_reason, ready, serve};
use crate::fault::Fault;
use crate::inside::{self, connect, exchange};
use crate::measure::connections;
use crate::result::Bound;
use crate::scenario::{Case, Figure, Pace, Scenario};
use crate::shell::{now_ms, until};
use crate::world::{Way, World};

const SOON: Duration = Duration::from_secs(20);

const COMES: &[Figure] = &[
    figure("wrong", "opens that went otherwise than they must", "", Bound::AtMost(0.0)),
    figure("works_ms", "slowest open while the server is up", "ms", Bound::AtMost(500.0)),
    figure("fails_ms", "slowest failure while it is down", "ms", Bound::AtMost(1_000.0)),
    figure("dials", "the agent's dials to the relay", "", Bound::Within(1.0, 1.0)),
];
const OWN_PORT: &[Figure] = &[
    figure("wrong", "of 20 opens without a server, those that did not fail", "", Bound::AtMost(0.0)),
    figure("port", "the server takes its port afterwards", "", Bound::Word(&["at once"])),
    figure("works", "an open then", "", Bound::Word(&["yes"])),
];
const KILLED: &[Figure] = &[
    figure("ended", "of 500 sessions, those that ended", "", Bound::Within(500.0, 500.0)),
    figure("ended_s", "the last one's end", "s", Bound::AtMost(1.0)),
    figure("close_wait", "CLOSE_WAIT at the relay 5 s later", "", Bound::AtMost(0.0)),
];
const NEWER: &[Figure] = &[
    figure("first_s", "first open after the newer process is ready", "s", Bound::AtMost(1.0)),
    figure("failed", "of 20 further opens, those that failed", "", Bound::AtMost(0.0)),
];
const WINDOW: &[Figure] = &[
    figure("failed", "of 10 opens that have said nothing, those that failed", "", Bound::AtMost(0.0)),
    figure(
        "silent",
        "of 10 that have said something, those without answer or reason",
        "",
        Bound::AtMost(0.0),
    ),
    figure("slowest_s", "the slowest of all", "s", Bound::AtMost(10.0)),
    figure("reason", "reason@hop in /status", "", Bound::None),
];
const TWO: &[Figure] = &[
    figure("failed", "opens that failed", "", Bound::AtMost(0.0)),
    figure("said", "lines at the relay that name both", "", Bound::Within(1.0, 10.0)),
    figure("replaced", "links counted as replaced", "", Bound::None),
];
const FLAPS: &[Figure] = &[
    figure("cuts", "sessions that were cut", "", Bound::AtLeast(3.0)),
    figure("clean_ends", "cuts that looked like a clean end", "", Bound::AtMost(0.0)),
    figure("gaps", "messages missing without an error", "", Bound::AtMost(0.0)),
    figure("back_s", "slowest reconnect after the error was read", "s", Bound::AtMost(1.5)),
    figure("reason", "reason@hop in /status", "", Bound::Word(&["conn_lost@0"])),
];
const PROBES: &[Figure] = &[
    figure("probes", "probes", "", Bound::AtLeast(30.0)),
    figure("failed", "of them failed", "", Bound::AtMost(0.0)),
];
const RESTARTS: &[Figure] = &[
    figure("restarts", "restarts", "", Bound::Within(4.0, 4.0)),
    figure("failed", "those after which it did not come back", "", Bound::AtMost(0.0)),
    figure("back_s", "slowest first open after it listens", "s", Bound::AtMost(3.0)),
];
const SOCKETS: &[Figure] = &[
    figure("first_s", "first cut after SIGTERM", "s", Bound::Within(9.9, 10.4)),
    figure("last_s", "last cut", "s", Bound::Within(9.9, 10.4)),
    figure("clean_ends", "cuts that looked like a clean end", "", Bound::AtMost(0.0)),
    figure("reason", "reason@hop in /status", "", Bound::Word(&["drain_deadline@1"])),
    figure("back", "of 100, those that connect again at once", "", Bound::Within(100.0, 100.0)),
];

pub(in crate::scenario) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "f119-server-comes-and-goes",
        promise: "F119",
        what: "F119, F214: the server's listener is closed and opened again 20 times. While it is down opens fail fast, when it \
               is up they work at once, and the agent's registration stays.",
        figures: COMES,
        run: comes_and_goes,
        ..BASE
    },
    Scenario {
        name: "f119-port-of-its-own",
        promise: "F119",
        what: "The server's port is of the range that its host gives to dialling sockets, and the server is away: TCP would \
               connect a dial to itself.",
        figures: OWN_PORT,
        run: port_of_its_own,
        ..BASE
    },
    Scenario {
        name: "f121-killed-agent",
        promise: "F121",
        what: "The agent (directly: the server) is killed with -9 during 500 sessions.",
        figures: KILLED,
        pace: Pace::Alone,
        run: killed,
        ..BASE
    },
    Scenario {
        name: "f112-newer-registration",
        promise: "F112",
        what: "The agent is frozen and a newer process of its machine registers (directly: the server is killed and started \
               again): the newer one wins at once.",
        figures: NEWER,
        run: |case| newer(case, false),
        ..BASE
    },
    Scenario {
        name: "f113-newer-under-load",
        promise: "F113",
        what: "F113, F115: the same while eight uploads have filled everything on the way to the old process.",
        figures: NEWER,
        run: |case| newer(case, true),
        ..BASE
    },
    Scenario {
        name: "f116-opens-in-the-window",
        promise: "F116",
        what: "Twenty opens while the agent is frozen; 3 s later a newer process of its machine registers. Those whose \
               application waits for the server's first word go to the newer one; those that have said something may have \
               run already, and end with a reason. Directly: the server is away for 3 s, and every open in that time fails.",
        figures: WINDOW,
        seconds: 25,
        run: window,
        ..BASE
    },
    Scenario {
        name: "f118-two-agents",
        promise: "F118",
        what: "Two agents with one credential run at once for 15 s.",
        figures: TWO,
        ways: &[Way::Tcp],
        seconds: 25,
        run: two_agents,
        ..BASE
    },
    Scenario {
        name: "f208-link-flaps",
        promise: "F208",
        what: "F208, F209: the link (directly: the connection) is reset every 11 s under numbered messages both ways; the \
               application connects again.",
        figures: FLAPS,
        seconds: 55,
        run: flaps,
        ..BASE
    },
    Scenario {
        name: "f217-probes",
        promise: "F217",
        what: "A probe every 0.3 s for 40 s, each a connection of its own.",
        figures: PROBES,
        seconds: 45,
        run: probes,
        ..BASE
    },
    Scenario {
        name: "f218-relay-restarts",
        promise: "F218",
        what: "The relay (directly: the server) is killed with -9 and started 4 times, each time once more at a random \
               moment of the edges' handshakes.",
        figures: RESTARTS,
        seconds: 55,
        run: restarts,
        ..BASE
    },
    Scenario {
        name: "f206-websockets",
        promise: "F206",
        what: "100 idle WebSockets while the only relay drains (10 s): cut at the deadline and not before, with the reason in \
               /status, and open again at once when the relay is back.",
        figures: SOCKETS,
        seconds: 30,
        run: websockets,
        ..BASE
    },
];

fn comes_and_goes(case: &mut Case<'_>) -> anyhow::Result<()> {
    let world = case.world()?;
    let (mut wrong, mut works_ms, mut fails_ms) = (0, 0.0_f64, 0.0_f64);
    for _ in 0..20 {
        let server = serve(&world, inside::echo)?;
        match app(&world, exchange) {
            Ok(took_ms) => works_ms = works_ms.max(took_ms),
            Err(_) => wrong += 1,
        }
        drop(server);
        let began = now_ms();
        wrong += usize::from(app(&world, exchange).is_ok());
        fails_ms = fails_ms.max(now_ms() - began);
    }
    case.number("wrong", count(wrong));
    case.number("works_ms", works_ms);
    case.number("fails_ms", fails_ms);
    if case.way != Way::Direct {
        case.number("dials", metric(&world, "agent", "hopline_link_dials_total{")?);
    }
    Ok(())
}

fn port_of_its_own(case: &mut Case<'_>) -> anyhow::Result<()> {
    let world = case.world()?;
    world.net.set_kernel("db", "ip_local_port_range", "50050 50053")?;
    let wrong = app(&world, |target| Ok((0..20).filter(|_| exchange(target).is_ok()).count()))?;
    case.number("wrong", count(wrong));
    let server = serve(&world, inside::echo);
    case.word("port", if server.is_ok() { "at once" } else { "cannot" });
    case.word("works", if app(&world, exchange).is_ok() { "yes" } else { "no" });
    Ok(())
}

fn killed(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut world = case.world()?;
    let server = world.start_actor("db", "server")?;
    let address = world.raw_listen();
    world.app(server).say(&json!({"op": "listen", "address": address}))?;
    world.app(server).expect("listening", "", SOON)?;
    let mut streams = app(&world, |target| {
        let mut streams = Vec::new();
        for _ in 0..500 {
            let mut stream = connect(target)?;
            stream.read_exact(&mut [0])?;
            streams.push(stream);
        }
        Ok(streams)
    })?;
    // Grown: a session younger than a second outlives its path.
    std::thread::sleep(Duration::from_millis(1_500));
    let at_ms = match case.way {
        Way::Direct => world.signal("server", Signal::KILL)?,
        Way::Unix | Way::Tcp => world.end("agent", Signal::KILL)?,
    };
    let ends: Vec<(String, f64)> = streams.iter_mut().map(inside::end).collect();
    let ended = ends.iter().filter(|(how, _)| how != "silent");
    case.number("ended", count(ended.count()));
    let last = ends.iter().map(|&(_, end_ms)| end_ms).fold(at_ms, f64::max);
    case.number("ended_s", (last - at_ms) / 1e3);
    drop(streams);
    std::thread::sleep(Duration::from_secs(5));
    case.number("close_wait", connections(&world.net, "relay", "close-wait")?);
    Ok(())
}

/// `p...` is said back, anything else is swallowed.
fn echo_or_swallow(mut stream: TcpStream) {
    let mut first = [0; 1];
    if stream.peek(&mut first).is_ok_and(|length| length == 1) && first == *b"p" {
        return inside::echo(stream);
    }
    let mut buffer = vec![0; 65_536];
    while stream.read(&mut buffer).is_ok_and(|length| length > 0) {}
}

/// A second process of the agent's machine, with its key and its file.
fn start_second(world: &mut World) -> anyhow::Result<()> {
    let (old, new) = (world.path("agent"), world.path("second"));
    crate::shell::run(&["cp", "-a", &old, &new])?;
    let file = world.path("second.yaml");
    let text = std::fs::read_to_string(world.path("agent.yaml"))?;
    std::fs::write(&file, text.replace("/agent.status", "/second.status"))?;
    world.start("db", "second", &["up", "-c", &file, "--state", &new])?;
    until("the second agent", SOON, || ready(world, "second").then_some(()))
}

fn newer(case: &mut Case<'_>, loaded: bool) -> anyhow::Result<()> {
    let mut world = case.world()?;
    let mut server = Some(serve(&world, echo_or_swallow)?);
    app(&world, exchange)?;
    let mut uploads = Vec::new();
    if loaded {
        uploads = app(&world, |target| (0..8).map(|_| connect(target)).collect())?;
    }
    let mut writers = Vec::new();
    for upload in &uploads {
        let mut upload = upload.try_clone()?;
        upload.set_write_timeout(Some(Duration::from_secs(2)))?;
        writers.push(std::thread::spawn(move || while upload.write_all(&[b'u'; 65_536]).is_ok() {}));
    }
    let _frozen = match case.way {
        Way::Direct => None,
        Way::Unix | Way::Tcp => Some(world.apply(&Fault::Freeze { process: "agent".to_owned() })?),
    };
    // Shorter than the bound after which the old link would be dead anyway.
    std::thread::sleep(Duration::from_secs(4));
    if case.way == Way::Direct {
        server.take();
        server = Some(serve(&world, echo_or_swallow)?);
    } else {
        start_second(&mut world)?;
    }
    let took_ms = app(&world, exchange)?;
    case.number("first_s", took_ms / 1e3);
    let failed = app(&world, |target| Ok((0..20).filter(|_| exchange(target).is_err()).count()))?;
    case.number("failed", count(failed));
    for upload in uploads {
        let _ = upload.shutdown(std::net::Shutdown::Both);
    }
    for writer in writers {
        let _ = writer.join();
    }
    drop(server);
    Ok(())
}

/// Speaks first, then says everything back.
fn greet(mut stream: TcpStream) {
    if stream.write_all(b"!").is_ok() {
        inside::echo(stream);
    }
}

/// What became of one open, and how long that took.
type Opened = (anyhow::Result<()>, f64);

fn window(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut world = case.world()?;
    let mut server = Some(serve(&world, greet)?);
    app(&world, |target| Ok(connect(target)?.read_exact(&mut [0])?))?;
    let frozen = match case.way {
        Way::Direct => {
            server.take();
            None
        }
        Way::Unix | Way::Tcp => Some(world.apply(&Fault::Freeze { process: "agent".to_owned() })?),
    };
    let opens: Vec<_> = app(&world, |target| {
        // A thread's threads are where it is.
        let one = |number: usize| {
            let target = target.to_owned();
            std::thread::spawn(move || -> Opened {
                let began = now_ms();
                let outcome = connect(&target).and_then(|mut stream| {
                    if number % 2 == 1 {
                        stream.write_all(b"ping")?;
                    }
                    Ok(stream.read_exact(&mut [0])?)
                });
                (outcome, now_ms() - began)
            })
        };
        Ok((0..20).map(one).collect())
    })?;
    std::thread::sleep(Duration::from_secs(3));
    if case.way == Way::Direct {
        server = Some(serve(&world, greet)?);
    } else {
        start_second(&mut world)?;
    }
    let opened: Vec<Opened> = opens.into_iter().filter_map(|open| open.join().ok()).collect();
    let lost = |&(_, (outcome, _)): &(usize, &Opened)| outcome.is_err();
    let failed = opened.iter().enumerate().filter(|(number, _)| number % 2 == 0).filter(lost).count();
    case.number("failed", count(failed));
    let silent = opened.iter().filter(|(_, took_ms)| *took_ms > 20_000.0).count();
    case.number("silent", count(silent));
    case.number("slowest_s", opened.iter().map(|(_, took_ms)| *took_ms).fold(0.0, f64::max) / 1e3);
    note_reason(case, &world)?;
    drop((frozen, server));
    Ok(())
}

fn two_agents(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut world = case.world()?;
    let _server = serve(&world, inside::echo)?;
    app(&world, exchange)?;
    start_second(&mut world)?;
    let failed = app(&world, |target| {
        let began = Instant::now();
        let mut failed = 0;
        while began.elapsed() < Duration::from_secs(15) {
            failed += usize::from(exchange(target).is_err());
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(failed)
    })?;
    case.number("failed", count(failed));
    let log = world.log("relay");
    let address = world.net.address("db");
    let names_both = |line: &&str| line.contains("takes over") && line.matches(&address).count() == 2;
    case.number("said", count(log.lines().filter(names_both).count()));
    case.number("replaced", replaced(&world)?);
    Ok(())
}

/// How often the two agents' links ended because of each other, by their own counters.
fn replaced(world: &World) -> anyhow::Result<f64> {
    let ends = |process| -> anyhow::Result<f64> {
        let lines = metrics(&world.status_socket(process))?;
        let mine = lines
            .iter()
            .filter(|line| line.contains("hopline_link_ends_total{") && line.contains("\"replaced\""));
        Ok(mine.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    };
    Ok(ends("agent")? + ends("second")?)
}

/// What a flapping session has met.
#[derive(Debug, Default)]
struct Flapped {
    cuts: usize,
    clean_ends: usize,
    gaps: usize,
    back_ms: f64,
}

fn flaps(case: &mut Case<'_>) -> anyhow::Result<()> {
    let world = case.world()?;
    let _server = serve(&world, inside::echo)?;
    let target = world.raw_target();
    let until = Instant::now() + Duration::from_secs(50);
    let client = app(&world, |_| Ok(std::thread::spawn(move || numbered(&target, until))))?;
    for _ in 0..4 {
        // A link that lives shorter than 10 s, twice, is dialled again ever later: F92.
        std::thread::sleep(Duration::from_secs(11));
        cut(&world)?;
    }
    let flapped = client.join().map_err(|_| anyhow::anyhow!("the client panicked"))??;
    case.number("cuts", count(flapped.cuts));
    case.number("clean_ends", count(flapped.clean_ends));
    case.number("gaps", count(flapped.gaps));
    case.number("back_s", flapped.back_ms / 1e3);
    note_reason(case, &world)
}

/// Sends numbers and reads them back, and connects again whenever that breaks.
fn numbered(target: &str, until: Instant) -> anyhow::Result<Flapped> {
    let mut met = Flapped::default();
    let mut stream = connect(target)?;
    let mut number = 0_u64;
    while Instant::now() < until {
        let mut answer = [0; 8];
        let outcome = stream.write_all(&number.to_be_bytes()).and_then(|()| stream.read_exact(&mut answer));
        match outcome {
            Ok(()) => met.gaps += usize::from(u64::from_be_bytes(answer) != number),
            Err(error) => {
                met.cuts += 1;
                met.clean_ends += usize::from(error.kind() == std::io::ErrorKind::UnexpectedEof);
                let broke = now_ms();
                // A new connection is good when it has carried something.
                while exchange(target).is_err() {
                    std::thread::sleep(Duration::from_millis(20));
                }
                stream = connect(target)?;
                inside::again(&mut stream)?;
                met.back_ms = met.back_ms.max(now_ms() - broke);
            }
        }
        number += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(met)
}

fn probes(case: &mut Case<'_>) -> anyhow::Result<()> {
    let world = case.world()?;
    let _server = serve(&world, inside::echo)?;
    let (mut probes, mut failed) = (0, 0);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(40) {
        probes += 1;
        failed += usize::from(app(&world, exchange).is_err());
        std::thread::sleep(Duration::from_millis(300));
    }
    case.number("probes", count(probes));
    case.number("failed", count(failed));
    Ok(())
}

fn restarts(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut world = case.world()?;
    let mut random = case.random();
    let mut server = Some(serve(&world, inside::echo)?);
    app(&world, exchange)?;
    let (mut failed, mut back_ms) = (0, 0.0_f64);
    for _ in 0..4 {
        // A link that lives shorter than 10 s, twice, is dialled again ever later: F92.
        std::thread::sleep(Duration::from_millis(random.random_range(10_500..11_500)));
        if case.way == Way::Direct {
            server.take();
            server = Some(serve(&world, inside::echo)?);
        } else {
            world.end("relay", Signal::KILL)?;
            world.spawn_relay()?;
            std::thread::sleep(Duration::from_millis(random.random_range(20..1_200)));
            world.end("relay", Signal::KILL)?;
            world.start_relay()?;
        }
        match app(&world, exchange) {
            Ok(took_ms) => back_ms = back_ms.max(took_ms),
            Err(_) => failed += 1,
        }
    }
    case.number("restarts", 4.0);
    case.number("failed", count(failed));
    case.number("back_s", back_ms / 1e3);
    drop(server);
    Ok(())
}

const UPGRADE: &[u8] = b"GET /chat HTTP/1.1\r\nHost: lab\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
const SWITCHED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

fn upgrade_server(mut stream: TcpStream) {
    let mut request = vec![0; UPGRADE.len()];
    if stream.read_exact(&mut request).is_ok() && stream.write_all(SWITCHED).is_ok() {
        inside::echo(stream);
    }
}

/// Opens a WebSocket and has one masked frame of text said back.
fn websocket(target: &str) -> anyhow::Result<TcpStream> {
    let mut stream = connect(target)?;
    stream.write_all(UPGRADE)?;
    let mut answer = vec![0; SWITCHED.len()];
    stream.read_exact(&mut answer)?;
    let frame = [0x81, 0x82, 1, 2, 3, 4, b'h' ^ 1, b'i' ^ 2];
    stream.write_all(&frame)?;
    let mut back = [0; 8];
    stream.read_exact(&mut back)?;
    anyhow::ensure!(answer == SWITCHED && back == frame, "no WebSocket");
    Ok(stream)
}

fn websockets(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut world = case.world()?;
    let _server = serve(&world, upgrade_server)?;
    let hundred = |target: &str| (0..100).map(|_| websocket(target)).collect::<anyhow::Result<Vec<_>>>();
    let mut streams = app(&world, hundred)?;
    // Grown: a session younger than a second outlives its path.
    std::thread::sleep(Duration::from_secs(2));
    if case.way == Way::Direct {
        case.not_within("first_s", 14.0);
        std::thread::sleep(Duration::from_secs(14));
        for stream in &mut streams {
            stream.write_all(b"still")?;
        }
    } else {
        let term_ms = world.signal("relay", Signal::TERM)?;
        let ends: Vec<(String, f64)> = streams.iter_mut().map(inside::end).collect();
        let times: Vec<f64> = ends.iter().map(|&(_, end_ms)| (end_ms - term_ms) / 1e3).collect();
        case.number("first_s", times.iter().copied().fold(f64::INFINITY, f64::min));
        case.number("last_s", times.iter().copied().fold(0.0, f64::max));
        case.number("clean_ends", count(ends.iter().filter(|(how, _)| how == "fin").count()));
        note_reason(case, &world)?;
        world.wait_end("relay")?;
        world.start_relay()?;
    }
    let back = app(&world, |target| Ok((0..100).filter(|_| websocket(target).is_ok()).count()))?;
    case.number("back", count(back));
    Ok(())
}
