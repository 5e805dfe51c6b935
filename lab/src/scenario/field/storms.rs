//! Reconnecting, many at once or one for ever: F89 to F98.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::Signal;
use serde_json::{Value as Json, json};

use super::super::{Case, Figure, Scenario};
use super::kit::{BASE, Ran, Raw, SOON, far_end, figure, seconds};
use crate::result::Bound;
use crate::status;
use crate::world::{Options, Way};

/// How many machines come back at once.
const HERD: usize = 40;

const BACK: &[Figure] = &[
    figure("back", "of 40 machines are back", "", Bound::Within(40.0, 40.0)),
    figure("last_s", "the last, after the relay listens", "s", Bound::AtMost(5.0)),
    figure("call", "a session then", "", Bound::Word(&["ok"])),
];

const BACKOFF: &[Figure] = &[
    figure("dials", "dials in 50 s", "", Bound::Within(3.0, 15.0)),
    figure("back_s", "a session, once links live again", "s", Bound::AtMost(40.0)),
];
const REFUSED: &[Figure] = &[
    figure("http_s", "ready after a proxy that answered 429", "s", RECOVERS),
    figure("alert_s", "after one that sent a TLS alert", "s", RECOVERS),
    figure("nonsense_s", "after one that sent random bytes", "s", RECOVERS),
    figure("silent_s", "after one that accepted and was silent", "s", Bound::AtMost(12.0)),
    figure("call", "a session then", "", Bound::Word(&["ok"])),
];
const RECOVERS: Bound = Bound::AtMost(7.0);
const OUTAGE: &[Figure] = &[
    figure(
        "back_s",
        "the first session that succeeds, after the healing",
        "s",
        Bound::AtMostOrDirectPlus(2.5, 1.0),
    ),
    figure("tries", "failed tries since then", "", Bound::None),
];
const REFUSING: &[Figure] = &[
    figure(
        "growth_kib",
        "growth of the sidecar's memory from 8 s to 48 s of refusals",
        "KiB",
        Bound::AtMost(1_024.0),
    ),
    figure("cpu_s", "its processor time in these 40 s", "s", Bound::AtMost(2.0)),
    figure("lines", "lines that it logged in them", "", Bound::AtMost(8.0)),
    figure("dials", "dials in them", "", Bound::Within(20.0, 90.0)),
    figure("call", "a session when the relay is back", "", Bound::Word(&["ok"])),
];
const STEPS: &[Figure] = &[
    figure("ready", "of 12 edges that are ready in the end", "", Bound::Within(12.0, 12.0)),
    figure("last_s", "the last", "s", Bound::AtMost(40.0)),
    figure("cut", "connections that were cut before", "", Bound::AtLeast(12.0)),
    figure("call", "a session then", "", Bound::Word(&["ok"])),
];

pub(in super::super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "f89-forty-machines-come-back",
        promise: "F89",
        what: "40 more machines; the relay is killed, and started again after 5 s.",
        figures: BACK,
        ways: &[Way::Tcp],
        seconds: 40,
        run: herd,
        ..BASE
    },
    Scenario {
        name: "f92-links-that-die-at-once",
        promise: "F92",
        what: "A proxy before the relay cuts each connection after 1.5 s, for 50 s; then it cuts no more.",
        figures: BACKOFF,
        ways: &[Way::Tcp],
        seconds: 95,
        run: backoff,
        ..BASE
    },
    Scenario {
        name: "f94-proxies-that-refuse",
        promise: "F94",
        what: "Something else stands in the relay's place for 5 s: it answers HTTP 429, sends a TLS alert, sends nonsense, or \
               accepts and is silent. Then the relay is there.",
        figures: REFUSED,
        ways: &[Way::Tcp],
        seconds: 60,
        run: refused,
        ..BASE
    },
    Scenario {
        name: "f95-back-after-an-outage",
        promise: "F95",
        what: "Every packet is lost for 40 s; a client tries every 0.5 s.",
        figures: OUTAGE,
        seconds: 60,
        run: outage,
        ..BASE
    },
    Scenario {
        name: "f97-refusals-for-long",
        promise: "F97",
        what: "The relay is gone for 50 s, and its host refuses each dial.",
        figures: REFUSING,
        ways: &[Way::Tcp],
        seconds: 65,
        run: refusing,
        ..BASE
    },
    Scenario {
        name: "f98-every-step-fails-once",
        promise: "F98",
        what: "12 edges come up through a proxy that cuts their first connections after 300, 600, ... 7,200 bytes: in the \
               handshake, the hello, the registration.",
        figures: STEPS,
        ways: &[Way::Tcp],
        seconds: 60,
        run: steps,
        ..BASE
    },
];

