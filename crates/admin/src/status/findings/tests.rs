use super::*;

fn edge(value: serde_json::Value) -> EdgeStatus {
    let mut whole = serde_json::json!({ "machine": "web-1", "version": "0", "uptime_s": 1 });
    whole.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
    serde_json::from_value(whole).unwrap()
}

fn link(state: &str) -> serde_json::Value {
    serde_json::json!({ "peer": "relay-a", "address": "x", "state": state })
}

fn error(reason: &str, hop: u64, age_s: f64) -> serde_json::Value {
    serde_json::json!({ "reason": reason, "hop": hop, "message": "why", "age_s": age_s })
}

fn mapping(state: &str, agents: &[&str]) -> serde_json::Value {
    let agents: Vec<_> = agents
        .iter()
        .map(|state| serde_json::json!({ "machine": "db-1", "relay": "relay-a", "state": state }))
        .collect();
    let sessions = serde_json::json!({ "open": 0, "total": 0 });
    serde_json::json!({ "name": "ledger", "listen": "l", "state": state, "sessions": sessions, "agents": agents })
}

/// Level, place and reason of each finding.
fn short(status: &EdgeStatus) -> Vec<(&'static str, &'static str, Option<String>)> {
    let findings = status.findings();
    let bad = findings.iter().any(|finding| finding.level == Level::Bad);
    assert_eq!(status.healthy(), !bad, "{findings:?}");
    findings.into_iter().map(|f| (f.level.word(), f.place.word(), f.reason)).collect()
}

#[test]
fn a_chain_that_is_well_has_no_findings() {
    let status =
        edge(serde_json::json!({ "links": [link("up")], "mappings": [mapping("ready", &["up", "up"])] }));
    assert_eq!(short(&status), []);
}

#[test]
fn the_hop_to_blame_is_named() {
    let some = |reason: &str| Some(reason.to_owned());
    let table = [
        (link("connecting"), mapping("held", &[]), vec![("bad", "sidecar_relay", None)]),
        (link("suspect"), mapping("held", &["up"]), vec![("bad", "sidecar_relay", None)]),
        (link("down"), mapping("degraded", &[]), vec![("bad", "sidecar_relay", None)]),
        (link("up"), mapping("failed", &[]), vec![("bad", "application_sidecar", None)]),
        (link("up"), mapping("degraded", &["up"]), vec![("bad", "application_sidecar", None)]),
        (link("up"), mapping("ready", &["lost"]), vec![("bad", "relay_agent", some("conn_lost"))]),
        (link("up"), mapping("ready", &["suspect"]), vec![("bad", "relay_agent", None)]),
        (link("up"), mapping("ready", &["down"]), vec![("bad", "agent_server", some("dial_failed"))]),
        (link("up"), mapping("ready", &["lost", "down"]), vec![("bad", "agent_server", some("dial_failed"))]),
        (link("up"), mapping("ready", &["lost", "up"]), vec![("doubtful", "relay_agent", some("conn_lost"))]),
        (link("up"), mapping("ready", &[]), vec![]),
    ];
    assert_eq!(table.len(), 11);
    for (link, mapping, expected) in table {
        let what = format!("{} and {}", link["state"], mapping);
        let status = edge(serde_json::json!({ "links": [link], "mappings": [mapping] }));
        assert_eq!(short(&status), expected, "{what}");
    }
}

#[test]
fn that_nobody_serves_it_is_known_once_a_relay_has_said_so() {
    let mut mapping = mapping("ready", &[]);
    let of = |mapping: &serde_json::Value| {
        edge(serde_json::json!({ "links": [link("up")], "mappings": [mapping] }))
    };
    assert_eq!(short(&of(&mapping)), []);
    mapping["agents_known"] = true.into();
    assert_eq!(short(&of(&mapping)), [("bad", "agent", Some("offline".to_owned()))]);
}

