//! What `/status` and `/metrics` count of a real path.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use hopline_admin::status::{Budget, Bytes};

use crate::harness::{Conn, Kind, PATIENCE, World, WorldOptions, until};

/// The page of `/metrics` at a status address.
pub(crate) fn metrics(address: &str) -> String {
    let mut stream = UnixStream::connect(address.strip_prefix("unix:").unwrap()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Waits until all these lines are on the page.
fn wait_lines(address: &str, lines: &[&str]) {
    for line in lines {
        until(&format!("{line} at {address}"), PATIENCE, || {
            metrics(address).lines().any(|found| found == *line).then_some(())
        });
    }
}

/// Sessions, bytes, opens by result, aborts by reason and hop, at all three processes; and a killed relay is counted.
#[test]
fn what_happened_is_counted() {
    let mut world = World::start(WorldOptions {
        mappings: "  nobody: { listen: \"127.0.0.1:0\" }\n",
        relay_host: "127.0.0.12",
        ..WorldOptions::default()
    });
    let (mut app, mut server) = world.slots[0].pair(Kind::Tcp);
    app.write_all(b"question").unwrap();
    assert_eq!(server.chunk(8), b"question");
    server.write_all(b"an answer").unwrap();
    assert_eq!(app.chunk(9), b"an answer");
    let counts = world.mapping("t0").counts;
    assert_eq!(counts.bytes, Bytes { sent: 8, received: 9 });
    assert_eq!(world.service("t0").counts.bytes, Bytes { sent: 9, received: 8 });

    // The answered session has its first window, beyond what it had before, at each end of each link.
    let status = world.sidecar.status();
    let (link, all) = (status.links[0].window_bytes, status.budgets.window_bytes);
    assert_eq!((link.limit, all), (64 << 20, link));
    assert!(link.used > 0 && link.used <= link.limit, "{link:?}");
    let at_relay = world.relay.status();
    let windows = at_relay.links.iter().map(|link| link.window_bytes);
    assert_eq!(windows.fold(Budget::default(), Budget::plus), at_relay.budgets.window_bytes);
    assert!(at_relay.budgets.window_bytes.used > 0, "{at_relay:?}");

    let nobody = world.mapping("nobody").listen;
    let mut refused = Conn::connect(nobody);
    let _ = refused.read(&mut [0]);
    let relay = world.sidecar.status().links[0].relay.clone();
    wait_lines(
        &world.sidecar.admin,
        &[
            "hopline_mapping_opens_total{mapping=\"t0\",result=\"accepted\"} 1",
            "hopline_mapping_sent_bytes_total{mapping=\"t0\"} 8",
            "hopline_mapping_received_bytes_total{mapping=\"t0\"} 9",
            "hopline_mapping_open_sessions{mapping=\"t0\"} 1",
            "hopline_mapping_opens_total{mapping=\"nobody\",result=\"offline\"} 1",
            "hopline_mapping_aborts_total{mapping=\"nobody\",reason=\"offline\",hop=\"1\"} 1",
            "hopline_mapping_agents{mapping=\"t0\",state=\"up\"} 1",
            &format!("hopline_link_dials_total{{relay=\"{relay}\",result=\"up\"}} 1"),
            // Nobody serves it.
            "hopline_healthy 0",
            "hopline_findings{level=\"bad\",place=\"agent\",reason=\"offline\"} 1",
        ],
    );
    wait_lines(
        &world.agent.admin,
        &[
            "hopline_service_opens_total{service=\"t0\",result=\"accepted\"} 1",
            "hopline_service_sent_bytes_total{service=\"t0\"} 9",
        ],
    );
    wait_lines(
        &world.relay.admin,
        &["hopline_relay_links{state=\"up\"} 2", "hopline_relay_opens_total{result=\"offline\"} 1"],
    );

    world.relay.process.kill();
    // In our own words, not in those that a library has for programmers.
    world
        .sidecar
        .process
        .logged("link lost: connection lost: the peer's side of the connection ended without a goodbye");
    assert!(!world.sidecar.process.log().contains("https://"), "{}", world.sidecar.process.log());
    world.restart_relay();
    world.sidecar.wait_ready();
    wait_lines(
        &world.sidecar.admin,
        &[
            &format!("hopline_link_ends_total{{relay=\"{relay}\",cause=\"carrier_lost\"}} 1"),
            &format!("hopline_link_dials_total{{relay=\"{relay}\",result=\"up\"}} 2"),
        ],
    );
    let link = &world.sidecar.status().links[0];
    assert!(link.history.bytes.sent >= 8, "what the lost link had carried is not forgotten: {link:?}");
}
