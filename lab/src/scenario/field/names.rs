//! Names: a resolver of the lab's own, which counts what it is asked, and addresses that change or are dead.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::Signal;
use serde_json::json;

use super::kit::{BASE, figure};
use super::shape::{app, count, metric, ready};
use crate::fault::Fault;
use crate::inside::{self, PATIENCE, Server, exchange, on};
use crate::result::Bound;
use crate::scenario::{Case, Figure, Pace, Scenario};
use crate::shell::{now_ms, until};
use crate::world::{Options, Way, World};

/// The resolver's host.
const NAMES: &str = "names";
const MOUNT: &str = "mount --bind $LAB_FOLDER/resolv.conf /etc/resolv.conf";
const SERVER: &str = "db.lab.test";
const RELAY: &str = "relay.lab.test";
const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;

const MOVED_RELAY: &[Figure] =
    &[figure("back_s", "service after the relay listens at its new address", "s", Bound::AtMost(4.0))];
const QUERIES: &[Figure] = &[
    figure("healthy", "queries in 15 s with a link", "", Bound::AtMost(0.0)),
    figure("beyond", "queries beyond one for each dial, in 20 s without", "", Bound::AtMost(2.0)),
    figure("dials", "dials in that time, both edges", "", Bound::Within(5.0, 70.0)),
];
const EACH: &[Figure] = &[
    figure("opens", "opens", "", Bound::Within(200.0, 200.0)),
    figure("queries", "queries for each", "", Bound::AtMostOrDirectPlus(1.0, 0.02)),
];
const LOCALHOST: &[Figure] = &[
    figure("v4_ms", "the server on 127.0.0.1 only", "ms", Bound::AtMost(300.0)),
    figure("v6_ms", "the server on ::1 only", "ms", Bound::AtMost(300.0)),
];
const DEAD: &[Figure] = &[
    figure("open_s", "the open", "s", Bound::AtMost(1.0)),
    figure(
        "named",
        "of 3 addresses, those that the error of a full failure names",
        "",
        Bound::Within(3.0, 3.0),
    ),
];
const BOTH: &[Figure] = &[
    figure(
        "v4_ms",
        "99th percentile of 200 connects to 127.0.0.1",
        "ms",
        Bound::AtMostOrDirectPlus(1.0, 1.0),
    ),
    figure("v6_ms", "to ::1", "ms", Bound::AtMostOrDirectPlus(1.0, 1.0)),
];
const MOVES: &[Figure] = &[
    figure("failed", "of 10 moves, those after which the first open failed", "", Bound::AtMost(0.0)),
    figure("slowest_s", "the slowest first open", "s", Bound::AtMost(1.0)),
];

pub(in crate::scenario) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "f122-relay-moves",
        promise: "F122",
        what: "The relay's name gets another address, and the old one is gone with its relay.",
        figures: MOVED_RELAY,
        ways: &[Way::Tcp],
        run: relay_moves,
        ..BASE
    },
    Scenario {
        name: "f124-queries-for-the-relay",
        promise: "F124",
        what: "How often the edges ask for the relay's name: with a link, and while the relay is away.",
        figures: QUERIES,
        ways: &[Way::Tcp],
        seconds: 45,
        run: queries,
        ..BASE
    },
    Scenario {
        name: "f125-queries-for-a-server",
        promise: "F125",
        what: "200 opens to a forward with a name: it is asked for once an open, as the same opens do directly.",
        figures: EACH,
        run: each,
        ..BASE
    },
    Scenario {
        name: "f139-localhost",
        promise: "F139",
        what: "A forward to localhost (directly: a dial on the server's host), the server in one family only.",
        figures: LOCALHOST,
        run: localhost,
        ..BASE
    },
    Scenario {
        name: "f140-dead-addresses",
        promise: "F140",
        what: "A server's name with an IPv6 address that is dead, an IPv4 address that is dead, and a good one.",
        figures: DEAD,
        seconds: 35,
        run: dead,
        ..BASE
    },
    Scenario {
        name: "f142-localhost-listener",
        promise: "F142",
        what: "A mapping that listens on localhost is there in both families; time of a connect.",
        figures: BOTH,
        pace: Pace::Alone,
        run: both_families,
        ..BASE
    },
    Scenario {
        name: "f215-server-moves",
        promise: "F215",
        what: "The server behind a forward's name moves to another host 10 times, and the name with it.",
        figures: MOVES,
        run: moves,
        ..BASE
    },
];

