//! Credit: how much each direction of a session may carry, and the budget that all sessions of a link share.
//!
//! Only arithmetic; `flow/tests.rs` tries every sequence of operations over small numbers.
//!
//! # What the budget counts
//!
//! Credit that was granted is never withdrawn, so what a session may come to hold is the larger of its window and of
//! what is granted and not taken. That, beyond the early credit that every session has anyway, is charged to the
//! budget; it falls as the reader takes bytes that are not granted anew. So the sum of what is charged bounds what
//! unread data can hold, whatever the peer does with its credit.
//!
//! A quarter of the budget is kept for first windows. The rest is for growth, and no session grows beyond an eighth
//! of what the others have left of it: `n` sessions that all want more get `rest / (7 + n)` each, and however many
//! sit on credit that they do not use, the next still gets an eighth of what remains.

use std::time::{Duration, Instant};

use crate::limits::{Limits, MAX_CREDIT};

/// A session is slow when over so long it took less than a quarter of what its window would have let pass.
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// A large window's rate is taken over so long at least: readers that take turns at one processor take a window in one
/// go, many times faster than on the whole.
const RATE_OVER: Duration = Duration::from_millis(4);
/// From here on a window is large; a smaller one may grow at once.
const LARGE: u64 = 128 << 10;
/// The same in round trips: a window's worth in eight of them is an eighth of what it allows.
const SLOW_ROUND_TRIPS: u32 = 8;
/// Part of the budget that growth leaves to first windows.
const FIRST_SHARE: u64 = 4;
/// A session grows to this part of what the others leave for growth.
const GROWTH_SHARE: u64 = 8;

/// The peer granted more than a window may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overflow;

/// What the peer has granted us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SendCredit {
    /// Bytes handed to the carrier so far.
    sent: u64,
    /// Bytes that the peer allows in all; never below `sent`.
    limit: u64,
}

impl SendCredit {
    pub(crate) const fn new(early: u64) -> Self {
        Self { sent: 0, limit: early }
    }

    pub(crate) const fn sent(self) -> u64 {
        self.sent
    }

    pub(crate) const fn remaining(self) -> u64 {
        self.limit - self.sent
    }

    /// The peer grants so much more.
    pub(crate) fn grant(&mut self, amount: u64) -> Result<(), Overflow> {
        let remaining = self
            .remaining()
            .checked_add(amount)
            .filter(|remaining| *remaining <= MAX_CREDIT)
            .ok_or(Overflow)?;
        self.limit = self.sent.checked_add(remaining).ok_or(Overflow)?;
        Ok(())
    }

    /// So much was sent, which is at most what is left.
    pub(crate) fn spend(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.remaining());
        self.sent += bytes.min(self.remaining());
    }
}

/// What we have granted the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RecvCredit {
    /// Bytes received so far.
    received: u64,
    /// Bytes granted so far: `received` never passes it.
    granted: u64,
    /// Bytes that the reader has given back: never beyond `received`.
    consumed: u64,
    /// Granted beyond `consumed` when the reader is idle; 0 once nothing more can come.
    window: u64,
    /// What the budget bears for it now.
    charged: u64,
    /// The current measurement of the reader's rate.
    epoch: Option<Epoch>,
}

/// A stretch of time over which a reader's rate is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Epoch {
    /// [`SLOW_AFTER`] behind its beginning: before, only a whole window taken says anything, and a comparison is all
    /// that most calls cost.
    young_until: Instant,
    /// What had been consumed when it began.
    at: u64,
}

impl Epoch {
    fn begin(now: Instant, at: u64) -> Self {
        Self { young_until: now + SLOW_AFTER, at }
    }

    fn elapsed(self, now: Instant) -> Duration {
        (now + SLOW_AFTER).saturating_duration_since(self.young_until)
    }
}

/// What a reader's rate says about its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// Nothing new.
    Same,
    /// A whole window was taken, at a rate that fits it.
    Fits,
    /// The reader may have been held up by its window.
    Held,
    /// The reader takes much less than its window would let pass.
    Slow,
}

/// What became of a session's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It is what it was, or what it should be.
    None,
    /// The budget did not bear what it should be.
    Short,
}

impl RecvCredit {
    pub(crate) const fn new(early: u64) -> Self {
        Self { received: 0, granted: early, consumed: 0, window: early, charged: 0, epoch: None }
    }

    pub(crate) const fn received(&self) -> u64 {
        self.received
    }

    pub(crate) const fn window(&self) -> u64 {
        self.window
    }

    /// Whether a frame with so much payload keeps the peer's credit.
    pub(crate) const fn fits(&self, bytes: u64) -> bool {
        bytes <= self.granted - self.received
    }

    /// So much came, which fits.
    pub(crate) fn receive(&mut self, bytes: u64) {
        debug_assert!(self.fits(bytes));
        self.received += bytes.min(self.granted - self.received);
    }

    /// The reader has taken so much; what it cannot have taken does not count.
    pub(crate) fn consume(&mut self, bytes: u64) {
        self.consumed += bytes.min(self.received - self.consumed);
    }

    /// Credit that would bring the peer up to the window.
    pub(crate) const fn due(&self) -> u64 {
        (self.consumed + self.window).saturating_sub(self.granted)
    }

