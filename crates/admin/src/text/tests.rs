use std::collections::BTreeMap;

use super::*;
use crate::status::{
    Budget, Bytes, Counts, EdgeBudgets, EdgeLink, Hint, LinkHistory, Mapping, Opens, RelayAgent,
    RelayBudgets, RelayLink, RelayService, Role, Service, SessionCounts,
};

fn edge() -> EdgeStatus {
    EdgeStatus {
        role: Role::Edge,
        machine: "web-1".into(),
        version: "0.1.0".into(),
        uptime_s: 12.3,
        links: vec![
            EdgeLink {
                peer: "relay-a".into(),
                address: "192.0.2.1:7443".into(),
                state: LinkState::Up,
                rtt_us: Some(180),
                liveness: "default".into(),
                last_heard_ms: Some(420),
                sessions: 1,
                window_bytes: Budget::default(),
                last_error: None,
                relay: "relay-a.example:7443".into(),
                history: LinkHistory::default(),
            },
            EdgeLink {
                peer: "relay-b.example:7443".into(),
                address: "relay-b.example:7443".into(),
                state: LinkState::Connecting,
                rtt_us: None,
                liveness: "default".into(),
                last_heard_ms: None,
                sessions: 0,
                window_bytes: Budget::default(),
                last_error: Some(LastError {
                    reason: "dial_failed".into(),
                    hop: 0,
                    message: "refused (192.0.2.2:7443: connection refused)".into(),
                    age_s: 0.4,
                }),
                relay: "relay-b.example:7443".into(),
                history: LinkHistory::default(),
            },
        ],
        mappings: vec![Mapping {
            name: "ledger".into(),
            listen: "unix:/run/user/1000/hopline/ledger.sock".into(),
            state: MappingState::Ready,
            sessions: SessionCounts { open: 1, total: 7 },
            inspect: Inspect::H2c,
            hints: vec![Hint {
                kind: "client_keepalive".into(),
                message: "remove the client's keepalive; the links watch themselves".into(),
                evidence: BTreeMap::from([("idle_pings_under_15s".to_owned(), 2)]),
                count: 1,
                first_seen_s: 12.0,
                last_seen_s: 2.0,
            }],
            last_error: Some(LastError {
                reason: "offline".into(),
                hop: 1,
                message: "nobody serves it".into(),
                age_s: 3.1,
            }),
            agents: vec![FarAgent {
                machine: "db-1".into(),
                relay: "relay-a".into(),
                state: FarState::Suspect,
                rtt_us: Some(1_234),
                last_heard_ms: Some(9_000),
                age_ms: 100,
            }],
            agents_known: true,
            counts: Counts::default(),
        }],
        services: vec![Service {
            name: "audit".into(),
            target: "audit.internal:50051".into(),
            state: ServiceState::Down,
            sessions: SessionCounts { open: 0, total: 3 },
            last_error: None,
            counts: Counts::default(),
        }],
        budgets: EdgeBudgets::default(),
        limits_reached: BTreeMap::new(),
    }
}

const EDGE_TEXT: &str = "\
web-1: edge, version 0.1.0, up for 12 s
not well: failing hop: relay → agent

findings:
  bad: ledger: its agent db-1 behind relay-a is suspect: its relay has no data
    from it. Failing hop: relay → agent
  bad: audit: its server audit.internal:50051 does not serve. Failing hop: agent
    → server
  doubtful: the link to relay-b.example:7443 is not up yet: dial_failed at hop
    0: refused (192.0.2.2:7443: connection refused). Failing hop: sidecar →
    relay

links:
  relay-a               up          0.1 ms  heard 0.4 s ago  1 session   default
  192.0.2.1:7443
  relay-b.example:7443  connecting  -       never heard      0 sessions  default

mappings:
  ledger  ready  1 open, 7 in all  h2c  unix:/run/user/1000/hopline/ledger.sock

