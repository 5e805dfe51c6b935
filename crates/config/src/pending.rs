//! Keys that are decided and named in the design, and that this version does not do yet.
//!
//! They are refused, never accepted and ignored. To enable one, take its line out of [`PENDING`] and read the key
//! where its place is resolved; a key that is not read anywhere must also be put in the list of [`Place::keys`].

use crate::section::Place;

/// One key that is not done yet.
pub(crate) struct Pending {
    pub(crate) place: Place,
    pub(crate) key: &'static str,
    /// The one value that says what happens anyway, so that it may be written.
    pub(crate) allowed: Option<&'static str>,
    /// What the key will do.
    pub(crate) purpose: &'static str,
}

#[rustfmt::skip]
pub(crate) static PENDING: &[Pending] = &[
    Pending { place: Place::Service, key: "probe", allowed: None, purpose: "asking the server whether it lives" },
    Pending { place: Place::Mapping, key: "agents", allowed: None, purpose: "naming the machines that may serve it" },
    Pending { place: Place::Mapping, key: "new_agents", allowed: None, purpose: "accepting machines not met before" },
    Pending { place: Place::Mapping, key: "outage", allowed: Some("0s"), purpose: "sessions that outlive their path" },
];

/// The line of `key` at `place`, if it has one.
pub(crate) fn find(place: Place, key: &str) -> Option<&'static Pending> {
    PENDING.iter().find(|line| line.place == place && line.key == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/config.md");

    #[test]
    fn the_reference_names_every_key() {
        let known =
            Place::ALL.into_iter().flat_map(|place| place.keys().iter().map(move |key| (place, *key)));
        let pending = PENDING.iter().map(|line| (line.place, line.key));
        for (place, key) in known.clone() {
            assert!(PAGE.contains(&format!("\n| `{key}` |")), "{place:?}: {key} has no line");
        }
        let (_, list) = PAGE.split_once("## Not in this version yet").unwrap();
        for (place, key) in pending {
            assert!(list.contains(&format!("`{key}`")), "{place:?}: {key} is not listed as to come");
        }
        assert_eq!(known.count(), 35);
    }

    #[test]
    fn a_key_is_refused_or_read_and_never_ignored() {
        for line in PENDING {
            // A key that nothing reads may have no value but the one that says what happens anyway.
            let read = line.place.keys().contains(&line.key);
            assert!(!read || line.allowed.is_some(), "{}: read, yet refused whatever it says", line.key);
            assert!(
                find(line.place, line.key).is_some_and(|found| std::ptr::eq(found, line)),
                "{} twice",
                line.key
            );
        }
    }
}