#[derive(Debug, Default)]
struct Book {
    addresses: BTreeMap<&'static str, Vec<IpAddr>>,
    /// Questions for IPv4 addresses.
    asked: BTreeMap<String, usize>,
}

/// A resolver that knows what it was told, and counts. Dropping it stops it.
#[derive(Debug)]
struct Resolver {
    book: Arc<Mutex<Book>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Resolver {
    fn start(world: &World) -> anyhow::Result<Self> {
        let address = format!("{}:53", world.net.address(NAMES));
        let socket = on(&world.net, NAMES, || Ok(UdpSocket::bind(&address)?)).context("the resolver")?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        let (book, stop) = (Arc::new(Mutex::new(Book::default())), Arc::new(AtomicBool::new(false)));
        let (known, stopped) = (Arc::clone(&book), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while !stopped.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
                let mut held = known.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(answer) = answer(&buffer[..length], &mut held) {
                    // Who does not get it asks again.
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Ok(Self { book, stop, thread: Some(thread) })
    }

    fn set(&self, name: &'static str, addresses: &[&str]) -> anyhow::Result<()> {
        let parsed: Result<Vec<IpAddr>, _> = addresses.iter().map(|address| address.parse()).collect();
        self.book.lock().unwrap_or_else(PoisonError::into_inner).addresses.insert(name, parsed?);
        Ok(())
    }

    fn asked(&self, name: &str) -> usize {
        let held = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        held.asked.get(name).copied().unwrap_or_default()
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The answer to one question of RFC 1035; none to what is no question.
fn answer(query: &[u8], book: &mut Book) -> Option<Vec<u8>> {
    let mut labels = Vec::new();
    let mut at = 12;
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(query.get(at..at + length)?).to_lowercase());
        at += length;
    }
    let kind = u16::from_be_bytes([*query.get(at)?, *query.get(at + 1)?]);
    let question = query.get(12..at + 4)?;
    let name = labels.join(".");
    if kind == TYPE_A {
        *book.asked.entry(name.clone()).or_default() += 1;
    }
    let known = book.addresses.get(name.as_str());
    let bytes = |address: &IpAddr| match (address, kind) {
        (IpAddr::V4(address), TYPE_A) => Some(address.octets().to_vec()),
        (IpAddr::V6(address), TYPE_AAAA) => Some(address.octets().to_vec()),
        _ => None,
    };
    let records: Vec<Vec<u8>> = known.into_iter().flatten().filter_map(bytes).collect();
    // An answer with authority; NXDOMAIN for what is not in the book.
    let code = if known.is_some() { 0 } else { 3 };
    let mut answer = [query.get(..2)?, &[0x85, 0x80 | code, 0, 1]].concat();
    answer.extend(u16::try_from(records.len()).ok()?.to_be_bytes());
    answer.extend([0; 4]);
    answer.extend(question);
    for record in records {
        // The name by its place, kind, class, a life of 1 s.
        answer.extend([0xc0, 12]);
        answer.extend(kind.to_be_bytes());
        answer.extend([0, 1, 0, 0, 0, 1]);
        answer.extend(u16::try_from(record.len()).ok()?.to_be_bytes());
        answer.extend(record);
    }
    Some(answer)
}

/// A world whose processes ask the lab's resolver.
fn named_world(case: &Case<'_>) -> anyhow::Result<(World, Resolver)> {
    fs::create_dir_all(&case.folder)?;
    // The fourth host.
    fs::write(case.folder.join("resolv.conf"), "nameserver 10.64.0.4\noptions timeout:1 attempts:2\n")?;
    let world =
        case.world_with(Options { before: Some(MOUNT), more: Some(NAMES), ..Options::plain(case.way) })?;
    anyhow::ensure!(world.net.address(NAMES) == "10.64.0.4", "the resolver is elsewhere");
    let resolver = Resolver::start(&world)?;
    Ok((world, resolver))
}

/// Has the agent dial the raw server by this name; nothing to do directly.
fn forward_to(world: &mut World, host: &str) -> anyhow::Result<()> {
    if world.way() == Way::Direct {
        return Ok(());
    }
    edit(world, "agent", |text| {
        text.replace(
            "raw: { tcp: { tcp: 50052 } }",
            &format!("raw: {{ tcp: {{ forward: \"{host}:50052\" }} }}"),
        )
    })
}

/// Changes an edge's file and starts the edge again.
fn edit(world: &mut World, edge: &str, change: impl FnOnce(String) -> String) -> anyhow::Result<()> {
    let file = world.path(&format!("{edge}.yaml"));
    let text = fs::read_to_string(&file)?;
    let changed = change(text.clone());
    anyhow::ensure!(changed != text, "{file} is as before");
    fs::write(&file, changed)?;
    world.end(edge, Signal::TERM)?;
    world.start_edge(edge)?;
    until(&format!("{edge} again"), PATIENCE, || ready(world, edge).then_some(()))
}

fn by_relays_name(world: &mut World) -> anyhow::Result<()> {
    for edge in ["agent", "sidecar"] {
        edit(world, edge, |text| format!("relay: [\"{RELAY}:7443\"]\n{text}"))?;
    }
    Ok(())
}

fn relay_moves(case: &mut Case<'_>) -> anyhow::Result<()> {
    let (mut world, resolver) = named_world(case)?;
    let (old, new) = (world.net.address("relay"), world.net.other_address("relay"));
    resolver.set(RELAY, &[&old])?;
    by_relays_name(&mut world)?;
    let _server = Server::start(&world.net, "db", &world.raw_listen(), inside::echo)?;
    app(&world, exchange)?;
    world.end("relay", Signal::KILL)?;
    let _moved = world.apply(&Fault::Readdress { host: "relay".to_owned() })?;
    resolver.set(RELAY, &[&new])?;
    let (state, admin) = (world.path("relay"), format!("unix:{}", world.status_socket("relay").display()));
    let listen = format!("{new}:7443");
    let words = ["relay", "--name", "relay", "--listen", &listen, "--state", &state, "--admin", &admin];
    world.start("relay", "relay", &words)?;
    until("the relay", PATIENCE, || ready(&world, "relay").then_some(()))?;
    let listens_ms = now_ms();
    app(&world, |target| until("service", PATIENCE, || exchange(target).ok()))?;
    case.number("back_s", (now_ms() - listens_ms) / 1e3);
    Ok(())
}

fn failed_dials(world: &World) -> anyhow::Result<f64> {
    let mut sum = 0.0;
    for edge in ["agent", "sidecar"] {
        sum += metric(world, edge, "hopline_link_dials_total{")?;
    }
    Ok(sum)
}

fn queries(case: &mut Case<'_>) -> anyhow::Result<()> {
    let (mut world, resolver) = named_world(case)?;
    let address = world.net.address("relay");
    resolver.set(RELAY, &[&address])?;
    by_relays_name(&mut world)?;
    let before = resolver.asked(RELAY);
    std::thread::sleep(Duration::from_secs(15));
    case.number("healthy", count(resolver.asked(RELAY) - before));
    world.end("relay", Signal::KILL)?;
    let (asked, dialled) = (resolver.asked(RELAY), failed_dials(&world)?);
    std::thread::sleep(Duration::from_secs(20));
    // Asked first: a dial that begins between the two is then one too few, never one too many.
    let asked = resolver.asked(RELAY) - asked;
    std::thread::sleep(Duration::from_millis(100));
    let dialled = failed_dials(&world)? - dialled;
    case.number("dials", dialled);
    case.number("beyond", (count(asked) - dialled).max(0.0));
    Ok(())
}

fn each(case: &mut Case<'_>) -> anyhow::Result<()> {
    let (mut world, resolver) = named_world(case)?;
    let address = world.net.address("db");
    resolver.set(SERVER, &[&address])?;
    forward_to(&mut world, SERVER)?;
    let _server = Server::start(&world.net, "db", &format!("{address}:50052"), |mut stream| {
        let _ = std::io::Write::write_all(&mut stream, b"!");
    })?;
    let client = world.start_actor("web", "client")?;
    let target = match case.way {
        Way::Direct => format!("{SERVER}:50052"),
        Way::Unix | Way::Tcp => world.raw_target(),
    };
    let before = resolver.asked(SERVER);
    world.app(client).say(&json!({"op": "dial", "address": target, "count": 200}))?;
    let opens = until("200 opens", PATIENCE, || {
        let events = world.app(client).events();
        let firsts = events.iter().filter(|event| event.kind == "first").count();
        (firsts == 200).then_some(firsts)
    })?;
    case.number("opens", count(opens));
    case.number("queries", count(resolver.asked(SERVER) - before) / 200.0);
    Ok(())
}

/// An exchange by a name, from a thread that is on a host: the first address that answers, as the library tries them.
fn by_name(host: &str, port: u16) -> anyhow::Result<f64> {
    let began = now_ms();
    let mut stream = TcpStream::connect((host, port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    inside::again(&mut stream)?;
    Ok(now_ms() - began)
}

fn localhost(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut world = case.world()?;
    forward_to(&mut world, "localhost")?;
    for (id, address) in [("v4_ms", "127.0.0.1:50052"), ("v6_ms", "[::1]:50052")] {
        let _server = Server::start(&world.net, "db", address, inside::echo)?;
        let took = match case.way {
            Way::Direct => on(&world.net, "db", || by_name("localhost", 50_052)),
            Way::Unix | Way::Tcp => app(&world, exchange),
        };
        match took {
            Ok(took_ms) => case.number(id, took_ms),
            // An ordinary client finds only what the hosts file says.
            Err(_) if case.way == Way::Direct => case.word(id, "fails"),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn dead(case: &mut Case<'_>) -> anyhow::Result<()> {
    let (mut world, resolver) = named_world(case)?;
    // A host that is there, and hears nothing of who dials it.
    let (dialler, silent) = if case.way == Way::Direct { ("web", "relay") } else { ("db", "web") };
    let addresses = ["fd00::dead".to_owned(), world.net.address(silent), world.net.address(NAMES)];
    let all: Vec<&str> = addresses.iter().map(String::as_str).collect();
    resolver.set(SERVER, &all)?;
    forward_to(&mut world, SERVER)?;
    let server = Server::start(&world.net, NAMES, "0.0.0.0:50052", inside::echo)?;
    let _cut = world.cut_path(dialler, silent)?;
    if case.way == Way::Direct {
        // An ordinary client tries them one after the other, and has no bound.
        let client = world.start_actor("web", "client")?;
        let began = now_ms();
        world.app(client).say(&json!({"op": "dial", "address": format!("{SERVER}:50052")}))?;
        match world.app(client).find(Duration::from_secs(20), |event| event.kind == "open")? {
            Some(event) => case.number("open_s", (event.mono_ms - began) / 1e3),
            None => case.not_within("open_s", 20.0),
        }
        return Ok(());
    }
    case.number("open_s", app(&world, exchange)? / 1e3);
    drop(server);
    app(&world, |target| Ok(exchange(target).is_err()))?;
    let status = world.status("agent")?;
    let message =
        crate::status::entry(&status, "services", "raw").map(|entry| entry["last_error"].to_string());
    let message = message.unwrap_or_default();
    case.number("named", count(all.iter().filter(|address| message.contains(**address)).count()));
    Ok(())
}

fn both_families(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut world = case.world()?;
    let _server = Server::start(&world.net, "db", "127.0.0.1:50052", inside::echo)?;
    let mut direct = Vec::new();
    if case.way == Way::Direct {
        for address in ["127.0.0.1:7902", "[::1]:7902"] {
            direct.push(Server::start(&world.net, "web", address, inside::echo)?);
        }
    } else {
        edit(&mut world, "sidecar", |text| text.replace("\"127.0.0.1:7902\"", "\"localhost:7902\""))?;
    }
    for (id, address) in [("v4_ms", "127.0.0.1:7902"), ("v6_ms", "[::1]:7902")] {
        let mut times = on(&world.net, "web", || {
            (0..200)
                .map(|_| {
                    let began = now_ms();
                    let stream = inside::connect(address)?;
                    let took = now_ms() - began;
                    drop(stream);
                    // The session that comes of it is to be over: the figure is one connect's.
                    std::thread::sleep(Duration::from_millis(10));
                    Ok(took)
                })
                .collect::<anyhow::Result<Vec<f64>>>()
        })?;
        times.sort_by(f64::total_cmp);
        case.number(id, times[197]);
    }
    Ok(())
}

fn moves(case: &mut Case<'_>) -> anyhow::Result<()> {
    let (mut world, resolver) = named_world(case)?;
    let places = ["db", NAMES];
    resolver.set(SERVER, &[&world.net.address("db")])?;
    forward_to(&mut world, SERVER)?;
    let client = match case.way {
        Way::Direct => Some(world.start_actor("web", "client")?),
        Way::Unix | Way::Tcp => None,
    };
    let (mut failed, mut slowest_ms) = (0, 0.0_f64);
    for number in 0..10 {
        let place = places[number % 2];
        let address = world.net.address(place);
        let greeting = |mut stream: TcpStream| {
            let _ = std::io::Write::write_all(&mut stream, b"!");
            inside::echo(stream);
        };
        let _server = Server::start(&world.net, place, &format!("{address}:50052"), greeting)?;
        resolver.set(SERVER, &[&address])?;
        let began = now_ms();
        let good = match client {
            Some(client) => {
                world.app(client).say(&json!({"op": "dial", "address": format!("{SERVER}:50052")}))?;
                let wanted =
                    |event: &crate::app::Event| event.kind == "first" && event.body["conn"] == number;
                world.app(client).find(Duration::from_secs(5), wanted)?.is_some()
            }
            None => app(&world, |target| Ok(greeted(target).is_ok()))?,
        };
        failed += usize::from(!good);
        slowest_ms = slowest_ms.max(now_ms() - began);
    }
    case.number("failed", count(failed));
    case.number("slowest_s", slowest_ms / 1e3);
    Ok(())
}

fn greeted(target: &str) -> anyhow::Result<()> {
    let mut stream = inside::connect(target)?;
    Ok(std::io::Read::read_exact(&mut stream, &mut [0])?)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_question_is_answered_and_counted() {
        let mut book = Book::default();
        book.addresses.insert("a.test", vec![IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))]);
        let head = [7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        let question = [b"\x01a\x04test\x00".as_slice(), &[0, 1, 0, 1]].concat();
        let query = [&head[..], &question].concat();
        let said = answer(&query, &mut book).unwrap();
        assert_eq!(said[..8], [7, 7, 0x85, 0x80, 0, 1, 0, 1]);
        assert!(said.ends_with(&[0, 4, 10, 0, 0, 1]));
        assert_eq!(book.asked["a.test"], 1);
        let other = [&head[..], b"\x01b\x04test\x00\x00\x01\x00\x01"].concat();
        assert_eq!(answer(&other, &mut book).unwrap()[3], 0x83);
        assert!(answer(&query[..15], &mut book).is_none());
    }
}
