//! Cuts that say why (`explain: on`): what each client reads of three calls when the chain breaks, with and without.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use super::streams::SOON;
use super::{Case, Figure, Pace, Scenario};
use crate::fault::Applied;
use crate::result::Bound;
use crate::shell::now_ms;
use crate::world::{Options, Way, World};

/// A session that is younger than a second is started anew when its path is lost.
const GROWN: Duration = Duration::from_millis(2_500);
/// For a call to end after the harm.
const PATIENCE: Duration = Duration::from_secs(40);
/// The calls: a unary one without an answer, a stream that has had a message, a stream that has had nothing.
const CALLS: [&str; 3] = ["unary", "after", "before"];

const BASE: Scenario = Scenario {
    name: "",
    promise: "P19",
    what: "",
    figures: &[],
    ways: &[Way::Unix, Way::Tcp],
    speaks_grpc: true,
    pace: Pace::Waits,
    runs: 2,
    seconds: 12,
    smoke: false,
    open: None,
    run: |_| Ok(()),
};

const fn figure(id: &'static str, what: &'static str, bound: Bound) -> Figure {
    Figure { id, what, unit: "", article: "", bound }
}

/// With `on` all three calls read these words; with `off` what the client says of any broken connection.
const fn figures(words: &'static [&'static str], within_s: f64) -> [Figure; 8] {
    [
        figure("on_unary", "on: a unary call", Bound::Word(words)),
        figure("on_after", "on: a stream with a message", Bound::Word(words)),
        figure("on_before", "on: a stream without headers", Bound::Word(words)),
        Figure { unit: "s", ..figure("end_s", "the last end", Bound::AtMost(within_s)) },
        figure("off_unary", "off: a unary call", Bound::BrokenStatus),
        figure("off_after", "off: a stream with a message", Bound::BrokenStatus),
        figure("off_before", "off: a stream without headers", Bound::BrokenStatus),
        figure("off_words", "off: words of ours", Bound::Word(&["none"])),
    ]
}

const LIKE_DIRECT: &[Figure] = &[
    figure("on_unary", "on: a unary call", Bound::LikeDirect(0.0)),
    figure("on_after", "on: a stream with a message", Bound::LikeDirect(0.0)),
    figure("on_before", "on: a stream without headers", Bound::LikeDirect(0.0)),
    figure("off_unary", "off: a unary call", Bound::LikeDirect(0.0)),
    figure("off_after", "off: a stream with a message", Bound::LikeDirect(0.0)),
    figure("off_before", "off: a stream without headers", Bound::LikeDirect(0.0)),
    figure("off_words", "off: words of ours", Bound::Word(&["none"])),
];

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "explain-agent-killed",
        what: "The agent is killed under three calls of a mapping with `explain: on`, and of one without.",
        figures: &figures(&["UNAVAILABLE hopline: conn_lost at hop 1, relay to db-1"], 1.0),
        run: |case| cut(case, "default", Read::Status, |world| Ok((world.end("agent", Signal::KILL)?, None))),
        ..BASE
    },
    Scenario {
        name: "explain-relay-killed",
        what: "The relay is killed under such calls.",
        figures: &figures(&["UNAVAILABLE hopline: conn_lost at hop 0, web-1 to relay"], 1.0),
        run: |case| cut(case, "default", Read::Status, |world| Ok((world.end("relay", Signal::KILL)?, None))),
        ..BASE
    },
    Scenario {
        name: "explain-agent-unreachable",
        what: "Every packet between relay and agent is dropped under such calls; liveness `fast`.",
        figures: &figures(&["UNAVAILABLE hopline: conn_lost at hop 1, relay to db-1, silent for 4.5 s"], 4.7),
        seconds: 18,
        run: |case| cut(case, "fast", Read::Status, |world| world.cut_path("relay", "db").map(applied)),
        ..BASE
    },
    Scenario {
        name: "explain-relay-unreachable",
        what: "Every packet between sidecar and relay is dropped under such calls; liveness `fast`.",
        figures: &figures(
            &["UNAVAILABLE hopline: conn_lost at hop 0, web-1 to relay, silent for 4.5 s"],
            4.7,
        ),
        seconds: 18,
        run: |case| cut(case, "fast", Read::Status, |world| world.cut_path("web", "relay").map(applied)),
        ..BASE
    },
    Scenario {
        name: "explain-server-killed",
        what: "The server is killed under such calls: no fault of the path, so every client reads what it reads directly, \
               with `explain: on` too.",
        figures: LIKE_DIRECT,
        ways: &[Way::Direct, Way::Unix, Way::Tcp],
        run: |case| {
            cut(case, "default", Read::Whole, |world| Ok((world.signal("server", Signal::KILL)?, None)))
        },
        ..BASE
    },
];

