//! The hints one by one: each provoked on one mapping, while a healthy neighbour does nearly the same on another.

use std::time::{Duration, Instant};

use anyhow::bail;
use rustix::process::Signal;
use serde_json::{Value as Json, json};

use super::hints::{hints, kinds};
use super::streams::SOON;
use super::{Case, Figure, Pace, Scenario};
use crate::apps::Language;
use crate::fault::{Applied, Fault};
use crate::result::Bound;
use crate::world::{Options, Way, World};
use crate::{shell, status};

const BASE: Scenario = Scenario {
    name: "",
    promise: "P18",
    what: "",
    figures: &[],
    ways: &[Way::Unix],
    speaks_grpc: true,
    pace: Pace::Waits,
    runs: 3,
    seconds: 20,
    smoke: false,
    open: None,
    run: |_| Ok(()),
};

const fn figures(shown: &'static [&'static str]) -> [Figure; 3] {
    [figure("shown", "where it is provoked", Bound::Word(shown)), NEIGHBOUR, EVIDENCE]
}

const fn figure(id: &'static str, what: &'static str, bound: Bound) -> Figure {
    Figure { id, what, unit: "", article: "", bound }
}

const NEIGHBOUR: Figure = figure("neighbour", "at its healthy neighbour", Bound::Word(&["none"]));
const EVIDENCE: Figure = figure("evidence", "its numbers", Bound::None);

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "hint-client-keepalive",
        what: "A keepalive of 10 s on an idle stream of a default server, and calls on a new connection when that one has \
               been ended for it; neighbour: no keepalive.",
        figures: &figures(&["client_keepalive"]),
        seconds: 55,
        run: keepalive,
        ..BASE
    },
    Scenario {
        name: "hint-keepalive-20s",
        what: "A keepalive of 20 s that the server permits, on an idle stream: no hint.",
        figures: &[NEIGHBOUR],
        seconds: 70,
        run: slow_keepalive,
        ..BASE
    },
    Scenario {
        name: "hint-no-deadline",
        what: "Two calls, one without a deadline; neighbour: both have one.",
        figures: &figures(&["no_deadline"]),
        seconds: 10,
        run: no_deadline,
        ..BASE
    },
    Scenario {
        name: "hint-connection-per-call",
        what: "Six connections of one call; neighbour: two of four calls.",
        figures: &figures(&["connection_per_call"]),
        seconds: 80,
        run: connection_per_call,
        ..BASE
    },
    Scenario {
        name: "hint-app-not-reading",
        what: "Three messages of a stream are taken, then none; neighbour: 1.6 MB/s, read as they come.",
        figures: &figures(&["app_not_reading"]),
        seconds: 20,
        run: not_reading,
        ..BASE
    },
    Scenario {
        name: "hint-stopped-process",
        what: "The process is stopped for 13.5 s under a stream of 8 MB/s; neighbour: for 2.5 s, three times, under 1.6 \
               MB/s.",
        figures: &figures(&["app_not_reading"]),
        seconds: 30,
        run: stopped,
        ..BASE
    },
    Scenario {
        name: "hint-authority-is-path",
        what: "The library's own `:authority` on a unix socket. The hint shows if and only if the server refuses it: Java \
               and Python name the path, Rust and Node servers refuse it. Neighbour: `localhost`.",
        figures: &[
            figure(
                "shown",
                "the calls, and the hint",
                Bound::Word(&["refused: authority_is_path", "taken: none"]),
            ),
            NEIGHBOUR,
            EVIDENCE,
        ],
        seconds: 10,
        run: authority,
        ..BASE
    },
    Scenario {
        name: "hint-stream-limit",
        what: "The server allows three calls at once, and six wait for 1.5 s; neighbour: two at once.",
        figures: &figures(&["stream_limit"]),
        seconds: 12,
        run: stream_limit,
        pace: Pace::Alone,
        ..BASE
    },
    Scenario {
        name: "hint-small-window",
        what: "A window of 64 KiB that does not grow, over a round trip of 100 ms; neighbour: 8 MiB.",
        figures: &figures(&["small_window"]),
        seconds: 20,
        run: small_window,
        ..BASE
    },
    Scenario {
        name: "hint-retry-storm",
        what: "Forty calls that fail, each begun when the last has failed; neighbour: with pauses of 300 ms.",
        figures: &figures(&["retry_storm"]),
        seconds: 20,
        run: retry_storm,
        pace: Pace::Alone,
        ..BASE
    },
    Scenario {
        name: "hint-message-too-large",
        what: "A request of 5 MB to a server with the default limit; neighbour: 3 MB.",
        figures: &figures(&["message_too_large"]),
        seconds: 10,
        run: too_large,
        ..BASE
    },
    Scenario {
        name: "hint-deadline-too-short",
        what: "Four calls with a deadline of 20 ms over a round trip of 100 ms; neighbour: of 2 s.",
        figures: &figures(&["deadline_too_short"]),
        seconds: 15,
        run: short_deadline,
        ..BASE
    },
    Scenario {
        name: "hint-goaway-ignored",
        what: "No gRPC library does it: a client by hand begins a call 2 s after the server's GOAWAY; neighbour: 0.2 s \
               after it, when the two may have crossed.",
        figures: &figures(&["goaway_ignored"]),
        speaks_grpc: false,
        seconds: 10,
        run: goaway,
        ..BASE
    },
];

