//! Resets and refusals: F14 to F23.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::super::{Case, Figure, Scenario};
use super::kit::{BASE, Raw, SOON, dig_hole, figure, with_nobody};
use crate::result::Bound;
use crate::status;
use crate::world::Way;

const RESET: Bound = Bound::Word(&["reset"]);

const BOTH: &[Figure] = &[
    figure("client", "the client reads, behind the server's reset", "", RESET),
    figure("client_bytes", "bytes that it read before", "B", Bound::None),
    figure("server", "the server reads, behind the client's reset", "", RESET),
    figure("reason", "reason@hop in /status", "", Bound::Word(&["peer_reset@2"])),
];
const EARLY: &[Figure] = &[
    figure("least", "bytes of an early answer that were read, in all of 20 uploads", "B", EARLY_LEAST),
    figure("ends", "how they ended", "", Bound::None),
];
/// Whole answers: they are within the first window of a session, so that none waits for credit when the reset comes.
const EARLY_LEAST: Bound = Bound::AtLeastOrDirectLess(20.0 * 49_152.0, 49_152.0);
const CLOSED: &[Figure] = &[
    figure("end", "the client gets", "", Bound::Word(&["recv_fin: reset", "dial: refused"])),
    figure("after_ms", "after", "ms", Bound::AtMost(1_000.0)),
    figure("reason", "reason@hop in /status", "", Bound::Word(&["dial_failed@2"])),
];
const OTHERS: &[Figure] = &[
    figure("others", "faults of the 49 others in 5 s", "", Bound::Word(&["ok"])),
    figure("reset", "the one that was reset", "", Bound::Word(&["recv_end: reset", "reset"])),
    figure("fresh", "a new connection then", "", Bound::Word(&["ok"])),
];
const CAUSES: &[Figure] = &[
    figure("others", "faults of 10 others meanwhile", "", Bound::Word(&["ok"])),
    figure("reset", "40 that the server resets", "", Bound::Word(&["reset ×40"])),
    figure("refused", "40 to a closed port", "", Bound::None),
    figure("links", "links that the sidecar has had", "", Bound::AtMost(1.0)),
    figure("reasons", "reasons of services in /status of the agent", "", REASONS),
];
const REASONS: Bound = Bound::Word(&["raw peer_reset@0, closed dial_failed@0, hole dial_failed@0"]);

pub(in super::super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "f14-resets-arrive",
        promise: "F14",
        what: "The server sends 100 KiB and resets; on a second connection the client does.",
        figures: BOTH,
        run: resets,
        ..BASE
    },
    Scenario {
        name: "f16-early-answer",
        promise: "F16",
        what: "The server reads 64 KiB of an upload of 10 MiB, answers 48 KiB, and closes with the rest unread; 20 times.",
        figures: EARLY,
        run: early,
        ..BASE
    },
    Scenario {
        name: "f17-closed-port",
        promise: "F17",
        what: "A connection to a port on which nothing listens.",
        figures: CLOSED,
        run: closed,
        ..BASE
    },
    Scenario {
        name: "f22-one-reset-of-fifty",
        promise: "F22",
        what: "50 sessions of one mapping; the server resets one of them, the others go on for 5 s.",
        figures: OTHERS,
        ways: &[Way::Direct, Way::Unix, Way::Tcp],
        run: one_of_fifty,
        ..BASE
    },
    Scenario {
        name: "f23-errors-stay-where-they-are",
        promise: "F23",
        what: "For 8 s, every 100 ms one connection is reset by the server, one goes to a closed port, one to a host that \
               nobody is; 10 sessions go on beside them.",
        figures: CAUSES,
        seconds: 30,
        run: causes,
        ..BASE
    },
];

fn resets(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["obey"]))?;
    let script = json!([{"ask": [{"send": {"bytes": 102_400}}, {"wait": 500}, "rst"]}, {"recv_end": {}}]);
    let ran = raw.run("client", script, SOON)?;
    case.word("client", ran.ends());
    case.number("client_bytes", ran.count("received"));
    if case.way != Way::Direct {
        case.word("reason", raw.reason()?);
    }
    let script = json!([{"ask": [{"recv_end": {}}]}, {"send": {"bytes": 102_400}}, {"wait": 500}, "rst"]);
    raw.run("client 2", script, SOON)?;
    let served = raw.served(SOON, |ran| ran.count("begun") == 2.0 && ran.count("open") == 0.0)?;
    case.word("server", served.ends());
    Ok(())
}

