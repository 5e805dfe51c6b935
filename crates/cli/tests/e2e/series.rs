//! Whatever the traffic, `/metrics` has the same series: `cargo xtask series` runs this with a million paths.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::counts::metrics;
use crate::harness::{AT_ONCE, Conn, Kind, PATIENCE, Process, Slot, World, WorldOptions, hopline, until};

/// Calls on one connection, and of those at a time.
const CALLS: u64 = 500;
const BATCH: u64 = 50;
/// What a process may grow by in a round, in KiB: no leak of nine bytes for each of a million paths.
const GROWTH_KIB: u64 = 8 << 10;
/// How often a process may seem to have leaked. What its allocator holds rises to a level that chance sets: a second round
/// finds it there; a leak grows in each.
const ROUNDS: u64 = 3;

/// Reloads until the allocator has what it takes to hold both the mappings that go and those that come.
const WARM: usize = 2;

/// How much happens.
struct Size {
    /// Calls, each of a path and an authority of its own.
    paths: u64,
    /// Mappings that a reload brings and the next takes away; each is dialled once, and nobody serves it.
    mappings: usize,
    reloads: usize,
    /// Edges that come and are killed.
    peers: usize,
}

impl Size {
    fn wanted() -> Self {
        let paths = std::env::var("HOPLINE_SERIES_PATHS").ok().map(|paths| paths.parse().unwrap());
        match paths {
            None => Self { paths: 20_000, mappings: 50, reloads: 4, peers: 2 },
            Some(paths) => Self { paths, mappings: 2_500, reloads: 4, peers: 50 },
        }
    }
}

/// Every series of a page, without its value; but for the limits that were met, a closed list that chance fills.
fn series(address: &str) -> BTreeSet<String> {
    let page = metrics(address);
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    let ids = samples.map(|line| line.rsplit_once(' ').unwrap().0.to_owned());
    ids.filter(|id| !id.starts_with("hopline_limit_reached_total{")).collect()
}

fn all_series(world: &World) -> [BTreeSet<String>; 3] {
    [&world.sidecar.admin, &world.relay.admin, &world.agent.admin].map(|address| series(address))
}

/// Tells the server to stop, also when the test fails.
struct Stop<'a>(&'a Slot, &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.0.server.local_addr().unwrap()));
    }
}

pub(crate) fn rss_kib(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn frame(kind: u8, flags: u8, stream: u64, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let stream = u32::try_from(stream).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream, payload].concat()
}

/// A request's headers: POST, http, a path and an authority that go to the table of headers, and gRPC's type.
fn request(stream: u64, call: u64) -> Vec<u8> {
    let field =
        |index: u8, value: &str| [&[index, u8::try_from(value.len()).unwrap()], value.as_bytes()].concat();
    let block = [
        vec![0x83, 0x86],
        field(0x44, &format!("/shop.v1.Basket/Item{call}")),
        field(0x41, &format!("tenant-{call}.example")),
        field(0x5f, "application/grpc"),
    ];
    frame(1, 5, stream, &block.concat())
}

/// A response that is trailers alone, with a status of gRPC's or one that it does not have.
fn response(stream: u64) -> Vec<u8> {
    let status = (stream / 2 % 20).to_string();
    let field = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let block = [vec![0x88, 0x5f], field("application/grpc"), vec![0], field("grpc-status"), field(&status)];
    frame(1, 5, stream, &block.concat())
}

/// The next frame's type and stream.
fn next_frame(conn: &mut impl Read) -> Option<(u8, u64)> {
    let mut head = [0; 9];
    conn.read_exact(&mut head).ok()?;
    let length = usize::from(head[1]) << 8 | usize::from(head[2]);
    conn.read_exact(&mut vec![0; length]).ok()?;
    Some((head[3], u64::from(u32::from_be_bytes([head[5], head[6], head[7], head[8]]))))
}

