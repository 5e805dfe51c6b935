//! Good files: what they resolve to, what is noted about them, and where the limits of size are.

use std::path::PathBuf;
use std::time::Duration;

use hopline_config::{
    BindAddress, Checked, EdgeConfig, Endpoint, Env, HostName, Listen, LogConfig, LogFormat, LogLevel,
    MAX_ENTRIES, MAX_FILE_BYTES, Protocol, RelayFileConfig, StatusAddress, StatusConfig, parse_edge,
    parse_relay,
};
use hopline_link_proto::Liveness;

fn env() -> Env {
    Env::new("app.yaml").runtime_dir("/run/user/1000")
}

fn edge(text: impl AsRef<[u8]>) -> Checked<EdgeConfig> {
    parse_edge(text.as_ref(), &env()).unwrap_or_else(|faults| panic!("{faults}"))
}

fn edge_fault(text: impl AsRef<[u8]>) -> String {
    parse_edge(text.as_ref(), &env()).expect_err("a fault").to_string()
}

fn endpoint(host: &str, port: u16) -> Endpoint {
    Endpoint { host: host.to_owned(), port }
}

const FULL: &str = r#"
relay: [relay-a.example:7443, relay-b.example:7443]   # may be left out after `join`
status: 127.0.0.1:7801
dns: ["127.0.0.1:8600", "::1", "[fd00::53]:5353"]
keepalive: nat,timeout=1m 30s
open_timeout: 20s
hold: 0s
drain: 1m
log: { format: json, level: debug, access: true }
services:
  ledger: { grpc: { tcp: 50051 }, allow: [web-1, "batch-*"] }
  audit:  { grpc: { tcp: 50051, forward: "audit.internal:50052" } }
  files:  { tcp: { tcp: 9000 } }
  mail:   { tcp: { forward: "[fd00::1]:25" } }
connect:
  ledger: { explain: on }
  audit:  { listen: "127.0.0.1:7901", open_timeout: 5s, inspect: false, outage: 0s, explain: off }
  files:  { listen: "unix:/run/app/files.sock", mode: 0660, group: app }
  mail:   { listen: "0.0.0.0:25", expose: true }
"#;

#[test]
fn a_full_file_resolves() {
    let config = edge(FULL).config;
    assert_eq!(config.relay, [endpoint("relay-a.example", 7443), endpoint("relay-b.example", 7443)]);
    let listen = StatusAddress::Tcp { host: "127.0.0.1".to_owned(), port: 7801 };
    assert_eq!(config.status, Some(StatusConfig { listen, hosts: Vec::new() }));
    assert_eq!(
        config.dns.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["127.0.0.1:8600", "[::1]:53", "[fd00::53]:5353"]
    );
    assert_eq!(config.keepalive, "nat,timeout=90s".parse().unwrap());
    assert_eq!((config.open_timeout, config.hold), (Duration::from_secs(20), Duration::ZERO));
    assert_eq!(config.drain, Duration::from_secs(60));
    assert_eq!(config.log, LogConfig { format: LogFormat::Json, level: LogLevel::Debug, access: true });

    let services: Vec<_> = config
        .services
        .iter()
        .map(|s| {
            (s.name.as_str(), s.protocol, s.target.to_string(), s.forward, s.allow.as_ref().map(Vec::len))
        })
        .collect();
    assert_eq!(
        services,
        [
            ("ledger", Protocol::Grpc, "127.0.0.1:50051".to_owned(), false, Some(2)),
            ("audit", Protocol::Grpc, "audit.internal:50052".to_owned(), true, None),
            ("files", Protocol::Tcp, "127.0.0.1:9000".to_owned(), false, None),
            ("mail", Protocol::Tcp, "[fd00::1]:25".to_owned(), true, None),
        ]
    );
    let allow = config.services[0].allow.as_ref().unwrap();
    assert!(allow[0].matches("web-1") && allow[1].matches("batch-7") && !allow[1].matches("web-1"));

    let mappings: Vec<_> = config
        .connect
        .iter()
        .map(|m| {
            (m.service.as_str(), m.listen.to_string(), m.open_timeout.as_secs(), m.mode, m.group.as_deref())
        })
        .collect();
    assert_eq!(
        mappings,
        [
            ("ledger", "unix:/run/user/1000/hopline/ledger.sock".to_owned(), 20, 0o600, None),
            ("audit", "127.0.0.1:7901".to_owned(), 5, 0o600, None),
            ("files", "unix:/run/app/files.sock".to_owned(), 20, 0o660, Some("app")),
            ("mail", "0.0.0.0:25".to_owned(), 20, 0o600, None),
        ]
    );
    let read: Vec<_> = config.connect.iter().map(|m| (m.inspect, m.explain)).collect();
    assert_eq!(read, [(true, true), (false, false), (true, false), (true, false)]);
}

