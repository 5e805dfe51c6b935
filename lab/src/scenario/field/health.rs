//! What status, readiness and metrics say, edges' files and sockets, and memory of many machines.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::kit::{BASE, figure};
use super::shape::{app, count, metric, metrics, ready, rss_kib, serve};
use crate::fault::Fault;
use crate::inside::{self, PATIENCE, Server, connect, exchange};
use crate::result::Bound;
use crate::scenario::{Case, Figure, Scenario};
use crate::shell::{now_ms, until};
use crate::status;
use crate::world::{Way, World};

/// After a fact the status has to know it.
const FACT: Bound = Bound::AtMost(1.0);

const TRUTH: &[Figure] = &[
    figure("well", "with everything up", "", Bound::Word(&["ready and healthy everywhere"])),
    figure("service_s", "the server is down, after the open that met it", "s", FACT),
    figure("agent_s", "the agent is killed: the relay and the sidecar's mapping say so", "s", FACT),
    figure("draining_s", "the relay drains: not ready any more", "s", FACT),
    figure("relay_s", "the relay is gone: both edges are not ready", "s", FACT),
    figure("again_s", "everything is back: ready", "s", Bound::AtMost(3.0)),
];
const GONE: &[Figure] = &[
    figure("added", "series more with 300 mappings more", "", Bound::AtLeast(300.0)),
    figure("left", "of them left when they are gone", "", Bound::AtMost(0.0)),
];
const STALE: &[Figure] = &[
    figure("back_s", "service by the same socket after the restart", "s", Bound::AtMost(3.0)),
    figure("second", "a second process at the socket", "", Bound::Word(&["names the path"])),
    figure("first", "the first one meanwhile", "", Bound::Word(&["serves"])),
];
const BUSY: &[Figure] = &[
    figure("others", "the other two mappings", "", Bound::Word(&["serve"])),
    figure("named", "mapping, address and error in /status", "", Bound::Word(&["yes"])),
    figure("later_s", "it is open after the address is free", "s", Bound::AtMost(12.0)),
];
const MOVED: &[Figure] = &[
    figure("new", "new sessions after the reload", "", Bound::Word(&["the new server"])),
    figure("old", "the session from before", "", Bound::Word(&["the old server"])),
    figure("took_s", "the reload took", "s", Bound::AtMost(2.0)),
];
const TWO_RELAYS: &[Figure] = &[
    figure("links", "links of the agent, of two live relays and a dead one", "", Bound::Within(2.0, 2.0)),
    figure("failed", "of 50 opens after the first relay is gone, failed", "", Bound::AtMost(0.0)),
    figure("again_s", "two links again after it is back", "s", Bound::AtMost(3.0)),
];
const CROWD: &[Figure] = &[
    figure("agents", "agents more, three services each", "", Bound::Within(24.0, 24.0)),
    figure("each_kib", "of the relay's memory for each", "KiB", Bound::AtMost(512.0)),
    figure("grown_kib", "growth of the relay's memory in 20 s of traffic", "KiB", Bound::AtMost(2_048.0)),
    figure("agent_mib", "memory of one idle agent", "MiB", Bound::None),
];
const FLAPPING: &[Figure] = &[
    figure("links", "links that the agent has lost", "", Bound::AtLeast(3.0)),
    figure("relay_kib", "growth of the relay's memory", "KiB", Bound::AtMost(3_072.0)),
    figure("agent_kib", "growth of the agent's memory", "KiB", Bound::AtMost(3_072.0)),
    figure("works", "afterwards", "", Bound::Word(&["yes"])),
];

pub(in crate::scenario) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "f224-status-is-true",
        promise: "F224",
        what: "Server, agent and relay go in turn: what /status and /readyz say, and how soon.",
        figures: TRUTH,
        ways: &[Way::Tcp],
        seconds: 40,
        run: truth,
        ..BASE
    },
    Scenario {
        name: "f163-series-of-what-is-gone",
        promise: "F163",
        what: "300 mappings are added by a reload and removed by another.",
        figures: GONE,
        ways: &[Way::Tcp],
        run: gone,
        ..BASE
    },
    Scenario {
        name: "f127-stale-socket",
        promise: "F127",
        what: "The sidecar is killed with -9 and started again: its socket's file is still there. Then a second sidecar wants \
               the same path.",
        figures: STALE,
        ways: &[Way::Unix],
        run: stale,
        ..BASE
    },
    Scenario {
        name: "f133-busy-address",
        promise: "F133",
        what: "The address of one of three mappings is taken when the sidecar starts, and free later.",
        figures: BUSY,
        ways: &[Way::Tcp],
        seconds: 30,
        run: busy,
        ..BASE
    },
    Scenario {
        name: "f137-reload-moves-a-forward",
        promise: "F137",
        what: "The agent's file names another server, and is read again under an open session.",
        figures: MOVED,
        ways: &[Way::Tcp],
        run: moved,
        ..BASE
    },
    Scenario {
        name: "f109-several-relays",
        promise: "F109",
        what: "F109, F110: edges with three addresses, one of them dead from the start, one started later. The first relay goes \
               and comes back; no edge is restarted.",
        figures: TWO_RELAYS,
        ways: &[Way::Tcp],
        seconds: 30,
        run: several_relays,
        ..BASE
    },
    Scenario {
        name: "f220-many-agents",
        promise: "F220",
        what: "24 further agents with three services each.",
        figures: CROWD,
        ways: &[Way::Tcp],
        seconds: 50,
        run: crowd,
        ..BASE
    },
    Scenario {
        name: "f221-flapping-agent",
        promise: "F221",
        what: "The agent's link is reset 14 times on a path that loses 5 % of its packets, with traffic.",
        figures: FLAPPING,
        ways: &[Way::Direct, Way::Tcp],
        seconds: 60,
        run: flapping,
        ..BASE
    },
];

