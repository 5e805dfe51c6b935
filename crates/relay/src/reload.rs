//! A changed config, taken over by a running relay.

use std::time::Duration;

use crate::hub::Settings;
use crate::{Relay, RelayConfig};

/// What a reload has changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Keys whose new value is in force.
    pub changed: Vec<&'static str>,
    /// Keys that differ and need a restart: they are as before.
    pub not_applied: Vec<&'static str>,
}

impl Relay {
    /// Takes over a changed config. No link and no session is touched: `keepalive` and the limits are for links that come
    /// up from now on, `hold` is for agents that are lost from now on, the answer timeout for opens that come from now on.
    /// Who may link is read from the state folder each time, and the relay's certificate is made anew by itself.
    pub fn reload(&mut self, config: RelayConfig) -> Reloaded {
        let before = &self.config;
        let applied = [
            ("keepalive", before.liveness != config.liveness),
            ("hold", before.hold != config.hold),
            ("drain", before.drain != config.drain),
            ("answer_timeout", before.answer_timeout != config.answer_timeout),
            ("limits", before.limits != config.limits),
        ];
        let fixed = [
            ("listen", before.listen != config.listen),
            ("state", before.state != config.state),
            ("name", before.name != config.name),
            ("admin", before.admin != config.admin || before.admin_hosts != config.admin_hosts),
        ];
        self.hub.set_settings(Settings::new(&config), config.hold);
        self.config = RelayConfig {
            listen: before.listen.clone(),
            state: before.state.clone(),
            name: before.name.clone(),
            admin: before.admin.clone(),
            admin_hosts: before.admin_hosts.clone(),
            ..config
        };
        let differ = |keys: &[(&'static str, bool)]| {
            keys.iter().filter_map(|(key, differs)| differs.then_some(*key)).collect()
        };
        Reloaded { changed: differ(&applied), not_applied: differ(&fixed) }
    }

    /// How long open sessions may run on when the relay stops, by the config in force.
    #[must_use]
    pub fn drain_time(&self) -> Duration {
        self.config.drain
    }
}

#[cfg(test)]
mod tests {
    use hopline_link::{Limits, Liveness};
    use hopline_names::MachineName;

    use super::*;

    #[tokio::test]
    async fn what_can_change_does_and_the_rest_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let first = RelayConfig { listen: "127.0.0.1:0".to_owned(), ..RelayConfig::new(folder.path()) };
        let mut relay = Relay::start(first.clone()).await.unwrap();
        assert_eq!(relay.reload(first.clone()), Reloaded::default());

        let seconds = Duration::from_secs;
        let second = RelayConfig {
            listen: "127.0.0.1:1".to_owned(),
            state: folder.path().join("other"),
            name: MachineName::new("other").unwrap(),
            admin_hosts: vec!["status.example".to_owned()],
            liveness: Some(Liveness::FAST),
            hold: seconds(3),
            drain: seconds(4),
            answer_timeout: Some(seconds(5)),
            limits: Limits { sessions: 6, ..Limits::default() },
            ..first.clone()
        };
        let reloaded = relay.reload(second);
        assert_eq!(reloaded.changed, ["keepalive", "hold", "drain", "answer_timeout", "limits"]);
        assert_eq!(reloaded.not_applied, ["listen", "state", "name", "admin"]);
        let settings = relay.hub.settings();
        assert_eq!(settings.liveness, Some(Liveness::FAST));
        assert_eq!(settings.answer_timeout, Some(seconds(5)));
        assert_eq!(settings.limits.sessions, 6);
        assert_eq!(relay.drain_time(), seconds(4));
        // What was not applied is compared with what is in force.
        assert_eq!(relay.reload(first).not_applied, Vec::<&str>::new());
        relay.shutdown().await;
    }
}