#[test]
fn a_forward_that_leads_back_to_its_mapping_is_mentioned() {
    let loops = |text: &str| {
        let notices = edge(text).notices.into_iter().map(|notice| notice.to_string());
        notices.filter(|notice| notice.contains("a loop")).collect::<Vec<_>>()
    };
    let direct = "services: { a: { tcp: { tcp: 7001 } } }\nconnect: { a: { listen: \"localhost:7001\" } }\n";
    assert_eq!(
        loops(direct),
        [
            "app.yaml:2:25: connect.a.listen: a loop: the agent of this file dials 127.0.0.1:7001 for a, and that \
          leads back to this mapping"
        ]
    );
    let ring = "services:\n  a: { tcp: { forward: \"[::1]:7002\" } }\n  b: { tcp: { tcp: 7001 } }\n\
                connect:\n  a: { listen: \"0.0.0.0:7001\", expose: true }\n  b: { listen: \"localhost:7002\" }\n";
    assert_eq!(loops(ring).len(), 2, "{:?}", loops(ring));
    for harmless in [
        // Another port, another service's mapping, an address elsewhere, a free port.
        direct.replace("localhost:7001", "localhost:7002"),
        direct.replace("connect: { a:", "connect: { b:"),
        direct.replace("tcp: 7001", "forward: \"db.example:7001\""),
        direct.replace("localhost:7001", "127.0.0.1:0"),
        ring.replace("tcp: 7001", "tcp: 7003"),
    ] {
        assert_eq!(loops(&harmless), Vec::<String>::new(), "{harmless}");
    }
}

#[test]
fn notices_say_what_may_surprise() {
    let notices: Vec<_> = edge(FULL).notices.iter().map(ToString::to_string).collect();
    assert_eq!(
        notices,
        [
            "app.yaml:12:26: services.audit.grpc.tcp: only names the service's port: the agent dials \
             audit.internal:50052, as forward: says",
            "app.yaml:19:21: connect.mail.listen: exposed: whoever reaches this address can dial the service",
        ]
    );
    let other = "
services: { a: { tcp: { tcp: 1 }, allow: [] } }
connect:
  a: { mode: 0666 }
  b: { group: app }
  c: { group: 1000, mode: 0o660 }
";
    let notices: Vec<_> = edge(other).notices.iter().map(ToString::to_string).collect();
    assert_eq!(
        notices,
        [
            "app.yaml:2:42: services.a.allow: an empty list: no machine may dial this service",
            "app.yaml:4:14: connect.a.mode: every user of this machine can dial this service",
            "app.yaml:5:15: connect.b.group: the group can't dial unless mode: says so: write mode: 0660",
        ]
    );
}

