//! `log: { access: true }`: one line for each session that is over.

use std::collections::BTreeMap;
use std::io::Write as _;

use crate::harness::{Conn, Kind, PATIENCE, Process, World, WorldOptions, shared, until};

pub(crate) type Fields = BTreeMap<String, String>;

const TARGET: &str = "hopline_access";

/// The access lines of a process, once there are so many: a text line's fields, or a JSON line's.
pub(crate) fn lines(process: &Process, count: usize) -> Vec<Fields> {
    let found = until(&format!("{count} access lines"), PATIENCE, || {
        let log = process.log();
        let (whole, _) = log.rsplit_once('\n').unwrap_or_default();
        let found: Vec<_> = whole.lines().filter(|line| line.contains(TARGET)).map(fields).collect();
        (found.len() >= count).then_some(found)
    });
    assert_eq!(found.len(), count, "{found:?}");
    found
}

fn fields(line: &str) -> Fields {
    if let Ok(serde_json::Value::Object(object)) = serde_json::from_str(line) {
        let text = |value: &serde_json::Value| value.as_str().map_or(value.to_string(), str::to_owned);
        let mut fields: Fields = object.iter().map(|(key, value)| (key.clone(), text(value))).collect();
        assert_eq!(fields.remove("target").as_deref(), Some(TARGET));
        assert_eq!(fields.remove("message").as_deref(), Some("session over"));
        assert_eq!(fields.remove("level").as_deref(), Some("INFO"));
        assert!(fields.remove("timestamp").is_some());
        return fields;
    }
    let (_, rest) = line.split_once(&format!(" INFO {TARGET}: session over ")).unwrap();
    let pair = |word: &str| {
        let (key, value) = word.split_once('=').unwrap();
        (key.to_owned(), value.trim_matches('"').to_owned())
    };
    rest.split(' ').map(pair).collect()
}

/// What such a line says, but for the id, which is that of `like`, and the time that it took.
fn says(mut line: Fields, like: &str, expected: &[(&str, &str)]) {
    assert_eq!(line.remove("session").as_deref(), Some(like), "{line:?}");
    let took: u64 = line.remove("duration_ms").unwrap().parse().unwrap();
    assert!(took < 60_000, "{took}");
    let expected: Fields = expected.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    assert_eq!(line, expected);
}

/// A clean session, one that its application resets, one refused at the relay: at all three processes, as text and, at the
/// agent, as JSON; and at the edges not a word more, since their logs are to hold errors only.
#[test]
fn each_session_has_a_line_at_each_process() {
    let world = World::start(WorldOptions {
        log: "error,hopline_relay=info",
        mappings: "  nobody: { listen: \"127.0.0.1:0\" }\n",
        sidecar_keys: "log: { access: true }\n",
        agent_keys: "log: { access: true, format: json }\n",
        relay_file: "log: { access: true }\n",
        ..WorldOptions::default()
    });
    let slot = &world.slots[0];
    let processes = [&world.sidecar.process, &world.relay.process, &world.agent.process];

    let (mut app, mut server) = slot.answered_pair(Kind::Unix);
    app.write_all(b"a secret question").unwrap();
    assert_eq!(server.chunk(17), b"a secret question");
    app.end();
    server.write_all(b"an answer").unwrap();
    server.end();
    assert_eq!(app.read_to_eof(), b"an answer");
    let [at_sidecar, at_relay, at_agent] = processes.map(|process| lines(process, 1).remove(0));
    let id = at_sidecar["session"].clone();
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    let carried = [("forth", "17"), ("back", "10"), ("reason", "end")];
    let with = |more: &[(&'static str, &'static str)]| [&carried[..], more].concat();
    says(at_sidecar, &id, &with(&[("mapping", "u0"), ("peer", "agent"), ("relay", "relay-a")]));
    says(at_relay, &id, &with(&[("service", "u0"), ("peer", "sidecar"), ("agent", "agent")]));
    says(at_agent, &id, &with(&[("service", "u0"), ("peer", "sidecar")]));

    let (app, _server) = slot.answered_pair(Kind::Tcp);
    app.reset();
    let [at_sidecar, at_relay, at_agent] = processes.map(|process| lines(process, 2).remove(1));
    let id = at_sidecar["session"].clone();
    let reset = |hop| [("forth", "0"), ("back", "1"), ("reason", "peer_reset"), ("hop", hop)];
    let with = |hop, more: &[(&'static str, &'static str)]| [&reset(hop)[..], more].concat();
    says(at_sidecar, &id, &with("0", &[("mapping", "t0"), ("peer", "agent"), ("relay", "relay-a")]));
    says(at_relay, &id, &with("1", &[("service", "t0"), ("peer", "sidecar"), ("agent", "agent")]));
    says(at_agent, &id, &with("2", &[("service", "t0"), ("peer", "sidecar")]));

    let nobody = world.mapping("nobody").listen;
    let (nothing, _) = Conn::connect(nobody).drain();
    assert_eq!(nothing, b"");
    let [at_sidecar, at_relay] = [processes[0], processes[1]].map(|process| lines(process, 3).remove(2));
    let id = at_sidecar["session"].clone();
    let refused = |hop| [("forth", "0"), ("back", "0"), ("reason", "offline"), ("hop", hop)];
    let with = |hop, more: &[(&'static str, &'static str)]| [&refused(hop)[..], more].concat();
    says(at_sidecar, &id, &with("1", &[("mapping", "nobody"), ("relay", "relay-a")]));
    says(at_relay, &id, &with("0", &[("service", "nobody"), ("peer", "sidecar")]));

    for process in processes {
        let log = process.log();
        let mut lines = log.lines().filter(|line| line.contains(TARGET));
        assert!(lines.all(|line| !line.contains("secret") && !line.contains('/')), "{log}");
    }
    for edge in [processes[0], processes[2]] {
        assert!(edge.log().lines().all(|line| line.contains(TARGET)), "{}", edge.log());
    }
}

/// More of them in a moment than warnings of one cause may be, and every one is written.
#[test]
fn none_is_left_out() {
    const MANY: usize = 40;
    let world =
        World::start(WorldOptions { sidecar_keys: "log: { access: true }\n", ..WorldOptions::default() });
    for _ in 0..MANY {
        world.slots[0].answered_pair(Kind::Tcp).0.reset();
    }
    lines(&world.sidecar.process, MANY);
}

/// Whatever else is logged.
#[test]
fn nobody_who_did_not_ask_gets_them() {
    let world = shared();
    world.works(world.slot());
    for process in world.processes() {
        assert!(process.log().contains("INFO") && !process.log().contains(TARGET), "{}", process.log());
    }
}
