//! Many bytes, any bytes, many sessions.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use rustix::process::Signal;
use serde_json::json;

use super::kit::{BASE, figure};
use super::shape::{app, count, rss_kib, serve};
use crate::inside::{self, connect};
use crate::measure::Held;
use crate::result::Bound;
use crate::scenario::{Case, Figure, Pace, Scenario};
use crate::shell::{now_ms, until};
use crate::status;
use crate::world::{Way, World};

/// Of one session, each way.
const LARGE: u64 = 256 << 20;

const BYTES: &[Figure] = &[
    figure("bytes", "MiB each way in one session", "MiB", Bound::Within(256.0, 256.0)),
    figure("wrong", "bytes that came back changed", "", Bound::AtMost(0.0)),
    figure("took_s", "took", "s", Bound::None),
];
const CONTENTS: &[Figure] = &[
    figure("contents", "contents", "", Bound::Within(7.0, 7.0)),
    figure("changed", "of them came back changed", "", Bound::AtMost(0.0)),
];
const DOWNLOADS: &[Figure] = &[
    figure(
        "slowest_ms",
        "the server's slowest notice of a close",
        "ms",
        Bound::AtMostOrDirectPlus(500.0, 500.0),
    ),
    figure(
        "slower",
        "the last 20 downloads against the first 20",
        "times",
        Bound::AtMostOrDirectPlus(3.0, 1.0),
    ),
    figure("grown_kib", "growth of the sidecar's memory", "KiB", Bound::AtMost(6_144.0)),
    figure("relay_kib", "growth of the relay's", "KiB", Bound::AtMost(6_144.0)),
];
const MANY: &[Figure] = &[
    figure("answered", "of 4,600 sessions at once, answered", "", Bound::AtLeast(4_000.0)),
    figure("refused", "refused", "", Bound::None),
    figure("silent", "neither within 15 s", "", Bound::AtMost(0.0)),
    figure("slowest_s", "the slowest answer or refusal", "s", Bound::AtMost(10.5)),
    figure("reason", "reason@hop in /status", "", Bound::Word(&["overload@1", "overload@2", "overload@0"])),
];
const CRASHED: &[Figure] = &[
    figure("open", "of 300 sessions, open at sidecar, relay or agent 5 s later", "", Bound::AtMost(0.0)),
    figure("descriptors", "descriptors more than before", "", Bound::AtMost(4.0)),
    figure("server", "connections at the server", "", Bound::AtMost(0.0)),
];

pub(in crate::scenario) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "f149-one-large-session",
        promise: "F149",
        what: "256 MiB each way at once in one session, in random pieces.",
        figures: BYTES,
        seconds: 20,
        run: large,
        ..BASE
    },
    Scenario {
        name: "f151-contents",
        promise: "F151",
        what: "4 MiB each of zeros, 0xFF, the preface of HTTP/2, a connection's start that is HTTP/2 and then is not, TLS \
               records, HTTP/1, and random bytes.",
        figures: CONTENTS,
        run: contents,
        ..BASE
    },
    Scenario {
        name: "f154-downloads-given-up",
        promise: "F154",
        what: "A download without end is begun and closed after 1 MiB, 200 times.",
        figures: DOWNLOADS,
        pace: Pace::Alone,
        seconds: 30,
        run: downloads,
        ..BASE
    },
    Scenario {
        name: "f157-many-sessions",
        promise: "F157",
        what: "4,600 sessions at once on one link, whose limit is 4,096: each is answered, or refused with a reason.",
        figures: MANY,
        seconds: 40,
        run: many,
        ..BASE
    },
    Scenario {
        name: "f158-crashed-application",
        promise: "F158",
        what: "An application with 300 open sessions is killed with -9.",
        figures: CRASHED,
        run: crashed,
        ..BASE
    },
];