#[test]
fn defaults_are_filled_in() {
    let Checked { config, notices } = edge("connect: { ledger: {} }");
    assert!(notices.is_empty());
    assert_eq!((config.relay.len(), config.status, config.services.len()), (0, None, 0));
    assert_eq!(config.keepalive, Liveness::DEFAULT);
    assert_eq!((config.open_timeout, config.hold), (Duration::from_secs(10), Duration::from_secs(10)));
    assert_eq!(config.drain, Duration::from_secs(10));
    assert_eq!(config.log, LogConfig { format: LogFormat::Text, level: LogLevel::Info, access: false });
    assert_eq!(config.connect[0].listen, Listen::Unix("/run/user/1000/hopline/ledger.sock".into()));
    assert_eq!(config.connect[0].open_timeout, Duration::from_secs(10));
}

#[test]
fn a_relays_file_resolves() {
    let text = "
listen: 0.0.0.0:7443
state: /var/lib/hopline
admin: unix:/run/hopline/admin.sock
keepalive: fast
answer_timeout: 3s
hold: 4s
drain: 5s
log: { level: warn }
";
    let want = RelayFileConfig {
        listen: Some(BindAddress { host: "0.0.0.0".to_owned(), port: 7443 }),
        state: Some(PathBuf::from("/var/lib/hopline")),
        admin: Some(StatusConfig {
            listen: StatusAddress::Unix("/run/hopline/admin.sock".into()),
            hosts: Vec::new(),
        }),
        keepalive: Some(Liveness::FAST),
        hold: Some(Duration::from_secs(4)),
        drain: Some(Duration::from_secs(5)),
        answer_timeout: Some(Duration::from_secs(3)),
        log: LogConfig { format: LogFormat::Text, level: LogLevel::Warn, access: false },
    };
    assert_eq!(parse_relay(text.as_bytes(), &env()).unwrap().config, want);
    for empty in ["", "# nothing\n", "{}", "---\n...\n"] {
        assert_eq!(
            parse_relay(empty.as_bytes(), &env()).unwrap().config,
            RelayFileConfig::default(),
            "{empty:?}"
        );
    }
}

#[test]
fn forms_of_the_same_file_are_the_same() {
    let want = edge("status: 127.0.0.1:1\nconnect: { ledger: { open_timeout: 1m 30s } }\n").config;
    for text in [
        "\u{feff}status: 127.0.0.1:1\nconnect: { ledger: { open_timeout: 1m 30s } }\n",
        "status: 127.0.0.1:1\r\nconnect:\r\n  ledger:\r\n    open_timeout: 1m 30s\r\n",
        "---\n\"status\": '127.0.0.1:1'\nconnect: {ledger: {open_timeout: \"1m 30s\"}}\n...\n",
        "{\"status\":\"127.0.0.1:1\",\"connect\":{\"ledger\":{\"open_timeout\":\"90s\"}}}",
        "connect:\n  ledger:\n    open_timeout: >-\n      1m\n      30s\nstatus: |-\n  127.0.0.1:1\n",
    ] {
        assert_eq!(edge(text).config, want, "{text:?}");
    }
}

#[test]
fn a_runtime_dir_that_is_no_absolute_path_counts_as_not_set() {
    for dir in ["", "run/user/1000"] {
        let faults = parse_edge(b"connect: { a: {} }", &Env::new("f").runtime_dir(dir)).unwrap_err();
        assert!(faults.to_string().contains("XDG_RUNTIME_DIR is not set"), "{dir:?}: {faults}");
    }
    let long = format!("/{}", "d".repeat(100));
    let faults = parse_edge(b"connect: { a: {} }", &Env::new("f").runtime_dir(long)).unwrap_err();
    assert_eq!(
        faults.to_string(),
        "f:1:15: connect.a: its default path has 116 bytes, a unix socket at most 107: write listen:"
    );
}

