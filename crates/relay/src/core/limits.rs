//! The limits of the routing core: everything that a peer can make it hold, in one table.
//!
//! A count that reaches its limit shows in [`Counters`], in the field of the limit's name.

use std::time::Duration;

use hopline_limits::{Limit, REACHED};

macro_rules! limits {
    ($($name:ident = $default:literal, $unit:literal, $bounds:literal, $guards_against:literal, $beyond:literal;)*) => {
        /// Every limit, by name.
        pub const LIMITS: &[Limit] = &[$(Limit {
            name: stringify!($name),
            default: $default,
            unit: $unit,
            bounds: $bounds,
            guards_against: $guards_against,
            beyond: $beyond,
            counter: REACHED,
        }),*];

        /// What the router is to do. Each limit of [`LIMITS`] is a field; 0 means none at all.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct RouterConfig {
            /// How long after an agent was lost, or after the relay's start, an open waits for the agent to come
            /// (back). Default: 10 s.
            pub hold: Duration,
            $(#[doc = concat!("Default: ", stringify!($default), " ", $bounds, ". Guards against: ", $guards_against, ".")]
            pub $name: usize,)*
        }

        impl Default for RouterConfig {
            fn default() -> Self {
                Self { hold: Duration::from_secs(10), $($name: $default),* }
            }
        }

        /// How often each limit of [`LIMITS`] was met since the start.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counters {
            $(#[doc = concat!("Times that `", stringify!($name), "` was met.")]
            pub $name: u64,)*
            /// Ends of sessions that the router had not counted as begun: a fault of the server around it.
            pub unmatched_session_ends: u64,
        }

        impl Counters {
            /// The counts of [`LIMITS`], in its order.
            #[must_use]
            pub fn by_limit(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

limits! {
    max_links = 16384, "links", "links",
        "machines that connect without end",
        "the link ends with `overload`";
    max_links_per_machine = 256, "links", "links of one machine",
        "one machine that takes all links",
        "the link ends with `overload`";
    max_passing_links_per_machine = 192, "links", "links of one machine's `hopline dial`",
        "commands of a machine that leave its `hopline up` no link",
        "the link ends with `overload`";
    max_services_per_announce = 4096, "services", "services of one link",
        "an edge that announces names without end",
        "further ones are refused with `overload`";
    max_registrations = 131072, "services", "services of all links together",
        "many links that each announce the most",
        "the registration is refused with `overload`";
    max_refusals_per_announce = 256, "refusals", "refusals in one answer",
        "an announce of bad names whose answer is longer than the announce and than a control message",
        "further ones are left out";
    max_superseded = 8, "instances", "past instances of one machine",
        "a machine that restarts without end",
        "the oldest is forgotten";
    max_lost = 16384, "services", "lost services",
        "agents that come, announce and are lost",
        "the oldest is forgotten, its opens are refused at once";
    max_seen = 65536, "services", "services seen since the start",
        "agents that announce ever new names within `hold` of the start",
        "further ones count as not seen";
    max_held = 4096, "opens", "held opens",
        "diallers that open names whose agent was lost",
        "the open is refused with `overload`";
    max_held_per_machine = 2048, "opens", "held opens of one machine",
        "one dialler that takes all places of `max_held`",
        "the open is refused with `overload`";
    max_interests_per_link = 4096, "names", "names that one link wants to be told of",
        "a dialler that asks for names without end",
        "further ones are ignored: their opens go out all the same";
}

/// The longest version text of an edge that is kept, in bytes; the rest is cut off.
pub(super) const MAX_VERSION_LEN: usize = 64;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_table_is_complete() {
        let names: BTreeSet<&str> = LIMITS.iter().map(|limit| limit.name).collect();
        assert_eq!(names.len(), 12);
        assert_eq!(LIMITS.len(), 12);
        assert!(LIMITS.iter().all(|limit| limit.default > 0 && !limit.unit.is_empty()));
        let counted: Vec<&str> = Counters::default().by_limit().iter().map(|(name, _)| *name).collect();
        assert_eq!(counted, LIMITS.iter().map(|limit| limit.name).collect::<Vec<_>>());
    }
}