/// Seconds until something is so; recorded as a figure, also when it did not come.
fn within(
    case: &mut Case<'_>,
    id: &str,
    since_ms: f64,
    so: impl Fn() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let asked = until(id, Duration::from_secs(12), || so().unwrap_or(false).then(now_ms));
    match asked {
        Ok(at_ms) => case.number(id, (at_ms - since_ms) / 1e3),
        Err(_) => case.not_within(id, 12.0),
    }
    Ok(())
}

/// Whether a process finds that something is bad, and blames this place.
fn blames(world: &World, process: &str, place: &str) -> anyhow::Result<bool> {
    let status = world.status(process)?;
    let findings = status["findings"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(findings.iter().any(|finding| finding["place"] == place))
}

/// Whether a process finds nothing wrong, but that nobody serves the mapping `nobody`.
fn blames_nobody(world: &World, process: &str) -> anyhow::Result<bool> {
    let status = world.status(process)?;
    let findings = status["findings"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(findings.iter().all(|finding| finding["name"] == "nobody"))
}

fn truth(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut world = case.world()?;
    let server = serve(&world, inside::echo)?;
    app(&world, exchange)?;
    let well = ["relay", "agent", "sidecar"]
        .iter()
        .all(|process| ready(&world, process) && blames_nobody(&world, process).unwrap_or(false));
    case.word("well", if well { "ready and healthy everywhere" } else { "not" });
    drop(server);
    let _ = app(&world, exchange);
    within(case, "service_s", now_ms(), || {
        Ok(blames(&world, "sidecar", "agent_server")? && blames(&world, "agent", "agent_server")?)
    })?;
    let _server = serve(&world, inside::echo)?;
    let killed_ms = world.end("agent", Signal::KILL)?;
    within(case, "agent_s", killed_ms, || {
        let status = world.status("relay")?;
        let raw = status["services"].as_array().and_then(|all| all.iter().find(|one| one["name"] == "raw"));
        let gone = raw.is_none_or(|raw| raw["agents"].as_array().is_none_or(Vec::is_empty));
        Ok(gone && blames(&world, "sidecar", "agent")?)
    })?;
    world.start_edge("agent")?;
    until("the agent", PATIENCE, || ready(&world, "agent").then_some(()))?;
    // One open session keeps the drain going.
    let open = app(&world, |target| {
        let mut stream = connect(target)?;
        inside::again(&mut stream)?;
        Ok(stream)
    })?;
    let term_ms = world.signal("relay", Signal::TERM)?;
    within(case, "draining_s", term_ms, || Ok(!ready(&world, "relay")))?;
    drop(open);
    world.wait_end("relay")?;
    let gone_ms = now_ms();
    within(case, "relay_s", gone_ms, || Ok(!ready(&world, "agent") && !ready(&world, "sidecar")))?;
    world.start_relay()?;
    let back_ms = now_ms();
    within(case, "again_s", back_ms, || Ok(ready(&world, "agent") && ready(&world, "sidecar")))
}

/// Replaces an edge's file and has it read again.
fn reload(world: &World, edge: &str, text: &str) -> anyhow::Result<()> {
    fs::write(world.path(&format!("{edge}.yaml")), text)?;
    world.signal(edge, Signal::HUP).map(drop)
}

fn mappings(world: &World) -> Option<usize> {
    world.status("sidecar").ok()?["mappings"].as_array().map(Vec::len)
}

fn gone(case: &mut Case<'_>) -> anyhow::Result<()> {
    let world = case.world()?;
    let before = metrics(&world.status_socket("sidecar"))?.len();
    let text = fs::read_to_string(world.path("sidecar.yaml"))?;
    let mut more = text.clone();
    for number in 0..300 {
        writeln!(more, "  m{number}: {{ listen: \"unix:{}\" }}", world.path(&format!("m{number}.sock")))?;
    }
    let few = mappings(&world).unwrap_or_default();
    reload(&world, "sidecar", &more)?;
    until("300 mappings more", PATIENCE, || mappings(&world).filter(|&all| all == few + 300))?;
    let with = metrics(&world.status_socket("sidecar"))?.len();
    reload(&world, "sidecar", &text)?;
    until("300 mappings less", PATIENCE, || mappings(&world).filter(|&all| all == few))?;
    let after = metrics(&world.status_socket("sidecar"))?.len();
    case.number("added", count(with) - count(before));
    case.number("left", count(after) - count(before));
    Ok(())
}

fn by_unix(path: &str) -> anyhow::Result<()> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"ping")?;
    Ok(stream.read_exact(&mut [0; 4])?)
}

