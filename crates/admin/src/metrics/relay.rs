//! The samples of a relay: sums over all machines, since a machine's name is its own choice.

use hopline_accounting::hop;
use hopline_link_proto::{EndCause, Reason};

use super::{Metrics, families as f};
use crate::status::{LinkState, RelayState, RelayStatus};

const LINK_STATES: [&str; 3] = ["up", "suspect", "draining"];
const AGENT_STATES: [&str; 3] = ["up", "down", "draining"];

pub(super) fn fill(metrics: &mut Metrics, status: &RelayStatus) {
    super::common(metrics, "relay", &status.version, status.uptime_s, status.healthy(), &status.findings());
    let draining = status.state == RelayState::Draining;
    metrics.gauge(&f::RELAY_DRAINING, [], f64::from(u8::from(draining)));
    for state in LINK_STATES {
        let links = status.links.iter().filter(|link| link.state.word() == state).count();
        metrics.gauge(&f::RELAY_LINKS, [state], links as f64);
    }
    let live = || status.links.iter().filter(|link| link.state != LinkState::Down);
    if let Some(us) = live().filter_map(|link| link.rtt_us).max() {
        metrics.gauge(&f::RELAY_ROUND_TRIP, [], us as f64 / 1e6);
    }
    if let Some(ms) = live().filter_map(|link| link.last_heard_ms).max() {
        metrics.gauge(&f::RELAY_LAST_HEARD, [], ms as f64 / 1e3);
    }
    if let Some(used) = live().map(|link| link.window_bytes.used).max() {
        metrics.gauge(&f::RELAY_WINDOW_MAX, [], used as f64);
    }
    metrics.gauge(&f::RELAY_SERVICES, [], status.services.len() as f64);
    let agents = || status.services.iter().flat_map(|service| &service.agents);
    for state in AGENT_STATES {
        let agents = agents().filter(|agent| agent.state.word() == state).count();
        metrics.gauge(&f::RELAY_AGENTS, [state], agents as f64);
    }
    metrics.gauge(&f::RELAY_OPEN, [], status.sessions.open as f64);
    metrics.counter(&f::RELAY_SESSIONS, [], status.sessions.total);
    for (result, count) in super::edge::results(&status.opens) {
        metrics.counter(&f::RELAY_OPENS, [result], count);
    }
    for abort in &status.aborts {
        metrics.counter(
            &f::RELAY_ABORTS,
            [Reason::from_name(&abort.reason).name(), hop(abort.hop)],
            abort.count,
        );
    }
    metrics.counter(&f::RELAY_SENT, [], status.bytes.sent);
    metrics.counter(&f::RELAY_RECEIVED, [], status.bytes.received);
    metrics.counter(
        &f::RELAY_DEATHS,
        [],
        status.link_ends.get(EndCause::DeadPeer.name()).copied().unwrap_or(0),
    );
    for (cause, count) in &status.link_ends {
        metrics.counter(&f::RELAY_LINK_ENDS, [cause], *count);
    }
    let budgets = &status.budgets;
    metrics.gauge(&f::HELD_OPENS, [], budgets.held_opens.used as f64);
    metrics.gauge(&f::HELD_OPENS_LIMIT, [], budgets.held_opens.limit as f64);
    metrics.gauge(&f::LINKS_LIMIT, [], budgets.links.limit as f64);
    metrics.gauge(&f::REGISTRATIONS, [], budgets.registrations.used as f64);
    metrics.gauge(&f::REGISTRATIONS_LIMIT, [], budgets.registrations.limit as f64);
    metrics.gauge(&f::HANDSHAKES, [], budgets.handshakes.used as f64);
    metrics.gauge(&f::HANDSHAKES_LIMIT, [], budgets.handshakes.limit as f64);
    super::windows(metrics, budgets.window_bytes);
    super::limits(metrics, &status.limits_reached);
}