agents of the mappings:
  ledger  suspect  1.2 ms  heard 9.0 s ago  db-1 by relay-a

services:
  audit  down  0 open, 3 in all  audit.internal:50051

last errors:
  relay-b.example:7443: dial_failed at hop 0, 0 s ago: refused (192.0.2.2:7443:
    connection refused)
  ledger: offline at hop 1, 3 s ago: nobody serves it

hints:
  ledger: client_keepalive, seen 1 time: remove the client's keepalive; the
    links watch themselves
";

fn relay() -> RelayStatus {
    RelayStatus {
        role: Role::Relay,
        name: "relay-a".into(),
        version: "0.1.0".into(),
        uptime_s: 400_000.0,
        state: RelayState::Draining,
        listen: vec!["[::]:7443".into()],
        listen_error: None,
        links: vec![RelayLink {
            machine: "db-1".into(),
            address: "192.0.2.7:40000".into(),
            state: LinkState::Suspect,
            rtt_us: Some(43_210),
            liveness: "nat".into(),
            last_heard_ms: Some(20_000),
            sessions: 2,
            window_bytes: Budget::default(),
            instance: "00ff".into(),
        }],
        services: vec![
            RelayService { name: "audit".into(), agents: vec![] },
            RelayService {
                name: "ledger".into(),
                agents: vec![
                    RelayAgent { machine: "db-1".into(), state: AgentState::Up, sessions: 2 },
                    RelayAgent { machine: "db-2".into(), state: AgentState::Down, sessions: 0 },
                ],
            },
        ],
        sessions: SessionCounts { open: 2, total: 9 },
        opens: Opens {
            accepted: 9,
            refused: BTreeMap::from([("not_found".to_owned(), 3), ("offline".to_owned(), 1)]),
        },
        aborts: vec![],
        bytes: Bytes::default(),
        link_ends: BTreeMap::new(),
        budgets: RelayBudgets::default(),
        limits_reached: BTreeMap::new(),
    }
}

const RELAY_TEXT: &str = "\
relay-a: relay, version 0.1.0, up for 4 d, draining
not well: failing process: relay
sessions: 2 open, 9 in all
opens: 9 accepted, 3 not_found, 1 offline

findings:
  bad: relay-a takes no new sessions: it is on its way out. Failing process:
    relay
  doubtful: the link of db-1 is suspect: no data for 20 s. Failing hop: relay →
    agent
  doubtful: audit: its last agent was lost, and its return is awaited. Failing
    hop: relay → agent

links:
  db-1  suspect  43 ms  heard 20 s ago  2 sessions  nat  192.0.2.7:40000

services:
  audit   absent  -           -
  ledger  up      2 sessions  db-1
  ledger  down    0 sessions  db-2
";

fn assert_fits(text: &str, width: usize) {
    for line in text.lines() {
        assert!(line.chars().count() <= width, "{} columns: {line:?}", line.chars().count());
        assert_eq!(line.trim_end(), line, "a line ends in blanks");
    }
}

#[test]
fn an_edge_as_text() {
    assert_eq!(render_edge(&edge(), 80, false), EDGE_TEXT);
}

#[test]
fn a_relay_as_text() {
    assert_eq!(render_relay(&relay(), 80, false), RELAY_TEXT);
}

#[test]
fn an_edge_with_nothing_as_text() {
    let bare = EdgeStatus { links: vec![], mappings: vec![], services: vec![], ..edge() };
    let wanted = "web-1: edge, version 0.1.0, up for 12 s\n\
                  not well: failing hop: sidecar → relay\n\nfindings:\n  \
                  bad: there is no link to a relay. Failing hop: sidecar → relay\n\nlinks:\n  no link to a relay\n\nmappings:\n  none\n\n\
                  services:\n  none\n";
    assert_eq!(render(&Status::Edge(bare), 80, false), wanted);
}

