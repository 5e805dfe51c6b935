//! Which connections come of which, so that a forward which leads back to the mapping that it serves is found.
//!
//! Nothing about a session travels over the connections at its two ends. But both ends of a TCP connection know its two
//! addresses, and make the same [`ConnectionId`] of them. An open names the connection that it is for. An agent notes
//! the connections that it has dialled, each with the trail of its session; where an open's trail leads to one of them
//! whose session is for the same service, that session's server is the open's own application: a loop, which would go
//! round until some limit ends it. Not seen is a loop by way of a program that is not ours, or of addresses that are
//! translated on the way.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use hopline_link::{Abort, Code};
use hopline_names::ConnectionId;
use hopline_route_proto::MAX_TRAIL;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use crate::local::LocalStream;

/// The most connections that are looked at for one open.
pub(crate) const MOST: usize = 64;

/// The connections that an edge's agent has dialled. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trails(Arc<Mutex<HashMap<ConnectionId, DialRecord>>>);

#[derive(Debug)]
struct DialRecord {
    service: String,
    /// Of the session that it was dialled for.
    trail: Vec<ConnectionId>,
    loops: watch::Sender<bool>,
}

/// A connection that was dialled, while its session is served.
#[derive(Debug)]
pub(crate) struct Dialled {
    trails: Trails,
    /// `None` where the system did not tell the addresses.
    id: Option<ConnectionId>,
    loops: watch::Receiver<bool>,
}

impl Trails {
    /// The trail of a session for a connection that a mapping has accepted; empty for one of a unix socket.
    pub(crate) fn of(&self, accepted: &LocalStream) -> Vec<ConnectionId> {
        let Some((here, there)) = accepted.addresses() else { return Vec::new() };
        let id = connection(there, here);
        let mut trail = vec![id];
        if let Some(record) = self.lock().get(&id) {
            trail.extend(&record.trail);
            trail.truncate(MAX_TRAIL);
        }
        trail
    }

    /// Notes the connection that was dialled for a session of this service and trail.
    pub(crate) fn enter(&self, dialled: &LocalStream, service: &str, trail: &[ConnectionId]) -> Dialled {
        let (loops, receiver) = watch::channel(false);
        let id = dialled.addresses().map(|(here, there)| connection(here, there));
        if let Some(id) = id {
            self.lock().insert(id, DialRecord { service: service.to_owned(), trail: trail.to_vec(), loops });
        }
        Dialled { trails: self.clone(), id, loops: receiver }
    }

    /// Whether a session of this service and trail comes of one for the same service that is served here. That one is told,
    /// and ends.
    pub(crate) fn is_loop(&self, service: &str, trail: &[ConnectionId]) -> bool {
        let table = self.lock();
        let mut next = trail.to_vec();
        let mut seen = HashSet::new();
        while let Some(id) = next.pop() {
            if seen.len() == MOST || !seen.insert(id) {
                continue;
            }
            let Some(record) = table.get(&id) else { continue };
            if record.service == service {
                record.loops.send_replace(true);
                return true;
            }
            next.extend(&record.trail);
        }
        false
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ConnectionId, DialRecord>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dialled {
    /// Waits until the connection is found to lead back to the service that it was dialled for. Cancel safe.
    pub(crate) async fn loops(&mut self) {
        if self.loops.wait_for(|loops| *loops).await.is_err() {
            // Nobody can find it any more.
            std::future::pending::<()>().await;
        }
    }

    /// Whether it was found.
    pub(crate) fn is_loop(&self) -> bool {
        *self.loops.borrow()
    }
}

impl Drop for Dialled {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.trails.lock().remove(&id);
        }
    }
}

/// The reason of a session whose server is its own application.
pub(crate) fn loop_abort(service: &str, target: &impl std::fmt::Display) -> Abort {
    let message =
        format!("a loop: the forward of {service} to {target} leads back to a mapping of {service}");
    Abort::new(Code::DIAL_FAILED, message)
}

/// The same at both ends: `dialler` is the address of whoever has dialled.
fn connection(dialler: SocketAddr, listener: SocketAddr) -> ConnectionId {
    let mut hash = Sha256::new_with_prefix("hopline connection");
    if listener.ip().to_canonical().is_loopback() {
        // Every host has the same.
        hash.update(&*HOST);
    }
    for address in [dialler, listener] {
        let ip = match address.ip().to_canonical() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        hash.update(ip.octets());
        hash.update(address.port().to_be_bytes());
    }
    let mut id = [0; 16];
    id.copy_from_slice(&hash.finalize()[..16]);
    ConnectionId::new(id)
}

/// This start of this host, and the network namespace.
static HOST: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut host = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    if let Ok(namespace) = std::fs::metadata("/proc/self/ns/net") {
        host.extend(namespace.ino().to_be_bytes());
    }
    host
});

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// A connection: the dialler's end, and the one that was accepted.
    async fn pair(ip: &str) -> (LocalStream, LocalStream) {
        let listener = TcpListener::bind((ip, 0)).await.unwrap();
        let dialled = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (dialled.into(), listener.accept().await.unwrap().0.into())
    }

    #[tokio::test]
    async fn a_loop_is_found_over_any_number_of_forwards() {
        let trails = Trails::default();
        let (first_out, first_in) = pair("127.0.0.1").await;
        let (second_out, second_in) = pair("::1").await;
        let (_, stranger) = pair("127.0.0.1").await;
        // From outside to a, whose server is a mapping of b, whose server is a mapping of c or of a.
        let mut a = trails.enter(&first_out, "a", &trails.of(&stranger));
        let to_b = trails.of(&first_in);
        assert_eq!(to_b.len(), 2);
        assert!(!trails.is_loop("b", &to_b), "a chain of forwards is none");
        let b = trails.enter(&second_out, "b", &to_b);
        let further = trails.of(&second_in);
        assert!(!trails.is_loop("c", &further));
        assert!(!a.is_loop());
        assert!(trails.is_loop("a", &further));
        a.loops().await;
        assert!(a.is_loop() && !b.is_loop());
        // An edge that does not know the first connection names only the last, and the agent knows the rest.
        assert!(trails.is_loop("a", &further[..1]));
        assert!(!trails.is_loop("a", &trails.of(&stranger)), "another application's");
        drop((a, b));
        assert!(!trails.is_loop("a", &further), "what is over is forgotten");
    }
}