    /// A quarter of the window: half would come too late on a slow link, less would be chatter.
    pub(crate) fn is_due(&self) -> bool {
        self.due() >= (self.window / 4).max(1)
    }

    /// Grants what is due.
    pub(crate) fn grant(&mut self) -> u64 {
        let due = self.due();
        self.granted += due;
        due
    }

    /// Nothing more will come: the peer has ended, or the session is over.
    pub(crate) fn close(&mut self) {
        self.granted = self.received;
        self.window = 0;
    }

    /// Nobody will read what is left.
    pub(crate) fn discard(&mut self) {
        self.close();
        self.consumed = self.received;
    }

    /// What may be held at most, from now on, without a further grant.
    const fn liability(&self) -> u64 {
        let outstanding = self.granted - self.consumed;
        if self.window > outstanding { self.window } else { outstanding }
    }

    /// Twice the bandwidth-delay product is what a window should be: a reader that took a window in less than two
    /// round trips may have been held up by it. One that took a quarter of it or less in eight is slow.
    fn pace(&mut self, now: Instant, round_trip: Duration) -> Pace {
        let epoch = *self.epoch.get_or_insert_with(|| Epoch::begin(now, self.consumed));
        let taken = self.consumed - epoch.at;
        let whole = taken >= self.window;
        if !whole && now < epoch.young_until {
            return Pace::Same;
        }
        let elapsed = epoch.elapsed(now);
        let enough = match (whole, self.window >= LARGE) {
            (true, false) => Duration::ZERO,
            (true, true) => RATE_OVER,
            (false, _) => round_trip.saturating_mul(SLOW_ROUND_TRIPS),
        };
        if elapsed < enough {
            return Pace::Same;
        }
        self.epoch = Some(Epoch::begin(now, self.consumed));
        let twice = u128::from(taken).saturating_mul(round_trip.as_nanos()).saturating_mul(2);
        let wanted = u64::try_from(twice / elapsed.as_nanos().max(1_000)).unwrap_or(u64::MAX);
        if wanted > self.window {
            Pace::Held
        } else if wanted <= self.window / 4 && elapsed >= SLOW_AFTER {
            Pace::Slow
        } else {
            Pace::Fits
        }
    }
}

/// What the unread data of all sessions may hold beyond their early credit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    total: u64,
    early: u64,
    first: u64,
    most: u64,
    used: u64,
}

impl Budget {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            total: limits.budget,
            early: u64::from(limits.early_credit),
            first: u64::from(limits.first_window),
            most: u64::from(limits.max_window),
            used: 0,
        }
    }

    pub(crate) const fn used(&self) -> u64 {
        self.used
    }

    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// Charges for `credit` what it may hold now. Needed after everything that lowers it.
    pub(crate) fn settle(&mut self, credit: &mut RecvCredit) {
        let owed = credit.liability().saturating_sub(self.early);
        self.used = self.used - credit.charged + owed;
        credit.charged = owed;
    }

    /// The session is answered: its window becomes the first window, as far as there is budget.
    pub(crate) fn widen_to_first(&mut self, credit: &mut RecvCredit) -> Change {
        self.widen(credit, self.first, self.bearable(credit))
    }

    /// The reader has taken bytes: its window follows its rate.
    pub(crate) fn follow(&mut self, credit: &mut RecvCredit, now: Instant, round_trip: Duration) -> Change {
        let pace = credit.pace(now, round_trip);
        self.apply(credit, pace)
    }

    fn apply(&mut self, credit: &mut RecvCredit, pace: Pace) -> Change {
        let fair = || self.bearable(credit).min(self.first.saturating_add(self.growth_share(credit)));
        let change = match pace {
            Pace::Same => Change::None,
            Pace::Held => {
                let fair = fair();
                let wanted = credit.window.saturating_mul(2).min(self.most.max(credit.window));
                self.narrow(credit, fair);
                self.widen(credit, wanted, fair)
            }
            Pace::Fits => {
                let fair = fair();
                self.narrow(credit, fair)
            }
            Pace::Slow => {
                self.narrow(credit, credit.window / 2);
                Change::None
            }
        };
        self.settle(credit);
        change
    }

    fn widen(&mut self, credit: &mut RecvCredit, wanted: u64, bearable: u64) -> Change {
        let to = wanted.min(bearable);
        credit.window = credit.window.max(to);
        self.settle(credit);
        if to < wanted { Change::Short } else { Change::None }
    }

    /// Grants less from now on, never below the first window, or what there is if that is less.
    fn narrow(&mut self, credit: &mut RecvCredit, to: u64) -> Change {
        let to = to.max(self.first);
        if to >= credit.window {
            return Change::None;
        }
        credit.window = to;
        Change::Short
    }

    const fn others(&self, credit: &RecvCredit) -> u64 {
        self.used - credit.charged
    }

    /// The widest window that the whole budget bears.
    const fn bearable(&self, credit: &RecvCredit) -> u64 {
        self.early.saturating_add(self.total.saturating_sub(self.others(credit)))
    }

    /// How far beyond the first window this session may grow.
    const fn growth_share(&self, credit: &RecvCredit) -> u64 {
        let for_growth = self.total - self.total / FIRST_SHARE;
        for_growth.saturating_sub(self.others(credit)) / GROWTH_SHARE
    }
}

#[cfg(test)]
mod tests;
