//! Connections that are not links yet, and which of them goes when there are too many.
//!
//! A newcomer always gets a place. When all are taken, the connection that has done least gives up its own: of the
//! address that has the most places the oldest one that has said nothing; if there is none, the oldest whose handshake is
//! under way, then the oldest join. So whoever opens connections and stays silent takes places from himself alone. An
//! address is what one customer of a network can have: an IPv4 address, a /64 of IPv6.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Connections that may be on their way to a link, or to join.
pub(crate) const PLACES: usize = 256;

/// How far a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Not a byte of it has come.
    Silent,
    /// Its TLS or link handshake is under way.
    Shaking,
    /// It joins: it may be redeeming a token.
    Joining,
}

/// Where a connection comes from, as far as places are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Source(Ipv6Addr);

impl Source {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped()),
            IpAddr::V6(v6) => Self(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        }
    }
}

/// The order of arrival.
type Number = u64;

#[derive(Debug)]
struct Entry {
    stage: Stage,
    /// Dropped, it ends the connection's task.
    evict: oneshot::Sender<()>,
}

#[derive(Debug, Default)]
struct Table {
    next: Number,
    total: usize,
    sources: BTreeMap<Source, BTreeMap<Number, Entry>>,
    evicted: u64,
}

impl Table {
    fn insert(&mut self, source: Source, evict: oneshot::Sender<()>) -> Number {
        let number = self.next;
        self.next += 1;
        self.total += 1;
        self.sources.entry(source).or_default().insert(number, Entry { stage: Stage::Silent, evict });
        number
    }

    fn remove(&mut self, source: Source, number: Number) -> Option<Entry> {
        let entries = self.sources.get_mut(&source)?;
        let entry = entries.remove(&number)?;
        if entries.is_empty() {
            self.sources.remove(&source);
        }
        self.total -= 1;
        Some(entry)
    }

    /// Takes a place away.
    fn evict(&mut self) -> Option<IpAddr> {
        let of = |entries: &BTreeMap<Number, Entry>| {
            let least = entries.iter().min_by_key(|(number, entry)| (entry.stage, **number));
            least.map(|(number, entry)| (entry.stage, *number))
        };
        let fullest =
            self.sources.iter().max_by_key(|(_, entries)| (entries.len(), std::cmp::Reverse(of(entries))));
        let (source, number) = fullest.and_then(|(source, entries)| Some((*source, of(entries)?.1)))?;
        // Its task ends with it.
        drop(self.remove(source, number)?.evict);
        self.evicted += 1;
        Some(source.0.to_canonical())
    }
}

/// The places of one relay.
#[derive(Debug, Default)]
pub(crate) struct Handshakes(Mutex<Table>);

impl Handshakes {
    /// A place for a connection from there.
    pub(crate) fn admit(self: &Arc<Self>, from: IpAddr) -> Admitted {
        let source = Source::of(from);
        let (evict, evicted) = oneshot::channel();
        let mut table = self.lock();
        let loser = if table.total >= PLACES { table.evict() } else { None };
        let number = table.insert(source, evict);
        drop(table);
        Admitted { place: Place { all: Arc::clone(self), source, number }, evicted, loser }
    }

    /// Takes a place away, if one is taken: there are no descriptors left for newcomers.
    pub(crate) fn make_room(&self) {
        self.lock().evict();
    }

    /// How many places were taken away.
    pub(crate) fn evicted(&self) -> u64 {
        self.lock().evicted
    }

    /// How many connections have a place.
    pub(crate) fn under_way(&self) -> usize {
        self.lock().total
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that has got a place.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) place: Place,
    /// Resolves (it fails) when the place is taken away: the connection is to end.
    pub(crate) evicted: oneshot::Receiver<()>,
    /// The address that has lost a place for it.
    pub(crate) loser: Option<IpAddr>,
}

/// A connection's place; free when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    all: Arc<Handshakes>,
    source: Source,
    number: Number,
}

impl Place {
    /// The connection has come further.
    pub(crate) fn reach(&self, stage: Stage) {
        let mut table = self.all.lock();
        let entries = table.sources.get_mut(&self.source);
        if let Some(entry) = entries.and_then(|entries| entries.get_mut(&self.number)) {
            entry.stage = stage;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.lock().remove(self.source, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Whether the place has been taken away.
    fn is_gone(admitted: &mut Admitted) -> bool {
        admitted.evicted.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn the_fullest_address_loses_its_oldest_silent_one() {
        let all = Arc::new(Handshakes::default());
        let mut others: Vec<Admitted> =
            ["192.0.2.1", "192.0.2.2", "2001:db8::1"].iter().map(|text| all.admit(address(text))).collect();
        let mut flood: Vec<Admitted> = (3..PLACES).map(|_| all.admit(address("198.51.100.7"))).collect();
        // The oldest has said something.
        flood[0].place.reach(Stage::Shaking);
        flood[1].place.reach(Stage::Joining);
        for round in 0..10 {
            let mut admitted = all.admit(address("203.0.113.9"));
            assert_eq!(admitted.loser, Some(address("198.51.100.7")), "round {round}");
            assert!(!is_gone(&mut admitted));
            others.push(admitted);
        }
        let gone: Vec<usize> =
            flood.iter_mut().enumerate().filter_map(|(n, place)| is_gone(place).then_some(n)).collect();
        assert_eq!(gone, (2..12).collect::<Vec<_>>());
        assert!(!others.iter_mut().any(is_gone));
        assert_eq!(all.evicted(), 10);
        // The flood goes on: it takes places from itself.
        let more = all.admit(address("198.51.100.7"));
        assert_eq!(more.loser, Some(address("198.51.100.7")));
        assert!(!others.iter_mut().any(is_gone));
    }

    #[test]
    fn who_has_said_something_goes_before_who_joins() {
        let all = Arc::new(Handshakes::default());
        let mut places: Vec<Admitted> = (0..PLACES).map(|_| all.admit(address("192.0.2.1"))).collect();
        for place in &places {
            place.place.reach(Stage::Joining);
        }
        places[7].place.reach(Stage::Shaking);
        assert!(all.admit(address("192.0.2.2")).loser.is_some());
        assert!(is_gone(&mut places[7]));
    }

    #[test]
    fn a_place_that_is_left_is_free() {
        let all = Arc::new(Handshakes::default());
        let places: Vec<Admitted> = (0..PLACES).map(|_| all.admit(address("192.0.2.1"))).collect();
        drop(places);
        assert_eq!(all.under_way(), 0);
        assert!(all.lock().sources.is_empty());
        assert_eq!(all.admit(address("192.0.2.1")).loser, None);
    }

    #[test]
    fn one_customer_is_one_address() {
        for (a, b, same) in [
            ("192.0.2.1", "192.0.2.2", false),
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", true),
            ("2001:db8:1:2::1", "2001:db8:1:3::1", false),
        ] {
            assert_eq!(Source::of(address(a)) == Source::of(address(b)), same, "{a} {b}");
        }
    }
}
