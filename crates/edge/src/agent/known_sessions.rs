//! The sessions that this agent process knows, so that a resume attempt finds its session, and no request runs twice.
//!
//! Every id is remembered for [`REMEMBERED`]. A resume attempt finds its session, or is refused, or its session never got
//! here: then the attempt is served as a new session, but only if no id was forgotten since it could have been here.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hopline_link::Session;
use hopline_names::{MachineName, SessionId};
use tokio::sync::mpsc;

/// How long an id is remembered. A sidecar attempts to resume for a minute at most, and a relay holds that for its `hold`.
const REMEMBERED: Duration = Duration::from_secs(600);
/// How long ago the session of a resume attempt can have been opened first.
const LATEST: Duration = Duration::from_secs(300);
/// Ids that are remembered at once: 100 opens a second for ten minutes, or 6,500 for ten seconds. When more arrive, the
/// oldest are forgotten, and resume attempts of unknown ids are refused for a while.
pub(crate) const MAX_KNOWN: usize = 1 << 16;
/// Resume attempts that may wait for one session.
const RESUMES: usize = 4;

/// The machine that a session comes from, by the relay's word, and its id: no machine can reach another's session.
pub(crate) type Key = (Option<MachineName>, SessionId);

/// A session that was opened again under its id.
#[derive(Debug)]
pub(crate) struct ResumeAttempt {
    pub(crate) session: Session,
    /// Bytes of it that its sidecar has.
    pub(crate) received: u64,
}

#[derive(Debug)]
enum Progress {
    /// It is served, within its replay window; attempts to resume it go here.
    Resumable(mpsc::Sender<ResumeAttempt>),
    /// It was served.
    Served,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Key, Progress>,
    order: VecDeque<(Instant, Key)>,
    /// When the newest id that is forgotten had come.
    forgotten: Option<Instant>,
}

/// The table of known sessions of one agent process. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownSessions(Arc<Mutex<Table>>);

/// What the table says of a resume attempt.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// Whoever serves it was given the session.
    Taken,
    /// It was never here: it is served as a new one.
    New(ResumeAttempt),
    /// It was served, or may have been.
    Served(ResumeAttempt),
}

/// A session that is served; when this is dropped, its session counts as served.
#[derive(Debug)]
pub(crate) struct KnownSession {
    known: KnownSessions,
    key: Key,
    attempts: mpsc::Receiver<ResumeAttempt>,
    is_forgotten: bool,
}

impl KnownSessions {
    /// Notes a session that begins; `None` if one of this id has begun before.
    pub(crate) fn begin(&self, key: Key, now: Instant) -> Option<KnownSession> {
        let mut table = self.lock();
        if table.entries.contains_key(&key) {
            return None;
        }
        table.forget(now);
        let (sender, attempts) = mpsc::channel(RESUMES);
        table.entries.insert(key.clone(), Progress::Resumable(sender));
        table.order.push_back((now, key.clone()));
        Some(KnownSession { known: self.clone(), key, attempts, is_forgotten: false })
    }

