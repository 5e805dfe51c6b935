//! Who may have one of the few connections that a status address serves at once.
//!
//! A connection that says nothing must not keep others out, nor one that asks and then reads a byte a second. So where
//! there is no room for a new one, the oldest that has sent no request yet goes, of the address that has most; else the
//! oldest whose answer has been read too slowly. One that asks and reads in time is never sent away.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// For so long a new connection may say nothing, whoever else wants its place: its request may be on the way.
const GRACE: Duration = Duration::from_millis(250);
/// An answer that is not over by then is read slowly.
pub(super) const SLOW: Duration = Duration::from_secs(2);
/// How often it is looked for one, where all are busy.
const LOOK: Duration = Duration::from_millis(100);

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Client {
    Address(IpAddr),
    /// A local user.
    User(u32),
    Unknown,
}

#[derive(Debug)]
struct Entry {
    client: Client,
    since: Instant,
    /// Whether it has sent its request, and is being answered.
    asked: bool,
    /// It has been sent away, and is not gone yet.
    leaves: bool,
    task: Option<AbortHandle>,
}

/// The connections that are served. Ids grow, so the first is the oldest.
#[derive(Debug, Default)]
struct Served {
    entries: BTreeMap<u64, Entry>,
    next: u64,
}

#[derive(Debug)]
pub(super) struct Room {
    most: usize,
    served: Mutex<Served>,
    freed: Notify,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    id: u64,
    room: Arc<Room>,
}

impl Room {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, served: Mutex::default(), freed: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection, as soon as there is one. Cancel safe.
    pub(super) async fn place(self: &Arc<Self>, client: Client) -> Place {
        loop {
            if let Some(place) = self.try_place(client, Instant::now()) {
                return place;
            }
            // Whichever comes first, it is looked again.
            let _ = tokio::time::timeout(LOOK, self.freed.notified()).await;
        }
    }

    fn try_place(self: &Arc<Self>, client: Client, now: Instant) -> Option<Place> {
        let mut served = self.lock();
        if served.entries.len() >= self.most {
            // Its descriptor must be back before another one is taken.
            let victim = served.victim(now)?;
            let entry = served.entries.get_mut(&victim)?;
            entry.leaves = true;
            if let Some(task) = &entry.task {
                task.abort();
            }
            return None;
        }
        let id = served.next;
        served.next += 1;
        served.entries.insert(id, Entry { client, since: now, asked: false, leaves: false, task: None });
        Some(Place { id, room: Arc::clone(self) })
    }

    /// The task that serves the connection of a place: what ends when it must go.
    pub(super) fn serve(&self, id: u64, task: AbortHandle) {
        if let Some(entry) = self.lock().entries.get_mut(&id) {
            entry.task = Some(task);
        }
    }
}

impl Served {
    /// Who goes, so that another one may come; nobody while one is on its way out.
    fn victim(&self, now: Instant) -> Option<u64> {
        if self.entries.values().any(|entry| entry.leaves) {
            return None;
        }
        let mut counts = BTreeMap::<Client, usize>::new();
        for entry in self.entries.values() {
            *counts.entry(entry.client).or_default() += 1;
        }
        let is_silent = |entry: &Entry| !entry.asked && now.duration_since(entry.since) >= GRACE;
        let silent = self.entries.iter().filter(|(_, entry)| is_silent(entry));
        // Of several that are as many, the one that was there first.
        let most = silent.clone().map(|(_, entry)| counts[&entry.client]).max();
        let mut of_most = silent.filter(|(_, entry)| Some(counts[&entry.client]) == most);
        let slow = |(_, entry): &(&u64, &Entry)| entry.asked && now.duration_since(entry.since) >= SLOW;
        of_most.next().or_else(|| self.entries.iter().find(slow)).map(|(id, _)| *id)
    }
}

impl Place {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The request has come: it is to be answered.
    pub(super) fn asked(&self) {
        if let Some(entry) = self.room.lock().entries.get_mut(&self.id) {
            (entry.asked, entry.since) = (true, Instant::now());
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.room.lock().entries.remove(&self.id);
        self.room.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Client = Client::User(1);
    const B: Client = Client::User(2);

    /// Who is sent away for one more, and its place goes to that one.
    fn one_more(room: &Arc<Room>, places: &mut Vec<Place>, client: Client, now: Instant) -> u64 {
        assert!(room.try_place(client, now).is_none());
        let leaves = room.lock().entries.iter().find(|(_, entry)| entry.leaves).map(|(id, _)| *id).unwrap();
        assert!(room.try_place(client, now).is_none(), "it has not gone yet");
        places.retain(|place| place.id() != leaves);
        places.push(room.try_place(client, now).unwrap());
        leaves
    }

    #[test]
    fn the_oldest_silent_one_of_the_address_that_has_most_goes() {
        let room = Room::new(4);
        let now = Instant::now();
        let mut places: Vec<Place> = [B, A, A, A].map(|client| room.try_place(client, now).unwrap()).into();
        assert!(room.try_place(B, now).is_none());
        assert!(room.lock().entries.values().all(|entry| !entry.leaves), "each may be about to ask");
        let now = now + GRACE;
        assert_eq!(one_more(&room, &mut places, B, now), 1, "not B's first, though it is older");
        // Two each: the oldest of all.
        let now = now + GRACE;
        assert_eq!(one_more(&room, &mut places, A, now), 0);
        assert_eq!(one_more(&room, &mut places, A, now), 2);
        drop(places);
        assert!(room.lock().entries.is_empty());
    }

    #[test]
    fn who_asks_and_reads_in_time_stays() {
        let room = Room::new(2);
        let now = Instant::now();
        let mut places: Vec<Place> = [A, A].map(|client| room.try_place(client, now).unwrap()).into();
        for place in &places {
            place.asked();
        }
        let asked = Instant::now();
        assert!(room.try_place(B, asked).is_none());
        assert!(room.lock().entries.values().all(|entry| !entry.leaves), "both are being answered");
        assert_eq!(one_more(&room, &mut places, B, asked + SLOW), 0, "it has read for too long");
        assert_eq!(
            one_more(&room, &mut places, B, asked + SLOW + GRACE),
            2,
            "a silent one goes before one that reads"
        );
    }
}
