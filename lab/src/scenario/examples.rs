//! The clients of `examples/grpc`, which docs/grpc-settings.md shows: run as they stand, while the chain breaks.

use std::time::Duration;

use anyhow::Context as _;
use rustix::process::Signal;

use super::hints::{hints, kinds};
use super::streams::SOON;
use super::{Case, Figure, Pace, Scenario};
use crate::result::Bound;
use crate::world::{Way, World};
use crate::{apps, shell, status};

/// How long a client calls, and when the relay and the agent are killed meanwhile.
const SECONDS: &str = "25";
const RELAY: Duration = Duration::from_secs(8);
const AGENT: Duration = Duration::from_secs(7);

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "grpc-settings",
    promise: "P7",
    what: "The client of examples/grpc, file by file as docs/grpc-settings.md shows it, calls for 25 s; the relay is killed \
           and started after 8 s, the agent after 15 s. Its retries hide both, and no hint shows.",
    figures: &[
        figure("good", "calls that went well", Bound::AtLeast(50.0)),
        figure("failed", "calls that failed", Bound::AtMost(0.0)),
        figure("hints", "hints in /status", Bound::Word(&["none"])),
        figure("inspect", "what the mapping says of the connection", Bound::Word(&["h2c"])),
    ],
    ways: &[Way::Unix, Way::Tcp],
    speaks_grpc: true,
    pace: Pace::Waits,
    runs: 1,
    seconds: 40,
    smoke: false,
    open: None,
    run: settings,
}];

const fn figure(id: &'static str, what: &'static str, bound: Bound) -> Figure {
    Figure { id, what, unit: "", article: "", bound }
}

fn settings(case: &mut Case<'_>) -> anyhow::Result<()> {
    let name = case.language()?.name;
    let language = name.split('-').next().unwrap_or_default();
    let mut client = apps::example(language)?;
    let mut server = apps::example("server")?;
    let mut world = case.world()?;
    let port = world.served().rsplit(':').next().context("a port")?.to_owned();
    server.push(port);
    world.start_program("db", "server", &server)?;
    shell::until("the server", SOON, || said(&world, "server").filter(|text| !text.is_empty()))?;
    client.extend([target(language, &world.target(), case.way), SECONDS.to_owned()]);
    world.start_program("web", "client", &client)?;
    std::thread::sleep(RELAY);
    world.end("relay", Signal::KILL)?;
    world.start_relay()?;
    std::thread::sleep(AGENT);
    world.end("agent", Signal::KILL)?;
    world.start_edge("agent")?;
    let code = world.wait_end("client")?;
    let text = said(&world, "client").unwrap_or_default();
    let counts = text.lines().find_map(counts).with_context(|| format!("exit code {code:?}: {text}"))?;
    case.number("good", counts.0);
    case.number("failed", counts.1);
    case.word("hints", kinds(&hints(&world, "lab")?));
    let status = world.status("sidecar")?;
    let inspect = status::entry(&status, "mappings", "lab").and_then(|entry| entry["inspect"].as_str());
    case.word("inspect", inspect.unwrap_or("?"));
    Ok(())
}

/// What a program has printed so far.
fn said(world: &World, name: &str) -> Option<String> {
    std::fs::read_to_string(world.path(&format!("{name}.log"))).ok()
}

/// `N good, M failed`.
fn counts(line: &str) -> Option<(f64, f64)> {
    let (good, failed) = line.strip_suffix(" failed")?.split_once(" good, ")?;
    Some((good.parse().ok()?, failed.parse().ok()?))
}

/// A target as the client's file says it.
fn target(language: &str, address: &str, way: Way) -> String {
    match (language, address.strip_prefix("unix:")) {
        ("go" | "java", Some(path)) => format!("unix://{path}"),
        ("go", None) => format!("passthrough:///{address}"),
        ("rust", None) if way == Way::Tcp => format!("http://{address}"),
        (_, _) => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_last_line_is_read() {
        assert_eq!(counts("243 good, 1 failed"), Some((243.0, 1.0)));
        assert_eq!(counts("UNAVAILABLE: as good as failed"), None);
    }
}