/// A world with two mappings to one server.
struct Pair {
    world: World,
    language: Language,
    provoked: String,
    neighbour: String,
}

impl Pair {
    fn start(case: &Case<'_>) -> anyhow::Result<Self> {
        Self::start_with(case, Options::plain(case.way))
    }

    fn start_with(case: &Case<'_>, options: Options) -> anyhow::Result<Self> {
        let language = case.language()?;
        let options = Options {
            agent_lines: "  neighbour: { grpc: { tcp: 50051 } }\n",
            sidecar_lines: "  neighbour: { listen: \"unix:FOLDER/neighbour.sock\" }\n",
            ..options
        };
        let mut world = case.world_with(options)?;
        world.start_server(&language)?;
        let (provoked, neighbour) = (world.target(), format!("unix:{}", world.path("neighbour.sock")));
        Ok(Self { world, language, provoked, neighbour })
    }

    /// A client of the mapping where the hint is provoked.
    fn provoked(&mut self, flags: &[&str]) -> anyhow::Result<usize> {
        self.world.start_client("provoked", &self.language, &self.provoked, flags)
    }

    /// A client of the other one.
    fn neighbour(&mut self, flags: &[&str]) -> anyhow::Result<usize> {
        self.world.start_client("neighbour", &self.language, &self.neighbour, flags)
    }

    fn call(&mut self, client: usize, call: &str, method: &str, arguments: Json) -> anyhow::Result<()> {
        self.world.app(client).call(call, method, arguments)
    }

    /// Waits for a call's end and gives its status.
    fn ended(&mut self, client: usize, call: &str) -> anyhow::Result<String> {
        Ok(self.world.app(client).expect("end", call, SOON)?.text("status").to_owned())
    }

    /// Waits `least` seconds, and up to `patience` until the hint shows; then records the hints of both.
    fn judge(&self, case: &mut Case<'_>, kind: &str, least: u64, patience: u64) -> anyhow::Result<()> {
        record(case, &self.world, kind, [least, patience])
    }
}

fn record(case: &mut Case<'_>, world: &World, kind: &str, [least, patience]: [u64; 2]) -> anyhow::Result<()> {
    let began = Instant::now();
    let shows = |hints: &[Json]| hints.iter().any(|hint| hint["kind"] == kind);
    let mut shown = hints(world, "lab")?;
    while began.elapsed() < Duration::from_secs(if shows(&shown) { least } else { patience }) {
        std::thread::sleep(Duration::from_millis(200));
        shown = hints(world, "lab")?;
    }
    // What the last calls said is added up once a second.
    std::thread::sleep(Duration::from_millis(1_500));
    shown = hints(world, "lab")?;
    case.word("shown", kinds(&shown));
    case.word("neighbour", kinds(&hints(world, "neighbour")?));
    if let Some(evidence) = shown.iter().find(|hint| hint["kind"] == kind).map(|hint| &hint["evidence"]) {
        let numbers = evidence.as_object().into_iter().flatten();
        let numbers: Vec<String> = numbers.map(|(name, number)| format!("{name} {number}")).collect();
        case.word("evidence", numbers.join(", "));
    }
    Ok(())
}