#[test]
fn colours_change_no_letter_and_mark_the_state() {
    let coloured = render_edge(&edge(), 80, true);
    assert!(coloured.contains("\u{1b}[32mup\u{1b}[0m"));
    assert!(coloured.contains("\u{1b}[33mconnecting\u{1b}[0m"));
    assert!(coloured.contains("\u{1b}[31mdown\u{1b}[0m"));
    let bare = ["\u{1b}[32m", "\u{1b}[33m", "\u{1b}[31m", "\u{1b}[0m"]
        .iter()
        .fold(coloured, |text, code| text.replace(code, ""));
    assert_eq!(bare, EDGE_TEXT);
}

#[test]
fn every_width_is_kept() {
    let mut long = edge();
    long.links[0].peer = "p".repeat(300);
    long.links[0].address = "2001:db8::".repeat(30);
    long.mappings[0].name = "名".repeat(40);
    long.mappings[0].listen = format!("unix:/{}/ledger.sock", "x".repeat(90));
    if let Some(error) = &mut long.mappings[0].last_error {
        error.message = format!("{} and {}", "y".repeat(500), "語".repeat(100));
    }
    long.mappings[0].agents[0].machine = "m".repeat(200);
    for width in [40, 41, 60, 79, 80, 132, 1_000] {
        assert_fits(&render_edge(&long, width, false), width);
        assert_fits(&render_relay(&relay(), width, false), width);
    }
    assert_fits(&render_edge(&long, 0, false), 40);
    let text = render_edge(&long, 80, false);
    assert!(text.contains("x/ledger.sock\n"), "the end of a long path is kept:\n{text}");
}

/// A busy process with names as long as they may be.
fn busy() -> EdgeStatus {
    let mut edge = edge();
    let name = |n: usize| format!("{}-{n}", "payments.eu-west-1.reconciliation.batch-settlement.ledger");
    let (mapping, service) = (edge.mappings[0].clone(), edge.services[0].clone());
    for n in 0..9 {
        edge.mappings.push(Mapping { name: name(n), listen: format!("127.0.0.1:790{n}"), ..mapping.clone() });
        edge.services.push(Service {
            name: name(n),
            target: format!("[2001:db8::{n}]:50051"),
            ..service.clone()
        });
    }
    edge.links[0].liveness = "nat,interval=12s,timeout=40s".into();
    edge.mappings[1].agents[0].machine =
        "rack-17.zone-b.data-centre.example-of-a-long-machine-name-0001".into();
    edge
}

/// At 80 columns as at 200 no line is too long, and nothing is cut or broken: every word, name and address is whole.
#[test]
fn every_word_is_whole_at_80_and_at_200_columns() {
    let status = busy();
    let pages = [80, 200].map(|width| {
        let page = render_edge(&status, width, false);
        assert_fits(&page, width);
        assert!(!page.contains('…'), "{page}");
        page
    });
    let words = |page: &str| {
        let mut words: Vec<_> = page.split_whitespace().map(str::to_owned).collect();
        words.sort();
        words
    };
    assert_eq!(words(&pages[0]), words(&pages[1]), "the same words, whole, whatever the width");
    for mapping in &status.mappings {
        for page in &pages {
            assert!(page.split_whitespace().any(|word| word == mapping.name), "{}\n{page}", mapping.name);
            assert!(page.split_whitespace().any(|word| word == mapping.listen), "{}\n{page}", mapping.listen);
        }
        let row = pages[1].lines().find(|line| line.starts_with(&format!("  {} ", mapping.name))).unwrap();
        assert!(
            row.contains("1 open, 7 in all") && row.ends_with(&mapping.listen),
            "one row, one line: {row}"
        );
    }
}