fn early(case: &mut Case<'_>) -> anyhow::Result<()> {
    let serve = json!([{"recv": {"bytes": 65_536}}, {"send": {"bytes": 49_152}}]);
    let mut raw = Raw::start(case, serve)?;
    let script = json!([{"also": [{"send": {"bytes": 10 << 20}}]}, {"recv_end": {}}]);
    raw.go_many("uploads", json!({"script": script, "count": 20, "parallel": 1}))?;
    let ran = raw.ran("uploads", SOON)?;
    case.number("least", ran.count("received"));
    case.word("ends", ran.ends());
    Ok(())
}

fn closed(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start_with(case, with_nobody(case), json!(["obey"]))?;
    let address = if case.way == Way::Direct {
        format!("{}:50099", raw.world.net.address("db"))
    } else {
        "127.0.0.1:7903".into()
    };
    raw.go_many("closed", json!({"address": address, "script": ["recv_fin"]}))?;
    let ran = raw.ran("closed", SOON)?;
    case.word("end", ran.word());
    case.number("after_ms", ran.time("ms", "max"));
    if case.way != Way::Direct {
        let status = raw.world.status("sidecar")?;
        case.word("reason", status::reason(status::entry(&status, "mappings", "closed")));
    }
    Ok(())
}

/// A ping-pong with an `obey` at the other side.
fn rounds(for_ms: u64) -> Json {
    json!([{"ask": ["echo"]}, {"ping_pong": {"bytes": 1_024, "for_ms": for_ms, "pause_ms": 50}}, "fin"])
}

fn one_of_fifty(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["obey"]))?;
    raw.go_many("others", json!({"script": rounds(5_000), "count": 49}))?;
    std::thread::sleep(Duration::from_secs(1));
    let script = json!([{"ask": ["rst"]}, {"recv_end": {}}]);
    let reset = raw.run("reset", script, SOON)?;
    let others = raw.ran("others", SOON)?;
    let fresh = raw.run("fresh", rounds(100), SOON)?;
    case.word("others", others.word());
    // A unix socket has no reset, and ends.
    let end = if case.way == Way::Unix { "reset".to_owned() } else { reset.ends() };
    case.word("reset", end);
    case.word("fresh", fresh.word());
    Ok(())
}

fn causes(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start_with(case, with_nobody(case), json!(["obey"]))?;
    let direct = case.way == Way::Direct;
    dig_hole(&raw.world, if direct { "web" } else { "db" })?;
    raw.go_many("others", json!({"script": rounds(12_000), "count": 10}))?;
    let db = raw.world.net.address("db");
    let [closed, hole] = if direct {
        [format!("{db}:50099"), "10.64.0.99:50099".to_owned()]
    } else {
        ["127.0.0.1:7903", "127.0.0.1:7904"].map(str::to_owned)
    };
    let script = json!([{"ask": ["rst"]}, {"recv_end": {}}]);
    raw.go_many("reset", json!({"script": script, "count": 40, "per_s": 5}))?;
    raw.go_many("refused", json!({"script": ["recv_fin"], "count": 40, "per_s": 5, "address": closed}))?;
    // Directly these wait for minutes: the client is ended with them.
    raw.go_many("silent", json!({"script": ["recv_fin"], "count": 10, "per_s": 2, "address": hole}))?;
    let [reset, refused] = [raw.ran("reset", SOON)?, raw.ran("refused", SOON)?];
    case.word("others", raw.ran("others", SOON)?.word());
    case.word("reset", reset.ends());
    case.word("refused", refused.word());
    if direct {
        return Ok(());
    }
    raw.ran("silent", SOON)?;
    let status = raw.world.status("agent")?;
    let reasons = ["raw", "closed", "hole"]
        .map(|name| format!("{name} {}", status::reason(status::entry(&status, "services", name))));
    case.word("reasons", reasons.join(", "));
    case.number("links", raw.links_made("sidecar")?);
    Ok(())
}
