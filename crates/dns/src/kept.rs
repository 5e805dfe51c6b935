//! What is kept of names: answers for their TTL, failures for a moment, the query that runs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::ResolveError;
use crate::server::Found;

/// An answer is kept for so long at least, whatever its TTL.
const LEAST: Duration = Duration::from_secs(1);
/// And for so long at most.
const MOST: Duration = Duration::from_secs(24 * 60 * 60);
/// How long it is believed that there is no such name.
const ABSENT: Duration = Duration::from_secs(2);
/// How long after a failure until somebody is asked again.
const FAILED: Duration = Duration::from_secs(1);
/// The same where an older answer serves meanwhile.
const FAILED_BUT_KNOWN: Duration = Duration::from_secs(5);
/// For how long after its TTL an answer serves while no name server says anything (RFC 8767 allows days).
const STALE: Duration = Duration::from_secs(60 * 60);
/// How long a query may run before lookups go on with an old answer.
pub(crate) const STALE_PATIENCE: Duration = Duration::from_millis(500);
/// Names that are kept. They come from config files, so there are hardly more; beyond it the oldest go.
const MAX_NAMES: usize = 4_096;

pub(crate) type Answer = Result<Arc<[IpAddr]>, ResolveError>;

/// The names that were asked for.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    names: BTreeMap<String, Entry>,
}

#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// The query that runs, and since when.
    pub(crate) asked: Option<(watch::Sender<Option<Answer>>, Instant)>,
    /// The last answer, and until when it is not asked for again.
    last: Option<(Answer, Instant)>,
    /// The last addresses, and until when they serve in place of an answer.
    good: Option<(Arc<[IpAddr]>, Instant)>,
}

impl Entry {
    pub(crate) fn fresh(&self, now: Instant) -> Option<Answer> {
        self.last.as_ref().filter(|(_, until)| now < *until).map(|(answer, _)| answer.clone())
    }

    pub(crate) fn stale(&self, now: Instant) -> Option<Arc<[IpAddr]>> {
        self.good.as_ref().filter(|(_, until)| now < *until).map(|(ips, _)| Arc::clone(ips))
    }
}

impl Kept {
    pub(crate) fn entry(&mut self, key: &str, now: Instant) -> &mut Entry {
        if self.names.len() >= MAX_NAMES && !self.names.contains_key(key) {
            self.names.retain(|_, entry| entry.asked.is_some() || entry.fresh(now).is_some());
        }
        self.names.entry(key.to_owned()).or_default()
    }

    /// Takes the outcome of a query; gives the answer that it makes.
    pub(crate) fn answered(
        &mut self,
        key: &str,
        asked: &watch::Sender<Option<Answer>>,
        outcome: Result<Found, ResolveError>,
        now: Instant,
    ) -> Answer {
        let plain = |outcome: Result<Found, ResolveError>| outcome.map(|found| found.ips);
        // Another query, of other name servers, may have taken its place.
        let entry = self
            .names
            .get_mut(key)
            .filter(|entry| entry.asked.as_ref().is_some_and(|(current, _)| current.same_channel(asked)));
        let Some(entry) = entry else { return plain(outcome) };
        entry.asked = None;
        let (answer, keep) = match outcome {
            Ok(Found { ips, ttl }) => {
                let keep = ttl.clamp(LEAST, MOST);
                entry.good = Some((Arc::clone(&ips), now + keep + STALE));
                (Ok(ips), keep)
            }
            Err(error) if error.is_final() => {
                entry.good = None;
                (Err(error), ABSENT)
            }
            Err(error) => match entry.stale(now) {
                Some(ips) => {
                    tracing::warn!(host = key, "{error}; going on with the addresses known before");
                    (Ok(ips), FAILED_BUT_KNOWN)
                }
                None => (Err(error), FAILED),
            },
        };
        entry.last = Some((answer.clone(), now + keep));
        answer
    }
}
