//! The kinds of hints, and the numbers that each rests on.
//!
//! Each kind is one entry of the table below: its word, and its numbers with how those of two connections are joined. What
//! counts, what decides and what writes the text all name a number by its field, so none can mean another one.

/// A count; two are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum(pub(crate) u64);

impl Sum {
    pub(crate) fn add(&mut self, count: u64) {
        self.0 = self.0.saturating_add(count);
    }

    fn absorb(&mut self, other: Self) {
        self.add(other.0);
    }
}

/// The most that was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Most(pub(crate) u64);

impl Most {
    pub(crate) fn see(&mut self, value: u64) {
        self.0 = self.0.max(value);
    }

    fn absorb(&mut self, other: Self) {
        self.see(other.0);
    }
}

/// The least that was seen; 0: nothing was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Least(pub(crate) u64);

impl Least {
    pub(crate) fn see(&mut self, value: u64) {
        self.0 = if self.0 == 0 { value } else { self.0.min(value) };
    }

    fn absorb(&mut self, other: Self) {
        if other.0 != 0 {
            self.see(other.0);
        }
    }
}

/// The newest that was seen; 0: nothing was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Last(pub(crate) u64);

impl Last {
    pub(crate) fn see(&mut self, value: u64) {
        self.0 = value;
    }

    fn absorb(&mut self, other: Self) {
        if other.0 != 0 {
            self.see(other.0);
        }
    }
}

macro_rules! hints {
    ($($(#[$doc:meta])* $kind:ident $word:ident { $($number:ident: $join:ident),+ })+) => {
        /// What can be said about how an application uses its connections. [`HintKind::name`] is the word in `/status`, in
        /// `/metrics` and in `docs/hints.md`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum HintKind {
            $($(#[$doc])* $kind,)+
        }

        impl HintKind {
            /// Every kind.
            pub const ALL: [Self; [$(Self::$kind),+].len()] = [$(Self::$kind),+];

            /// The word for it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($word),)+
                }
            }
        }

        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub(crate) struct $kind {
                $(pub(crate) $number: $join,)+
            }
        )+

        /// The numbers of all kinds.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub(crate) struct Evidence {
            $(pub(crate) $word: $kind,)+
            judged: [Judged; HintKind::ALL.len()],
        }

        impl Evidence {
            /// The numbers of one kind, with their names.
            pub(crate) fn numbers(&self, kind: HintKind) -> Vec<(&'static str, u64)> {
                match kind {
                    $(HintKind::$kind => vec![$((stringify!($number), self.$word.$number.0)),+],)+
                }
            }

            /// Adds what another one has of one kind.
            pub(crate) fn absorb_kind(&mut self, kind: HintKind, other: &Self) {
                match kind {
                    $(HintKind::$kind => {
                        $(self.$word.$number.absorb(other.$word.$number);)+
                    })+
                }
                self.judged[kind.index()].absorb(other.judged[kind.index()]);
            }

            /// Begins anew with one kind.
            pub(crate) fn forget(&mut self, kind: HintKind) {
                match kind {
                    $(HintKind::$kind => self.$word = $kind::default(),)+
                }
                self.judged[kind.index()] = Judged::default();
            }
        }
    };
}

