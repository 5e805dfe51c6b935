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
pub(crate) const PENDING: &[Pending] = &[
    Pending { place: Place::Edge, key: "drain", allowed: None, purpose: "how long open sessions may run on after SIGTERM" },
    Pending { place: Place::Relay, key: "drain", allowed: None, purpose: "how long open sessions may run on after SIGTERM" },
    Pending { place: Place::Relay, key: "hold", allowed: None, purpose: "holding opens for a lost agent" },
    Pending { place: Place::Service, key: "probe", allowed: None, purpose: "asking the server whether it lives" },
    Pending { place: Place::Mapping, key: "agents", allowed: None, purpose: "naming the machines that may serve it" },
    Pending { place: Place::Mapping, key: "new_agents", allowed: None, purpose: "accepting machines not met before" },
    Pending { place: Place::Mapping, key: "explain", allowed: Some("off"), purpose: "telling gRPC clients why a call was cut" },
    Pending { place: Place::Mapping, key: "outage", allowed: Some("0s"), purpose: "sessions that outlive their path" },
    Pending { place: Place::Mapping, key: "inspect", allowed: Some("false"), purpose: "reading HTTP/2 in passing" },
];

/// The line of `key` at `place`, if it has one.
pub(crate) fn find(place: Place, key: &str) -> Option<&'static Pending> {
    PENDING.iter().find(|line| line.place == place && line.key == key)
}
