//! The sessions that this agent process has served: so that one that comes again is known, and nothing runs twice.
//!
//! Every id is remembered for [`REMEMBERED`]. One that comes again either finds its session, or is refused, or was never
//! here: then it may be served as if it came for the first time, but only if nothing was forgotten since it could
//! have been here.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hopline_link::Session;
use hopline_route_proto::{Name, SessionId};
use tokio::sync::mpsc;

/// How long an id is remembered. A sidecar opens a session again for a minute at most, and a relay holds it for its
/// `hold` more.
const REMEMBERED: Duration = Duration::from_secs(600);
/// How long ago a session that comes again may have come first.
const LATEST: Duration = Duration::from_secs(300);
/// Ids that are remembered at once: 100 opens a second for ten minutes, or 6,500 for ten seconds. When more come, the
/// oldest are forgotten, and what comes again after that and is not known is refused.
const MOST: usize = 1 << 16;
/// Sessions that may come again for one that is served, before it has looked.
const AGAIN: usize = 4;

/// The machine that a session comes from, by the relay's word, and its id: no machine can reach another's session.
pub(crate) type Key = (Option<Name>, SessionId);

/// A session that was opened again.
#[derive(Debug)]
pub(crate) struct Again {
    pub(crate) session: Session,
    /// Bytes of it that its sidecar has.
    pub(crate) received: u64,
}

#[derive(Debug)]
enum Entry {
    /// It is served, and another session may take its place.
    Young(mpsc::Sender<Again>),
    /// It was served.
    Served,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Key, Entry>,
    order: VecDeque<(Instant, Key)>,
    /// When the newest id that is forgotten had come.
    forgotten: Option<Instant>,
}

/// The sessions of one agent process. Clones are the same table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recall(Arc<Mutex<Table>>);

/// What to do with a session that was opened again.
#[derive(Debug)]
pub(crate) enum Found {
    /// Whoever serves it was given the session.
    Taken,
    /// It was never here: it is served as a new one.
    New(Again),
    /// It was served, or may have been.
    Served(Again),
}

/// The place of a session that is served; when it is dropped, the session counts as served.
#[derive(Debug)]
pub(crate) struct Place {
    recall: Recall,
    key: Key,
    again: mpsc::Receiver<Again>,
    is_forgotten: bool,
}

impl Recall {
    /// Notes a session that begins; `None` if one of this id has begun before.
    pub(crate) fn begin(&self, key: Key, now: Instant) -> Option<Place> {
        let mut table = self.lock();
        if table.entries.contains_key(&key) {
            return None;
        }
        table.forget(now);
        let (sender, again) = mpsc::channel(AGAIN);
        table.entries.insert(key.clone(), Entry::Young(sender));
        table.order.push_back((now, key.clone()));
        Some(Place { recall: self.clone(), key, again, is_forgotten: false })
    }

    /// Finds the session that comes again.
    pub(crate) fn again(&self, key: &Key, again: Again, now: Instant) -> Found {
        let table = self.lock();
        match table.entries.get(key) {
            Some(Entry::Young(sender)) => match sender.try_send(again) {
                Ok(()) => Found::Taken,
                Err(mpsc::error::TrySendError::Full(again) | mpsc::error::TrySendError::Closed(again)) => {
                    Found::Served(again)
                }
            },
            Some(Entry::Served) => Found::Served(again),
            None if table.may_have_forgotten(now) => Found::Served(again),
            None => Found::New(again),
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
        while self.order.len() >= MOST || self.order.front().is_some_and(|(came, _)| old(came)) {
            let Some((came, key)) = self.order.pop_front() else { return };
            self.forgotten = self.forgotten.max(Some(came));
            self.entries.remove(&key);
        }
    }

    fn may_have_forgotten(&self, now: Instant) -> bool {
        self.forgotten.is_some_and(|came| now.saturating_duration_since(came) < LATEST)
    }
}

impl Place {
    /// The next session that wants to take the place. Cancel safe.
    pub(crate) async fn again(&mut self) -> Again {
        match self.again.recv().await {
            Some(again) => again,
            // Nobody can any more: the entry is gone.
            None => std::future::pending().await,
        }
    }

    /// No other session may take the place from here on. The ones that came too late are refused.
    pub(crate) fn close(&mut self) -> Vec<Again> {
        if let Some(entry) = self.recall.lock().entries.get_mut(&self.key) {
            *entry = Entry::Served;
        }
        self.again.close();
        std::iter::from_fn(|| self.again.try_recv().ok()).collect()
    }