hints! {
    /// The client sends PINGs that nothing needs, or that the server answered with a GOAWAY.
    ClientKeepalive client_keepalive { idle_pings_under_15s: Sum, too_many_pings_goaway: Sum }
    /// Calls have no deadline.
    NoDeadline no_deadline { calls: Sum, calls_without_deadline: Sum }
    /// The application makes a connection for each call.
    ConnectionPerCall connection_per_call { connections: Sum, connections_with_one_call: Sum }
    /// Data waited on the application's window: it does not read.
    AppNotReading app_not_reading { stalls_over_5s: Sum, longest_stall_ms: Most }
    /// A unix socket's path went out as `:authority`, and the server refused it.
    AuthorityIsPath authority_is_path { calls: Sum, calls_with_a_path: Sum, calls_refused: Sum }
    /// Calls wait for one of the server's concurrent streams.
    StreamLimit stream_limit { limit: Last, calls_that_waited: Sum, at_limit_ms: Sum }
    /// The application's window is too small for the path's round trip.
    SmallWindow small_window { window_bytes: Last, round_trip_us: Last, bytes_per_s: Last, held_up_ms: Sum }
    /// Failed calls are repeated without a pause.
    RetryStorm retry_storm { calls_failed: Sum, repeats_within_100ms: Sum, connections_failed: Sum }
    /// The server refused messages for their size.
    MessageTooLarge message_too_large { calls: Sum, calls_refused: Sum }
    /// Deadlines are shorter than the path's round trip.
    DeadlineTooShort deadline_too_short {
        calls: Sum, calls_below_round_trip: Sum, shortest_deadline_us: Least, round_trip_us: Last
    }
    /// New streams on a connection that the server had asked to leave.
    GoawayIgnored goaway_ignored { goaways: Sum, streams_after_goaway: Sum }
}

impl HintKind {
    /// Where it is explained, from the root of the repository.
    #[must_use]
    pub fn page(self) -> String {
        format!("docs/hints.md#{}", self.name())
    }

    /// Names of its numbers, in their order.
    pub fn numbers(self) -> impl Iterator<Item = &'static str> {
        Evidence::default().numbers(self).into_iter().map(|(name, _)| name)
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// Whether what was seen of a kind was bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Judged {
    bad: bool,
    /// Good things in a row since the last bad one.
    good: u64,
}

impl Judged {
    fn absorb(&mut self, other: Self) {
        self.good = if other.bad { other.good } else { self.good.saturating_add(other.good) };
        self.bad |= other.bad;
    }
}

impl Evidence {
    /// Something bad has happened.
    pub(crate) fn bad(&mut self, kind: HintKind) {
        self.judged[kind.index()] = Judged { bad: true, good: 0 };
    }

    pub(crate) fn good(&mut self, kind: HintKind) {
        self.judged[kind.index()].good += 1;
    }

    pub(crate) fn is_bad(&self, kind: HintKind) -> bool {
        self.judged[kind.index()].bad
    }

    /// Good things in a row since the last bad one.
    pub(crate) fn good_in_a_row(&self, kind: HintKind) -> u64 {
        self.judged[kind.index()].good
    }

    pub(crate) fn absorb(&mut self, other: &Self) {
        HintKind::ALL.into_iter().for_each(|kind| self.absorb_kind(kind, other));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_stand_at_their_index() {
        for (index, kind) in HintKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index);
        }
    }

    #[test]
    fn numbers_of_two_connections_are_joined() {
        let of = |calls, shortest, round_trip| Evidence {
            deadline_too_short: DeadlineTooShort {
                calls: Sum(calls),
                shortest_deadline_us: Least(shortest),
                round_trip_us: Last(round_trip),
                ..DeadlineTooShort::default()
            },
            app_not_reading: AppNotReading { longest_stall_ms: Most(calls), ..AppNotReading::default() },
            ..Evidence::default()
        };
        let mut all = of(3, 0, 70);
        all.absorb(&of(2, 9, 80));
        all.absorb(&of(0, 0, 0));
        assert_eq!(all, Evidence { app_not_reading: of(3, 0, 0).app_not_reading, ..of(5, 9, 80) });
        all.forget(HintKind::DeadlineTooShort);
        all.forget(HintKind::AppNotReading);
        assert_eq!(all, Evidence::default());
    }

    #[test]
    fn good_counts_since_the_last_bad() {
        let mut all = Judged::default();
        all.absorb(Judged { good: 5, bad: false });
        assert_eq!(all, Judged { good: 5, bad: false });
        all.absorb(Judged { good: 2, bad: true });
        assert_eq!(all, Judged { good: 2, bad: true });
        all.absorb(Judged { good: 3, bad: false });
        assert_eq!(all.good, 5);
    }
}
