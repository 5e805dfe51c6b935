//! gRPC in the languages that the reports are about: ages of connections, pings, cancels, crashes, unread streams.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::Signal;
use serde_json::json;

use super::kit::{BASE, SOON, figure};
use super::shape::{count, rss_kib};
use crate::apps::Language;
use crate::result::Bound;
use crate::scenario::{Case, Figure, Scenario};
use crate::shell::{now_ms, until};
use crate::status;
use crate::world::{Options, Way, World};

const AGED: &[Figure] = &[
    figure("calls", "calls", "", Bound::AtLeast(8.0)),
    figure("failed", "of them failed", "", Bound::AtMostOrDirectPlus(0.0, 0.0)),
];
const PINGS: &[Figure] = &[
    figure("hint_s", "the hint client_keepalive", "s", Bound::AtMost(60.0)),
    figure("end_s", "the end of the idle stream", "s", Bound::LikeDirect(6.0)),
    figure("status", "its status", "", Bound::LikeDirect(0.0)),
    figure("evidence", "what the evidence holds beside numbers", "", Bound::Word(&["nothing"])),
];
const IDLE_PINGS: &[Figure] = &[
    figure("goaway_s", "the channel leaves READY", "s", Bound::LikeDirect(6.0)),
    figure("hint", "the hint names the fix", "", Bound::Word(&["client_keepalive"])),
];
const DOWN: &[Figure] = &[
    figure("leaves_s", "the channel leaves READY after the server's death", "s", Bound::AtMost(1.0)),
    figure("status", "a call meanwhile", "", Bound::LikeDirect(0.0)),
    figure("fails_s", "it ends within", "s", Bound::AtMostOrDirectPlus(1.0, 1.0)),
    figure("back_s", "a call is good after the server is back", "s", Bound::AtMost(6.0)),
];
const AUTHORITY: &[Figure] = &[
    figure("python", "grpcio against tonic", "", Bound::Word(&["OK"])),
    figure("java", "grpc-java against tonic", "", Bound::Word(&["OK"])),
    figure("node", "grpc-js against tonic", "", Bound::Word(&["OK"])),
];
const CANCELS: &[Figure] = &[
    figure("before_ms", "handler's end, cancelled before any answer", "ms", Bound::LikeDirect(250.0)),
    figure("stream_ms", "after headers, in the middle of a stream", "ms", Bound::LikeDirect(250.0)),
    figure("both_ms", "while both sides send", "ms", Bound::LikeDirect(250.0)),
    figure("closed_ms", "after the client's half-close", "ms", Bound::LikeDirect(250.0)),
];
const CRASH: &[Figure] = &[
    figure("ended", "of 100 handlers, ended", "", Bound::Within(100.0, 100.0)),
    figure("last_s", "the last one's end", "s", Bound::AtMost(1.0)),
];
const UNREAD: &[Figure] = &[
    figure(
        "handler_s",
        "the unread stream's handler ends at its deadline of 12 s",
        "s",
        Bound::LikeDirect(0.7),
    ),
    figure("status", "its status", "", Bound::LikeDirect(0.0)),
    figure(
        "others_ms",
        "slowest call of another channel meanwhile",
        "ms",
        Bound::AtMostOrDirectPlus(500.0, 500.0),
    ),
    figure("hint", "hint in /status", "", Bound::Word(&["app_not_reading"])),
];
const QUIET: &[Figure] = &[
    figure("calls", "calls", "", Bound::AtLeast(300.0)),
    figure("failed", "of them failed", "", Bound::AtMost(0.0)),
    figure("grown_kib", "growth of the sidecar's memory, second half", "KiB", Bound::AtMost(2_048.0)),
];

const GRPC: Scenario = Scenario { speaks_grpc: true, ways: &[Way::Direct, Way::Unix], ..BASE };

