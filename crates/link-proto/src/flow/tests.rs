//! Every sequence of operations over small numbers, state by state: what can be reached is visited once, and what
//! must hold is checked there.

use std::collections::BTreeSet;

use super::*;

const PACES: [Pace; 4] = [Pace::Same, Pace::Fits, Pace::Held, Pace::Slow];

fn limits(early: u32, first: u32, max: u32, budget: u64) -> Limits {
    Limits { early_credit: early, first_window: first, max_window: max, budget, ..Limits::default() }
}

/// Visits every state that `steps` reaches from `start`; returns how many there are.
fn explore<S: Clone + Ord>(start: S, mut steps: impl FnMut(&S, &mut Vec<S>)) -> usize {
    let mut seen = BTreeSet::from([start.clone()]);
    let mut ahead = vec![start];
    let mut found = Vec::new();
    while let Some(state) = ahead.pop() {
        steps(&state, &mut found);
        for next in found.drain(..) {
            if seen.insert(next.clone()) {
                ahead.push(next);
            }
        }
    }
    seen.len()
}

/// One direction of a session with both its ends, what is under way between them, and what other sessions use of the
/// budget.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    send: SendCredit,
    data_flying: u64,
    grants_flying: u64,
    recv: RecvCredit,
    others: u64,
    answered: bool,
    closed: bool,
}

impl World {
    fn new(early: u64) -> Self {
        Self {
            send: SendCredit::new(early),
            data_flying: 0,
            grants_flying: 0,
            recv: RecvCredit::new(early),
            others: 0,
            answered: false,
            closed: false,
        }
    }

    /// The same with its counts from zero: only differences matter.
    fn normal(mut self) -> Self {
        let base = self.recv.consumed;
        for count in [&mut self.recv.received, &mut self.recv.granted, &mut self.recv.consumed] {
            *count -= base;
        }
        let base = self.send.sent;
        self.send.sent -= base;
        self.send.limit -= base;
        self
    }

    fn budget(&self, limits: &Limits) -> Budget {
        Budget { used: self.others + self.recv.charged, ..Budget::new(limits) }
    }

    fn check(&self, limits: &Limits) {
        let (recv, early) = (&self.recv, u64::from(limits.early_credit));
        assert!(recv.consumed <= recv.received && recv.received <= recv.granted, "{self:?}");
        assert_eq!(recv.charged, recv.liability().saturating_sub(early), "{self:?}");
        assert!(self.others + recv.charged <= limits.budget, "{self:?}");
        // What can be unread without a further grant is what the session is charged for.
        assert!(recv.granted - recv.consumed <= early + recv.charged, "{self:?}");
        if self.closed {
            assert!(!recv.is_due() && recv.due() == 0, "{self:?}");
            return;
        }
        let under_way = self.send.remaining() + self.data_flying + self.grants_flying;
        assert_eq!(under_way, recv.granted - recv.received, "credit is neither lost nor made: {self:?}");
        assert!(recv.window >= early.min(u64::from(limits.first_window)), "{self:?}");
        // A reader that takes everything always lets its writer go on.
        let mut idle = *recv;
        idle.consume(u64::MAX);
        if idle.received == idle.consumed && self.data_flying == 0 {
            let granted = if idle.is_due() { idle.grant() } else { 0 };
            assert!(self.send.remaining() + self.grants_flying + granted > 0, "stuck: {self:?}");
        }
    }

