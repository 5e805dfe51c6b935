//! HTTP/2 by hand: frames that libraries seldom send, byte for byte through the chain, and what the sidecar counts of them.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::kit::{BASE, figure};
use super::shape::{app, count, metric, metrics, rss_kib, serve};
use crate::inside::connect;
use crate::result::Bound;
use crate::scenario::{Case, Figure, Scenario};
use crate::world::{Way, World};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
/// What a frame may hold where nothing else was agreed.
const FRAME_BYTES: usize = 16_384;
/// The most of a header block that the sidecar reads: `block_bytes` in docs/limits.md's terms.
const BLOCK_BYTES: usize = 64 << 10;

const SAME: &[Figure] = &[
    figure("talks", "conversations", "", Bound::AtLeast(1.0)),
    figure("changed", "of them not byte for byte", "", Bound::AtMost(0.0)),
    figure("calls", "calls that the sidecar counted", "", Bound::AtLeast(1.0)),
    figure("gave_up", "conversations that it gave up on", "", Bound::AtMost(0.0)),
];
const GIVES_UP: &[Figure] =
    &[SAME[0], SAME[1], figure("gave_up", "conversations that it gave up on", "", Bound::Within(1.0, 1.0))];
/// The blocks beyond the cap, and only those.
const EDGE: &[Figure] = &[
    SAME[0],
    SAME[1],
    figure("calls", "calls that the sidecar counted", "", Bound::Within(21.0, 21.0)),
    figure("gave_up", "conversations that it gave up on", "", Bound::Within(20.0, 20.0)),
];
const STATUSES: &[Figure] =
    &[SAME[0], SAME[1], figure("counted", "statuses counted, or given up on", "", Bound::Within(5.0, 5.0))];
const LABELS: &[Figure] = &[
    figure("calls", "calls that were counted", "", Bound::Within(20_000.0, 20_000.0)),
    figure("series", "further series on /metrics", "", Bound::AtMost(3.0)),
    figure("grown_kib", "growth of the sidecar's memory", "KiB", Bound::AtMost(4_096.0)),
];

pub(in crate::scenario) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "f197-trailers",
        promise: "F197",
        what: "F197, F199, F200: trailers only, an empty body, binary trailers, an empty DATA frame at the end instead of \
               trailers, a stream of no messages, a socket's path as :authority; raw and with %2F.",
        figures: SAME,
        run: trailers,
        ..BASE
    },
    Scenario {
        name: "f143-long-status",
        promise: "F143",
        what: "Trailers whose grpc-message has 1, 8, 16, 18 and 64 KiB.",
        figures: STATUSES,
        run: long_status,
        ..BASE
    },
    Scenario {
        name: "f145-continuations",
        promise: "F145",
        what: "A request of HEADERS and 100 CONTINUATION frames with 500 KB of metadata.",
        figures: GIVES_UP,
        run: continuations,
        ..BASE
    },
    Scenario {
        name: "f146-block-at-the-cap",
        promise: "F146",
        what: "Header blocks of every size from 20 bytes below to 20 bytes above what the sidecar reads (64 KiB).",
        figures: EDGE,
        run: at_the_cap,
        ..BASE
    },
    Scenario {
        name: "f160-many-paths",
        promise: "F160",
        what: "20,000 calls, each with another :path and :authority, through one mapping.",
        figures: LABELS,
        seconds: 30,
        run: many_paths,
        ..BASE
    },
];

/// What one side says in turn.
#[derive(Debug, Clone)]
enum Turn {
    Client(Vec<u8>),
    Server(Vec<u8>),
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A block of headers in as many frames as it needs, each of at most so many bytes.
fn headers(stream: u32, end_stream: bool, block: &[u8], most: usize) -> Vec<u8> {
    let pieces: Vec<&[u8]> = block.chunks(most).collect();
    let mut bytes = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let last = if index + 1 == pieces.len() { END_HEADERS } else { 0 };
        let (kind, flags) = match index {
            0 => (HEADERS, last | if end_stream { END_STREAM } else { 0 }),
            _ => (CONTINUATION, last),
        };
        bytes.extend(frame(kind, flags, stream, piece));
    }
    bytes
}

/// A field as a literal that enters no table (RFC 7541, 6.2.2), without Huffman.
fn field(name: &str, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name.as_bytes(), value] {
        let mut left = text.len();
        if left < 127 {
            bytes.push(u8::try_from(left).unwrap_or(126));
        } else {
            bytes.push(127);
            left -= 127;
            while left >= 128 {
                bytes.push(u8::try_from(left % 128).unwrap_or(0) | 128);
                left /= 128;
            }
            bytes.push(u8::try_from(left).unwrap_or(0));
        }
        bytes.extend(text);
    }
    bytes
}

fn fields(all: &[(&str, &[u8])]) -> Vec<u8> {
    all.iter().flat_map(|(name, value)| field(name, value)).collect()
}

fn request(path: &str, authority: &str) -> Vec<u8> {
    fields(&[
        (":method", b"POST"),
        (":scheme", b"http"),
        (":path", path.as_bytes()),
        (":authority", authority.as_bytes()),
        ("te", b"trailers"),
        ("content-type", b"application/grpc"),
    ])
}