/// A sidecar that finds its relay at the port where something else can be put.
fn by_port_7444(way: Way) -> Options {
    Options { sidecar_lines: "relay: [\"10.64.0.2:7444\"]\n", ..Options::plain(way) }
}

/// One session of one round trip.
fn once() -> Json {
    json!([{"ping_pong": {"bytes": 10, "times": 1}}, "fin", "recv_fin"])
}

fn backoff(case: &mut Case<'_>) -> anyhow::Result<()> {
    let limits = json!({"after_ms": 1_500});
    let mut raw = Raw::start_behind(case, by_port_7444(case.way), json!(["echo"]), &limits)?;
    std::thread::sleep(seconds(50));
    let proxy = raw.proxy.context("no proxy")?;
    let dials = raw.counts(proxy, "proxy")?.count("begun");
    case.number("dials", dials);
    raw.world.app(proxy).say(&json!({"op": "stop", "name": "proxy"}))?;
    let script = json!([{"proxy": {"to": "10.64.0.2:7443", "limits": {}}}]);
    let line = json!({"op": "serve", "name": "plain", "address": "10.64.0.2:7444", "script": script});
    raw.world.app(proxy).say(&line)?;
    raw.world.app(proxy).expect("listening", "plain", SOON)?;
    let began = Instant::now();
    loop {
        let ran = raw.run(&format!("try {:?}", began.elapsed()), once(), SOON)?;
        if ran.word() == "ok" {
            break;
        }
        anyhow::ensure!(began.elapsed() < seconds(45), "no session: {}", ran.word());
        std::thread::sleep(Duration::from_millis(200));
    }
    case.number("back_s", began.elapsed().as_secs_f64());
    Ok(())
}

fn refused(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start_behind(case, by_port_7444(case.way), json!(["echo"]), &json!({}))?;
    let proxy = raw.proxy.context("no proxy")?;
    raw.world.end("sidecar", Signal::TERM)?;
    raw.world.app(proxy).say(&json!({"op": "stop", "name": "proxy"}))?;
    let alert: String = [21_u8, 3, 3, 0, 2, 2, 40].iter().map(|&byte| char::from(byte)).collect();
    let harms = [
        (
            "http_s",
            json!([{"text": "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3600\r\n\r\n"}, {"wait": 50}]),
        ),
        ("alert_s", json!([{"text": alert}, {"wait": 50}])),
        ("nonsense_s", json!([{"send": {"bytes": 2_000}}, {"wait": 50}])),
        ("silent_s", json!([{"wait": 60_000}])),
    ];
    let sidecar = raw.world.status_socket("sidecar");
    let serve = |raw: &mut Raw, name: &str, script: Json| -> anyhow::Result<()> {
        let line = json!({"op": "serve", "name": name, "address": "10.64.0.2:7444", "script": script});
        raw.world.app(proxy).say(&line)?;
        raw.world.app(proxy).expect("listening", name, SOON).map(drop)
    };
    for (id, script) in harms {
        serve(&mut raw, id, script)?;
        raw.world.start_edge("sidecar")?;
        std::thread::sleep(seconds(5));
        anyhow::ensure!(!status::ready(&sidecar), "ready without a relay");
        raw.world.app(proxy).say(&json!({"op": "stop", "name": id}))?;
        let good = format!("good after {id}");
        serve(&mut raw, &good, json!([{"proxy": {"to": "10.64.0.2:7443", "limits": {}}}]))?;
        let began = Instant::now();
        crate::shell::until("ready", SOON, || status::ready(&sidecar).then_some(()))?;
        case.number(id, began.elapsed().as_secs_f64());
        if id == "silent_s" {
            let ran = raw.run("call", once(), SOON)?;
            case.word("call", ran.word());
        }
        raw.world.end("sidecar", Signal::TERM)?;
        raw.world.app(proxy).say(&json!({"op": "stop", "name": good}))?;
    }
    Ok(())
}

fn outage(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["echo"]))?;
    raw.run("warm", once(), SOON)?;
    let cut = raw.world.cut_path("web", far_end(case.way))?;
    let begun = Instant::now();
    let mut number = 0;
    let mut tries = |raw: &mut Raw| -> anyhow::Result<()> {
        number += 1;
        let wanted = json!({"script": once(), "patience_ms": 2_000});
        raw.go_many(&format!("try {number}"), wanted)?;
        std::thread::sleep(Duration::from_millis(500));
        Ok(())
    };
    while begun.elapsed() < seconds(40) {
        tries(&mut raw)?;
    }
    let healed_ms = cut.heal()?;
    for _ in 0..20 {
        tries(&mut raw)?;
    }
    std::thread::sleep(seconds(1));
    let events = raw.world.app(raw.client).events();
    let ran: Vec<Ran> = events.into_iter().filter(|event| event.kind == "ran").map(Ran).collect();
    let good = |ran: &&Ran| ran.word() == "ok" && ran.0.mono_ms > healed_ms;
    match ran.iter().find(good) {
        Some(first) => case.number("back_s", (first.0.mono_ms - healed_ms) / 1e3),
        None => case.not_within("back_s", 11.0),
    }
    let failed = ran.iter().filter(|ran| ran.word() != "ok" && ran.0.mono_ms > healed_ms + 2_000.0).count();
    #[expect(clippy::cast_precision_loss, reason = "some dozen tries")]
    case.number("tries", failed as f64);
    Ok(())
}

