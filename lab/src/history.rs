//! What happened, and the proof that it was right: pure, on what both applications and the lab wrote down.

use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::plan::{Harm, Step};
use crate::seeded;

/// How long after its undoing a fault may still be felt: the longest bound of a link at the default preset, and dialling.
const AFTERMATH_MS: f64 = 20_000.0;
/// How long after the healing a session may take to end.
const GRACE_MS: f64 = 60_000.0;

/// A whole run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct History {
    pub(crate) injected: Vec<Injected>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) reasons: Vec<Reason>,
    /// When everything was good again for good.
    pub(crate) healed_ms: f64,
    /// When the lab stopped waiting.
    pub(crate) closed_ms: f64,
}

/// A step of the plan as it was done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Injected {
    pub(crate) step: Step,
    pub(crate) from_ms: f64,
    pub(crate) to_ms: f64,
}

/// One checked stream.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Session {
    pub(crate) name: String,
    /// The client sends this stream, the server the next one.
    pub(crate) seed: u32,
    pub(crate) bytes: u64,
    pub(crate) client: Side,
    /// None when the call never came to a handler.
    pub(crate) server: Option<Side>,
}

/// What one end wrote down.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Side {
    pub(crate) began_ms: f64,
    /// None while it is open.
    pub(crate) ended_ms: Option<f64>,
    /// Status of the client, reason of the handler.
    pub(crate) end: String,
    pub(crate) reports: Vec<Report>,
}

/// Totals at one moment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) received_sha256: String,
}

/// An error that the sidecar's `/status` named.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Reason {
    pub(crate) at_ms: f64,
    pub(crate) reason: String,
    pub(crate) hop: u64,
}

impl Side {
    fn clean(&self) -> bool {
        self.ended_ms.is_some() && matches!(self.end.as_str(), "OK" | "returned")
    }

    /// Whether this client ended the call itself. Its handler may then read a clean end, directly too: a Node client may
    /// send an empty END_STREAM before its RST_STREAM, and a tonic server takes a client's CANCEL for an end. No client
    /// says this of a broken connection.
    fn gave_up(&self) -> bool {
        matches!(self.end.as_str(), "CANCELLED" | "DEADLINE_EXCEEDED")
    }

    fn last(&self, what: fn(&Report) -> u64) -> u64 {
        self.reports.iter().map(what).max().unwrap_or_default()
    }
}

/// Everything in it that should not be; empty when all is right.
pub(crate) fn check(history: &History) -> Vec<String> {
    let mut wrong = Vec::new();
    for session in &history.sessions {
        bytes(session, &mut wrong);
        ends(session, &mut wrong);
        unharmed(history, session, &mut wrong);
        open(history, session, &mut wrong);
    }
    reasons(history, &mut wrong);
    wrong
}

/// How many sessions met no fault: a proof about none proves nothing.
pub(crate) fn untouched(history: &History) -> usize {
    history.sessions.iter().filter(|session| !met_a_fault(history, session)).count()
}

/// What was received is a prefix of what was sent: the right bytes, in order, once, and none too many.
fn bytes(session: &Session, wrong: &mut Vec<String>) {
    let sides = [
        ("client", Some(&session.client), session.server.as_ref(), session.seed.wrapping_add(1)),
        ("server", session.server.as_ref(), Some(&session.client), session.seed),
    ];
    for (name, own, other, seed) in sides {
        let Some(own) = own else { continue };
        let sent = other.map_or(0, |other| other.last(|report| report.sent));
        let lengths: Vec<u64> = own.reports.iter().map(|report| report.received).collect();
        if !lengths.is_sorted() {
            wrong.push(format!("{}: the {name}'s count went back", session.name));
            continue;
        }
        let hashes = seeded::prefixes_sha256(seed, &lengths);
        if let Some((report, _)) =
            own.reports.iter().zip(&hashes).find(|(r, hash)| r.received_sha256 != **hash)
        {
            wrong.push(format!(
                "{}: the first {} bytes that the {name} received are not those that were sent",
                session.name, report.received
            ));
        }
        // An end that is still open may have sent more than its last report says.
        let closed = other.is_none_or(|other| other.ended_ms.is_some());
        if closed && own.last(|report| report.received) > sent {
            wrong.push(format!("{}: the {name} received more than was sent", session.name));
        }
    }
}

