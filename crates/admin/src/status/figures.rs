//! Numbers of a status: what was counted since the process started, and what is in use of what there is.

use std::collections::BTreeMap;

use hopline_accounting::{AbortCounter, ByteCounter, EndCounter, OpenCounter};
use serde::{Deserialize, Serialize};

/// What was counted of one mapping or service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Its opens, by how they ended.
    #[serde(default)]
    pub opens: Opens,
    /// Its sessions and opens that ended by a fault; only what there was.
    #[serde(default)]
    pub aborts: Vec<AbortCount>,
    /// Its bytes: sent is what went out on a link.
    #[serde(default)]
    pub bytes: Bytes,
}

/// How many sessions or opens ended by one fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbortCount {
    /// The word of a [`Reason`](hopline_link_proto::Reason).
    pub reason: String,
    /// The number of links that the reason had crossed; 3 stands for all further ones.
    pub hop: u64,
    /// How many.
    pub count: u64,
}

impl AbortCount {
    /// What was counted.
    #[must_use]
    pub fn all(counter: &AbortCounter) -> Vec<Self> {
        let all = counter.counts();
        all.map(|(reason, hop, count)| Self { reason: reason.name().to_owned(), hop, count }).collect()
    }
}

/// Payload, both ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Bytes {
    /// Sent on links.
    pub sent: u64,
    /// Received on links.
    pub received: u64,
}

impl From<&ByteCounter> for Bytes {
    fn from(counter: &ByteCounter) -> Self {
        Self { sent: counter.sent(), received: counter.received() }
    }
}

/// Opens since the start, by how they ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Opens {
    /// Became a session.
    pub accepted: u64,
    /// Refused, by reason.
    #[serde(default)]
    pub refused: BTreeMap<String, u64>,
}

impl From<&OpenCounter> for Opens {
    fn from(counter: &OpenCounter) -> Self {
        Self {
            accepted: counter.accepted(),
            refused: by_word(counter.refused().map(|(reason, count)| (reason.name(), count))),
        }
    }
}

/// How links ended, by cause.
#[must_use]
pub fn link_ends(counter: &EndCounter) -> BTreeMap<String, u64> {
    by_word(counter.counts())
}

fn by_word(counts: impl Iterator<Item = (&'static str, u64)>) -> BTreeMap<String, u64> {
    counts.map(|(word, count)| (word.to_owned(), count)).collect()
}

/// What became of all links to one relay.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LinkHistory {
    /// What they carried.
    #[serde(default)]
    pub bytes: Bytes,
    /// How often the relay was dialled.
    #[serde(default)]
    pub dials: Dials,
    /// How they ended, by the words of [`EndCounter`]; only those that there were.
    #[serde(default)]
    pub ends: BTreeMap<String, u64>,
}

/// Dials by result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Dials {
    /// A link came of it.
    pub up: u64,
    /// None did.
    pub failed: u64,
}

/// How much is in use of something that is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Budget {
    /// In use now.
    pub used: u64,
    /// At most.
    pub limit: u64,
}

impl Budget {
    /// Both added up.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { used: self.used + other.used, limit: self.limit + other.limit }
    }
}

/// What an edge has bounds for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EdgeBudgets {
    /// Opens that wait for a link.
    #[serde(default)]
    pub held_opens: Budget,
    /// Bytes that young sessions keep, at the sidecar and at the agent.
    #[serde(default)]
    pub kept_bytes: Budget,
    /// What unread data of sessions may come to hold on all links, and what it may at most: so much for each link.
    #[serde(default)]
    pub window_bytes: Budget,
}

/// What a relay has bounds for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RelayBudgets {
    /// Opens that wait for an agent.
    #[serde(default)]
    pub held_opens: Budget,
    /// Links.
    #[serde(default)]
    pub links: Budget,
    /// Registrations of services.
    #[serde(default)]
    pub registrations: Budget,
    /// Connections that are not links yet: their handshake or their join is under way.
    #[serde(default)]
    pub handshakes: Budget,
    /// What unread data of sessions may come to hold on all links, and what it may at most: so much for each link.
    #[serde(default)]
    pub window_bytes: Budget,
}