fn refusing(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["echo"]))?;
    raw.run("warm", once(), SOON)?;
    raw.world.end("relay", Signal::KILL)?;
    std::thread::sleep(seconds(8));
    let dials = |raw: &Raw| raw.metric("sidecar", "hopline_link_dials_total", "");
    let (before, lines, dialled) = (raw.held("sidecar")?, raw.log_lines("sidecar")?, dials(&raw)?);
    std::thread::sleep(seconds(40));
    let after = raw.held("sidecar")?;
    if let (Some(before), Some(after)) = (before, after) {
        case.number("growth_kib", after.rss_kib - before.rss_kib);
        case.number("cpu_s", after.cpu_s - before.cpu_s);
    }
    case.number("lines", raw.log_lines("sidecar")? - lines);
    case.number("dials", dials(&raw)? - dialled);
    raw.world.start_relay()?;
    std::thread::sleep(seconds(2));
    let ran = raw.run("call", once(), SOON)?;
    case.word("call", ran.word());
    Ok(())
}

fn steps(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["echo"]))?;
    let proxy = raw.world.start_actor("relay", "proxy")?;
    let limits = json!({"step_bytes": 300, "steps": 24});
    let script = json!([{"proxy": {"to": "10.64.0.2:7443", "limits": limits}}]);
    let line = json!({"op": "serve", "name": "proxy", "address": "10.64.0.2:7444", "script": script});
    raw.world.app(proxy).say(&line)?;
    raw.world.app(proxy).expect("listening", "proxy", SOON)?;
    let began = Instant::now();
    let names: Vec<String> = (0..12).map(|number| format!("step-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        // A name of its own for each, so that each has to register.
        let config = format!(
            "relay: [\"10.64.0.2:7444\"]\nservices:\n  step-{number}: {{ tcp: {{ tcp: 50052 }} }}\nconnect:\n  raw: {{ listen: \
             \"127.0.0.1:{}\" }}\n",
            8_000 + number
        );
        raw.world.add_edge_of(name, "web", &["--publish", "*", "--dial", "*"], &config)?;
    }
    let ready = |raw: &Raw| names.iter().filter(|name| status::ready(&raw.world.status_socket(name))).count();
    while ready(&raw) < names.len() && began.elapsed() < seconds(50) {
        std::thread::sleep(Duration::from_millis(100));
    }
    #[expect(clippy::cast_precision_loss, reason = "a dozen edges")]
    case.number("ready", ready(&raw) as f64);
    case.number("last_s", began.elapsed().as_secs_f64());
    let carried = raw.counts(proxy, "proxy")?;
    case.number("cut", carried.count("begun") - carried.count("open"));
    let wanted = json!({"script": once(), "address": "127.0.0.1:8011"});
    raw.go_many("call", wanted)?;
    let ran = raw.ran("call", SOON)?;
    case.word("call", ran.word());
    Ok(())
}

fn herd(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["obey"]))?;
    let names: Vec<String> = (0..HERD).map(|number| format!("more-{number}")).collect();
    for name in &names {
        let config =
            format!("connect:\n  raw: {{ listen: \"unix:{}\" }}\n", raw.world.path(&format!("{name}.sock")));
        raw.world.add_edge(name, "web", "--dial", &config)?;
    }
    let ready = |raw: &Raw| names.iter().filter(|name| status::ready(&raw.world.status_socket(name))).count();
    crate::shell::until("40 machines", SOON, || (ready(&raw) == HERD).then_some(()))?;
    raw.world.end("relay", Signal::KILL)?;
    std::thread::sleep(Duration::from_secs(5));
    raw.world.start_relay()?;
    let began = Instant::now();
    let mut back = 0;
    while back < HERD && began.elapsed() < SOON {
        back = ready(&raw);
    }
    #[expect(clippy::cast_precision_loss, reason = "some dozen machines")]
    case.number("back", back as f64);
    case.number("last_s", began.elapsed().as_secs_f64());
    let script = json!([{"ask": [{"send": {"bytes": 10}}]}, {"recv": {"bytes": 10}}]);
    let ran = raw.run("call", script, SOON)?;
    case.word("call", ran.word());
    Ok(())
}