/// Sends what `fill` makes and reads it back; gives the number of bytes that came back changed.
fn there_and_back(target: &str, total: u64, block: Arc<Vec<u8>>, random: bool) -> anyhow::Result<u64> {
    let stream = connect(target)?;
    let (mut writer, out) = (stream.try_clone()?, Arc::clone(&block));
    let writing = std::thread::spawn(move || -> anyhow::Result<()> {
        let mut chance = ChaCha8Rng::seed_from_u64(total);
        let (mut at, mut left) = (0, usize::try_from(total)?);
        while left > 0 {
            let most = if random { chance.random_range(1..200_000) } else { 65_536 };
            let length = most.min(left).min(out.len() - at);
            writer.write_all(&out[at..at + length])?;
            at = (at + length) % out.len();
            left -= length;
        }
        Ok(writer.shutdown(std::net::Shutdown::Write)?)
    });
    let (mut read, mut wrong, mut at) = (0_u64, 0_u64, 0);
    let mut buffer = vec![0; 65_536];
    let mut stream = stream;
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            break;
        }
        let mut seen = 0;
        while seen < length {
            let step = (length - seen).min(block.len() - at);
            if buffer[seen..seen + step] != block[at..at + step] {
                wrong += step as u64;
            }
            at = (at + step) % block.len();
            seen += step;
        }
        read += length as u64;
    }
    writing.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
    anyhow::ensure!(read == total, "{read} of {total} bytes came back before the end");
    Ok(wrong)
}

/// Bytes without a pattern; a prime number of them, so that no boundary meets another one.
fn noise() -> Vec<u8> {
    let mut noise = vec![0; 1_048_573];
    ChaCha8Rng::seed_from_u64(149).fill_bytes(&mut noise);
    noise
}

fn large(case: &mut Case<'_>) -> anyhow::Result<()> {
    let world = case.world()?;
    let _server = serve(&world, inside::echo)?;
    let began = now_ms();
    let block = Arc::new(noise());
    let wrong = app(&world, |target| there_and_back(target, LARGE, block, true))?;
    case.number("bytes", 256.0);
    #[expect(clippy::cast_precision_loss, reason = "a count of bytes of a run")]
    case.number("wrong", wrong as f64);
    case.number("took_s", (now_ms() - began) / 1e3);
    Ok(())
}

fn contents(case: &mut Case<'_>) -> anyhow::Result<()> {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let world = case.world()?;
    let _server = serve(&world, inside::echo)?;
    let record = [&[0x16, 3, 1, 0x40, 0][..], &[7; 16_384]].concat();
    // It begins as HTTP/2 does, and goes on with what no frame is.
    let broken = [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0], &[0xee; 1_000]].concat();
    let blocks = [
        vec![0; 65_536],
        vec![0xff; 65_536],
        [b"body ", PREFACE].concat(),
        broken,
        record,
        b"POST / HTTP/1.1\r\nHost: lab\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n".to_vec(),
        noise(),
    ];
    let mut changed = 0;
    let number = blocks.len();
    for block in blocks {
        let outcome = app(&world, |target| there_and_back(target, 4 << 20, Arc::new(block), false));
        changed += usize::from(!outcome.is_ok_and(|wrong| wrong == 0));
    }
    case.number("contents", count(number));
    case.number("changed", count(changed));
    Ok(())
}

fn downloads(case: &mut Case<'_>) -> anyhow::Result<()> {
    let world = case.world()?;
    let noticed = Arc::new(Mutex::new(Vec::new()));
    let ears = Arc::clone(&noticed);
    let _server = serve(&world, move |mut stream: TcpStream| {
        let bytes = vec![7; 65_536];
        while stream.write_all(&bytes).is_ok() {}
        ears.lock().unwrap_or_else(PoisonError::into_inner).push(now_ms());
    })?;
    let (mut took, mut slowest) = (Vec::new(), 0.0_f64);
    let mut before = [0.0; 2];
    for number in 0..200_usize {
        // What is needed once is there after the first ones.
        if number == 30 && case.way != Way::Direct {
            before = [rss_kib(&world, "sidecar")?, rss_kib(&world, "relay")?];
        }
        let (ms, closed_ms) = app(&world, |target| {
            let began = now_ms();
            let mut stream = connect(target)?;
            stream.read_exact(&mut vec![0; 1 << 20])?;
            let took = now_ms() - began;
            drop(stream);
            Ok((took, now_ms()))
        })?;
        took.push(ms);
        let seen = until("the server's notice", Duration::from_secs(10), || {
            noticed.lock().unwrap_or_else(PoisonError::into_inner).get(number).copied()
        })?;
        slowest = slowest.max(seen - closed_ms);
    }
    case.number("slowest_ms", slowest);
    let sum = |times: &[f64]| times.iter().sum::<f64>();
    case.number("slower", sum(&took[180..]) / sum(&took[..20]));
    if case.way != Way::Direct {
        case.number("grown_kib", rss_kib(&world, "sidecar")? - before[0]);
        case.number("relay_kib", rss_kib(&world, "relay")? - before[1]);
    }
    Ok(())
}

