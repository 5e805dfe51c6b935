//! What is served is what the published schema says, in every state.

use hopline_admin::status::Status;
use serde_json::{Value, json};

use super::schema::faults;
use super::support::Running;

fn edge(link: &str, mapping: &str, service: &str, agent: &str) -> Value {
    let error = json!({ "reason": "conn_lost", "hop": 1, "message": "m", "age_s": 3.5 });
    json!({
        "machine": "web-1", "version": "0.1.0", "uptime_s": 1.5,
        "links": [ { "peer": "relay-a", "relay": "a:1", "address": "b:2", "state": link, "last_error": error } ],
        "mappings": [ {
            "name": "ledger", "listen": "unix:x", "state": mapping, "sessions": { "open": 0, "total": 1 }, "inspect": "h2c",
            "hints": [ { "kind": "no_deadline", "message": "m", "evidence": { "calls": 3 }, "count": 1 } ],
            "agents": [ { "machine": "db-1", "relay": "relay-a", "state": agent } ],
            "aborts": [ { "reason": "timeout", "hop": 0, "count": 2 } ], "opens": { "accepted": 1, "refused": { "offline": 2 } },
        } ],
        "services": [ {
            "name": "audit", "target": "t:1", "state": service, "sessions": { "open": 0, "total": 1 }, "last_error": error,
        } ],
        "limits_reached": { "sessions": 1 },
    })
}

fn relay(state: &str, link: &str, agents: Value) -> Value {
    json!({
        "role": "relay", "name": "relay-a", "version": "0.1.0", "uptime_s": 1, "state": state,
        "links": [ { "machine": "db-1", "address": "x", "state": link, "rtt_us": 3, "last_heard_ms": 4 } ],
        "services": [ { "name": "ledger", "agents": agents } ], "link_ends": { "dead_peer": 1 },
    })
}

/// Every state of everything; each of them is seen once at least.
fn every_state() -> Vec<Value> {
    let agent = |state: &str| json!([ { "machine": "db-1", "state": state, "sessions": 1 } ]);
    let mut all = Vec::new();
    for link in ["connecting", "up", "suspect", "draining", "down"] {
        for mapping in ["starting", "ready", "held", "degraded", "failed"] {
            all.push(edge(link, mapping, "up", "up"));
        }
        for service in ["starting", "up", "down", "frozen", "unauthorized"] {
            all.push(edge(link, "ready", service, "up"));
        }
        for agent in ["up", "suspect", "down", "lost"] {
            all.push(edge(link, "ready", "up", agent));
        }
        all.push(relay("up", link, json!([])));
    }
    for state in ["up", "down", "draining"] {
        all.push(relay("draining", "up", agent(state)));
    }
    all
}

#[tokio::test]
async fn what_is_served_is_what_the_schema_says() {
    let server = Running::tcp().await;
    let all = every_state();
    assert_eq!(all.len(), 78);
    for given in all {
        *server.stage.status.lock().unwrap() = Some(Status::from_value(given.clone()).unwrap());
        let answer = server.get("/status").await;
        let served: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(faults(&served), Vec::<String>::new(), "{given}");
    }
}

#[tokio::test]
async fn the_schema_refuses_what_is_no_status() {
    let server = Running::tcp().await;
    let answer = server.get("/status").await;
    let good: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(faults(&good), Vec::<String>::new());
    let table = [
        ("/machine", json!(7), "no \"string\""),
        ("/healthy", json!("yes"), "no \"boolean\""),
        ("/uptime_s", json!(-1), "too small"),
        ("/role", json!("toaster"), "none of"),
        ("/findings/0/place", json!("nowhere"), "none of"),
        ("/findings/0/hop", json!(1.5), "no [\"integer\",\"null\"]"),
        ("/budgets", json!({}), "held_opens\" is missing"),
        ("/links", json!({}), "no \"array\""),
        ("/limits_reached", json!({ "sessions": "many" }), "no \"integer\""),
    ];
    assert_eq!(table.len(), 9);
    for (place, wrong, expected) in table {
        let mut bad = good.clone();
        *bad.pointer_mut(place).unwrap() = wrong;
        let faults = faults(&bad);
        assert!(faults.iter().any(|fault| fault.contains(expected)), "{place}: {faults:?}");
    }
    let mut more = good;
    more["flux"] = json!(1);
    assert_eq!(faults(&more), ["$: flux is not in the schema"]);
}