/// A stream that is idle behind its first message.
fn idle() -> Json {
    json!({"deadline_ms": 600_000})
}

fn keepalive(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut pair = Pair::start(case)?;
    let pinging = pair.provoked(&["--keepalive-ms", "10000", "--keepalive-idle"])?;
    let quiet = pair.neighbour(&[])?;
    for client in [pinging, quiet] {
        pair.call(client, "idle", "ticks", idle())?;
        pair.world.app(client).expect("message", "idle", SOON)?;
    }
    let ended = |event: &crate::app::Event| event.kind == "end" && event.call == "idle";
    if pair.world.app(pinging).find(Duration::from_secs(45), ended)?.is_some() {
        // The server's GOAWAY is obeyed: these are on a new connection, and the old one is told no call.
        for number in 0..3 {
            std::thread::sleep(Duration::from_millis(700));
            pair.world.app(pinging).echo(&format!("after {number}"))?;
        }
    }
    pair.judge(case, "client_keepalive", 1, 30)
}

fn slow_keepalive(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut pair = Pair::start_with(case, Options { permit: true, ..Options::plain(case.way) })?;
    let pinging = pair.neighbour(&["--keepalive-ms", "20000", "--keepalive-idle"])?;
    pair.call(pinging, "idle", "ticks", idle())?;
    std::thread::sleep(Duration::from_secs(65));
    case.word("neighbour", kinds(&hints(&pair.world, "neighbour")?));
    Ok(())
}

fn no_deadline(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut pair = Pair::start(case)?;
    let (patient, bounded) = (pair.provoked(&[])?, pair.neighbour(&[])?);
    for client in [patient, bounded] {
        pair.world.app(client).echo("bounded")?;
    }
    pair.world.app(bounded).echo("bounded too")?;
    pair.call(patient, "unbounded", "echo", json!({"bytes": 64, "seed": 1}))?;
    pair.ended(patient, "unbounded")?;
    pair.judge(case, "no_deadline", 0, 20)
}

fn connection_per_call(case: &mut Case<'_>) -> anyhow::Result<()> {
    let pair = Pair::start(case)?;
    for (target, connections, calls) in [(&pair.neighbour, 2, 4), (&pair.provoked, 6, 1)] {
        for number in 0..connections {
            let name = format!("client {number}");
            let mut client = pair.world.spawn_client(&name, &pair.language, target, &[])?;
            (0..calls).try_for_each(|call| client.echo(&format!("call {call}")).map(drop))?;
        }
    }
    // Judged when the minute is over.
    pair.judge(case, "connection_per_call", 62, 80)
}

fn not_reading(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut pair = Pair::start(case)?;
    let (deaf, reading) = (pair.provoked(&[])?, pair.neighbour(&[])?);
    let unread = json!({"deadline_ms": 600_000, "every_ms": 1, "bytes": 16_384, "read_most": 3});
    pair.call(deaf, "unread", "ticks", unread)?;
    pair.call(reading, "read", "ticks", json!({"deadline_ms": 600_000, "every_ms": 10, "bytes": 16_384}))?;
    pair.judge(case, "app_not_reading", 12, 30)
}

fn stopped(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut pair = Pair::start(case)?;
    let (long, short) = (pair.provoked(&[])?, pair.neighbour(&[])?);
    for (client, every_ms) in [(long, 2), (short, 10)] {
        let stream = json!({"deadline_ms": 600_000, "every_ms": every_ms, "bytes": 16_384});
        pair.call(client, "stream", "ticks", stream)?;
        pair.world.app(client).expect("message", "stream", SOON)?;
    }
    pair.world.signal("provoked", Signal::STOP)?;
    for _ in 0..3 {
        pair.world.signal("neighbour", Signal::STOP)?;
        std::thread::sleep(Duration::from_millis(2_500));
        pair.world.signal("neighbour", Signal::CONT)?;
        // Enough to give back half a window of 2 MiB, on a busy machine too.
        std::thread::sleep(Duration::from_millis(2_000));
    }
    pair.world.signal("provoked", Signal::CONT)?;
    pair.judge(case, "app_not_reading", 0, 20)
}