fn many(case: &mut Case<'_>) -> anyhow::Result<()> {
    let world = case.world()?;
    let _server = serve(&world, inside::echo)?;
    let outcomes = app(&world, |target| {
        let one = |target: String| {
            std::thread::spawn(move || {
                (0..575)
                    .map(|_| {
                        let began = now_ms();
                        let outcome = connect(&target).and_then(|mut stream| {
                            stream.set_read_timeout(Some(Duration::from_secs(15)))?;
                            inside::again(&mut stream)?;
                            Ok(stream)
                        });
                        (outcome, now_ms() - began)
                    })
                    .collect::<Vec<_>>()
            })
        };
        let threads: Vec<_> = (0..8).map(|_| one(target.to_owned())).collect();
        // All of them hold their connections until the last one has its answer.
        Ok(threads.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect::<Vec<_>>())
    })?;
    let answered = outcomes.iter().filter(|(outcome, _)| outcome.is_ok()).count();
    let silent = outcomes.iter().filter(|(outcome, ms)| outcome.is_err() && *ms > 14_900.0).count();
    case.number("answered", count(answered));
    case.number("refused", count(outcomes.len() - answered - silent));
    case.number("silent", count(silent));
    case.number("slowest_s", outcomes.iter().map(|(_, ms)| *ms).fold(0.0, f64::max) / 1e3);
    super::shape::note_reason(case, &world)
}

/// How many descriptors a process has open.
fn held(world: &World, process: &str) -> anyhow::Result<f64> {
    Ok(Held::by(world.process(process)?)?.descriptors)
}

fn open_at(world: &World, process: &str, list: &str) -> anyhow::Result<u64> {
    let status = world.status(process)?;
    let sessions = match list {
        "" => &status["sessions"],
        list => &status::entry(&status, list, "raw").ok_or_else(|| anyhow::anyhow!("no raw"))?["sessions"],
    };
    sessions["open"].as_u64().ok_or_else(|| anyhow::anyhow!("no count of open sessions"))
}

fn crashed(case: &mut Case<'_>) -> anyhow::Result<()> {
    const CHAIN: [(&str, &str); 3] = [("sidecar", "mappings"), ("relay", ""), ("agent", "services")];
    let mut world = case.world()?;
    let open = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = Arc::clone(&open);
    let _server = serve(&world, move |mut stream| {
        counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let _ = stream.write_all(b"!");
        inside::echo(stream);
        counter.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
    })?;
    let chained = case.way != Way::Direct;
    let mut before = 0.0;
    if chained {
        before = CHAIN.iter().map(|(process, _)| held(&world, process)).sum::<anyhow::Result<f64>>()?;
    }
    let client = world.start_actor("web", "client")?;
    let target = world.raw_target();
    world.app(client).say(&json!({"op": "dial", "address": target, "count": 300}))?;
    until("300 sessions", Duration::from_secs(20), || {
        let events = world.app(client).events();
        (events.iter().filter(|event| event.kind == "first").count() == 300).then_some(())
    })?;
    std::thread::sleep(Duration::from_millis(1_500));
    world.signal("client", Signal::KILL)?;
    std::thread::sleep(Duration::from_secs(5));
    if chained {
        let mut left = 0;
        for (process, list) in CHAIN {
            left += open_at(&world, process, list)?;
        }
        case.number("open", count(usize::try_from(left)?));
        let after = CHAIN.iter().map(|(process, _)| held(&world, process)).sum::<anyhow::Result<f64>>()?;
        case.number("descriptors", after - before);
    }
    case.number("server", count(open.load(std::sync::atomic::Ordering::SeqCst)));
    app(&world, exchange_after_first).map(drop)
}

/// The server's first byte comes before the echo.
fn exchange_after_first(target: &str) -> anyhow::Result<()> {
    let mut stream = connect(target)?;
    stream.read_exact(&mut [0])?;
    inside::again(&mut stream)
}