    /// Looks up the session of a resume attempt, and hands the attempt to it.
    pub(crate) fn resume(&self, key: &Key, attempt: ResumeAttempt, now: Instant) -> Lookup {
        let table = self.lock();
        match table.entries.get(key) {
            Some(Progress::Resumable(sender)) => match sender.try_send(attempt) {
                Ok(()) => Lookup::Taken,
                Err(
                    mpsc::error::TrySendError::Full(attempt) | mpsc::error::TrySendError::Closed(attempt),
                ) => Lookup::Served(attempt),
            },
            Some(Progress::Served) => Lookup::Served(attempt),
            None if table.may_have_forgotten(now) => Lookup::Served(attempt),
            None => Lookup::New(attempt),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Makes room for one more. An id whose session is served still keeps its entry, and the place in the queue.
    fn forget(&mut self, now: Instant) {
        let old = |came: &Instant| now.saturating_duration_since(*came) > REMEMBERED;
        while self.order.len() >= MAX_KNOWN || self.order.front().is_some_and(|(came, _)| old(came)) {
            let Some((came, key)) = self.order.pop_front() else { return };
            self.forgotten = self.forgotten.max(Some(came));
            self.entries.remove(&key);
        }
    }

    fn may_have_forgotten(&self, now: Instant) -> bool {
        self.forgotten.is_some_and(|came| now.saturating_duration_since(came) < LATEST)
    }
}

impl KnownSession {
    /// The next attempt to resume this session. Cancel safe.
    pub(crate) async fn next_attempt(&mut self) -> ResumeAttempt {
        match self.attempts.recv().await {
            Some(attempt) => attempt,
            // Nobody can any more: the entry is gone.
            None => std::future::pending().await,
        }
    }

    /// Ends the replay window. The attempts that came too late are to be refused.
    pub(crate) fn close(&mut self) -> Vec<ResumeAttempt> {
        if let Some(entry) = self.known.lock().entries.get_mut(&self.key) {
            *entry = Progress::Served;
        }
        self.attempts.close();
        std::iter::from_fn(|| self.attempts.try_recv().ok()).collect()
    }

    /// Nothing of the session has reached a server: an attempt to resume it is served as a new session.
    ///
    /// # Errors
    /// An attempt that has arrived meanwhile.
    pub(crate) fn forget(&mut self) -> Result<(), ResumeAttempt> {
        // With the lock held nobody sends.
        let mut table = self.known.lock();
        let Ok(attempt) = self.attempts.try_recv() else {
            table.entries.remove(&self.key);
            self.is_forgotten = true;
            return Ok(());
        };
        Err(attempt)
    }
}

impl Drop for KnownSession {
    fn drop(&mut self) {
        // A forgotten one's entry, if there is one, is another's.
        if !self.is_forgotten
            && let Some(entry) = self.known.lock().entries.get_mut(&self.key)
        {
            *entry = Progress::Served;
        }
    }
}

#[cfg(test)]
mod tests {
    use hopline_link::{Config, Mux, Side};

    use super::*;

    /// Sessions that nobody else uses.
    struct TestSessions {
        dialer: Mux,
        _listener: Mux,
    }

    impl TestSessions {
        async fn new() -> Self {
            let (here, there) = tokio::io::duplex(1 << 16);
            let dialer = Mux::spawn(here, Config::new(Side::Dialer, [1; 16], "here")).unwrap();
            let listener = Mux::spawn(there, Config::new(Side::Listener, [2; 16], "there")).unwrap();
            dialer.up().await.unwrap();
            Self { dialer, _listener: listener }
        }

        fn attempt(&self, received: u64) -> ResumeAttempt {
            ResumeAttempt { session: self.dialer.open(&b""[..]).unwrap(), received }
        }
    }

    fn key(number: u32) -> Key {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&number.to_be_bytes());
        (Some(MachineName::new("web-1").unwrap()), SessionId::new(id))
    }

    #[tokio::test]
    async fn an_attempt_finds_its_session_within_the_replay_window() {
        let (source, known, now) = (TestSessions::new().await, KnownSessions::default(), Instant::now());
        let mut session = known.begin(key(1), now).unwrap();
        assert!(known.begin(key(1), now).is_none(), "twice");
        assert!(matches!(known.resume(&key(1), source.attempt(7), now), Lookup::Taken));
        assert_eq!(session.next_attempt().await.received, 7);
        // Another machine's session of the same id is another session.
        let (_, id) = key(1);
        let other = (Some(MachineName::new("web-2").unwrap()), id);
        assert!(matches!(known.resume(&other, source.attempt(0), now), Lookup::New(_)));

        assert!(matches!(known.resume(&key(1), source.attempt(8), now), Lookup::Taken));
        let late = session.close();
        assert_eq!(late.iter().map(|attempt| attempt.received).collect::<Vec<_>>(), [8]);
        assert!(matches!(known.resume(&key(1), source.attempt(9), now), Lookup::Served(_)));
        drop(session);
        assert!(matches!(known.resume(&key(1), source.attempt(9), now), Lookup::Served(_)));
        assert!(known.begin(key(1), now).is_none(), "it was served");
    }

    #[tokio::test]
    async fn one_that_reached_no_server_is_as_new() {
        let (source, known, now) = (TestSessions::new().await, KnownSessions::default(), Instant::now());
        let mut session = known.begin(key(1), now).unwrap();
        assert!(matches!(known.resume(&key(1), source.attempt(0), now), Lookup::Taken));
        let attempt = session.forget().expect_err("it has come again");
        assert_eq!(attempt.received, 0);
        assert!(session.forget().is_ok());
        drop(session);
        assert!(matches!(known.resume(&key(1), source.attempt(0), now), Lookup::New(_)));
        let second = known.begin(key(1), now).unwrap();
        drop(second);
        assert!(matches!(known.resume(&key(1), source.attempt(0), now), Lookup::Served(_)));
    }

    #[tokio::test]
    async fn what_may_have_been_forgotten_is_not_new() {
        let (source, known, mut now) = (TestSessions::new().await, KnownSessions::default(), Instant::now());
        let unknown = key(u32::MAX);
        for number in 0..MAX_KNOWN {
            drop(known.begin(key(u32::try_from(number).unwrap()), now));
        }
        assert!(
            matches!(known.resume(&unknown, source.attempt(0), now), Lookup::New(_)),
            "nothing is forgotten"
        );
        now += Duration::from_secs(1);
        drop(known.begin(key(1 << 30), now));
        assert_eq!(known.lock().entries.len(), MAX_KNOWN);
        assert!(matches!(known.resume(&unknown, source.attempt(0), now), Lookup::Served(_)));
        // What is forgotten by then came too long ago to come again.
        now += LATEST;
        assert!(matches!(known.resume(&unknown, source.attempt(0), now), Lookup::New(_)));
        now += REMEMBERED;
        drop(known.begin(key(1 << 31), now));
        assert_eq!(known.lock().entries.len(), 1);
        assert!(matches!(known.resume(&key(1 << 31), source.attempt(0), now), Lookup::Served(_)));
        assert!(matches!(known.resume(&unknown, source.attempt(0), now), Lookup::New(_)));
    }
}