fn authority(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut pair = Pair::start(case)?;
    let (own, local) = (pair.provoked(&["--own-authority"])?, pair.neighbour(&[])?);
    let mut refused = 0;
    for number in 0..3 {
        let call = format!("call {number}");
        match pair.world.app(own).echo(&call)?.text("status") {
            "OK" => {}
            "INTERNAL" => refused += 1,
            other => bail!("neither taken nor refused: {other}"),
        }
        pair.world.app(local).echo(&call)?;
        std::thread::sleep(Duration::from_millis(300));
    }
    let patience = if refused > 0 { 10 } else { 0 };
    pair.judge(case, "authority_is_path", 0, patience)?;
    let shown = case.values.get("shown").map(ToString::to_string).unwrap_or_default();
    case.word("shown", format!("{}: {shown}", if refused > 0 { "refused" } else { "taken" }));
    Ok(())
}

fn stream_limit(case: &mut Case<'_>) -> anyhow::Result<()> {
    let options = Options { server_flags: &["--max-streams", "3"], ..Options::plain(case.way) };
    let mut pair = Pair::start_with(case, options)?;
    let (crowded, calm) = (pair.provoked(&[])?, pair.neighbour(&[])?);
    for (client, long, waiting) in [(calm, 1, 0), (crowded, 3, 6)] {
        pair.world.app(client).echo("warm")?;
        for number in 0..long {
            // They end by themselves: a grpc-java client leaves calls waiting behind calls that it has cancelled.
            let call = json!({"deadline_ms": 600_000, "receive": 1_500, "chunk": 100, "receive_rate": 1_000});
            pair.call(client, &format!("long {number}"), "check", call)?;
        }
        for number in 0..waiting {
            let call = json!({"deadline_ms": 60_000, "bytes": 64, "seed": 1});
            pair.call(client, &format!("waits {number}"), "echo", call)?;
        }
        (0..waiting).try_for_each(|number| pair.ended(client, &format!("waits {number}")).map(drop))?;
    }
    for number in 0..4 {
        pair.world.app(calm).echo(&format!("calm {number}"))?;
    }
    pair.judge(case, "stream_limit", 0, 20)
}

/// A long way between sidecar and relay. The sidecar begins anew on it: what a link has measured follows the way only an
/// eighth at a time, and a mapping's hints need it from the first call.
fn stretch(world: &mut World) -> anyhow::Result<Applied> {
    let far = Fault::Delay { from: "web".to_owned(), to: "relay".to_owned(), delay_ms: 50, jitter_ms: 0 };
    let applied = world.apply(&far)?;
    world.end("sidecar", Signal::KILL)?;
    world.start_edge("sidecar")?;
    let socket = world.status_socket("sidecar");
    shell::until("the sidecar", SOON, || status::ready(&socket).then_some(()))?;
    Ok(applied)
}

fn small_window(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut pair = Pair::start(case)?;
    let _far = stretch(&mut pair.world)?;
    let small = pair.provoked(&["--window", "65536"])?;
    let large = pair.neighbour(&["--window", "8388608"])?;
    for (client, every_ms) in [(small, 1), (large, 10)] {
        pair.world.app(client).echo("warm")?;
        let stream = json!({"deadline_ms": 600_000, "every_ms": every_ms, "bytes": 16_384});
        pair.call(client, "stream", "ticks", stream)?;
    }
    pair.judge(case, "small_window", 12, 30)
}

fn retry_storm(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut pair = Pair::start(case)?;
    let (hasty, calm) = (pair.provoked(&[])?, pair.neighbour(&[])?);
    for (client, calls, pause) in [(calm, 20, 300), (hasty, 40, 0)] {
        pair.world.app(client).echo("warm")?;
        for number in 0..calls {
            let call = format!("fails {number}");
            pair.call(client, &call, "fail", json!({"deadline_ms": 10_000}))?;
            pair.ended(client, &call)?;
            std::thread::sleep(Duration::from_millis(pause));
        }
    }
    pair.judge(case, "retry_storm", 0, 30)
}