#[test]
fn a_recent_fault_is_doubtful_and_an_old_one_is_forgotten() {
    let with = |reason: &str, hop, age| {
        let mut mapping = mapping("ready", &["up"]);
        mapping["last_error"] = error(reason, hop, age);
        edge(serde_json::json!({ "links": [link("up")], "mappings": [mapping] }))
    };
    let table = [
        ("conn_lost", 0, "sidecar_relay"),
        ("timeout", 0, "sidecar"),
        ("internal", 0, "application_sidecar"),
        ("conn_lost", 1, "relay_agent"),
        ("not_found", 1, "relay"),
        ("offline", 1, "agent"),
        ("drain_deadline", 1, "relay"),
        ("dial_failed", 2, "agent_server"),
        ("forward_dead", 2, "agent_server"),
        ("unauthorized", 2, "agent"),
    ];
    assert_eq!(table.len(), 10);
    for (reason, hop, place) in table {
        let status = with(reason, hop, 30.0);
        assert_eq!(short(&status), [("doubtful", place, Some(reason.to_owned()))], "{reason} at hop {hop}");
        let finding = &status.findings()[0];
        assert_eq!(finding.hop, Some(hop));
        assert!(finding.text.contains(reason) && finding.text.ends_with(": why"), "{}", finding.text);
        assert_eq!(short(&with(reason, hop, RECENT_S + 1.0)), [], "{reason} at hop {hop}, long ago");
    }
}

#[test]
fn a_dead_link_is_said_once_whatever_depends_on_it() {
    let mut down = link("down");
    down["last_error"] = error("conn_lost", 0, 5.0);
    let held: Vec<_> = (0..500).map(|_| mapping("held", &[])).collect();
    let status = edge(serde_json::json!({ "links": [down, link("up")], "mappings": held }));
    assert_eq!(short(&status).len(), 501, "a link is up that does not take them");
    let mut down = link("down");
    down["last_error"] = error("conn_lost", 0, 5.0);
    let held: Vec<_> = (0..500).map(|_| mapping("held", &[])).collect();
    let status = edge(serde_json::json!({ "links": [down], "mappings": held }));
    assert_eq!(short(&status), [("bad", "sidecar_relay", Some("conn_lost".to_owned()))]);
    assert!(status.findings()[0].text.contains("opens of 500 mappings wait for it"));
}

#[test]
fn what_is_bad_comes_first() {
    let mut two = mapping("failed", &[]);
    two["name"] = "two".into();
    let status = edge(serde_json::json!({ "links": [link("up"), link("down")], "mappings": [two] }));
    let levels: Vec<_> = status.findings().into_iter().map(|f| (f.level, f.name)).collect();
    assert_eq!(levels, [(Level::Bad, "two".to_owned()), (Level::Doubtful, "relay-a".to_owned())]);
}

#[test]
fn services_blame_their_side_of_the_chain() {
    let service = |state: &str| {
        let sessions = serde_json::json!({ "open": 0, "total": 0 });
        serde_json::json!({ "name": "ledger", "target": "t:1", "state": state, "sessions": sessions })
    };
    let table = [
        ("up", "up", vec![]),
        ("up", "down", vec![("bad", "agent_server", None)]),
        ("up", "frozen", vec![("bad", "agent_server", None)]),
        ("up", "unauthorized", vec![("bad", "relay", Some("unauthorized".to_owned()))]),
        ("up", "starting", vec![("bad", "relay_agent", None)]),
        ("down", "starting", vec![("bad", "relay_agent", None)]),
    ];
    assert_eq!(table.len(), 6);
    for (of_link, state, expected) in table {
        let status = edge(serde_json::json!({ "links": [link(of_link)], "services": [service(state)] }));
        assert_eq!(short(&status), expected, "link {of_link}, service {state}");
    }
}

