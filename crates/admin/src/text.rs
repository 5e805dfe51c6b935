//! A status for people: a few tables and sentences that fit a terminal.
//!
//! Much of a status was written elsewhere: names, addresses and the messages of errors can come from a peer.
//! Everything passes [`sanitise`] before it is shown, so a peer can neither move the cursor nor hide a line.

use crate::status::{
    AgentState, EdgeStatus, FarAgent, FarState, Finding, Inspect, LastError, Level, LinkState, Mapping,
    MappingState, RelayState, RelayStatus, ServiceState, SessionCounts, Status,
};

mod layout;

/// Findings that are printed; the rest is counted.
const MAX_FINDINGS: usize = 20;

use layout::{Cell, Page, Tone};

/// The status as lines of at most `width` columns (at least 40), each ended by a newline.
#[must_use]
pub fn render(status: &Status, width: usize, colour: bool) -> String {
    match status {
        Status::Edge(edge) => render_edge(edge, width, colour),
        Status::Relay(relay) => render_relay(relay, width, colour),
    }
}

/// The status of an edge as lines of at most `width` columns (at least 40).
#[must_use]
pub fn render_edge(status: &EdgeStatus, width: usize, colour: bool) -> String {
    let mut page = Page::new(width, colour);
    page.sentence(&format!(
        "{}: edge, version {}, up for {}",
        status.machine,
        status.version,
        span(status.uptime_s)
    ));
    let findings = status.findings();
    verdict(&mut page, &findings);
    found(&mut page, &findings);

    let rows = status.links.iter().map(|link| {
        let mut row = vec![
            Cell::plain(&link.peer),
            link_cell(link.state),
            Cell::plain(&round_trip(link.rtt_us)),
            Cell::plain(&heard(link.last_heard_ms)),
            Cell::plain(&count(link.sessions, "session")),
            Cell::plain(&link.liveness),
        ];
        // A link that never came up is called by its address.
        if link.address != link.peer {
            row.push(Cell::plain(&link.address));
        }
        row
    });
    page.table("links", "no link to a relay", rows.collect());

    let rows = status.mappings.iter().map(|mapping| {
        vec![
            Cell::plain(&mapping.name),
            mapping_cell(mapping.state),
            Cell::plain(&sessions(mapping.sessions)),
            Cell::plain(inspect_word(mapping.inspect)),
            Cell::plain(&mapping.listen),
        ]
    });
    page.table("mappings", "none", rows.collect());
    far_hops(&mut page, &status.mappings);

    let rows = status.services.iter().map(|service| {
        vec![
            Cell::plain(&service.name),
            service_cell(service.state),
            Cell::plain(&sessions(service.sessions)),
            Cell::plain(&service.target),
        ]
    });
    page.table("services", "none", rows.collect());

    let links = status.links.iter().map(|link| (&link.peer, &link.last_error));
    let mappings = status.mappings.iter().map(|mapping| (&mapping.name, &mapping.last_error));
    let services = status.services.iter().map(|service| (&service.name, &service.last_error));
    let errors = links.chain(mappings).chain(services);
    page.list(
        "last errors",
        errors.filter_map(|(name, error)| error.as_ref().map(|error| error_sentence(name, error))).collect(),
    );
    let hints =
        status.mappings.iter().flat_map(|mapping| mapping.hints.iter().map(|hint| (&mapping.name, hint)));
    page.list(
        "hints",
        hints
            .map(|(name, hint)| {
                format!("{name}: {}, seen {}: {}", hint.kind, count(hint.count, "time"), hint.message)
            })
            .collect(),
    );
    page.finish()
}