fn stale(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut world = case.world()?;
    let _server = Server::start(&world.net, "db", &world.raw_listen(), inside::echo)?;
    let path = world.raw_target().trim_start_matches("unix:").to_owned();
    by_unix(&path)?;
    world.end("sidecar", Signal::KILL)?;
    anyhow::ensure!(fs::exists(&path)?, "the socket's file is gone");
    world.start_edge("sidecar")?;
    let began = now_ms();
    until("service again", PATIENCE, || by_unix(&path).ok())?;
    case.number("back_s", (now_ms() - began) / 1e3);
    let (state, file) = (world.path("second"), world.path("second.yaml"));
    crate::shell::run(&["cp", "-a", &world.path("sidecar"), &state])?;
    let text = fs::read_to_string(world.path("sidecar.yaml"))?;
    fs::write(&file, text.replace("/sidecar.status", "/second.status"))?;
    world.start("web", "second", &["up", "-c", &file, "--state", &state])?;
    let said = until("the second one's error", Duration::from_secs(10), || {
        world.log("second").contains(&path).then_some(())
    });
    case.word("second", if said.is_ok() { "names the path" } else { "says nothing" });
    case.word("first", if by_unix(&path).is_ok() { "serves" } else { "is gone" });
    Ok(())
}

fn busy(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut world = case.world()?;
    let _server = serve(&world, inside::echo)?;
    let owner = Server::start(&world.net, "web", "127.0.0.1:7911", inside::echo)?;
    let mut text = fs::read_to_string(world.path("sidecar.yaml"))?;
    text += "  busy: { listen: \"127.0.0.1:7911\" }\n";
    fs::write(world.path("sidecar.yaml"), text)?;
    world.end("sidecar", Signal::TERM)?;
    world.start_edge("sidecar")?;
    let served = until("the other mappings", PATIENCE, || app(&world, exchange).ok());
    case.word("others", if served.is_ok() { "serve" } else { "do not" });
    let status = world.status("sidecar")?;
    let entry = status::entry(&status, "mappings", "busy").map(ToString::to_string).unwrap_or_default();
    let named = ["busy", "127.0.0.1:7911", "another program listens"].iter().all(|word| entry.contains(word));
    case.word("named", if named { "yes".to_owned() } else { entry });
    drop(owner);
    let free_ms = now_ms();
    within(case, "later_s", free_ms, || {
        let status = world.status("sidecar")?;
        Ok(status::entry(&status, "mappings", "busy").is_some_and(|entry| entry["state"] == "ready"))
    })
}

fn moved(case: &mut Case<'_>) -> anyhow::Result<()> {
    let world = case.world()?;
    let says = |word: &'static [u8]| {
        move |mut stream: TcpStream| {
            let mut asked = [0; 1];
            while stream.read_exact(&mut asked).is_ok() && stream.write_all(word).is_ok() {}
        }
    };
    let _old = Server::start(&world.net, "db", "127.0.0.1:50052", says(b"o"))?;
    let _new = Server::start(&world.net, "db", "127.0.0.1:50053", says(b"n"))?;
    let ask = |stream: &mut TcpStream| -> anyhow::Result<u8> {
        let mut answer = [0; 1];
        stream.write_all(b"?")?;
        stream.read_exact(&mut answer)?;
        Ok(answer[0])
    };
    let word = |answer: u8| if answer == b'n' { "the new server" } else { "the old server" };
    let mut kept = app(&world, connect)?;
    anyhow::ensure!(ask(&mut kept)? == b'o', "not the old server");
    let text = fs::read_to_string(world.path("agent.yaml"))?;
    let changed = text.replace("raw: { tcp: { tcp: 50052 } }", "raw: { tcp: { tcp: 50053 } }");
    anyhow::ensure!(changed != text, "the agent's file is as before");
    reload(&world, "agent", &changed)?;
    let began = now_ms();
    until("the reload", PATIENCE, || {
        let status = world.status("agent").ok()?;
        let target = status::entry(&status, "services", "raw")?["target"].as_str()?.to_owned();
        target.ends_with("50053").then_some(())
    })?;
    case.number("took_s", (now_ms() - began) / 1e3);
    let mut fresh = app(&world, connect)?;
    case.word("new", word(ask(&mut fresh)?));
    case.word("old", word(ask(&mut kept)?));
    Ok(())
}