pub(in crate::scenario) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "f152-large-replies-and-age",
        promise: "F152",
        what: "A Go server whose connections have an age of 1 s and a grace of 300 s; echoes of 4 MB for 15 s.",
        figures: AGED,
        ways: &[Way::Direct, Way::Unix],
        seconds: 25,
        run: large_replies,
        ..BASE
    },
    Scenario {
        name: "f187-java-age",
        promise: "F187",
        what: "A Java server whose connections have an age of 1 s and a grace of 30 s; eight calls of 5 s, begun 0.3 s apart.",
        figures: AGED,
        ways: &[Way::Direct, Way::Unix],
        run: java_age,
        ..BASE
    },
    Scenario {
        name: "f193-pings-every-4s",
        promise: "F193",
        what: "F193, F205: a Python client (the C++ core) with a keepalive of 4 s on an idle stream to a Go server that does not \
               permit it.",
        figures: PINGS,
        ways: &[Way::Direct, Way::Unix],
        seconds: 70,
        run: pings,
        ..BASE
    },
    Scenario {
        name: "f194-pings-without-streams",
        promise: "F194",
        what: "A Go client with pings every 10 s and no calls, through a unix mapping to a Python server.",
        figures: IDLE_PINGS,
        ways: &[Way::Direct, Way::Unix],
        seconds: 80,
        run: idle_pings,
        ..BASE
    },
    Scenario {
        name: "f196-server-down",
        promise: "F196",
        what: "The server is killed under a channel that is ready, and comes back 3 s later.",
        figures: DOWN,
        open: Some(
            "a local socket accepts before the server is known to refuse, so tonic reads a connection that breaks at once \
             (UNKNOWN) and not one that is refused (UNAVAILABLE, or CANCELLED from the connection that has just broken); only a \
             failed open that answers in gRPC can mend that (P19)",
        ),
        run: server_down,
        ..GRPC
    },
    Scenario {
        name: "f200-paths-as-authority",
        promise: "F200",
        what: "Clients of Python, Java and Node on our unix socket, with the fix that the docs name, against tonic.",
        figures: AUTHORITY,
        ways: &[Way::Direct, Way::Unix],
        run: authorities,
        ..BASE
    },
    Scenario {
        name: "f211-cancels",
        promise: "F211",
        what: "A client cancels before the first answer, in the middle of a stream, while both sides send, and after its \
               half-close.",
        figures: CANCELS,
        run: cancels,
        ..GRPC
    },
    Scenario {
        name: "f212-crashed-client",
        promise: "F212",
        what: "A client with 100 open streams is killed with -9.",
        figures: CRASH,
        run: crash,
        ..GRPC
    },
    Scenario {
        name: "f155-unread-stream",
        promise: "F155",
        what: "An application reads three messages of a stream and then no more; its deadline is 12 s. Another channel calls \
               meanwhile.",
        figures: UNREAD,
        run: unread,
        ..GRPC
    },
    Scenario {
        name: "f223-quiet-sidecar",
        promise: "F223",
        what: "Ten calls a second for 40 s through an inspected mapping, Go.",
        figures: QUIET,
        ways: &[Way::Direct, Way::Unix],
        seconds: 50,
        run: quiet,
        ..BASE
    },
];

/// A client of one language and a server of another, whichever this run has.
fn pair(case: &Case<'_>, client: &str, server: &str) -> anyhow::Result<Language> {
    let find = |name: &str| {
        let found = case.programs.apps.iter().find(|language| language.name == name);
        found.cloned().with_context(|| format!("this scenario needs the application in {name}: --impl"))
    };
    Ok(Language { server: find(server)?.server, ..find(client)? })
}

