//! The relay's own certificate: made in memory, and made anew before it matters.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use hopline_names::MachineName;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::authority::Authority;
use crate::clock::{Clock, date};
use crate::error::StateError;
use crate::tls::provider;

/// Looks at the clock at each handshake: a relay that runs for years, or was started with a wrong clock that has been
/// set since, always shows a certificate that is valid now.
pub(crate) struct OwnCertificate {
    authority: Arc<Authority>,
    name: MachineName,
    clock: Clock,
    current: Mutex<Current>,
}

#[derive(Debug, Clone)]
struct Current {
    certified: Arc<CertifiedKey>,
    /// Two thirds of its life: machines whose clock is fast should not be the ones to find its end.
    renew: SystemTime,
}

impl OwnCertificate {
    pub(crate) fn make(
        authority: Arc<Authority>,
        name: &MachineName,
        clock: Clock,
    ) -> Result<Self, StateError> {
        let current = Mutex::new(Current::make(&authority, name, clock.now())?);
        Ok(Self { authority, name: name.clone(), clock, current })
    }
}

impl Current {
    fn make(authority: &Authority, name: &MachineName, now: SystemTime) -> Result<Self, StateError> {
        let own = authority.issue_relay(name, now)?;
        let chain = vec![own.certificate, authority.certificate().clone()];
        let certified = CertifiedKey::from_der(chain, own.key, &provider())
            .map_err(|error| StateError::crypto("use a certificate", &error))?;
        let rest = own.not_after.duration_since(now.max(own.not_before)).unwrap_or_default();
        let renew = own.not_after.checked_sub(rest / 3).unwrap_or(own.not_after);
        Ok(Self { certified: Arc::new(certified), renew })
    }
}

impl ResolvesServerCert for OwnCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let now = self.clock.now();
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if now >= current.renew {
            match Current::make(&self.authority, &self.name, now) {
                Ok(next) => {
                    // Past the authority's own end there is no later one.
                    if next.renew > current.renew {
                        tracing::info!(
                            "the relay's certificate was made anew, to be renewed by {}",
                            date(next.renew)
                        );
                    }
                    *current = next;
                }
                Err(error) => tracing::error!(%error, "the relay's certificate can't be made anew"),
            }
        }
        Some(Arc::clone(&current.certified))
    }
}

impl fmt::Debug for OwnCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnCertificate").field("name", &self.name).finish_non_exhaustive()
    }
}