/// The status of a relay as lines of at most `width` columns (at least 40).
#[must_use]
pub fn render_relay(status: &RelayStatus, width: usize, colour: bool) -> String {
    let mut page = Page::new(width, colour);
    let state = match status.state {
        RelayState::Up => "",
        RelayState::Draining => ", draining",
        RelayState::Unknown => ", in a state that this version does not know",
    };
    page.sentence(&format!(
        "{}: relay, version {}, up for {}{state}",
        status.name,
        status.version,
        span(status.uptime_s)
    ));
    let findings = status.findings();
    verdict(&mut page, &findings);
    page.sentence(&format!("sessions: {}", sessions(status.sessions)));
    let refused: String =
        status.opens.refused.iter().map(|(reason, count)| format!(", {count} {reason}")).collect();
    page.sentence(&format!("opens: {} accepted{refused}", status.opens.accepted));
    found(&mut page, &findings);

    let rows = status.links.iter().map(|link| {
        vec![
            Cell::plain(&link.machine),
            link_cell(link.state),
            Cell::plain(&round_trip(link.rtt_us)),
            Cell::plain(&heard(link.last_heard_ms)),
            Cell::plain(&count(link.sessions, "session")),
            Cell::plain(&link.liveness),
            Cell::plain(&link.address),
        ]
    });
    page.table("links", "none", rows.collect());

    let rows = status.services.iter().flat_map(|service| {
        let absent = service.agents.is_empty().then(|| {
            vec![
                Cell::plain(&service.name),
                Cell::toned("absent", Tone::Bad),
                Cell::plain("-"),
                Cell::plain("-"),
            ]
        });
        let agents = service.agents.iter().map(|agent| {
            vec![
                Cell::plain(&service.name),
                agent_cell(agent.state),
                Cell::plain(&count(agent.sessions, "session")),
                Cell::plain(&agent.machine),
            ]
        });
        absent.into_iter().chain(agents)
    });
    page.table("services", "none", rows.collect());
    page.finish()
}

/// Whether all is well, and if not what fails.
fn verdict(page: &mut Page, findings: &[Finding]) {
    let (text, tone) = match findings.first() {
        None => ("all is well".to_owned(), Tone::Good),
        Some(worst) if worst.level == Level::Bad => {
            (format!("not well: failing {}", worst.place.phrase()), Tone::Bad)
        }
        Some(worst) => (format!("it works, but look at the {}", worst.place.phrase()), Tone::Doubtful),
    };
    page.headline(&text, tone);
}

fn found(page: &mut Page, findings: &[Finding]) {
    let sentence = |finding: &Finding| {
        let Finding { level, place, text, .. } = finding;
        format!("{}: {text}. Failing {}", level.word(), place.phrase())
    };
    let more = findings.len().saturating_sub(MAX_FINDINGS);
    let more = (more > 0).then(|| format!("and {}", count(more as u64, "more finding")));
    page.list("findings", findings.iter().take(MAX_FINDINGS).map(sentence).chain(more).collect());
}

/// The hops between relays and the agents of each mapping.
fn far_hops(page: &mut Page, mappings: &[Mapping]) {
    let row = |mapping: &Mapping, agent: &FarAgent| {
        let heard = agent.last_heard_ms.map_or_else(|| "no link".to_owned(), |ms| heard(Some(ms)));
        vec![
            Cell::plain(&mapping.name),
            far_cell(agent.state),
            Cell::plain(&round_trip(agent.rtt_us)),
            Cell::plain(&heard),
            Cell::plain(&format!("{} by {}", agent.machine, agent.relay)),
        ]
    };
    let rows: Vec<_> = mappings
        .iter()
        .flat_map(|mapping| mapping.agents.iter().map(move |agent| row(mapping, agent)))
        .collect();
    if !rows.is_empty() {
        page.table("agents of the mappings", "none", rows);
    }
}

/// `ledger: offline at hop 1, 3 s ago: nobody serves it`.
fn error_sentence(name: &str, error: &LastError) -> String {
    format!("{name}: {} at hop {}, {} ago: {}", error.reason, error.hop, span(error.age_s), error.message)
}

