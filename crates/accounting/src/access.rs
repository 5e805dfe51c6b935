//! The access line: one line of log for each session that is over, for those who turn it on (`log: { access: true }`).
//!
//! It names what the config file and the relay's policy name, and numbers: never a path, an address, a message of a
//! peer or anything that was carried. It has a target of its own, so that it can be told from all other lines; who sets
//! up the log decides by that whether it is written at all.

use std::fmt;
use std::time::Duration;

use hopline_link_proto::Abort;

/// The target of access lines.
pub const TARGET: &str = "hopline_access";

/// The reason of a session that ended clean, both ways.
const CLEAN: &str = "end";

/// A session that is over, as one process saw it.
#[derive(Debug, Default, Clone, Copy)]
pub struct Access<'a> {
    /// The mapping that it came by, at a sidecar.
    pub mapping: Option<&'a str>,
    /// The service that it was for, at an agent or relay.
    pub service: Option<&'a str>,
    /// The machine at the other end, where it is known: the agent's at a sidecar, else the one that dialled.
    pub peer: Option<&'a str>,
    /// The relay that it went through, at a sidecar.
    pub relay: Option<&'a str>,
    /// The machine that it was sent on to, at a relay.
    pub agent: Option<&'a str>,
    /// From the open, or the accept of the application's connection, to the end.
    pub duration: Duration,
    /// Bytes that went on from the side that opened.
    pub forth: u64,
    /// Bytes the other way.
    pub back: u64,
}

impl Access<'_> {
    /// Writes the line. `session` is the id that the session has at every hop; `end` what aborted it, `None` for a clean
    /// end. Costs next to nothing while nobody listens to [`TARGET`].
    pub fn log(&self, session: &dyn fmt::Display, end: Option<&Abort>) {
        let reason = end.map_or(CLEAN.into(), |abort| abort.code.name());
        tracing::info!(
            target: TARGET,
            mapping = self.mapping,
            service = self.service,
            %session,
            peer = self.peer,
            relay = self.relay,
            agent = self.agent,
            duration_ms = u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX),
            forth = self.forth,
            back = self.back,
            reason = reason.as_ref(),
            hop = end.map(|abort| abort.hops),
            "session over"
        );
    }
}
