//! What was said lately: a peer that tries again and again is no news.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// For so long the same thing is not said again.
const SILENCE: Duration = Duration::from_secs(600);
/// Most things that are remembered; the oldest is forgotten.
pub(crate) const MOST: usize = 1_024;

/// Remembers what was said of whom.
#[derive(Debug, Default)]
pub(crate) struct News(BTreeMap<(String, String), Instant>);

impl News {
    /// Whether this is news; notes that it is said.
    pub(crate) fn is_new(&mut self, whom: &str, what: &str, now: Instant) -> bool {
        let key = (whom.to_owned(), what.to_owned());
        if self.0.get(&key).is_some_and(|at| now.saturating_duration_since(*at) < SILENCE) {
            return false;
        }
        if self.0.len() >= MOST {
            let oldest = self.0.iter().min_by_key(|(_, at)| **at).map(|(key, _)| key.clone());
            oldest.map(|key| self.0.remove(&key));
        }
        self.0.insert(key, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_not_said_twice() {
        let (mut news, start) = (News::default(), Instant::now());
        assert!(news.is_new("web-1", "removed", start));
        assert!(!news.is_new("web-1", "removed", start + SILENCE / 2));
        assert!(news.is_new("web-1", "another key", start));
        assert!(news.is_new("web-2", "removed", start));
        assert!(news.is_new("web-1", "removed", start + SILENCE));
        for n in 0..2 * MOST {
            assert!(news.is_new("web-3", &n.to_string(), start + Duration::from_secs(1)));
        }
        assert_eq!(news.0.len(), MOST);
    }
}
