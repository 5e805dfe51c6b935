use super::*;

/// The example of the stable part, as published.
const EDGE: &str = r#"{ "machine": "web-1", "version": "0.1.0", "uptime_s": 12.3,
  "links":    [ { "peer": "relay-a", "address": "192.0.2.1:7443", "state": "up", "rtt_us": 180, "liveness": "default", "last_heard_ms": 420, "sessions": 1 } ],
  "mappings": [ { "name": "ledger", "listen": "unix:/run/user/1000/hopline/ledger.sock", "state": "ready", "sessions": { "open": 1, "total": 7 }, "inspect": "h2c",
                  "hints": [ { "kind": "client_keepalive", "message": "...", "evidence": { "idle_pings_under_15s": 2, "too_many_pings_goaway": 1 }, "count": 1 } ],
                  "last_error": { "reason": "drain_deadline", "hop": 1, "message": "...", "age_s": 3.1 } } ],
  "services": [ { "name": "audit", "target": "audit.internal:50051", "state": "up", "sessions": { "open": 0, "total": 3 }, "last_error": null } ] }"#;

/// Every value of `part` is in `whole`, at the same place.
fn assert_within(part: &serde_json::Value, whole: &serde_json::Value, place: &str) {
    match (part, whole) {
        (serde_json::Value::Object(part), serde_json::Value::Object(whole)) => {
            for (key, value) in part {
                let found = whole.get(key).unwrap_or_else(|| panic!("{place}.{key} is missing"));
                assert_within(value, found, &format!("{place}.{key}"));
            }
        }
        (serde_json::Value::Array(part), serde_json::Value::Array(whole)) => {
            assert_eq!(part.len(), whole.len(), "{place}");
            for (index, (part, whole)) in part.iter().zip(whole).enumerate() {
                assert_within(part, whole, &format!("{place}[{index}]"));
            }
        }
        (part, whole) => assert_eq!(part, whole, "{place}"),
    }
}

#[test]
fn the_stable_part_reads_and_writes_back() {
    let given: serde_json::Value = serde_json::from_str(EDGE).unwrap();
    let Status::Edge(edge) = Status::from_value(given.clone()).unwrap() else { panic!("an edge") };
    assert_eq!(edge.links[0].rtt_us, Some(180));
    assert_eq!(edge.mappings[0].hints[0].evidence["too_many_pings_goaway"], 1);
    assert_eq!(edge.mappings[0].inspect, Inspect::H2c);
    let written = serde_json::to_value(&edge).unwrap();
    assert_within(&given, &written, "$");
    assert_eq!(written["role"], "edge");
    assert_eq!(Status::from_value(written).unwrap(), Status::Edge(edge));
}

#[test]
fn a_missing_fault_is_written_as_null() {
    let edge: EdgeStatus = serde_json::from_str(EDGE).unwrap();
    let written = serde_json::to_value(&edge).unwrap();
    assert!(written["services"][0].as_object().unwrap()["last_error"].is_null());
}

#[test]
fn unknown_fields_and_words_are_read() {
    let newer = serde_json::json!({
        "role": "edge", "machine": "m", "version": "9", "uptime_s": 1, "flux": { "a": 1 },
        "mappings": [{ "name": "n", "listen": "l", "state": "hovering", "sessions": { "open": 0, "total": 0, "lost": 1 },
                       "inspect": "telepathic" }],
        "services": [{ "name": "n", "target": "t", "state": "asleep", "sessions": { "open": 0, "total": 0 } }],
        "links": [{ "peer": "r", "address": "a", "state": "entangled" }],
    });
    let Status::Edge(edge) = Status::from_value(newer).unwrap() else { panic!("an edge") };
    assert_eq!(edge.mappings[0].state, MappingState::Unknown);
    assert_eq!(edge.mappings[0].inspect, Inspect::Unknown);
    assert_eq!(edge.services[0].state, ServiceState::Unknown);
    assert_eq!(edge.links[0].state, LinkState::Unknown);
}

#[test]
fn a_relay_reads_back() {
    let relay = RelayStatus {
        role: Role::Relay,
        name: "relay-a".into(),
        version: "0.1.0".into(),
        uptime_s: 7.5,
        state: RelayState::Draining,
        listen: vec!["[::]:7443".into()],
        listen_error: None,
        links: vec![RelayLink {
            machine: "web-1".into(),
            address: "192.0.2.7:40000".into(),
            state: LinkState::Up,
            rtt_us: None,
            liveness: "nat".into(),
            last_heard_ms: Some(3),
            sessions: 2,
            window_bytes: Budget::default(),
            instance: "00ff".into(),
        }],
        services: vec![RelayService {
            name: "ledger".into(),
            agents: vec![RelayAgent { machine: "db-1".into(), state: AgentState::Up, sessions: 2 }],
        }],
        sessions: SessionCounts { open: 2, total: 9 },
        opens: Opens { accepted: 9, refused: BTreeMap::from([("not_found".to_owned(), 3)]) },
        aborts: vec![],
        bytes: Bytes::default(),
        link_ends: BTreeMap::new(),
        budgets: RelayBudgets::default(),
        limits_reached: BTreeMap::new(),
    };
    let written = serde_json::to_value(&relay).unwrap();
    assert_eq!(written["role"], "relay");
    assert_eq!(written["state"], "draining");
    assert_eq!(written["opens"]["refused"]["not_found"], 3);
    assert_eq!(Status::from_value(written).unwrap(), Status::Relay(relay));
}

#[test]
fn other_json_is_no_status() {
    let table = [
        ("[]", "not a hopline status"),
        ("{}", "machine"),
        (r#"{"role":"toaster"}"#, "toaster"),
        (r#"{"role":7}"#, "7"),
        (r#"{"role":"relay"}"#, "name"),
        (r#"{"machine":"m","version":"v","uptime_s":"long"}"#, "not a hopline status"),
    ];
    assert_eq!(table.len(), 6);
    for (json, wanted) in table {
        let error = Status::from_value(serde_json::from_str(json).unwrap()).unwrap_err().to_string();
        assert!(error.contains(wanted), "{json}: {error}");
    }
}

#[test]
fn seconds_are_to_a_tenth() {
    assert_eq!(seconds(Duration::from_millis(3_149)).to_string(), "3.1");
    assert_eq!(seconds(Duration::ZERO).to_string(), "0");
}