/// The text without anything that a terminal would obey or hide: control characters, and those that turn or
/// hide writing, become `\u{fffd}`.
#[must_use]
pub fn sanitise(text: &str) -> String {
    let unsafe_char = |c: char| {
        c.is_control()
            || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
            || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
    };
    text.chars().map(|c| if unsafe_char(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

fn link_cell(state: LinkState) -> Cell {
    let tone = match state {
        LinkState::Connecting => Tone::Doubtful,
        LinkState::Up => Tone::Good,
        LinkState::Suspect => Tone::Doubtful,
        LinkState::Draining => Tone::Doubtful,
        LinkState::Standby => Tone::Doubtful,
        LinkState::Down => Tone::Bad,
        LinkState::Unknown => Tone::Doubtful,
    };
    Cell::toned(state.word(), tone)
}

fn far_cell(state: FarState) -> Cell {
    let tone = match state {
        FarState::Up => Tone::Good,
        FarState::Suspect | FarState::Unknown => Tone::Doubtful,
        FarState::Down | FarState::Lost => Tone::Bad,
    };
    Cell::toned(state.word(), tone)
}

fn mapping_cell(state: MappingState) -> Cell {
    let tone = match state {
        MappingState::Starting => Tone::Doubtful,
        MappingState::Ready => Tone::Good,
        MappingState::Held => Tone::Doubtful,
        MappingState::Degraded => Tone::Bad,
        MappingState::Failed => Tone::Bad,
        MappingState::Unknown => Tone::Doubtful,
    };
    Cell::toned(state.word(), tone)
}

fn service_cell(state: ServiceState) -> Cell {
    let tone = match state {
        ServiceState::Starting => Tone::Doubtful,
        ServiceState::Up => Tone::Good,
        ServiceState::Down => Tone::Bad,
        ServiceState::Frozen => Tone::Bad,
        ServiceState::Unauthorized => Tone::Bad,
        ServiceState::Unknown => Tone::Doubtful,
    };
    Cell::toned(state.word(), tone)
}

fn agent_cell(state: AgentState) -> Cell {
    let tone = match state {
        AgentState::Up => Tone::Good,
        AgentState::Down => Tone::Bad,
        AgentState::Draining => Tone::Doubtful,
        AgentState::Unknown => Tone::Doubtful,
    };
    Cell::toned(state.word(), tone)
}

/// What the application speaks; nothing while that is not known.
fn inspect_word(inspect: Inspect) -> &'static str {
    match inspect {
        Inspect::H2c => "h2c",
        Inspect::Opaque => "opaque",
        Inspect::GaveUp => "gave up",
        Inspect::Off => "off",
        Inspect::Unknown => "-",
    }
}

fn sessions(counts: SessionCounts) -> String {
    format!("{} open, {} in all", counts.open, counts.total)
}

fn count(number: u64, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

fn round_trip(rtt_us: Option<u64>) -> String {
    match rtt_us {
        None => "-".to_owned(),
        Some(us) if us < 10_000 => format!("{}.{} ms", us / 1_000, us % 1_000 / 100),
        Some(us) => format!("{} ms", us / 1_000),
    }
}

fn heard(last_heard_ms: Option<u64>) -> String {
    match last_heard_ms {
        None => "never heard".to_owned(),
        Some(ms) if ms < 10_000 => format!("heard {}.{} s ago", ms / 1_000, ms % 1_000 / 100),
        Some(ms) => format!("heard {} ago", whole_span(ms / 1_000)),
    }
}

/// A number of seconds in the unit in which people would say it. A negative number counts as none.
fn span(seconds: f64) -> String {
    // `as` makes a number out of every f64: it saturates, and reads no number as 0.
    whole_span(seconds as u64)
}

fn whole_span(seconds: u64) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    if seconds < 2 * MINUTE {
        format!("{seconds} s")
    } else if seconds < 2 * HOUR {
        format!("{} min", seconds / MINUTE)
    } else if seconds < 2 * DAY {
        format!("{} h", seconds / HOUR)
    } else {
        format!("{} d", seconds / DAY)
    }
}

#[cfg(test)]
mod tests;
