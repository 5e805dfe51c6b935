//! Calls of real gRPC clients: F20, F61.

use serde_json::json;

use super::super::{Case, Figure, Scenario};
use super::kit::{BASE, SOON, figure};
use crate::result::Bound;
use crate::world::Way;

/// How many calls are cancelled.
const CALLS: u32 = 100;

const CANCELS: &[Figure] = &[
    figure("ended", "handlers that ended, of 100", "", Bound::Within(100.0, 100.0)),
    figure(
        "last_ms",
        "the last handler's end after its call began",
        "ms",
        Bound::AtMostOrDirectPlus(520.0, 20.0),
    ),
    figure("p50_ms", "the median", "ms", Bound::None),
];
const RECORDS: &[Figure] = &[
    figure("status", "status", "", Bound::Word(&["OK"])),
    figure("client", "bytes that the client has of 4 MiB", "", Bound::Within(4_194_304.0, 4_194_304.0)),
    figure("server", "bytes that the server has", "", Bound::Within(4_194_304.0, 4_194_304.0)),
    figure("seconds", "took", "s", Bound::None),
];

pub(in super::super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "f20-cancels-reach-handlers",
        promise: "F20",
        what: "100 calls on a channel that has made one, 20 a second, each cancelled after 500 ms.",
        figures: CANCELS,
        ways: &[Way::Direct, Way::Unix],
        speaks_grpc: true,
        seconds: 10,
        run: cancels,
        ..BASE
    },
    Scenario {
        name: "f61-grpc-of-tiny-messages",
        promise: "F61",
        what: "4 MiB each way in gRPC messages of 60 bytes.",
        figures: RECORDS,
        ways: &[Way::Direct, Way::Unix],
        speaks_grpc: true,
        seconds: 30,
        run: records,
        ..BASE
    },
];

fn cancels(case: &mut Case<'_>) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world()?;
    let server = world.start_server(&language)?;
    let target = world.target();
    let client = world.start_client("client", &language, &target, &[])?;
    world.app(client).echo("warm")?;
    for number in 0..CALLS {
        world.app(client).call(&format!("call {number}"), "never", json!({"cancel_after_ms": 500}))?;
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let mut times = Vec::new();
    for number in 0..CALLS {
        let call = format!("call {number}");
        let start = world.app(client).expect("start", &call, SOON)?;
        let wanted = |event: &crate::app::Event| event.kind == "handler_end" && event.call == call;
        if let Some(end) = world.app(server).find(SOON, wanted)? {
            times.push(end.mono_ms - start.mono_ms);
        }
    }
    times.sort_by(f64::total_cmp);
    #[expect(clippy::cast_precision_loss, reason = "a hundred calls")]
    case.number("ended", times.len() as f64);
    case.number("last_ms", times.last().copied().unwrap_or(f64::NAN));
    case.number("p50_ms", times.get(times.len() / 2).copied().unwrap_or(f64::NAN));
    Ok(())
}

fn records(case: &mut Case<'_>) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world()?;
    let server = world.start_server(&language)?;
    let target = world.target();
    let client = world.start_client("client", &language, &target, &[])?;
    let bytes = 4 << 20;
    let call = json!({"seed": 7, "send": bytes, "receive": bytes, "chunk": 60});
    world.app(client).call("records", "check", call)?;
    let start = world.app(client).expect("start", "records", SOON)?;
    let end = world.app(client).expect("end", "records", SOON * 3)?;
    let handler = world.app(server).expect("handler_end", "records", SOON)?;
    case.word("status", end.text("status"));
    #[expect(clippy::cast_precision_loss, reason = "4 MiB")]
    for (id, event) in [("client", &end), ("server", &handler)] {
        case.number(id, event.count("received") as f64);
    }
    case.number("seconds", (end.mono_ms - start.mono_ms) / 1e3);
    Ok(())
}