/// Links of an edge that are up.
fn links(world: &World, edge: &str) -> usize {
    let Ok(status) = world.status(edge) else { return 0 };
    status["links"].as_array().map_or(0, |all| all.iter().filter(|link| link["state"] == "up").count())
}

fn several_relays(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut world = case.world()?;
    let _server = serve(&world, inside::echo)?;
    let host = world.net.address("relay");
    for edge in ["agent", "sidecar"] {
        let file = world.path(&format!("{edge}.yaml"));
        let text = fs::read_to_string(&file)?;
        let relays = format!("relay: [\"{host}:7443\", \"{host}:7444\", \"{host}:7445\"]\n");
        fs::write(&file, relays + &text)?;
        world.end(edge, Signal::TERM)?;
        world.start_edge(edge)?;
        until(edge, PATIENCE, || ready(&world, edge).then_some(()))?;
    }
    // A replica of the same authority, on the same host.
    let (old, new) = (world.path("relay"), world.path("relay-b"));
    crate::shell::run(&["cp", "-a", &old, &new])?;
    let (listen, admin) = (format!("{host}:7444"), format!("unix:{}", world.path("relay-b.status")));
    let words = ["relay", "--name", "relay-b", "--listen", &listen, "--state", &new, "--admin", &admin];
    world.start("relay", "relay-b", &words)?;
    let both = |world: &World| links(world, "agent") == 2 && links(world, "sidecar") == 2;
    // Edges that have a link look for the other relays every few seconds.
    let _ = until("two links", Duration::from_secs(15), || both(&world).then_some(()));
    case.number("links", count(links(&world, "agent")));
    world.end("relay", Signal::KILL)?;
    let failed = app(&world, |target| Ok((0..50).filter(|_| exchange(target).is_err()).count()))?;
    case.number("failed", count(failed));
    world.start_relay()?;
    let back_ms = now_ms();
    within(case, "again_s", back_ms, || Ok(both(&world)))
}

fn crowd(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut world = case.world()?;
    let _server = serve(&world, inside::echo)?;
    app(&world, exchange)?;
    let before = rss_kib(&world, "relay")?;
    for number in 0..24 {
        let name = format!("agent-{number}");
        let mut text = "services:\n".to_owned();
        for service in ["a", "b", "c"] {
            writeln!(text, "  {service}{number}: {{ tcp: {{ tcp: 50052 }} }}")?;
        }
        world.add_edge(&name, "db", "--publish", &text)?;
    }
    for number in 0..24 {
        let name = format!("agent-{number}");
        until(&name, PATIENCE, || ready(&world, &name).then_some(()))?;
    }
    let status = world.status("relay")?;
    case.number("agents", count(status["links"].as_array().map_or(0, Vec::len)) - 2.0);
    std::thread::sleep(Duration::from_secs(2));
    let full = rss_kib(&world, "relay")?;
    case.number("each_kib", (full - before) / 24.0);
    app(&world, |target| {
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until {
            exchange(target)?;
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    })?;
    case.number("grown_kib", rss_kib(&world, "relay")? - full);
    case.number("agent_mib", rss_kib(&world, "agent-0")? / 1_024.0);
    Ok(())
}

fn flapping(case: &mut Case<'_>) -> anyhow::Result<()> {
    let world = case.world()?;
    let _server = serve(&world, inside::echo)?;
    app(&world, exchange)?;
    let direct = case.way == Way::Direct;
    let (from, to) = if direct { ("web", "db") } else { ("relay", "db") };
    let loss = world.apply(&Fault::Loss { from: from.to_owned(), to: to.to_owned(), percent: 5 })?;
    let mut before = [0.0; 2];
    for number in 0..14 {
        // Whether one open succeeds in this weather is not the question.
        let _ = app(&world, exchange);
        std::thread::sleep(Duration::from_millis(1_500));
        world.apply(&Fault::Cut { from: from.to_owned(), to: to.to_owned() })?;
        if number == 3 && !direct {
            before = [rss_kib(&world, "relay")?, rss_kib(&world, "agent")?];
        }
    }
    if !direct {
        case.number("links", metric(&world, "agent", "hopline_link_ends_total{")?);
        case.number("relay_kib", rss_kib(&world, "relay")? - before[0]);
        case.number("agent_kib", rss_kib(&world, "agent")? - before[1]);
    }
    drop(loss);
    let again = until("service", PATIENCE, || app(&world, exchange).ok());
    case.word("works", if again.is_ok() { "yes" } else { "no" });
    Ok(())
}
