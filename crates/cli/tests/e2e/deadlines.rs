//! P2 by its numbers. The same calls are made directly, in turn with those through the path, and medians are compared:
//! what a busy machine takes from one it takes from the other.

use std::time::Duration;

use hopline_demo::now_us;
use hopline_demo::proto::v1::{DeadlineRequest, NeverRequest};
use tonic::{Code, Request};

use crate::grpc::{Client, app, client, client_at, echo, ended, server};
use crate::harness::{Kind, shared};

/// Calls of each kind, direct and through the path, of which a round takes the median.
const CALLS: u64 = 7;
/// A figure holds when it does in one of so many rounds. A path that is too slow is too slow in each.
const ROUNDS: u64 = 8;
/// Between two calls, so that they are not all due in one moment.
const APART: Duration = Duration::from_millis(30);
/// What the path may add where the same calls, made directly, are later than the promise.
const OVER_DIRECT_MS: f64 = 5.0;

/// In milliseconds, in this order: what a 3 s deadline has lost when its handler begins; how late a 1 s deadline ends the
/// call at the client, and at the handler; how long after a cancel the handler ends.
const FIGURES: [(&str, f64); 4] =
    [("lost of 3 s", 10.0), ("client's end", 10.0), ("handler's end", 10.0), ("end after a cancel", 20.0)];

#[test]
fn p2_deadlines_within_10_ms_or_direct_and_5() {
    let world = shared();
    for kind in Kind::BOTH {
        let slot = world.slot();
        let _server = server(slot);
        app().block_on(async {
            let direct = client_at(slot.server.local_addr().unwrap()).await;
            let path = client(slot, kind).await;
            let mut held = [false; FIGURES.len()];
            let mut seen = String::new();
            for round in 0..ROUNDS {
                let [direct, path] = medians(round, &direct, &path).await;
                for (index, (what, bound)) in FIGURES.into_iter().enumerate() {
                    held[index] |= path[index] <= bound.max(direct[index] + OVER_DIRECT_MS);
                    let line = format!("{kind:?}, round {round}: {what}: {:.1}, direct", path[index]);
                    seen += &format!("{line} {:.1}\n", direct[index]);
                }
                if held == [true; FIGURES.len()] {
                    return;
                }
            }
            panic!("{seen}");
        });
        world.settled(slot);
        assert_eq!(world.mapping(&slot.name(kind)).last_error, None);
    }
}

/// The medians of one round: direct, and through the path.
async fn medians(round: u64, direct: &Client, path: &Client) -> [[f64; FIGURES.len()]; 2] {
    // P2 speaks of a channel that has made a call.
    for client in [direct, path] {
        echo(&mut client.clone(), vec![2; 100]).await;
    }
    let mut calls = Vec::new();
    for call in 0..CALLS {
        // Who goes first changes from call to call.
        let mut both = [(0, direct.clone()), (1, path.clone())];
        both.rotate_left(usize::from(call % 2 == 1));
        for (way, client) in both {
            let id = 1 + 2 * (2 * (round * CALLS + call) + way);
            calls.push((way, tokio::spawn(figures(client, id))));
            tokio::time::sleep(APART).await;
        }
    }
    let mut all = [[(); FIGURES.len()].map(|()| Vec::new()), [(); FIGURES.len()].map(|()| Vec::new())];
    for (way, call) in calls {
        for (figure, all) in call.await.unwrap().into_iter().zip(&mut all[usize::try_from(way).unwrap()]) {
            all.push(figure);
        }
    }
    all.map(|figures| {
        figures.map(|mut values| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        })
    })
}

async fn figures(client: Client, id: u64) -> [f64; FIGURES.len()] {
    let (lost, ends, cancelled) =
        tokio::join!(lost(client.clone()), never(client.clone(), id), cancel(client, id + 1));
    [lost, ends.0, ends.1, cancelled]
}

/// The header alone would not show time that was lost on the way, so the handler's begin counts too.
async fn lost(mut client: Client) -> f64 {
    let mut request = Request::new(DeadlineRequest {});
    request.set_timeout(Duration::from_secs(3));
    let called_us = now_us();
    let reply = client.deadline(request).await.unwrap().into_inner();
    let left_us = reply.left_us.unwrap();
    assert!(left_us <= 3_000_000, "{left_us} us left of 3 s");
    ms(3_000_000 - left_us).max(ms(reply.began_us - called_us))
}

async fn never(mut client: Client, call_id: u64) -> (f64, f64) {
    let mut request = Request::new(NeverRequest { call_id });
    request.set_timeout(Duration::from_secs(1));
    let due_us = now_us() + 1_000_000;
    // tonic reports a deadline of its own as cancelled.
    assert_eq!(client.never(request).await.unwrap_err().code(), Code::Cancelled);
    let client_us = now_us();
    let handler_us = ended(&mut client, call_id).await;
    for (who, at) in [("client", client_us), ("handler", handler_us)] {
        assert!(at + 10_000 >= due_us, "the {who} ended {} us before its deadline", due_us - at);
    }
    (ms(client_us.saturating_sub(due_us)), ms(handler_us.saturating_sub(due_us)))
}

async fn cancel(mut client: Client, call_id: u64) -> f64 {
    let mut own = client.clone();
    let call = own.never(NeverRequest { call_id });
    tokio::time::timeout(Duration::from_millis(500), call).await.expect_err("the handler never returns");
    let cancelled_us = now_us();
    ms(ended(&mut client, call_id).await.saturating_sub(cancelled_us))
}

fn ms(us: u64) -> f64 {
    Duration::from_micros(us).as_secs_f64() * 1e3
}
