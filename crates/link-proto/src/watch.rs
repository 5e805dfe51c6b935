//! Whether the peer lives: one link's liveness, fed with arrivals and departures, asked for what is due.
//!
//! Any arriving byte is life. Both ends watch, but one ping round serves both: the dialer asks first, the
//! listener a little later, so on an idle link only the dialer's pings are seen (promise P9).

use std::time::{Duration, Instant};

use crate::limits::PING_BURST;
use crate::liveness::Liveness;

/// Without an answer to a ping for so long the peer is suspect: an event for those who can prepare.
const SUSPECT_AFTER: Duration = Duration::from_secs(2);
/// Waking this much later than asked means that this process, or its machine, was paused.
const PAUSED: Duration = Duration::from_secs(1);
/// Least time between two pings that only measure the round trip.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
/// How much longer the listener waits before it asks by itself, on top of a round trip.
const LISTENER_YIELDS: Duration = Duration::from_millis(500);

/// What the watch wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    Ping(u8),
    Presence,
    Suspect,
    Dead { silent: Duration },
}

#[derive(Debug)]
pub(crate) struct Watch {
    ours: Liveness,
    peer_interval: Duration,
    dialer: bool,
    last_rx: Instant,
    last_tx: Instant,
    /// The oldest ping without an answer, and when it went out.
    asked: Option<(u8, Instant)>,
    token: u8,
    suspect: bool,
    /// When the latest session frame came, if we have sent nothing since.
    owes_presence: Option<Instant>,
    last_measure: Option<Instant>,
    round_trip: Option<Duration>,
    least_round_trip: Option<Duration>,
    /// After a pause of our own the peer gets until here.
    grace: Option<Instant>,
}

impl Watch {
    pub(crate) fn new(ours: Liveness, dialer: bool, now: Instant) -> Self {
        Self {
            ours,
            peer_interval: ours.interval(),
            dialer,
            last_rx: now,
            last_tx: now,
            asked: None,
            token: 0,
            suspect: false,
            owes_presence: None,
            last_measure: None,
            round_trip: None,
            least_round_trip: None,
            grace: None,
        }
    }

    pub(crate) fn agree(&mut self, ours: Liveness, peer_interval: Duration) {
        self.ours = ours;
        self.peer_interval = peer_interval;
    }

    pub(crate) fn peer_interval(&self) -> Duration {
        self.peer_interval
    }

    pub(crate) fn liveness(&self) -> Liveness {
        self.ours
    }

    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// The path's own round trip, without what queues on it: the least that was measured, which rises by a
    /// sixty-fourth with each measurement above it, so that a path that became longer is learned in minutes.
    pub(crate) fn least_round_trip(&self) -> Option<Duration> {
        self.least_round_trip
    }

    pub(crate) fn last_rx(&self) -> Instant {
        self.last_rx
    }

    pub(crate) fn is_suspect(&self) -> bool {
        self.suspect
    }

    /// Bytes arrived. True if a suspicion ends with them.
    pub(crate) fn received(&mut self, now: Instant) -> bool {
        self.last_rx = self.last_rx.max(now);
        self.grace = None;
        std::mem::take(&mut self.suspect)
    }

    /// Among them was a session's frame.
    pub(crate) fn received_session_frame(&mut self, now: Instant) {
        self.owes_presence = Some(now);
    }

    pub(crate) fn received_pong(&mut self, token: u8, now: Instant) {
        if let Some((asked, at)) = self.asked
            && asked == token
        {
            self.asked = None;
            let sample = now.saturating_duration_since(at);
            // The usual smoothing of round trips (RFC 6298), without its variance.
            self.round_trip = Some(self.round_trip.map_or(sample, |old| (old * 7 + sample) / 8));
            self.least_round_trip =
                Some(self.least_round_trip.map_or(sample, |least| sample.min(least + least / 64)));
        }
    }

    /// Bytes were handed to the carrier.
    pub(crate) fn sent(&mut self, now: Instant) {
        self.last_tx = self.last_tx.max(now);
        self.owes_presence = None;
    }

    /// Session frames are about to go: a ping that measures the round trip may go with them, one a second at
    /// most. Never by a timer, so that a link that falls idle sends none.
    pub(crate) fn measure(&mut self, now: Instant) -> Option<u8> {
        let recently = self.last_measure.is_some_and(|last| now < last + MEASURE_EVERY);
        if recently || self.asked.is_some() {
            return None;
        }
        Some(self.ask(now))
    }

    fn ask(&mut self, now: Instant) -> u8 {
        self.token = self.token.wrapping_add(1);
        self.asked = Some((self.token, now));
        self.last_measure = Some(now);
        self.token
    }