    fn steps(&self, limits: &Limits, found: &mut Vec<Self>) {
        self.check(limits);
        let mut with = |change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            change(&mut next);
            found.push(next.normal());
        };
        for bytes in 1..=self.send.remaining() {
            with(&|next| {
                next.send.spend(bytes);
                next.data_flying += bytes;
            });
        }
        for bytes in 1..=self.data_flying {
            with(&|next| {
                next.data_flying -= bytes;
                if !next.closed {
                    assert!(next.recv.fits(bytes), "honest data always fits: {next:?}");
                    next.recv.receive(bytes);
                }
            });
        }
        for bytes in 1..=self.grants_flying {
            with(&|next| {
                next.grants_flying -= bytes;
                assert_eq!(next.send.grant(bytes), Ok(()));
            });
        }
        for bytes in 1..=self.recv.received - self.recv.consumed {
            for pace in PACES {
                with(&|next| next.take(bytes, pace, limits));
            }
        }
        if self.recv.is_due() {
            with(&|next| next.grants_flying += next.recv.grant());
        }
        if !self.answered && !self.closed {
            with(&|next| {
                next.answered = true;
                let _ = next.budget(limits).widen_to_first(&mut next.recv);
            });
        }
        for others in (0..=limits.budget - self.recv.charged).step_by(1 + limits.budget as usize / 12) {
            with(&|next| next.others = others);
        }
        with(&|next| next.end(limits, RecvCredit::close));
        with(&|next| next.end(limits, RecvCredit::discard));
    }

    fn take(&mut self, bytes: u64, pace: Pace, limits: &Limits) {
        let before = self.recv.window;
        let mut budget = self.budget(limits);
        self.recv.consume(bytes);
        if self.closed {
            budget.settle(&mut self.recv);
        } else {
            let _ = budget.apply(&mut self.recv, pace);
            let first = u64::from(limits.first_window);
            assert!(self.recv.window >= before.min(first), "shrinks no further than the first window");
            assert!(self.recv.window <= before.max(u64::from(limits.max_window)));
            assert!(pace != Pace::Slow || self.recv.window <= before);
        }
        assert_eq!(budget.used(), self.others + self.recv.charged);
    }

    fn end(&mut self, limits: &Limits, how: fn(&mut RecvCredit)) {
        // What is under way to a side that is done is dropped there.
        self.closed = true;
        how(&mut self.recv);
        self.budget(limits).settle(&mut self.recv);
    }
}

#[test]
fn one_direction_in_every_state() {
    let mut states = 0;
    for (early, first, max, budget) in
        [(1, 1, 1, 0), (1, 2, 3, 1), (1, 1, 4, 3), (1, 2, 4, 8), (2, 3, 6, 2), (2, 2, 6, 40), (1, 3, 6, 100)]
    {
        let limits = limits(early, first, max, budget);
        states += explore(World::new(u64::from(early)), |state, found| state.steps(&limits, found));
    }
    assert!(states > 20_000, "{states} states");
}

/// A frame fits if and only if it keeps the credit, in every state of a receiver.
#[test]
fn what_fits_is_exactly_what_was_granted() {
    let mut tried = 0;
    for granted in 0..8_u64 {
        for received in 0..=granted {
            for bytes in 0..10 {
                let credit = RecvCredit { granted, received, ..RecvCredit::new(0) };
                assert_eq!(credit.fits(bytes), received + bytes <= granted);
                tried += 1;
            }
        }
    }
    assert_eq!(tried, 36 * 10);
}

/// Sessions of one budget: what is charged for all never passes it, and each is charged for what it may hold.
#[test]
fn two_sessions_of_one_budget_in_every_state() {
    type Pair = [RecvCredit; 2];
    let normal = |credit: &mut RecvCredit| {
        let base = credit.consumed;
        for count in [&mut credit.received, &mut credit.granted, &mut credit.consumed] {
            *count -= base;
        }
    };
    let mut states = 0;
    for (early, first, max, total) in [(1, 1, 4, 0), (1, 2, 6, 3), (1, 2, 5, 9), (2, 2, 6, 70), (1, 2, 7, 90)]
    {
        let limits = limits(early, first, max, total);
        let start: Pair = [RecvCredit::new(u64::from(early)); 2];
        states += explore(start, |pair: &Pair, found| {
            let used = pair.iter().map(|credit| credit.charged).sum();
            let budget = Budget { used, ..Budget::new(&limits) };
            assert!(used <= total, "{pair:?}");
            for credit in pair {
                assert_eq!(credit.charged, credit.liability().saturating_sub(u64::from(early)), "{pair:?}");
            }
            for at in 0..2 {
                let mut with = |change: &dyn Fn(&mut RecvCredit, &mut Budget)| {
                    let (mut next, mut budget) = (*pair, budget);
                    change(&mut next[at], &mut budget);
                    assert_eq!(budget.used(), next.iter().map(|credit| credit.charged).sum::<u64>());
                    normal(&mut next[at]);
                    found.push(next);
                };
                let credit = &pair[at];
                for bytes in 1..=credit.granted - credit.received {
                    with(&|credit, _| credit.receive(bytes));
                }
                for bytes in 1..=credit.received - credit.consumed {
                    for pace in PACES {
                        with(&|credit, budget| {
                            credit.consume(bytes);
                            let _ = budget.apply(credit, pace);
                        });
                    }
                }
                if credit.is_due() {
                    with(&|credit, _| {
                        let _ = credit.grant();
                    });
                }
                with(&|credit, budget| {
                    let _ = budget.widen_to_first(credit);
                });
            }
        });
    }
    assert!(states > 20_000, "{states} states");
}