fn answer() -> Vec<u8> {
    fields(&[(":status", b"200"), ("content-type", b"application/grpc")])
}

/// How every conversation begins.
fn hello() -> Vec<Turn> {
    let preface = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frame(SETTINGS, 0, 0, b"")].concat();
    let back = [frame(SETTINGS, 0, 0, b""), frame(SETTINGS, ACK, 0, b"")].concat();
    vec![Turn::Client(preface), Turn::Server(back), Turn::Client(frame(SETTINGS, ACK, 0, b""))]
}

/// One call: this request, then this answer.
fn call(request: Vec<u8>, answer: Vec<u8>) -> Vec<Turn> {
    [hello(), vec![Turn::Client(request), Turn::Server(answer)]].concat()
}

/// Says one's own turns and reads the other's; whether those were byte for byte what they had to be.
fn speak(mut stream: &TcpStream, turns: &[Turn], client: bool) -> bool {
    for turn in turns {
        let (own, bytes) = match turn {
            Turn::Client(bytes) => (client, bytes),
            Turn::Server(bytes) => (!client, bytes),
        };
        if own {
            if stream.write_all(bytes).is_err() {
                return false;
            }
            continue;
        }
        let mut read = vec![0; bytes.len()];
        if stream.read_exact(&mut read).is_err() || read != *bytes {
            return false;
        }
    }
    true
}

/// Has these conversations, one connection each, and notes what became of them.
fn talk(case: &mut Case<'_>, talks: Vec<Vec<Turn>>) -> anyhow::Result<World> {
    let world = case.world()?;
    let talks = Arc::new(talks);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (script, ears) = (Arc::clone(&talks), Arc::clone(&heard));
    // The conversations come one after the other, so the number of those that were is the number of this one.
    let next = std::sync::atomic::AtomicUsize::new(0);
    let _server = serve(&world, move |stream| {
        let number = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
        let good = script.get(number).is_some_and(|turns| speak(&stream, turns, false));
        ears.lock().unwrap_or_else(PoisonError::into_inner).push(good);
    })?;
    let good = app(&world, |target| {
        let mut good = 0;
        for turns in talks.iter() {
            good += usize::from(speak(&connect(target)?, turns, true));
        }
        Ok(good)
    })?;
    let there = heard.lock().unwrap_or_else(PoisonError::into_inner).iter().filter(|good| **good).count();
    case.number("talks", count(talks.len()));
    case.number("changed", count(talks.len() - good.min(there)));
    if case.way != Way::Direct {
        // Connections are counted when they are over.
        std::thread::sleep(Duration::from_millis(500));
        case.number("calls", metric(&world, "sidecar", "hopline_calls_total{mapping=\"raw\"")?);
        case.number("gave_up", gave_up(&world)?);
    }
    Ok(world)
}

fn gave_up(world: &World) -> anyhow::Result<f64> {
    metric(world, "sidecar", "hopline_inspect_gave_up_total{mapping=\"raw\"")
}

fn trailers(case: &mut Case<'_>) -> anyhow::Result<()> {
    let ok = fields(&[("grpc-status", b"0")]);
    let only = fields(&[(":status", b"200"), ("content-type", b"application/grpc"), ("grpc-status", b"12")]);
    let binary: Vec<u8> = (0..=255).collect();
    let details = fields(&[("grpc-status", b"9"), ("grpc-status-details-bin", &binary)]);
    let post = |authority: &str| headers(1, true, &request("/lab.Lab/Frames", authority), FRAME_BYTES);
    let head = || headers(1, false, &answer(), FRAME_BYTES);
    let end = |block: &[u8]| headers(1, true, block, FRAME_BYTES);
    let empty_message = frame(DATA, 0, 1, &[0; 5]);
    let talks = vec![
        call(post("lab"), end(&only)),
        call(post("lab"), [head(), empty_message.clone(), end(&ok)].concat()),
        call(post("lab"), [head(), end(&details)].concat()),
        // No trailers at all: a server that is wrong, and has to arrive as it is.
        call(post("lab"), [head(), empty_message, frame(DATA, END_STREAM, 1, b"")].concat()),
        call(post("lab"), [head(), end(&ok)].concat()),
        call(post("/tmp/hopline/lab.sock"), [head(), end(&ok)].concat()),
        call(post("%2Ftmp%2Fhopline%2Flab.sock"), [head(), end(&ok)].concat()),
    ];
    talk(case, talks).map(drop)
}

