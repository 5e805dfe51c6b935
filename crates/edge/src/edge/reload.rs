//! A changed config file, taken over by a running edge.

use hopline_config::EdgeConfig;
use hopline_identity::Machine;

use super::Edge;

/// What a reload has changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Mappings whose sockets were opened.
    pub added: Vec<String>,
    /// Mappings whose entries have changed.
    pub changed: Vec<String>,
    /// Mappings whose sockets were closed.
    pub removed: Vec<String>,
    /// Services that were added, changed or removed.
    pub services: Vec<String>,
    /// Sockets that could not be opened; they are tried again.
    pub errors: Vec<String>,
    /// Keys that differ and need a restart: they are as before.
    pub not_applied: Vec<&'static str>,
}

/// Why a machine's renewed certificate was not taken up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenewError {
    /// Another machine has joined into the folder.
    #[error("it is of machine {found}, and this process runs as {known}; restart it to run as the other")]
    OtherMachine {
        /// Its name.
        found: String,
        /// The name of this process's machine.
        known: String,
    },
    /// The machine has joined at another relay.
    #[error("it is for another relay, {found}; restart this process to link there")]
    OtherRelay {
        /// That relay's address.
        found: String,
    },
}

impl Edge {
    /// Takes up a certificate that another `join` has stored. Links are made anew with it, one beside the other: sessions
    /// stay on the old ones until they are over. `false` when it is the one in use.
    ///
    /// # Errors
    /// [`RenewError`]; nothing is changed then.
    pub fn renew(&self, machine: Machine) -> Result<bool, RenewError> {
        let now = self.uplinks.identity();
        if machine.is_same(&now) {
            return Ok(false);
        }
        if machine.name() != now.name() {
            let (found, known) = (machine.name().to_string(), now.name().to_string());
            return Err(RenewError::OtherMachine { found, known });
        }
        // Where the file names the relays, what the token named does not matter.
        if self.config.relay.is_empty() && machine.relays() != now.relays() {
            return Err(RenewError::OtherRelay { found: machine.relays().join(", ") });
        }
        self.uplinks.renew(machine);
        Ok(true)
    }

    /// Takes over the mappings, services and name servers of a changed file. What is the same in both is not touched;
    /// sessions of what has changed or gone run on to where they lead; new ones go by the new file. A socket that can't
    /// be opened leaves the one that the mapping had; it is tried again.
    pub async fn reload(&mut self, config: EdgeConfig) -> Reloaded {
        self.uplinks.resolver.use_servers(config.dns.clone());
        let change = self.sidecar.apply(&config.connect).await;
        let services = self.agent.apply(&config.services);
        let now = &self.config;
        let differs = [
            ("relay", now.relay != config.relay),
            ("status", now.status != config.status),
            ("keepalive", now.keepalive != config.keepalive),
            ("hold", now.hold != config.hold),
            ("log", now.log != config.log),
        ];
        let not_applied = differs.into_iter().filter_map(|(key, differs)| differs.then_some(key)).collect();
        let kept = self.config.clone();
        self.config = EdgeConfig {
            relay: kept.relay,
            status: kept.status,
            keepalive: kept.keepalive,
            hold: kept.hold,
            log: kept.log,
            passing: kept.passing,
            ..config
        };
        Reloaded {
            added: change.added,
            changed: change.changed,
            removed: change.removed,
            services,
            errors: change.errors,
            not_applied,
        }
    }

    /// How long open sessions may run on when the edge stops, by the file in force.
    #[must_use]
    pub fn drain_time(&self) -> std::time::Duration {
        self.config.drain
    }
}