    /// Time has come to `now`, where `expected` was asked for: a late wake-up is a pause of our own.
    pub(crate) fn observe_pause(&mut self, expected: Option<Instant>, now: Instant) {
        if expected.is_some_and(|expected| now.saturating_duration_since(expected) > PAUSED) {
            self.grace = Some(now + self.ours.timeout());
        }
    }

    /// Does what is due at `now`; ask again until [`Due::Nothing`].
    pub(crate) fn poll(&mut self, now: Instant) -> Due {
        if now >= self.dead_at() {
            return Due::Dead { silent: now.saturating_duration_since(self.last_rx) };
        }
        if self.suspect_at().is_some_and(|at| now >= at) {
            self.suspect = true;
            return Due::Suspect;
        }
        if self.ping_at().is_some_and(|at| now >= at) {
            return Due::Ping(self.ask(now));
        }
        if self.presence_at().is_some_and(|at| now >= at) {
            self.owes_presence = None;
            return Due::Presence;
        }
        Due::Nothing
    }

    /// When [`Watch::poll`] will next have something to do.
    pub(crate) fn deadline(&self) -> Instant {
        [self.suspect_at(), self.ping_at(), self.presence_at()]
            .into_iter()
            .flatten()
            .fold(self.dead_at(), Instant::min)
    }

    fn dead_at(&self) -> Instant {
        let dead = self.last_rx + self.ours.bound();
        self.grace.map_or(dead, |grace| grace.max(dead))
    }

    fn suspect_at(&self) -> Option<Instant> {
        let (_, at) = self.asked?;
        (!self.suspect && at >= self.last_rx).then(|| at + SUSPECT_AFTER)
    }

    fn ping_at(&self) -> Option<Instant> {
        // A ping that the peer has since answered with any byte counts as answered.
        let silent_ping = self.asked.is_some_and(|(_, at)| at >= self.last_rx);
        let mut quiet = self.ours.interval();
        if !self.dialer {
            let yields = LISTENER_YIELDS + self.round_trip.unwrap_or_default();
            quiet += yields.min(self.ours.timeout() / 4);
        }
        (!silent_ping).then(|| self.last_rx + quiet)
    }

    /// Half the peer's interval after we last spoke, while its session frames keep coming: a peer that sends all
    /// the time may have its own pings stuck in a deep queue. Frames that stopped a while ago need none: the
    /// peer's ordinary ping will ask.
    fn presence_at(&self) -> Option<Instant> {
        let at = self.last_tx + self.peer_interval / 2;
        self.owes_presence.filter(|came| *came + self.peer_interval / 4 >= at).map(|came| came.max(at))
    }
}

/// How long it takes at most until one more ping is allowed.
const PING_EVERY: Duration = Duration::from_millis(250);

/// The pings of a peer that are taken for a watch's: a burst, then four a second and two an interval, twice of
/// what any watch sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PingAllowance {
    remaining: u32,
    since: Instant,
}

impl PingAllowance {
    pub(crate) const fn new(now: Instant) -> Self {
        Self { remaining: PING_BURST, since: now }
    }

    /// Whether this ping is one too many.
    pub(crate) fn spend(&mut self, now: Instant, peer_interval: Duration) -> bool {
        let every = (peer_interval / 2).clamp(Duration::from_micros(1), PING_EVERY);
        let more = now.saturating_duration_since(self.since).as_nanos() / every.as_nanos();
        if more >= u128::from(PING_BURST - self.remaining) {
            (self.remaining, self.since) = (PING_BURST, now);
        } else if let Ok(more) = u32::try_from(more) {
            self.remaining += more;
            self.since += every * more;
        }
        let spent = self.remaining == 0;
        self.remaining = self.remaining.saturating_sub(1);
        spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pings that wait in a queue say how long the queue is. Windows made for that would make it longer.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "virtual time needs one origin; only differences are used")]
    fn the_least_round_trip_ignores_a_queue_and_learns_a_longer_path() {
        let mut now = Instant::now();
        let mut watch = Watch::new(Liveness::default(), true, now);
        let mut measure = |trip_ms: u64| {
            now += MEASURE_EVERY;
            let token = watch.measure(now).expect("a second has passed and none is asked");
            watch.received_pong(token, now + Duration::from_millis(trip_ms));
            watch.least_round_trip().expect("one was measured")
        };
        assert_eq!(measure(10), Duration::from_millis(10));
        for _ in 0..10 {
            assert!(measure(500) < Duration::from_millis(12));
        }
        assert_eq!(measure(9), Duration::from_millis(9));
        // Ten times longer for good: learned within three minutes, and never more than it is.
        let learned: Vec<_> = (0..180).map(|_| measure(90)).collect();
        assert_eq!(learned.last(), Some(&Duration::from_millis(90)));
    }
}