/// What is recorded of the calls on the mapping without `explain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    Status,
    /// Its words too.
    Whole,
}

/// Our own words in a message, if there are some. grpcio may read the GOAWAY first, and puts its words around them; and a link
/// that is killed may have been idle for two seconds, of which the reason speaks.
fn reason_in(message: &str) -> &str {
    let Some(at) = message.find("hopline: ") else { return message };
    let words = message[at..].trim_end_matches(')');
    match words.split_once(", silent for ") {
        Some((reason, silence)) if !silence.starts_with("4.") => reason,
        _ => words,
    }
}

/// Addresses differ from way to way.
fn without_addresses(message: &str) -> String {
    let is_address = |word: &&str| word.contains("->") || word.contains("50051");
    message.split_whitespace().filter(|word| !is_address(word)).collect::<Vec<_>>().join(" ")
}

/// When the harm was done, and what undoes it.
type Harm = (f64, Option<Applied>);

fn applied(fault: Applied) -> Harm {
    (fault.at_ms, Some(fault))
}

fn cut(
    case: &mut Case<'_>,
    keepalive: &'static str,
    off: Read,
    harm: impl FnOnce(&mut World) -> anyhow::Result<Harm>,
) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world_with(Options {
        sidecar_keepalive: keepalive,
        agent_keepalive: keepalive,
        mapping_keys: ", explain: on",
        agent_lines: "  plain: { grpc: { tcp: 50051 } }\n",
        sidecar_lines: match case.way {
            Way::Tcp => "  plain: { listen: \"127.0.0.1:7905\" }\n",
            Way::Unix | Way::Direct => "  plain: { listen: \"unix:FOLDER/plain.sock\" }\n",
        },
        ..Options::plain(case.way)
    })?;
    let server = world.start_server(&language)?;
    let plain = match case.way {
        Way::Direct => world.target(),
        Way::Unix => format!("unix:{}", world.path("plain.sock")),
        Way::Tcp => "127.0.0.1:7905".to_owned(),
    };
    let mut clients = Vec::new();
    for (name, target) in [("on", world.target()), ("off", plain)] {
        let client = world.start_client(name, &language, &target, &[])?;
        world.app(client).echo("warm")?;
        world.app(client).call(&format!("{name} unary"), "never", json!({}))?;
        world.app(client).call(&format!("{name} after"), "ticks", json!({}))?;
        // The next bytes would follow in 100 s. None may be on their way when the server is killed: its kernel would
        // answer them with a reset, or not.
        let upwards = json!({"seed": 1, "send": 10_000, "chunk": 100, "send_rate": 1, "receive": 0});
        world.app(client).call(&format!("{name} before"), "check", upwards)?;
        for call in CALLS {
            world.app(server).expect("handler", &format!("{name} {call}"), SOON)?;
        }
        world.app(client).expect("message", &format!("{name} after"), SOON)?;
        clients.push((name, client));
    }
    std::thread::sleep(GROWN);
    let (at_ms, _until_the_end) = harm(&mut world)?;
    let (mut last_ms, mut ours) = (0.0_f64, "none");
    for (name, client) in clients {
        for call in CALLS {
            let left = PATIENCE.saturating_sub(Duration::from_secs_f64((now_ms() - at_ms).max(0.0) / 1e3));
            let end = world.app(client).expect("end", &format!("{name} {call}"), left)?;
            last_ms = last_ms.max(end.mono_ms - at_ms);
            let (status, message) = (end.text("status"), end.text("message"));
            if name == "off" && message.contains("hopline") {
                ours = "some";
            }
            let whole = name == "on" || off == Read::Whole;
            let words = if whole {
                format!("{status} {}", reason_in(&without_addresses(message)))
            } else {
                status.to_owned()
            };
            case.word(&format!("{name}_{call}"), words);
        }
    }
    case.number("end_s", last_ms / 1e3);
    case.word("off_words", ours);
    Ok(())
}