/// A clean end at one side is a clean end of exactly these bytes at the other.
fn ends(session: &Session, wrong: &mut Vec<String>) {
    let name = &session.name;
    let all = |side: &Side| {
        side.last(|report| report.received) == session.bytes
            && side.last(|report| report.sent) == session.bytes
    };
    if session.client.clean() {
        match &session.server {
            None => wrong.push(format!("{name}: a clean end of a call that no handler has seen")),
            Some(server) if !server.clean() => {
                wrong.push(format!("{name}: a clean end at the client, {} at the server", server.end));
            }
            Some(server) if !all(server) || !all(&session.client) => {
                wrong.push(format!("{name}: a clean end without all bytes"));
            }
            Some(_) => {}
        }
    }
    if let Some(server) = &session.server
        && server.clean()
    {
        // The handler's status may be lost on its way back, as any last word. Its bytes may not.
        if server.last(|report| report.received) != session.bytes && !session.client.gave_up() {
            wrong.push(format!("{name}: the handler read a clean end before all bytes"));
        }
    }
}

fn met_a_fault(history: &History, session: &Session) -> bool {
    let from = session.client.began_ms;
    let to = session.client.ended_ms.unwrap_or(history.closed_ms);
    history.injected.iter().any(|injected| from <= injected.to_ms + AFTERMATH_MS && to >= injected.from_ms)
}

fn unharmed(history: &History, session: &Session, wrong: &mut Vec<String>) {
    if !met_a_fault(history, session) && !session.client.clean() {
        wrong.push(format!("{}: met no fault and ended with {:?}", session.name, session.client.end));
    }
}

fn open(history: &History, session: &Session, wrong: &mut Vec<String>) {
    let late = |side: &Side| side.ended_ms.is_none_or(|ended_ms| ended_ms > history.healed_ms + GRACE_MS);
    if late(&session.client) {
        wrong.push(format!("{}: open at the client 60 s after the healing", session.name));
    }
    if session.server.as_ref().is_some_and(late) {
        wrong.push(format!("{}: open at the server 60 s after the healing", session.name));
    }
}

fn reasons(history: &History, wrong: &mut Vec<String>) {
    for Reason { at_ms, reason, hop } in &history.reasons {
        let named = history.injected.iter().any(|injected| {
            *at_ms >= injected.from_ms - 1_000.0
                && *at_ms <= injected.to_ms + AFTERMATH_MS
                && explains(&injected.step.harm, reason, *hop)
        });
        if !named {
            wrong.push(format!(
                "/status names {reason} at hop {hop} at {at_ms:.0}, and no such fault was there"
            ));
        }
    }
}

/// Whether a harm can be why the sidecar says this.
fn explains(harm: &Harm, reason: &str, hop: u64) -> bool {
    let touches = |host: &str, process: &str| match harm {
        Harm::Fault(
            Fault::Drop { from, to, .. }
            | Fault::Loss { from, to, .. }
            | Fault::Delay { from, to, .. }
            | Fault::Reorder { from, to, .. }
            | Fault::Cut { from, to },
        ) => from == host || to == host,
        Harm::Fault(
            Fault::Limit { host: hurt, .. } | Fault::Readdress { host: hurt } | Fault::Forget { host: hurt },
        ) => hurt == host,
        Harm::Fault(Fault::Clock { .. }) => false,
        Harm::Fault(
            Fault::Freeze { process: hurt }
            | Fault::Starve { process: hurt, .. }
            | Fault::FullDisk { process: hurt }
            | Fault::Descriptors { process: hurt, .. },
        )
        | Harm::Kill(hurt)
        | Harm::Drain(hurt) => hurt == process,
    };
    let relay = touches("", "relay");
    let near = touches("web", "sidecar") || relay;
    let far = touches("db", "agent") || relay;
    let gone = matches!(harm, Harm::Kill(_) | Harm::Drain(_));
    match (reason, hop) {
        ("conn_lost", 0) => near,
        ("conn_lost", 1) => far,
        // The agent saw its own server's end go with the session.
        ("peer_reset", 2) => far,
        ("drain_deadline" | "draining", _) => matches!(harm, Harm::Drain(_)),
        ("shutdown", _) => gone,
        ("offline", 1) => far,
        // An open that found no way in time.
        ("timeout", _) => near || far,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