    /// Nothing of the session has reached a server: one that comes again is served as a new one.
    ///
    /// # Errors
    /// One that came again meanwhile, and takes the place.
    pub(crate) fn forget(&mut self) -> Result<(), Again> {
        // With the lock held nobody sends.
        let mut table = self.recall.lock();
        let Ok(again) = self.again.try_recv() else {
            table.entries.remove(&self.key);
            self.is_forgotten = true;
            return Ok(());
        };
        Err(again)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A forgotten one's entry, if there is one, is another's.
        if !self.is_forgotten
            && let Some(entry) = self.recall.lock().entries.get_mut(&self.key)
        {
            *entry = Entry::Served;
        }
    }
}

#[cfg(test)]
mod tests {
    use hopline_link::{Config, Mux, Side};

    use super::*;

    /// Sessions that nobody else uses.
    struct Source {
        dialer: Mux,
        _listener: Mux,
    }

    impl Source {
        async fn new() -> Self {
            let (here, there) = tokio::io::duplex(1 << 16);
            let dialer = Mux::spawn(here, Config::new(Side::Dialer, [1; 16], "here")).unwrap();
            let listener = Mux::spawn(there, Config::new(Side::Listener, [2; 16], "there")).unwrap();
            dialer.up().await.unwrap();
            Self { dialer, _listener: listener }
        }

        fn again(&self, received: u64) -> Again {
            Again { session: self.dialer.open(&b""[..]).unwrap(), received }
        }
    }

    fn key(number: u32) -> Key {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&number.to_be_bytes());
        (Some(Name::new("web-1").unwrap()), SessionId::new(id))
    }

    #[tokio::test]
    async fn one_that_comes_again_finds_its_session_while_that_is_young() {
        let (source, recall, now) = (Source::new().await, Recall::default(), Instant::now());
        let mut place = recall.begin(key(1), now).unwrap();
        assert!(recall.begin(key(1), now).is_none(), "twice");
        assert!(matches!(recall.again(&key(1), source.again(7), now), Found::Taken));
        assert_eq!(place.again().await.received, 7);
        // Another machine's session of the same id is another session.
        let (_, id) = key(1);
        let other = (Some(Name::new("web-2").unwrap()), id);
        assert!(matches!(recall.again(&other, source.again(0), now), Found::New(_)));

        assert!(matches!(recall.again(&key(1), source.again(8), now), Found::Taken));
        let late = place.close();
        assert_eq!(late.iter().map(|again| again.received).collect::<Vec<_>>(), [8]);
        assert!(matches!(recall.again(&key(1), source.again(9), now), Found::Served(_)));
        drop(place);
        assert!(matches!(recall.again(&key(1), source.again(9), now), Found::Served(_)));
        assert!(recall.begin(key(1), now).is_none(), "it was served");
    }

    #[tokio::test]
    async fn one_that_reached_no_server_is_as_new() {
        let (source, recall, now) = (Source::new().await, Recall::default(), Instant::now());
        let mut place = recall.begin(key(1), now).unwrap();
        assert!(matches!(recall.again(&key(1), source.again(0), now), Found::Taken));
        let again = place.forget().expect_err("it has come again");
        assert_eq!(again.received, 0);
        assert!(place.forget().is_ok());
        drop(place);
        assert!(matches!(recall.again(&key(1), source.again(0), now), Found::New(_)));
        let second = recall.begin(key(1), now).unwrap();
        drop(second);
        assert!(matches!(recall.again(&key(1), source.again(0), now), Found::Served(_)));
    }

    #[tokio::test]
    async fn what_may_have_been_forgotten_is_not_new() {
        let (source, recall, mut now) = (Source::new().await, Recall::default(), Instant::now());
        let unknown = key(u32::MAX);
        for number in 0..MOST {
            drop(recall.begin(key(u32::try_from(number).unwrap()), now));
        }
        assert!(
            matches!(recall.again(&unknown, source.again(0), now), Found::New(_)),
            "nothing is forgotten"
        );
        now += Duration::from_secs(1);
        drop(recall.begin(key(1 << 30), now));
        assert_eq!(recall.lock().entries.len(), MOST);
        assert!(matches!(recall.again(&unknown, source.again(0), now), Found::Served(_)));
        // What is forgotten by then came too long ago to come again.
        now += LATEST;
        assert!(matches!(recall.again(&unknown, source.again(0), now), Found::New(_)));
        now += REMEMBERED;
        drop(recall.begin(key(1 << 31), now));
        assert_eq!(recall.lock().entries.len(), 1);
        assert!(matches!(recall.again(&key(1 << 31), source.again(0), now), Found::Served(_)));
        assert!(matches!(recall.again(&unknown, source.again(0), now), Found::New(_)));
    }
}
