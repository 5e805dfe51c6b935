//! What a limit is: the form of a row of the table of limits.
//!
//! **The main decision: a limit stands in one row, in the crate that enforces it, and the row takes its value from the
//! constant or the default that is in force.** Each crate has its rows as `LIMITS`; `docs/limits.md` joins them, written
//! by `cargo xtask reference`. This crate has the form alone, so that the pure cores can use it, and knows no limit.

/// A bound on what a peer, or whoever else is not trusted, can make a process hold or do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Its name; where it is counted, also the label of its counter.
    pub name: &'static str,
    /// The value when nothing else is set.
    pub default: u64,
    /// What `default` is a number of: `bytes`, `sessions`, `ms`.
    pub unit: &'static str,
    /// What there may be so many of.
    pub bounds: &'static str,
    /// What would be possible without it.
    pub guards_against: &'static str,
    /// What happens beyond it.
    pub beyond: &'static str,
    /// The metric that shows that it was met, or how near it is; `None` where the effect is the only sign.
    pub counter: Option<&'static str>,
}

/// The counter of the limits that a link, the router and the relay's listener count, by name.
pub const REACHED: Option<&str> = Some("hopline_limit_reached_total");