#[test]
fn a_peers_text_cannot_reach_the_terminal() {
    let hostile = "a\u{1b}[2J\u{1b}]0;owned\u{7}b\r\nc\u{9b}31md\u{202e}e\u{200b}f\u{0}g\u{7f}h\ti\u{2028}j";
    let mut bad = edge();
    bad.machine = hostile.into();
    bad.version = hostile.into();
    bad.links[0].peer = hostile.into();
    bad.links[0].address = hostile.into();
    bad.links[0].liveness = hostile.into();
    bad.mappings[0].name = hostile.into();
    bad.mappings[0].listen = hostile.into();
    bad.mappings[0].hints[0].kind = hostile.into();
    bad.mappings[0].hints[0].message = hostile.into();
    bad.mappings[0].last_error =
        Some(LastError { reason: hostile.into(), hop: 1, message: hostile.into(), age_s: -1.0 });
    bad.mappings[0].agents[0].machine = hostile.into();
    bad.mappings[0].agents[0].relay = hostile.into();
    bad.services[0].name = hostile.into();
    bad.services[0].target = hostile.into();
    let mut relay = relay();
    relay.name = hostile.into();
    relay.links[0].machine = hostile.into();
    relay.services[0].name = hostile.into();
    relay.services[1].agents[0].machine = hostile.into();
    relay.opens.refused.insert(hostile.into(), 1);
    for text in [render_edge(&bad, 80, false), render_relay(&relay, 80, false)] {
        for c in text.chars().filter(|c| *c != '\n') {
            assert_eq!(sanitise(&c.to_string()), c.to_string(), "{c:?} came through");
        }
        assert!(!text.contains('\u{1b}'));
        assert!(text.lines().all(|line| !line.starts_with('c')), "a line of the peer's own:\n{text}");
    }
}

#[test]
fn ages_are_said_in_the_unit_that_fits() {
    let table = [
        (0.0, "0 s"),
        (3.9, "3 s"),
        (119.0, "119 s"),
        (120.0, "2 min"),
        (7_199.0, "119 min"),
        (7_200.0, "2 h"),
        (172_799.0, "47 h"),
        (172_800.0, "2 d"),
        (-5.0, "0 s"),
        (f64::NAN, "0 s"),
        (f64::INFINITY, "213503982334601 d"),
    ];
    assert_eq!(table.len(), 11);
    for (seconds, wanted) in table {
        assert_eq!(span(seconds), wanted, "{seconds}");
    }
    assert_eq!(round_trip(Some(9_999)), "9.9 ms");
    assert_eq!(round_trip(Some(10_000)), "10 ms");
    assert_eq!(heard(Some(9_999)), "heard 9.9 s ago");
    assert_eq!(heard(Some(u64::MAX)), "heard 213503982334 d ago");
}

#[test]
fn health_is_of_the_present() {
    let well = |change: &dyn Fn(&mut EdgeStatus)| {
        let mut edge = edge();
        edge.services[0].state = ServiceState::Up;
        edge.mappings[0].agents[0].state = FarState::Up;
        change(&mut edge);
        Status::Edge(edge).healthy()
    };
    assert!(well(&|_| ()), "a past error and a second link that is away don't count");
    assert!(!well(&|edge| edge.links[0].state = LinkState::Down));
    assert!(!well(&|edge| edge.links.clear()));
    assert!(!well(&|edge| edge.mappings[0].state = MappingState::Held));
    assert!(!well(&|edge| edge.mappings[0].agents[0].state = FarState::Lost), "its only agent");
    assert!(!well(&|edge| edge.mappings[0].agents.clear()), "nobody serves it");
    let unknown = |edge: &mut EdgeStatus| {
        edge.mappings[0].agents.clear();
        edge.mappings[0].agents_known = false;
    };
    assert!(well(&unknown), "nothing is known of them");
    assert!(!well(&|edge| edge.services[0].state = ServiceState::Frozen));
    assert!(!Status::Relay(relay()).healthy(), "it drains");
    assert!(Status::Relay(RelayStatus { state: RelayState::Up, ..relay() }).healthy());
}