#[test]
fn a_relay_speaks_of_its_own_drain_and_of_who_is_missing() {
    let relay = |state: &str, agents: serde_json::Value| -> RelayStatus {
        serde_json::from_value(serde_json::json!({
            "role": "relay", "name": "relay-a", "version": "0", "uptime_s": 1, "state": state,
            "links": [ { "machine": "db-1", "address": "x", "state": "up" } ],
            "services": [ { "name": "ledger", "agents": agents } ],
        }))
        .unwrap()
    };
    let one = |state: &str| serde_json::json!([ { "machine": "db-1", "state": state } ]);
    let table = [
        (relay("up", one("up")), vec![]),
        (relay("draining", one("up")), vec![("bad", "relay")]),
        (relay("up", serde_json::json!([])), vec![("doubtful", "relay_agent")]),
        (relay("up", one("down")), vec![("doubtful", "agent_server")]),
        (relay("up", one("draining")), vec![("doubtful", "agent")]),
    ];
    assert_eq!(table.len(), 5);
    for (status, expected) in table {
        let found: Vec<_> = status.findings().iter().map(|f| (f.level.word(), f.place.word())).collect();
        assert_eq!(found, expected, "{status:?}");
        assert_eq!(status.healthy(), status.findings().iter().all(|f| f.level != Level::Bad));
    }
}

/// Both ends of a path put the blame at the same place, each counting the hops from itself.
#[test]
fn the_place_of_a_reason_is_the_same_from_both_ends() {
    let table = [
        // Reason, hop at the sidecar and hop at the agent, place; `None`: that end does not read it.
        ("conn_lost", Some(0), Some(1), Place::SidecarRelay),
        ("conn_lost", Some(1), Some(0), Place::RelayAgent),
        ("drain_deadline", Some(1), Some(1), Place::Relay),
        ("shutdown", Some(1), Some(1), Place::Relay),
        ("timeout", Some(1), Some(1), Place::Relay),
        ("overload", Some(1), None, Place::Relay),
        ("not_found", Some(1), None, Place::Relay),
        ("drain_deadline", Some(2), None, Place::Agent),
        ("shutdown", Some(2), None, Place::Agent),
        ("unauthorized", Some(2), Some(0), Place::Agent),
        ("offline", Some(1), None, Place::Agent),
        ("dial_failed", Some(2), Some(0), Place::AgentServer),
        ("forward_dead", Some(2), Some(0), Place::AgentServer),
        ("peer_reset", Some(2), Some(0), Place::AgentServer),
        ("drain_deadline", None, Some(2), Place::Sidecar),
        ("shutdown", None, Some(2), Place::Sidecar),
        ("timeout", Some(0), Some(2), Place::Sidecar),
        ("peer_reset", Some(0), Some(2), Place::ApplicationSidecar),
        ("internal", Some(0), None, Place::ApplicationSidecar),
        // A link that its own end has closed.
        ("shutdown", Some(0), None, Place::SidecarRelay),
        ("shutdown", None, Some(0), Place::RelayAgent),
        ("protocol", Some(0), None, Place::SidecarRelay),
        ("protocol", None, Some(0), Place::RelayAgent),
    ];
    assert_eq!(table.len(), 23);
    for (reason, sidecar, agent, place) in table {
        if let Some(hop) = sidecar {
            assert_eq!(
                seen_by_sidecar(Reason::from_name(reason), hop),
                place,
                "{reason} at hop {hop} of a sidecar"
            );
        }
        if let Some(hop) = agent {
            assert_eq!(
                seen_by_agent(Reason::from_name(reason), hop),
                place,
                "{reason} at hop {hop} of an agent"
            );
        }
    }
}

/// A service's fault is blamed as its agent sees it.
#[test]
fn a_recent_fault_of_a_service_is_placed_by_its_agents_hops() {
    let sessions = serde_json::json!({ "open": 0, "total": 0 });
    for (reason, hop, place) in [
        ("conn_lost", 0, "relay_agent"),
        ("conn_lost", 1, "sidecar_relay"),
        ("dial_failed", 0, "agent_server"),
    ] {
        let service = serde_json::json!({
            "name": "ledger", "target": "t:1", "state": "up", "sessions": sessions, "last_error": error(reason, hop, 3.0)
        });
        let status = edge(serde_json::json!({ "links": [link("up")], "services": [service] }));
        assert_eq!(short(&status), [("doubtful", place, Some(reason.to_owned()))], "{reason} at hop {hop}");
    }
}