fn long_status(case: &mut Case<'_>) -> anyhow::Result<()> {
    let talks = [1, 8, 16, 18, 64].map(|kib: usize| {
        let message = vec![b'm'; kib << 10];
        let trailers = fields(&[("grpc-status", b"9"), ("grpc-message", &message)]);
        let end = headers(1, true, &trailers, FRAME_BYTES);
        let request = headers(1, true, &request("/lab.Lab/Fails", "lab"), FRAME_BYTES);
        call(request, [headers(1, false, &answer(), FRAME_BYTES), end].concat())
    });
    let world = talk(case, talks.to_vec())?;
    if case.way != Way::Direct {
        let nines = metrics(&world.status_socket("sidecar"))?;
        let nines = nines.iter().find(|line| {
            line.starts_with("hopline_calls_total{mapping=\"raw\"") && line.contains("FAILED_PRECONDITION")
        });
        let nines: f64 = nines.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default();
        case.number("counted", nines + gave_up(&world)?);
    }
    Ok(())
}

fn continuations(case: &mut Case<'_>) -> anyhow::Result<()> {
    let value = vec![b'v'; 5_000];
    let mut block = request("/lab.Lab/Large", "lab");
    for number in 0..100 {
        block.extend(field(&format!("x-{number}"), &value));
    }
    let request = headers(1, true, &block, block.len().div_ceil(101));
    let end = headers(1, true, &fields(&[("grpc-status", b"0")]), FRAME_BYTES);
    talk(case, vec![call(request, [headers(1, false, &answer(), FRAME_BYTES), end].concat())]).map(drop)
}

fn at_the_cap(case: &mut Case<'_>) -> anyhow::Result<()> {
    let base = request("/lab.Lab/Cap", "lab");
    let mut talks = Vec::new();
    for size in BLOCK_BYTES - 20..=BLOCK_BYTES + 20 {
        let mut block = base.clone();
        // Two length bytes more, for a value of this size: the name's, and three for the value's.
        let overhead = field("x", &vec![b'v'; 60_000]).len() - 60_000;
        block.extend(field("x", &vec![b'v'; size - base.len() - overhead]));
        anyhow::ensure!(block.len() == size, "{} bytes instead of {size}", block.len());
        let request = headers(1, true, &block, FRAME_BYTES);
        let end = headers(1, true, &fields(&[("grpc-status", b"0")]), FRAME_BYTES);
        talks.push(call(request, [headers(1, false, &answer(), FRAME_BYTES), end].concat()));
    }
    talk(case, talks).map(drop)
}

/// Answers each HEADERS frame of a client with a call that is good.
fn answers(mut stream: TcpStream) {
    let mut preface = [0; 24];
    let hello = [frame(SETTINGS, 0, 0, b""), frame(SETTINGS, ACK, 0, b"")].concat();
    if stream.read_exact(&mut preface).is_err() || stream.write_all(&hello).is_err() {
        return;
    }
    let mut reader = std::io::BufReader::with_capacity(65_536, &stream);
    let mut head = [0; 9];
    while reader.read_exact(&mut head).is_ok() {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let mut payload = vec![0; length];
        if reader.read_exact(&mut payload).is_err() {
            return;
        }
        let number = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        if head[3] == HEADERS && (&stream).write_all(&good(number)).is_err() {
            return;
        }
    }
}

/// The answer to a call, on this stream.
fn good(stream: u32) -> Vec<u8> {
    let end = headers(stream, true, &fields(&[("grpc-status", b"0")]), FRAME_BYTES);
    [headers(stream, false, &answer(), FRAME_BYTES), end].concat()
}

fn many_paths(case: &mut Case<'_>) -> anyhow::Result<()> {
    const CALLS: u32 = 20_000;
    let world = case.world()?;
    let _server = serve(&world, answers)?;
    let target = world.raw_target();
    let mut stream = app(&world, |_| {
        let mut stream = connect(&target)?;
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
        stream.write_all(&frame(SETTINGS, 0, 0, b""))?;
        stream.read_exact(&mut [0; 18])?;
        stream.write_all(&frame(SETTINGS, ACK, 0, b""))?;
        Ok(stream)
    })?;
    let mut calls = |from: u32, to: u32| -> anyhow::Result<()> {
        for batch in (from..to).collect::<Vec<_>>().chunks(100) {
            let (mut say, mut hear) = (Vec::new(), Vec::new());
            for number in batch {
                let block = request(&format!("/s{number}.Service/Method{number}"), &format!("host-{number}"));
                say.extend(headers(number * 2 + 1, true, &block, FRAME_BYTES));
                hear.extend(good(number * 2 + 1));
            }
            stream.write_all(&say)?;
            let mut read = vec![0; hear.len()];
            stream.read_exact(&mut read)?;
            anyhow::ensure!(read == hear, "other bytes");
        }
        Ok(())
    };
    // The first calls make the families appear, and the hint that they have no deadline.
    calls(0, 2_000)?;
    std::thread::sleep(Duration::from_secs(2));
    if case.way == Way::Direct {
        return calls(2_000, CALLS);
    }
    let (series, rss) = (metrics(&world.status_socket("sidecar"))?.len(), rss_kib(&world, "sidecar")?);
    calls(2_000, CALLS)?;
    case.number("calls", metric(&world, "sidecar", "hopline_calls_total{mapping=\"raw\"")?);
    case.number("series", count(metrics(&world.status_socket("sidecar"))?.len()) - count(series));
    case.number("grown_kib", rss_kib(&world, "sidecar")? - rss);
    Ok(())
}
