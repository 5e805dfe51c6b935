//! What the field reports' scenarios have in common.

use std::path::Path;

use anyhow::Context as _;

use crate::fault::Fault;
use crate::inside::{Server, on};
use crate::measure::Held;
use crate::scenario::Case;
use crate::status;
use crate::world::{Way, World};

/// A raw server of the lab's, where this world's raw application dials.
pub(super) fn serve(
    world: &World,
    with: impl Fn(std::net::TcpStream) + Send + Sync + 'static,
) -> anyhow::Result<Server> {
    Server::start(&world.net, "db", &world.raw_listen(), with)
}

/// Work of the raw application, on its host.
pub(super) fn app<T: Send>(
    world: &World,
    work: impl FnOnce(&str) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    let target = world.raw_target();
    on(&world.net, "web", || work(&target))
}

/// Resets the connection that the application's host has: its link, or directly the application's own.
pub(super) fn cut(world: &World) -> anyhow::Result<f64> {
    let to = if world.way() == Way::Direct { "db" } else { "relay" };
    Ok(world.apply(&Fault::Cut { from: "web".to_owned(), to: to.to_owned() })?.at_ms)
}

/// The sum of all samples on `/metrics` whose line begins so.
pub(super) fn metric(world: &World, process: &str, begins: &str) -> anyhow::Result<f64> {
    let lines = metrics(&world.status_socket(process))?;
    let samples = lines.iter().filter(|line| line.starts_with(begins));
    let sum: anyhow::Result<f64> =
        samples.map(|line| Ok(line.rsplit(' ').next().context("no value")?.parse::<f64>()?)).sum();
    // The sum of nothing is minus zero.
    Ok(sum? + 0.0)
}

/// The samples on `/metrics`, without comments.
pub(super) fn metrics(socket: &Path) -> anyhow::Result<Vec<String>> {
    let (_, body) = status::get(socket, "/metrics")?;
    Ok(body.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect())
}

/// The resident memory of a process in KiB.
pub(super) fn rss_kib(world: &World, process: &str) -> anyhow::Result<f64> {
    Ok(Held::by(world.process(process)?)?.rss_kib)
}

/// A count as a figure.
#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
pub(super) fn count(count: usize) -> f64 {
    count as f64
}

/// Whether `/readyz` of a process says yes.
pub(super) fn ready(world: &World, process: &str) -> bool {
    status::ready(&world.status_socket(process))
}

/// Notes `reason@hop` of the sidecar's raw mapping, where there is a sidecar.
pub(super) fn note_reason(case: &mut Case<'_>, world: &World) -> anyhow::Result<()> {
    if world.way() != Way::Direct {
        let status = world.status("sidecar")?;
        case.word("reason", status::reason(status::entry(&status, "mappings", "raw")));
    }
    Ok(())
}
