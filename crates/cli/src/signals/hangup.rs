//! What a SIGHUP means, told from when the terminal went. Pure: it is told the time, and whether there is a terminal.

use std::time::{Duration, Instant};

/// So long before or after a SIGHUP the terminal goes that it is about: a shell that is closed may tell its jobs first.
const TOGETHER: Duration = Duration::from_secs(2);
/// Between two looks after a SIGHUP.
const SOON: Duration = Duration::from_millis(100);
/// Between two looks otherwise: a terminal that went long ago is not what a SIGHUP is about.
const SOMETIMES: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Hangup {
    /// When the terminal was first seen to be gone.
    gone: Option<Instant>,
    /// When the last SIGHUP came.
    told: Option<Instant>,
    look: Instant,
}

/// What a SIGHUP asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The terminal has hung up.
    Stop,
    Reload,
}

impl Hangup {
    pub(super) fn new(now: Instant) -> Self {
        Self { gone: None, told: None, look: now + SOMETIMES }
    }

    /// When to look next whether the terminal is there; `None` once it has gone.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.gone.is_none().then_some(self.look)
    }

    /// A SIGHUP has come.
    pub(super) fn handle_signal(&mut self, now: Instant, is_gone: bool) -> Meaning {
        self.note(now, is_gone);
        self.told = Some(now);
        self.look = now + SOON;
        match self.gone {
            Some(gone) if now.duration_since(gone) <= TOGETHER => Meaning::Stop,
            Some(_) | None => Meaning::Reload,
        }
    }

    /// It was looked for. True if the last SIGHUP was about its end.
    pub(super) fn handle_look(&mut self, now: Instant, is_gone: bool) -> bool {
        self.note(now, is_gone);
        let is_told = self.told.is_some_and(|told| now.duration_since(told) <= TOGETHER);
        self.look = now + if is_told { SOON } else { SOMETIMES };
        is_told && is_gone
    }

    fn note(&mut self, now: Instant, is_gone: bool) {
        if is_gone {
            self.gone.get_or_insert(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_terminal_that_went_with_the_signal_or_just_before_or_after_is_what_it_is_about() {
        let start = Instant::now();
        let mut hangup = Hangup::new(start);
        assert_eq!(hangup.handle_signal(start + SECOND, true), Meaning::Stop);

        let mut hangup = Hangup::new(start);
        assert!(!hangup.handle_look(start + 5 * SECOND, true), "nobody has told it");
        assert_eq!(hangup.handle_signal(start + 6 * SECOND, true), Meaning::Stop);

        let mut hangup = Hangup::new(start);
        assert_eq!(hangup.handle_signal(start + SECOND, false), Meaning::Reload);
        assert_eq!(hangup.next_look(), Some(start + SECOND + SOON));
        assert!(!hangup.handle_look(start + SECOND + SOON, false));
        assert!(hangup.handle_look(start + SECOND + 2 * SOON, true));
    }

    #[test]
    fn a_terminal_that_went_long_ago_is_not() {
        let start = Instant::now();
        let mut hangup = Hangup::new(start);
        assert!(!hangup.handle_look(start + 5 * SECOND, true));
        assert_eq!(hangup.next_look(), None);
        for s in [10, 11, 3_600] {
            assert_eq!(hangup.handle_signal(start + s * SECOND, true), Meaning::Reload, "after {s} s");
        }
        // And one that goes long after a reload ends nothing.
        let mut hangup = Hangup::new(start);
        assert_eq!(hangup.handle_signal(start, false), Meaning::Reload);
        assert!(!hangup.handle_look(start + 3 * SECOND, false));
        assert_eq!(hangup.next_look(), Some(start + 8 * SECOND));
        assert!(!hangup.handle_look(start + 8 * SECOND, true));
    }
}
