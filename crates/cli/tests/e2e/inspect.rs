//! What the sidecar reads in passing: hints, and cuts that say why.

use std::io::{Read as _, Write as _};

use hopline_admin::status::{FarAgent, FarState, Hint, Inspect};
use hopline_demo::proto::v1::{EchoRequest, NeverRequest, TickRequest};
use tonic::Code;

use crate::ends::fill;
use crate::grpc::{app, client, echo, server};
use crate::harness::{Kind, PATIENCE, World, WorldOptions, until};

fn hint(world: &World, mapping: &str, kind: &str) -> Option<Hint> {
    world.mapping(mapping).hints.into_iter().find(|hint| hint.kind == kind)
}

/// P18: calls without a deadline are a hint with its numbers; calls with one, on a channel that is kept, are none. It is
/// told what kind of thing the application speaks.
#[test]
fn p18_calls_without_a_deadline_are_a_hint() {
    let world = World::start(WorldOptions { slots: 2, ..WorldOptions::default() });
    let (healthy, careless) = (&world.slots[0], &world.slots[1]);
    let _servers = [server(healthy), server(careless)];
    assert_eq!(world.mapping("t1").inspect, Inspect::Unknown);
    let app = app();
    // The channels stay open for as long as the test looks.
    let _channels = app.block_on(async {
        let mut careful = client(healthy, Kind::Tcp).await;
        for _ in 0..3 {
            let mut request = tonic::Request::new(EchoRequest { payload: b"hello".to_vec().into() });
            request.set_timeout(PATIENCE);
            careful.echo(request).await.unwrap();
        }
        let mut without = client(careless, Kind::Tcp).await;
        for _ in 0..2 {
            echo(&mut without, b"hello".to_vec()).await;
        }
        [careful, without]
    });
    let hint = until("the hint is there", PATIENCE, || hint(&world, "t1", "no_deadline"));
    assert_eq!((hint.evidence["calls"], hint.evidence["calls_without_deadline"]), (2, 2), "{hint:?}");
    assert_eq!(world.mapping("t1").inspect, Inspect::H2c);
    assert_eq!((world.mapping("t0").inspect, world.mapping("t0").hints), (Inspect::H2c, Vec::new()));
}

/// P18: an application that does not even read its socket is told so, however large its windows are.
#[test]
fn p18_a_socket_that_is_not_read_is_a_hint() {
    /// Windows of 2 GiB, and a request on stream 1: POST, http, /.
    const REQUEST: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\
        \x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x7f\xff\xff\xff\
        \x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\xff\x00\x00\
        \x00\x00\x03\x01\x05\x00\x00\x00\x01\x83\x86\x84";
    /// Settings, response headers, and the head of 16 MiB of data: more than everything between the two can hold.
    const RESPONSE: &[u8] = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00\
        \x00\x00\x01\x01\x04\x00\x00\x00\x01\x88\
        \xff\xff\xff\x00\x00\x00\x00\x00\x01";
    let world = World::start(WorldOptions::default());
    for (kind, mapping) in [(Kind::Tcp, "t0"), (Kind::Unix, "u0")] {
        let (mut app, mut server) = world.slots[0].pair(kind);
        app.write_all(REQUEST).unwrap();
        server.read_exact(&mut [0; REQUEST.len()]).unwrap();
        server.write_all(RESPONSE).unwrap();
        let hint = until("the hint is there", PATIENCE, || {
            // A busy machine may take more than the once that it seemed full.
            fill(&mut server);
            hint(&world, mapping, "app_not_reading")
        });
        assert_eq!(hint.evidence["stalls_over_5s"], 1, "{hint:?}");
        assert_eq!(world.mapping(mapping).inspect, Inspect::H2c);
    }
}

/// P19: with `explain: on` a call that a fault cuts ends with the reason, before and after its response has begun.
#[test]
fn p19_a_cut_says_which_hop_died() {
    let options = WorldOptions { mapping_keys: ", explain: on", ..WorldOptions::default() };
    let mut world = World::start(options);
    let _server = server(&world.slots[0]);
    for kind in Kind::BOTH {
        // Else the sidecar leaves it to the relay which agent it is, and can't name it.
        let is_up = |agent: &FarAgent| agent.state == FarState::Up;
        until("the sidecar knows the agent", PATIENCE, || {
            world.mapping(&world.slots[0].name(kind)).agents.iter().any(is_up).then_some(())
        });
        app().block_on(async {
            let mut channel = client(&world.slots[0], kind).await;
            // More than is kept of a young session, so that it is not taken up again.
            for _ in 0..2 {
                echo(&mut channel, vec![7; 128 << 10]).await;
            }
            let one_and_then_idle = TickRequest { call_id: 0, count: 0, interval_ms: 0 };
            let mut ticks = channel.tick(one_and_then_idle).await.unwrap().into_inner();
            assert!(ticks.message().await.unwrap().is_some());
            let mut unanswered = channel.clone();
            let never = tokio::spawn(async move { unanswered.never(NeverRequest { call_id: 0 }).await });
            // The request is on its way before the answer to a later one is back.
            tokio::task::yield_now().await;
            echo(&mut channel, vec![7]).await;
            world.agent.process.kill();
            for status in [ticks.message().await.unwrap_err(), never.await.unwrap().unwrap_err()] {
                assert_eq!(status.code(), Code::Unavailable, "{status:?}");
                assert_eq!(status.message(), "hopline: conn_lost at hop 1, relay-a to agent");
            }
        });
        world.restart_agent();
    }
}

/// Without it such a call ends as on any broken connection.
#[test]
fn p19_off_by_default() {
    let world = World::start(WorldOptions::default());
    let _server = server(&world.slots[0]);
    app().block_on(async {
        let mut channel = client(&world.slots[0], Kind::Tcp).await;
        for _ in 0..2 {
            echo(&mut channel, vec![7; 128 << 10]).await;
        }
        let one_and_then_idle = TickRequest { call_id: 0, count: 0, interval_ms: 0 };
        let mut ticks = channel.tick(one_and_then_idle).await.unwrap().into_inner();
        assert!(ticks.message().await.unwrap().is_some());
        world.agent.process.kill();
        let status = ticks.message().await.unwrap_err();
        assert!(status.code() == Code::Unknown && !status.message().contains("hopline"), "{status:?}");
    });
}