fn too_large(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut pair = Pair::start(case)?;
    let (large, fair) = (pair.provoked(&[])?, pair.neighbour(&[])?);
    for (client, bytes) in [(large, 5_000_000), (fair, 3_000_000)] {
        pair.world.app(client).echo("warm")?;
        let call = json!({"deadline_ms": 20_000, "bytes": bytes, "seed": 1});
        pair.call(client, "large", "echo", call)?;
        pair.ended(client, "large")?;
    }
    pair.judge(case, "message_too_large", 0, 20)
}

fn short_deadline(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut pair = Pair::start(case)?;
    let _far = stretch(&mut pair.world)?;
    let (short, long) = (pair.provoked(&[])?, pair.neighbour(&[])?);
    // A link measures the way once a second while it says something.
    for number in 0..6 {
        pair.world.app(short).echo(&format!("talk {number}"))?;
        pair.world.app(long).echo(&format!("talk {number}"))?;
        std::thread::sleep(Duration::from_millis(500));
    }
    for number in 0..4 {
        for (client, deadline_ms) in [(short, 20), (long, 2_000)] {
            let call = format!("call {number}");
            let echo = json!({"deadline_ms": deadline_ms, "bytes": 64, "seed": 1});
            pair.call(client, &call, "echo", echo)?;
            pair.ended(client, &call)?;
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    pair.judge(case, "deadline_too_short", 0, 20)
}

fn goaway(case: &mut Case<'_>) -> anyhow::Result<()> {
    let options = Options {
        agent_lines: "  neighbour: { grpc: { tcp: 50051 } }\n",
        sidecar_lines: "  neighbour: { listen: \"unix:FOLDER/neighbour.sock\" }\n",
        ..Options::plain(case.way)
    };
    let mut world = case.world_with(options)?;
    let (server, client) = (world.start_actor("db", "server")?, world.start_actor("web", "client")?);
    let goaway = format!("{}{}", frame(4, 0, 0, ""), frame(7, 0, 0, "\0\0\0\u{1}\0\0\0\0"));
    let script = json!([{"recv_text": "done"}, {"text": goaway}, {"wait": 6_000}]);
    let listen = json!({"op": "serve", "name": "server", "address": world.served(), "script": script});
    world.app(server).say(&listen)?;
    world.app(server).expect("listening", "server", SOON)?;
    let hello = format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{}{}", frame(4, 0, 0, ""), request(1));
    for (name, address, wait) in
        [("late", world.target(), 2_000), ("crossing", format!("unix:{}", world.path("neighbour.sock")), 200)]
    {
        let script = json!([
            {"text": hello},
            {"recv_text": "\u{7}\0\0\0\0\0\0\0\0\u{1}\0\0\0\0"},
            {"wait": wait},
            {"text": request(3)},
            {"wait": 2_500},
        ]);
        let run = json!({"op": "run", "name": name, "address": address, "script": script});
        world.app(client).say(&run)?;
    }
    record(case, &world, "goaway_ignored", [5, 12])?;
    for name in ["late", "crossing"] {
        let ran = world.app(client).expect("ran", name, SOON)?;
        if ran.count("ok") != 1 {
            bail!("the connection {name}: {}", ran.body);
        }
    }
    Ok(())
}

/// A frame of HTTP/2. All its bytes are below 128, so that it is a text.
fn frame(kind: u8, flags: u8, stream: u8, payload: &str) -> String {
    let head = [0, 0, u8::try_from(payload.len()).unwrap_or(0), kind, flags, 0, 0, 0, stream];
    head.into_iter().map(char::from).chain(payload.chars()).collect()
}

/// A call with a deadline that waits for its answer; its last word is `done`.
fn request(stream: u8) -> String {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/lab.Lab/Never"),
        ("content-type", "application/grpc"),
        ("grpc-timeout", "1M"),
        ("lab-call", "done"),
    ];
    let text = |word: &str| format!("{}{word}", char::from(u8::try_from(word.len()).unwrap_or(0)));
    let block: String =
        fields.iter().map(|(name, value)| format!("\0{}{}", text(name), text(value))).collect();
    // END_STREAM and END_HEADERS.
    frame(1, 5, stream, &block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_byte_for_each_character() {
        let request = request(3);
        assert!(request.is_ascii());
        assert_eq!(usize::from(request.as_bytes()[2]), request.len() - 9);
        assert!(request.ends_with("done"));
    }
}
