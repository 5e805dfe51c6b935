//! The kinds of hints, and the numbers that each rests on.

/// What can be said about how an application uses its connections. [`HintKind::name`] is the word in `/status`, in
/// `/metrics` and in `docs/hints.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HintKind {
    /// The client sends PINGs that nothing needs, or that the server answered with a GOAWAY.
    ClientKeepalive,
    /// Calls have no deadline.
    NoDeadline,
    /// The application makes a connection for each call.
    ConnectionPerCall,
    /// Data waited on the application's window: it does not read.
    AppNotReading,
    /// A unix socket's path went out as `:authority`, and the server refused it.
    AuthorityIsPath,
    /// Calls wait for one of the server's concurrent streams.
    StreamLimit,
    /// The application's window is too small for the path's round trip.
    SmallWindow,
    /// Failed calls are repeated without a pause.
    RetryStorm,
    /// The server refused messages for their size.
    MessageTooLarge,
    /// Deadlines are shorter than the path's round trip.
    DeadlineTooShort,
    /// New streams on a connection that the server had asked to leave.
    GoawayIgnored,
}

/// How a number of one connection is joined to the mapping's.
#[derive(Clone, Copy, Debug)]
enum Join {
    Sum,
    Most,
    /// The least that is not 0: 0 is nothing seen.
    Least,
    /// The newest that is not 0.
    Last,
}

/// Numbers of a hint: at most so many.
pub(crate) const NUMBERS: usize = 4;

impl HintKind {
    /// Every kind.
    pub const ALL: [Self; 11] = [
        Self::ClientKeepalive,
        Self::NoDeadline,
        Self::ConnectionPerCall,
        Self::AppNotReading,
        Self::AuthorityIsPath,
        Self::StreamLimit,
        Self::SmallWindow,
        Self::RetryStorm,
        Self::MessageTooLarge,
        Self::DeadlineTooShort,
        Self::GoawayIgnored,
    ];

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClientKeepalive => "client_keepalive",
            Self::NoDeadline => "no_deadline",
            Self::ConnectionPerCall => "connection_per_call",
            Self::AppNotReading => "app_not_reading",
            Self::AuthorityIsPath => "authority_is_path",
            Self::StreamLimit => "stream_limit",
            Self::SmallWindow => "small_window",
            Self::RetryStorm => "retry_storm",
            Self::MessageTooLarge => "message_too_large",
            Self::DeadlineTooShort => "deadline_too_short",
            Self::GoawayIgnored => "goaway_ignored",
        }
    }

    /// Where it is explained, from the root of the repository.
    #[must_use]
    pub fn page(self) -> String {
        format!("docs/hints.md#{}", self.name())
    }

    /// Names of its numbers, in their order.
    pub fn numbers(self) -> impl Iterator<Item = &'static str> {
        self.table().iter().map(|(name, _)| *name)
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }

    fn table(self) -> &'static [(&'static str, Join)] {
        use Join::{Last, Least, Most, Sum};
        match self {
            Self::ClientKeepalive => &[("idle_pings_under_15s", Sum), ("too_many_pings_goaway", Sum)],
            Self::NoDeadline => &[("calls", Sum), ("calls_without_deadline", Sum)],
            Self::ConnectionPerCall => &[("connections", Sum), ("connections_with_one_call", Sum)],
            Self::AppNotReading => &[("stalls_over_5s", Sum), ("longest_stall_ms", Most)],
            Self::AuthorityIsPath => &[("calls", Sum), ("calls_with_a_path", Sum), ("calls_refused", Sum)],
            Self::StreamLimit => &[("limit", Last), ("calls_that_waited", Sum), ("at_limit_ms", Sum)],
            Self::SmallWindow => {
                &[("window_bytes", Last), ("round_trip_us", Last), ("bytes_per_s", Last), ("held_up_ms", Sum)]
            }
            Self::RetryStorm => {
                &[("calls_failed", Sum), ("repeats_within_100ms", Sum), ("connections_failed", Sum)]
            }
            Self::MessageTooLarge => &[("calls", Sum), ("calls_refused", Sum)],
            Self::DeadlineTooShort => &[
                ("calls", Sum),
                ("calls_below_round_trip", Sum),
                ("shortest_deadline_us", Least),
                ("round_trip_us", Last),
            ],
            Self::GoawayIgnored => &[("goaways", Sum), ("streams_after_goaway", Sum)],
        }
    }
}

/// The numbers of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) values: [u64; NUMBERS],
    /// Something bad happened.
    pub(crate) bad: bool,
    /// Good things in a row since the last bad one.
    pub(crate) good: u64,
}

impl Numbers {
    pub(crate) fn absorb(&mut self, kind: HintKind, other: &Self) {
        for (slot, (_, join)) in kind.table().iter().enumerate() {
            let (mine, more) = (self.values[slot], other.values[slot]);
            self.values[slot] = match join {
                Join::Sum => mine.saturating_add(more),
                Join::Most => mine.max(more),
                Join::Least if mine == 0 || more == 0 => mine | more,
                Join::Least => mine.min(more),
                Join::Last if more == 0 => mine,
                Join::Last => more,
            };
        }
        self.good = if other.bad { other.good } else { self.good.saturating_add(other.good) };
        self.bad |= other.bad;
    }
}

/// The numbers of all kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Evidence([Numbers; HintKind::ALL.len()]);

impl Evidence {
    pub(crate) fn of(&self, kind: HintKind) -> &Numbers {
        &self.0[kind.index()]
    }

    pub(crate) fn add(&mut self, kind: HintKind, slot: usize, count: u64) {
        let value = &mut self.0[kind.index()].values[slot];
        *value = value.saturating_add(count);
    }

    pub(crate) fn set(&mut self, kind: HintKind, slot: usize, value: u64) {
        self.0[kind.index()].values[slot] = value;
    }

    pub(crate) fn most(&mut self, kind: HintKind, slot: usize, value: u64) {
        let mine = &mut self.0[kind.index()].values[slot];
        *mine = (*mine).max(value);
    }

    pub(crate) fn least(&mut self, kind: HintKind, slot: usize, value: u64) {
        let mine = &mut self.0[kind.index()].values[slot];
        *mine = if *mine == 0 { value } else { (*mine).min(value) };
    }

    pub(crate) fn bad(&mut self, kind: HintKind) {
        let numbers = &mut self.0[kind.index()];
        (numbers.bad, numbers.good) = (true, 0);
    }

    pub(crate) fn good(&mut self, kind: HintKind) {
        self.0[kind.index()].good += 1;
    }

    pub(crate) fn absorb(&mut self, other: &Self) {
        for kind in HintKind::ALL {
            self.0[kind.index()].absorb(kind, &other.0[kind.index()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_stand_at_their_index() {
        for (index, kind) in HintKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index);
            assert!(kind.numbers().count() <= NUMBERS);
        }
    }

    #[test]
    fn good_counts_since_the_last_bad() {
        let kind = HintKind::NoDeadline;
        let mut all = Numbers::default();
        all.absorb(kind, &Numbers { good: 5, ..Numbers::default() });
        assert_eq!((all.good, all.bad), (5, false));
        all.absorb(kind, &Numbers { good: 2, bad: true, ..Numbers::default() });
        assert_eq!((all.good, all.bad), (2, true));
        all.absorb(kind, &Numbers { good: 3, ..Numbers::default() });
        assert_eq!(all.good, 5);
    }
}