/// Answers each request, until told to stop and then connected to once more.
fn serve(slot: &Slot, stop: &AtomicBool) {
    std::thread::scope(|scope| {
        while !stop.load(Ordering::Relaxed) {
            let Ok((stream, _)) = slot.server.accept() else { continue };
            scope.spawn(move || {
                let mut conn = std::io::BufReader::new(Conn::Tcp(stream).patient());
                let mut preface = [0; 24];
                if conn.read_exact(&mut preface).is_err() {
                    return;
                }
                if conn.get_mut().write_all(&frame(4, 0, 0, &[])).is_err() {
                    return;
                }
                while let Some((kind, stream)) = next_frame(&mut conn) {
                    if kind == 1 && conn.get_mut().write_all(&response(stream)).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// Calls, each of its own path, on connections that come and go.
fn call(slot: &Slot, paths: std::ops::Range<u64>) {
    let mut calls = paths.into_iter().peekable();
    while calls.peek().is_some() {
        let mut conn = std::io::BufReader::new(slot.dial(Kind::Tcp));
        conn.get_mut().write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        conn.get_mut().write_all(&frame(4, 0, 0, &[])).unwrap();
        for batch in 0..CALLS / BATCH {
            let streams = (batch * BATCH..(batch + 1) * BATCH).map(|index| 2 * index + 1);
            let some: Vec<_> =
                streams.zip(calls.by_ref()).map(|(stream, call)| request(stream, call)).collect();
            let mut open = some.len();
            conn.get_mut().write_all(&some.concat()).unwrap();
            while open > 0 {
                let (kind, _) = next_frame(&mut conn).expect("an answer");
                open -= usize::from(kind == 1);
            }
        }
    }
}

/// Mappings come by a reload, nobody serves them, and they go again.
fn reload(world: &World, generation: usize, mappings: usize) {
    let path = world.folder().join("sidecar.yaml");
    let before = std::fs::read_to_string(&path).unwrap();
    let mut text = before.clone();
    for number in 0..mappings {
        writeln!(text, "  g{generation}-{number}: {{ listen: \"127.0.0.1:0\" }}").unwrap();
    }
    let base = world.sidecar.status().mappings.len();
    let take_over = |text: &str, count: usize| {
        std::fs::write(&path, text).unwrap();
        world.sidecar.process.signal(Signal::HUP);
        until("the file is taken over", 6 * PATIENCE, || {
            let mappings = world.sidecar.status().mappings;
            // A mapping is listed before its socket is open.
            let are_open = mappings.iter().all(|mapping| !mapping.listen.ends_with(":0"));
            (mappings.len() == count && are_open).then_some(mappings)
        })
    };
    for mapping in
        take_over(&text, base + mappings).into_iter().filter(|mapping| mapping.name.starts_with('g'))
    {
        // The refusal may be there before the kernel has said that the connection is.
        if let Ok(stream) = TcpStream::connect(mapping.listen) {
            assert_eq!(Conn::Tcp(stream).patient().drain().0, b"");
        }
    }
    let refused = format!("hopline_mapping_opens_total{{mapping=\"g{generation}-0\",result=\"offline\"}}");
    until(&refused, AT_ONCE, || series(&world.sidecar.admin).contains(&refused).then_some(()));
    take_over(&before, base);
}

/// An edge links up and is killed.
fn come_and_go(world: &World) {
    let file = world.folder().join("peer.yaml");
    std::fs::write(&file, "connect: { any: { listen: \"127.0.0.1:0\" } }\n").unwrap();
    let mut command = hopline();
    command.arg("up").arg("-c").arg(&file).arg("--state").arg(&world.sidecar.state);
    let links = || world.relay.status().links.len();
    let before = links();
    let peer = Process::spawn("peer", world.folder(), command);
    peer.logged("link up");
    peer.kill();
    until("its link is gone", PATIENCE, || (links() <= before).then_some(()));
}

/// Everything that happens, in a share of the size; gives how long scrapes took meanwhile.
fn happen(
    world: &World,
    paths: std::ops::Range<u64>,
    size: &Size,
    reloads: std::ops::Range<usize>,
    peers: usize,
) -> Vec<Duration> {
    let slot = &world.slots[0];
    let over = AtomicBool::new(false);
    let scrapes = std::thread::scope(|scope| {
        let scraper = scope.spawn(|| {
            let mut took = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let began = Instant::now();
                metrics(&world.sidecar.admin);
                took.push(began.elapsed());
                std::thread::sleep(Duration::from_millis(20));
            }
            took
        });
        let called = std::panic::catch_unwind(|| call(slot, paths));
        over.store(true, Ordering::Relaxed);
        called.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        scraper.join().unwrap()
    });
    for generation in reloads {
        reload(world, generation, size.mappings);
    }
    for _ in 0..peers {
        come_and_go(world);
    }
    scrapes
}

/// F161 and F163: distinct paths and authorities, failed opens of distinct names, mappings that come and go and peers
/// that do add no series, and no memory.
#[test]
fn f161_traffic_adds_no_series() {
    let size = Size::wanted();
    let world = World::start(WorldOptions { log: "warn,hopline_relay=info", ..WorldOptions::default() });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&world.slots[0], &stop));
        let _stop = Stop(&world.slots[0], &stop);
        // Everything has happened once: each counter has its series.
        let first = size.paths / 10;
        happen(&world, 0..first, &size, 0..WARM, 1);
        let grew = |round: u64| {
            let start = first + round * size.paths;
            let generations = WARM + usize::try_from(round).unwrap() * size.reloads;
            let grown =
                grown(&world, start..start + size.paths, &size, generations..generations + size.reloads);
            let started = series_value(&world, "hopline_calls_started_total{mapping=\"t0\"}");
            assert_eq!(started, start + size.paths, "the calls were seen");
            grown.into_iter().any(|grown| grown >= GROWTH_KIB)
        };
        assert!(!(0..ROUNDS).all(grew), "a process grew in each round");
    });
}

/// What happens adds no series; by how many KiB each process has grown meanwhile.
#[expect(clippy::print_stdout, reason = "the measured numbers go to the test's output")]
fn grown(
    world: &World,
    paths: std::ops::Range<u64>,
    size: &Size,
    reloads: std::ops::Range<usize>,
) -> [u64; 3] {
    let rss = || world.processes().map(rss_kib);
    let (before, rss_before) = (all_series(world), rss());
    let began = Instant::now();
    let (calls, failed) = (paths.end - paths.start, reloads.len() * size.mappings);
    let mut scrapes = happen(world, paths, size, reloads, size.peers);
    let took = began.elapsed();
    let (after, rss_after) = (all_series(world), rss());
    scrapes.sort();
    let quantile = |part: usize| scrapes[(scrapes.len() - 1) * part / 100];
    println!(
        "{calls} paths and authorities, {failed} failed opens, {} peers in {took:.1?}; series of sidecar, relay, agent: {:?} \
         before, {:?} after; resident KiB of relay, agent, sidecar: {rss_before:?} before, {rss_after:?} after; {} scrapes \
         meanwhile, p50 {:.1?}, p99 {:.1?}",
        size.peers,
        before.each_ref().map(BTreeSet::len),
        after.each_ref().map(BTreeSet::len),
        scrapes.len(),
        quantile(50),
        quantile(99),
    );
    for (before, after) in before.iter().zip(&after) {
        let new: Vec<_> = after.symmetric_difference(before).collect();
        assert!(new.is_empty(), "{new:?}");
    }
    std::array::from_fn(|process| rss_after[process].saturating_sub(rss_before[process]))
}

fn series_value(world: &World, name: &str) -> u64 {
    let page = metrics(&world.sidecar.admin);
    let value = page.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    value.trim().parse().unwrap()
}