fn large_replies(case: &mut Case<'_>) -> anyhow::Result<()> {
    let language = pair(case, "go", "go")?;
    let server_flags = &["--max-age-ms", "1000", "--max-age-grace-ms", "300000"];
    let mut world = case.world_with(Options { server_flags, ..Options::plain(case.way) })?;
    world.start_server(&language)?;
    let target = world.target();
    let client = world.start_client("client", &language, &target, &[])?;
    let (mut calls, mut failed) = (0, 0);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(15) {
        let name = format!("echo {calls}");
        let args = json!({"bytes": 4_000_000, "seed": 1, "deadline_ms": 20_000});
        world.app(client).call(&name, "echo", args)?;
        let end = world.app(client).expect("end", &name, SOON)?;
        failed += usize::from(end.text("status") != "OK" || end.count("received") != 4_000_000);
        calls += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    case.number("calls", count(calls));
    case.number("failed", count(failed));
    Ok(())
}

fn java_age(case: &mut Case<'_>) -> anyhow::Result<()> {
    let language = pair(case, "java", "java")?;
    let server_flags = &["--max-age-ms", "1000", "--max-age-grace-ms", "30000"];
    let mut world = case.world_with(Options { server_flags, ..Options::plain(case.way) })?;
    world.start_server(&language)?;
    let target = world.target();
    let client = world.start_client("client", &language, &target, &[])?;
    for number in 0..8 {
        let args = json!({"seed": 3, "receive": 25_000, "chunk": 500, "receive_rate": 5_000});
        world.app(client).call(&format!("call {number}"), "check", args)?;
        std::thread::sleep(Duration::from_millis(300));
    }
    let mut failed = 0;
    for number in 0..8 {
        let end = world.app(client).expect("end", &format!("call {number}"), SOON)?;
        failed += usize::from(end.text("status") != "OK" || end.count("received") != 25_000);
    }
    case.number("calls", 8.0);
    case.number("failed", count(failed));
    Ok(())
}

/// The hint of this kind at the sidecar's mapping `lab`.
fn hint(world: &World, kind: &str) -> anyhow::Result<Option<serde_json::Value>> {
    let status = world.status("sidecar")?;
    let entry = status::entry(&status, "mappings", "lab").context("no mapping lab")?;
    let hints = entry["hints"].as_array().context("no hints")?;
    Ok(hints.iter().find(|hint| hint["kind"] == kind).cloned())
}

fn pings(case: &mut Case<'_>) -> anyhow::Result<()> {
    let language = pair(case, "python", "go")?;
    let mut world = case.world()?;
    world.start_server(&language)?;
    let target = world.target();
    let flags = ["--keepalive-ms", "4000", "--keepalive-idle"];
    let client = world.start_client("client", &language, &target, &flags)?;
    world.app(client).call("stream", "ticks", json!({"deadline_ms": 600_000}))?;
    let start = world.app(client).expect("message", "stream", SOON)?;
    let (mut hinted, mut end) = (None, None);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(58) && (end.is_none() || hinted.is_none()) {
        if end.is_none() {
            let wanted = |event: &crate::app::Event| event.kind == "end" && event.call == "stream";
            end = world.app(client).find(Duration::from_millis(200), wanted)?;
        }
        if case.way != Way::Direct && hinted.is_none() {
            hinted = hint(&world, "client_keepalive")?.map(|hint| (hint, now_ms()));
        }
        if end.is_some() && case.way == Way::Direct {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    match end {
        Some(end) => {
            case.number("end_s", (end.mono_ms - start.mono_ms) / 1e3);
            case.word("status", end.text("status"));
        }
        None => case.not_within("end_s", 58.0),
    }
    if case.way == Way::Direct {
        return Ok(());
    }
    let Some((hint, at_ms)) = hinted else {
        case.not_within("hint_s", 58.0);
        return Ok(());
    };
    case.number("hint_s", (at_ms - start.mono_ms) / 1e3);
    let evidence = hint["evidence"].as_object().context("no evidence")?;
    let other: Vec<&str> =
        evidence.iter().filter(|(_, value)| !value.is_number()).map(|(key, _)| key.as_str()).collect();
    case.word("evidence", if other.is_empty() { "nothing".to_owned() } else { other.join(" ") });
    Ok(())
}

fn idle_pings(case: &mut Case<'_>) -> anyhow::Result<()> {
    let language = pair(case, "go", "python")?;
    let mut world = case.world()?;
    world.start_server(&language)?;
    let target = world.target();
    let flags = ["--keepalive-ms", "10000", "--keepalive-idle"];
    let client = world.start_client("client", &language, &target, &flags)?;
    world.app(client).echo("warm")?;
    let began = now_ms();
    let mut left = None;
    while left.is_none() && now_ms() - began < 65e3 {
        std::thread::sleep(Duration::from_millis(200));
        left = (world.app(client).state()? != "READY").then(now_ms);
    }
    match left {
        Some(at_ms) => case.number("goaway_s", (at_ms - began) / 1e3),
        None => case.not_within("goaway_s", 65.0),
    }
    if case.way != Way::Direct {
        let word = match hint(&world, "client_keepalive")? {
            Some(hint) if hint["message"].as_str().is_some_and(|text| text.contains("keepalive")) => {
                "client_keepalive"
            }
            Some(_) => "a message without the word keepalive",
            None => "none",
        };
        case.word("hint", word);
    }
    Ok(())
}

fn server_down(case: &mut Case<'_>) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world()?;
    world.start_server(&language)?;
    let target = world.target();
    let client = world.start_client("client", &language, &target, &[])?;
    world.app(client).echo("warm")?;
    std::thread::sleep(Duration::from_millis(1_500));
    let killed_ms = world.signal("server", Signal::KILL)?;
    if world.app(client).state()? != "none" {
        let mut left = None;
        while left.is_none() && now_ms() - killed_ms < 10e3 {
            left = (world.app(client).state()? != "READY").then(now_ms);
            std::thread::sleep(Duration::from_millis(20));
        }
        match left {
            Some(at_ms) => case.number("leaves_s", (at_ms - killed_ms) / 1e3),
            None => case.not_within("leaves_s", 10.0),
        }
    }
    let called_ms = now_ms();
    let end = world.app(client).echo("down")?;
    case.word("status", end.text("status"));
    case.number("fails_s", (end.mono_ms - called_ms) / 1e3);
    std::thread::sleep(Duration::from_secs(3));
    world.start_server(&language)?;
    let back_ms = now_ms();
    for number in 0.. {
        anyhow::ensure!(number < 200, "no call is good again");
        let end = world.app(client).echo(&format!("again {number}"))?;
        if end.text("status") == "OK" {
            case.number("back_s", (end.mono_ms - back_ms) / 1e3);
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn authorities(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut world = case.world()?;
    world.start_server(&pair(case, "rust", "rust")?)?;
    let target = world.target();
    for name in ["python", "java", "node"] {
        let client = world.start_client(name, &pair(case, name, "rust")?, &target, &[])?;
        let end = world.app(client).echo("hello")?;
        case.word(name, end.text("status"));
    }
    Ok(())
}

fn cancels(case: &mut Case<'_>) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world()?;
    let server = world.start_server(&language)?;
    let target = world.target();
    let client = world.start_client("client", &language, &target, &[])?;
    world.app(client).echo("warm")?;
    let slow = json!({"seed": 5, "send": 1_000_000, "receive": 1_000_000, "chunk": 1_000, "send_rate": 10_000,
                      "receive_rate": 10_000});
    let closed = json!({"seed": 5, "send": 0, "receive": 1_000_000, "chunk": 1_000, "receive_rate": 10_000});
    let phases = [
        ("before_ms", "never", json!({})),
        ("stream_ms", "ticks", json!({"every_ms": 50, "bytes": 100})),
        ("both_ms", "check", slow),
        ("closed_ms", "check", closed),
    ];
    for (id, method, args) in phases {
        world.app(client).call(id, method, args)?;
        world.app(server).expect("handler", id, SOON)?;
        std::thread::sleep(Duration::from_millis(700));
        let cancelled_ms = now_ms();
        world.app(client).say(&json!({"op": "cancel", "call": id}))?;
        let wanted = |event: &crate::app::Event| event.kind == "handler_end" && event.call == id;
        match world.app(server).find(Duration::from_secs(10), wanted)? {
            Some(end) => case.number(id, (end.mono_ms - cancelled_ms).max(0.0)),
            None => case.not_within(id, 10_000.0),
        }
    }
    Ok(())
}

fn crash(case: &mut Case<'_>) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world()?;
    let server = world.start_server(&language)?;
    let target = world.target();
    // Its pipes are read by nobody but us, so it is not the world's to ask.
    let mut client = world.spawn_client("client", &language, &target, &[])?;
    for number in 0..100 {
        client.call(&format!("stream {number}"), "ticks", json!({}))?;
    }
    until("100 streams", SOON, || {
        let events = client.events();
        (events.iter().filter(|event| event.kind == "message").count() == 100).then_some(())
    })?;
    std::thread::sleep(Duration::from_millis(1_500));
    let killed_ms = now_ms();
    client.process().signal(Signal::KILL)?;
    let ends = || -> Vec<f64> {
        let events = world.events(server);
        events.iter().filter(|event| event.kind == "handler_end").map(|event| event.mono_ms).collect()
    };
    // Those that are missing after this are missing.
    let _ = until("100 ends", Duration::from_secs(10), || (ends().len() == 100).then_some(()));
    let ends = ends();
    case.number("ended", count(ends.len()));
    case.number("last_s", (ends.iter().copied().fold(killed_ms, f64::max) - killed_ms) / 1e3);
    Ok(())
}

fn unread(case: &mut Case<'_>) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world()?;
    let server = world.start_server(&language)?;
    let target = world.target();
    let deaf = world.start_client("deaf", &language, &target, &[])?;
    let other = world.start_client("other", &language, &target, &[])?;
    world.app(other).echo("warm")?;
    let args = json!({"deadline_ms": 12_000, "every_ms": 1, "bytes": 16_384, "read_most": 3});
    world.app(deaf).call("unread", "ticks", args)?;
    let start = world.app(deaf).expect("start", "unread", SOON)?;
    let mut slowest_ms = 0.0_f64;
    let mut number = 0;
    while now_ms() - start.mono_ms < 11e3 {
        let began = now_ms();
        let end = world.app(other).echo(&format!("call {number}"))?;
        anyhow::ensure!(end.text("status") == "OK", "{}", end.text("message"));
        slowest_ms = slowest_ms.max(end.mono_ms - began);
        number += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    case.number("others_ms", slowest_ms);
    if case.way != Way::Direct {
        let kind = hint(&world, "app_not_reading")?.map_or("none", |_| "app_not_reading");
        case.word("hint", kind);
    }
    let last = Duration::from_secs(6);
    let wanted =
        |kind: &'static str| move |event: &crate::app::Event| event.kind == kind && event.call == "unread";
    // A client that is not asked for messages may not look at its deadline either.
    let end = world.app(deaf).find(last, wanted("end"))?;
    case.word("status", end.map_or("no end".to_owned(), |end| end.text("status").to_owned()));
    match world.app(server).find(last, wanted("handler_end"))? {
        Some(handler) => case.number("handler_s", (handler.mono_ms - start.mono_ms) / 1e3),
        None => case.not_within("handler_s", 23.0),
    }
    Ok(())
}

fn quiet(case: &mut Case<'_>) -> anyhow::Result<()> {
    let language = pair(case, "go", "go")?;
    let mut world = case.world()?;
    world.start_server(&language)?;
    let target = world.target();
    let client = world.start_client("client", &language, &target, &[])?;
    let (mut calls, mut failed, mut half) = (0, 0, None);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(40) {
        let end = world.app(client).echo(&format!("call {calls}"))?;
        failed += usize::from(end.text("status") != "OK");
        calls += 1;
        if half.is_none() && began.elapsed() > Duration::from_secs(20) && case.way != Way::Direct {
            half = Some(rss_kib(&world, "sidecar")?);
        }
        std::thread::sleep(Duration::from_millis(95));
    }
    case.number("calls", count(calls));
    case.number("failed", count(failed));
    if let Some(half) = half {
        case.number("grown_kib", rss_kib(&world, "sidecar")? - half);
    }
    Ok(())
}