/// At the edges of every number: nothing wraps, and too much is an error that changes nothing.
#[test]
fn credit_that_the_peer_grants_never_overflows() {
    let edges = [
        0,
        1,
        2,
        MAX_CREDIT - 1,
        MAX_CREDIT,
        MAX_CREDIT + 1,
        (1 << 62) - 1,
        1 << 62,
        u64::MAX - MAX_CREDIT,
        u64::MAX - 1,
        u64::MAX,
    ];
    let mut granted = 0;
    let mut refused = 0;
    for sent in edges {
        for left in edges.into_iter().filter(|left| *left <= MAX_CREDIT) {
            let Some(limit) = sent.checked_add(left) else { continue };
            for amount in edges {
                let before = SendCredit { sent, limit };
                let mut credit = before;
                let want = u128::from(left) + u128::from(amount);
                let bears = want <= u128::from(MAX_CREDIT) && u128::from(sent) + want <= u128::from(u64::MAX);
                assert_eq!(
                    credit.grant(amount),
                    if bears { Ok(()) } else { Err(Overflow) },
                    "{before:?} + {amount}"
                );
                if bears {
                    assert_eq!((credit.sent(), u128::from(credit.remaining())), (sent, want));
                    granted += 1;
                } else {
                    assert_eq!(credit, before);
                    refused += 1;
                }
            }
        }
    }
    assert!(granted > 50 && refused > 200, "{granted} {refused}");
}

/// The rate that a reader's epoch shows, against the same in exact fractions.
#[test]
fn a_window_follows_twice_the_bandwidth_delay_product() {
    let now = crate::testkit::Chain::new(1, |_, _| ()).now;
    let mut seen = BTreeSet::new();
    for window in [1_u64, 64, 1_000, 65_536, LARGE] {
        for taken in [0, 1, window / 8, window / 4, window / 2, window, 2 * window] {
            for trip_ms in [1_u64, 10, 100, 1_000] {
                for elapsed_ms in [0_u64, 1, 10, 100, 900, 1_000, 1_100, 8_000, 9_000, 100_000] {
                    let began = now;
                    let mut credit = RecvCredit {
                        received: taken,
                        granted: taken + window,
                        consumed: taken,
                        window,
                        charged: 0,
                        epoch: Some(Epoch::begin(began, 0)),
                    };
                    let pace = credit
                        .pace(began + Duration::from_millis(elapsed_ms), Duration::from_millis(trip_ms));
                    let long = elapsed_ms >= 1_000.max(8 * trip_ms);
                    // Twice taken * trip / elapsed, compared without a division.
                    let (twice, elapsed) = (2 * taken * trip_ms, elapsed_ms);
                    let burst = window == LARGE && elapsed_ms < 4;
                    let want = if burst || (taken < window && !long) {
                        Pace::Same
                    } else if elapsed == 0 || twice >= elapsed * (window + 1) {
                        Pace::Held
                    } else if twice < elapsed * (window / 4 + 1) && elapsed_ms >= 1_000 {
                        Pace::Slow
                    } else {
                        Pace::Fits
                    };
                    assert_eq!(pace, want, "{taken} of {window} in {elapsed_ms} ms, trip {trip_ms} ms");
                    seen.insert(format!("{pace:?}"));
                }
            }
        }
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}

/// However many sessions sit on credit that they never use, the next grows as far as an eighth of the rest, and gets
/// its first window whatever those hold.
#[test]
fn idle_sessions_leave_room_for_the_next() {
    let limits = Limits::default();
    let mut budget = Budget::new(&limits);
    let grow = |budget: &mut Budget| {
        let mut credit = RecvCredit::new(u64::from(limits.early_credit));
        assert_eq!(budget.widen_to_first(&mut credit), Change::None);
        let first = credit.window();
        while budget.apply(&mut credit, Pace::Held) == Change::None && credit.window() < 4 << 20 {}
        (first, credit.window())
    };
    let windows: Vec<_> = (0..300).map(|_| grow(&mut budget)).collect();
    assert!(windows.iter().all(|(first, _)| *first == 64 << 10), "{windows:?}");
    assert!(windows.windows(2).all(|pair| pair[0].1 >= pair[1].1), "later ones get less: {windows:?}");
    assert_eq!(windows[0].1, 4 << 20);
    assert!(windows[16].1 > 700 << 10, "behind 16 idle ones: {}", windows[16].1);
    assert!(windows[32].1 > 100 << 10, "behind 32 idle ones: {}", windows[32].1);
    assert!(budget.used() <= limits.budget);
}
