//! Starts processes of the binary, waits for what they say, and takes them down again.

mod conn;
mod descriptors;
mod pairs;
mod process;
// Every status that any test reads is checked against the published schema.
#[path = "../../../../admin/tests/admin/schema.rs"]
mod schema;
mod world;

use std::time::{Duration, Instant};

pub(crate) use conn::{Conn, Ended, carry, grow_old, pattern};
pub(crate) use descriptors::{Share, descriptors};
pub(crate) use pairs::{AGENTS, Pairs, RELAYS, SERVICES, SIDECARS, begin_drain, ends_within, exchange};
pub(crate) use process::{Process, hopline, run};
pub(crate) use world::{
    Edge, Kind, Relay, Slot, World, WorldOptions, shared, status, status_field, write_secret,
};

/// For whatever must happen, and for which no promise names a shorter time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// For what happens at once, or within a trip: generous on a loaded machine, and far below every timeout.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(2);
/// Between two looks at something that changes by itself.
const POLL: Duration = Duration::from_millis(5);

/// Waits until `look` finds something.
pub(crate) fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(POLL);
    }
}