#[test]
fn text_that_is_not_utf8_is_refused_where_it_begins() {
    assert_eq!(
        edge_fault(b"connect:\n  \xc3\xa4\xff: {}\n"),
        "app.yaml:2:4: not UTF-8 text: save the file as UTF-8"
    );
    assert_eq!(edge_fault(b"\xff\xfec\0"), "app.yaml:1:1: not UTF-8 text: save the file as UTF-8");
    assert_eq!(edge_fault(b"a\0b: c"), "app.yaml:1:2: not YAML: found unprintable character");
}

#[test]
fn large_files_are_read_up_to_the_limits() {
    let mut text = "services:\n".to_owned();
    for i in 0..MAX_ENTRIES {
        text += &format!(
            "  s{i}: {{ grpc: {{ tcp: 50051, forward: \"host-{i}:50051\" }}, allow: [web-1, \"b-*\"] }}\n"
        );
    }
    text += "connect:\n";
    for i in 0..MAX_ENTRIES {
        text += &format!(
            "  s{i}: {{ open_timeout: 5s, mode: 0600, outage: 0s, explain: off, inspect: false }}\n"
        );
    }
    let config = edge(&text).config;
    assert_eq!((config.services.len(), config.connect.len()), (MAX_ENTRIES, MAX_ENTRIES));

    text += "  one-more: {}\n";
    assert_eq!(edge_fault(&text), "app.yaml:4099:3: connect: 4097 entries; at most 4096 are allowed");

    let mut padded = "connect: { a: {} }\n#".to_owned();
    padded += &"x".repeat(MAX_FILE_BYTES - padded.len());
    edge(&padded);
    padded.push('x');
    assert_eq!(edge_fault(&padded), "app.yaml:1:1: the file has 1048577 bytes; at most 1048576 are read");

    let relays = (0..1_025).map(|i| format!("r{i}:1")).collect::<Vec<_>>().join(", ");
    let text = format!("connect: {{ a: {{}} }}\nrelay: [{relays}]");
    assert_eq!(edge_fault(text), "app.yaml:2:8: relay: 1025 entries; at most 1024 are allowed");
}

#[test]
fn all_of_many_faults_come_out_up_to_the_limit() {
    let mut text = "connect: { a: {} }\n".to_owned();
    for i in 0..1_200 {
        text += &format!("key{i}: 1\n");
    }
    let faults = parse_edge(text.as_bytes(), &env()).unwrap_err();
    assert_eq!((faults.as_slice().len(), faults.omitted()), (1_000, 200));
    let places: Vec<_> = faults.into_iter().map(|f| (f.line, f.column)).collect();
    assert_eq!(places, (2..1_002).map(|line| (line, 1)).collect::<Vec<_>>());
}

#[test]
fn a_status_address_may_have_host_names() {
    let text = b"status: { listen: localhost:7801, hosts: [status.example, Web-1] }\nservices: { a: { tcp: { tcp: 1 } } }";
    let status = parse_edge(text, &env()).unwrap().config.status.unwrap();
    assert_eq!(status.listen.to_string(), "localhost:7801");
    let hosts: Vec<_> = status.hosts.iter().map(HostName::as_str).collect();
    assert_eq!(hosts, ["status.example", "Web-1"]);
    let relay = parse_relay(b"admin: { listen: '[::1]:0', hosts: [a] }", &env()).unwrap().config;
    assert_eq!(relay.admin.unwrap().hosts.len(), 1);
}

/// A relative path counts with the folder that it lies below.
#[test]
fn the_whole_path_of_a_socket_is_bounded() {
    let text = "connect: { a: { listen: \"unix:run/a.sock\" } }";
    let below = |length: usize| {
        parse_edge(text.as_bytes(), &env().working_dir(format!("/{}", "x".repeat(length - 1))))
    };
    assert!(below(107 - "/run/a.sock".len()).is_ok());
    let fault = below(108 - "/run/a.sock".len()).unwrap_err().to_string();
    let words = "connect.a.listen: \"unix:run/a.sock\": the whole path has 108 bytes, a unix socket's at most 107; it lies";
    assert!(fault.contains(words), "{fault}");
}
