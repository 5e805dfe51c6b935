//! The samples of an edge.

use hopline_accounting::hop;
use hopline_link_proto::{EndCause, Reason};

use super::{Metrics, families as f};
use crate::status::{Counts, EdgeLink, EdgeStatus, LinkState, Mapping, Opens, Service};

const LINK_STATES: [&str; 5] = ["connecting", "up", "suspect", "draining", "down"];
const MAPPING_STATES: [&str; 5] = ["starting", "ready", "held", "degraded", "failed"];
const SERVICE_STATES: [&str; 5] = ["starting", "up", "down", "frozen", "unauthorized"];
const AGENT_STATES: [&str; 4] = ["up", "suspect", "down", "lost"];

pub(super) fn fill(metrics: &mut Metrics, status: &EdgeStatus) {
    super::common(metrics, "edge", &status.version, status.uptime_s, status.healthy(), &status.findings());
    for link in &status.links {
        fill_link(metrics, link);
    }
    for mapping in &status.mappings {
        fill_mapping(metrics, mapping);
    }
    for service in &status.services {
        fill_service(metrics, service);
    }
    let budgets = &status.budgets;
    metrics.gauge(&f::HELD_OPENS, [], budgets.held_opens.used as f64);
    metrics.gauge(&f::HELD_OPENS_LIMIT, [], budgets.held_opens.limit as f64);
    metrics.gauge(&f::KEPT, [], budgets.kept_bytes.used as f64);
    metrics.gauge(&f::KEPT_LIMIT, [], budgets.kept_bytes.limit as f64);
    super::windows(metrics, budgets.window_bytes);
    super::limits(metrics, &status.limits_reached);
}

fn fill_link(metrics: &mut Metrics, link: &EdgeLink) {
    // As the config names it: what the relay calls itself is the relay's choice.
    let relay = if link.relay.is_empty() { "?" } else { link.relay.as_str() };
    let up = matches!(link.state, LinkState::Up | LinkState::Suspect | LinkState::Draining);
    metrics.gauge(&f::LINK_UP, [relay], f64::from(u8::from(up)));
    metrics.state(&f::LINK_STATE, relay, &LINK_STATES, link.state.word());
    if let Some(us) = link.rtt_us {
        metrics.gauge(&f::LINK_ROUND_TRIP, [relay], us as f64 / 1e6);
    }
    if let Some(ms) = link.last_heard_ms {
        metrics.gauge(&f::LINK_LAST_HEARD, [relay], ms as f64 / 1e3);
    }
    metrics.gauge(&f::LINK_SESSIONS, [relay], link.sessions as f64);
    if link.window_bytes.limit > 0 {
        metrics.gauge(&f::LINK_WINDOW, [relay], link.window_bytes.used as f64);
        metrics.gauge(&f::LINK_WINDOW_LIMIT, [relay], link.window_bytes.limit as f64);
    }
    metrics.counter(&f::LINK_SENT, [relay], link.history.bytes.sent);
    metrics.counter(&f::LINK_RECEIVED, [relay], link.history.bytes.received);
    metrics.counter(&f::LINK_DIALS, [relay, "up"], link.history.dials.up);
    metrics.counter(&f::LINK_DIALS, [relay, "failed"], link.history.dials.failed);
    let deaths = link.history.ends.get(EndCause::DeadPeer.name()).copied().unwrap_or(0);
    metrics.counter(&f::LINK_DEATHS, [relay], deaths);
    for (cause, count) in &link.history.ends {
        metrics.counter(&f::LINK_ENDS, [relay, cause], *count);
    }
}

fn fill_mapping(metrics: &mut Metrics, mapping: &Mapping) {
    let name = mapping.name.as_str();
    metrics.state(&f::MAPPING_STATE, name, &MAPPING_STATES, mapping.state.word());
    metrics.gauge(&f::MAPPING_OPEN, [name], mapping.sessions.open as f64);
    metrics.counter(&f::MAPPING_SESSIONS, [name], mapping.sessions.total);
    let Counts { opens, aborts, bytes } = &mapping.counts;
    for (result, count) in results(opens) {
        metrics.counter(&f::MAPPING_OPENS, [name, result], count);
    }
    for abort in aborts {
        metrics.counter(
            &f::MAPPING_ABORTS,
            [name, Reason::from_name(&abort.reason).name(), hop(abort.hop)],
            abort.count,
        );
    }
    metrics.counter(&f::MAPPING_SENT, [name], bytes.sent);
    metrics.counter(&f::MAPPING_RECEIVED, [name], bytes.received);
    for state in AGENT_STATES {
        let agents = mapping.agents.iter().filter(|agent| agent.state.word() == state).count();
        metrics.gauge(&f::MAPPING_AGENTS, [name, state], agents as f64);
    }
    if let Some(us) = mapping.agents.iter().filter_map(|agent| agent.rtt_us).max() {
        metrics.gauge(&f::MAPPING_FAR_ROUND_TRIP, [name], us as f64 / 1e6);
    }
    if let Some(ms) = mapping.agents.iter().filter_map(|agent| agent.last_heard_ms).max() {
        metrics.gauge(&f::MAPPING_FAR_HEARD, [name], ms as f64 / 1e3);
    }
}

fn fill_service(metrics: &mut Metrics, service: &Service) {
    let name = service.name.as_str();
    metrics.state(&f::SERVICE_STATE, name, &SERVICE_STATES, service.state.word());
    metrics.gauge(&f::SERVICE_OPEN, [name], service.sessions.open as f64);
    metrics.counter(&f::SERVICE_SESSIONS, [name], service.sessions.total);
    let Counts { opens, aborts, bytes } = &service.counts;
    for (result, count) in results(opens) {
        metrics.counter(&f::SERVICE_OPENS, [name, result], count);
    }
    for abort in aborts {
        metrics.counter(
            &f::SERVICE_ABORTS,
            [name, Reason::from_name(&abort.reason).name(), hop(abort.hop)],
            abort.count,
        );
    }
    metrics.counter(&f::SERVICE_SENT, [name], bytes.sent);
    metrics.counter(&f::SERVICE_RECEIVED, [name], bytes.received);
}

/// Opens by result: `accepted`, which is always there, and the reasons.
pub(super) fn results(opens: &Opens) -> impl Iterator<Item = (&str, u64)> {
    let refused = opens.refused.iter().map(|(word, count)| (Reason::from_name(word).name(), *count));
    [("accepted", opens.accepted)].into_iter().chain(refused)
}
