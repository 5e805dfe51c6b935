//! One mapping: a local socket, and the connections that come to it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hopline_accounting::access::Access;
use hopline_config::MappingConfig;
use hopline_h2_watch::{Cause, EndedBy};
use hopline_link::{Abort, Code};
use tokio::sync::watch;

use super::Shared;
use super::listening::SocketState;
use super::opening::{Carried, Opening};
use crate::figures::Figures;
use crate::inspect::Inspection;
use crate::local::LocalStream;
use crate::pump::{Broken, Connection, Flow, say_last};

/// From so much silence of a link on it is worth a word in the reason.
const SILENCE: Duration = Duration::from_secs(1);

/// One mapping and its figures.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) config: MappingConfig,
    pub(crate) figures: Arc<Figures>,
    pub(crate) inspection: Arc<Inspection>,
    /// The socket of its name; see `listening`, which sees to it.
    pub(crate) socket: watch::Sender<SocketState>,
}

impl Mapping {
    /// A mapping; it goes on with the socket and the figures of its name's earlier entry, and with what that has read if
    /// it still reads.
    pub(crate) fn new(config: MappingConfig, before: Option<&Self>) -> Self {
        let figures = before.map(|before| Arc::clone(&before.figures)).unwrap_or_default();
        let inspection = before.map(|before| &before.inspection).filter(|of| of.is_on() == config.inspect);
        let inspection = inspection.cloned().unwrap_or_else(|| Inspection::new(config.inspect));
        let socket = before.map(|before| before.socket.clone()).unwrap_or_default();
        Self { config, figures, inspection, socket }
    }

    /// One application's connection, from its accept to its end.
    pub(super) async fn carry(&self, stream: LocalStream, shared: &Shared) -> Result<(), Abort> {
        let _open = (self.figures.sessions.begin(), shared.carried.begin());
        let began = Instant::now();
        let deadline = began + self.config.open_timeout;
        let connection = Connection::new(stream);
        let Some(local) = connection.stream() else { return Ok(()) };
        let inspected = self.inspection.connect();
        let service = &self.config.service;
        let opening = Opening::new(shared, local, service, &self.figures, deadline, inspected.clone());
        let Carried { mut flow, session, result, id, relay, agent } = opening.carry().await;
        let ended_by = ended_by(&flow, &result);
        let last_words = |abort: &Abort| {
            let inspected = inspected.as_ref().filter(|_| self.config.explain)?;
            let cause = Cause {
                reason: &abort.code.name(),
                hop: u8::try_from(abort.hops).unwrap_or(u8::MAX),
                between: between(
                    abort,
                    shared.uplinks.machine.name().as_str(),
                    relay.as_deref(),
                    agent.as_deref(),
                ),
                // One that was cut at once was not silent.
                silent: abort.silent_ms.map(Duration::from_millis).filter(|silent| *silent >= SILENCE),
            };
            (ended_by == EndedBy::Fault).then(|| inspected.explain(&cause)).flatten()
        };
        let result = match (&session, result) {
            (Some(session), result) => flow.close(connection, session, result, last_words).await,
            (None, result) => {
                if let Err(Broken::Session(abort)) = &result
                    && let Some(words) = last_words(abort)
                {
                    say_last(connection, &words).await;
                }
                result
            }
        };
        if let Some(inspected) = inspected {
            inspected.close(ended_by);
        }
        let broken = result.as_ref().err().map(Broken::abort);
        let line = Access {
            mapping: Some(service.as_str()),
            peer: agent.as_deref(),
            relay: relay.as_deref(),
            duration: began.elapsed(),
            forth: flow.sent(),
            back: flow.received(),
            ..Access::default()
        };
        line.log(&id, broken.as_ref());
        match result {
            // An application that resets its own connection has no fault to be told of.
            Ok(()) | Err(Broken::Local(_) | Broken::Closed(_) | Broken::PeerGone) => Ok(()),
            Err(Broken::Session(abort)) => Err(self.failed(abort)),
        }
    }

    fn failed(&self, abort: Abort) -> Abort {
        self.figures.fault.note(&abort);
        abort
    }
}

fn ended_by(flow: &Flow, result: &Result<(), Broken>) -> EndedBy {
    match result {
        Ok(()) if flow.is_connection_first() => EndedBy::Application,
        Err(Broken::Local(_) | Broken::Closed(_) | Broken::PeerGone) => EndedBy::Application,
        Ok(()) => EndedBy::Server,
        // What the server's side says of itself is no fault of the path.
        Err(Broken::Session(abort))
            if abort.code == Code::PEER_RESET || abort.code.app_number().is_some() =>
        {
            EndedBy::Server
        }
        Err(Broken::Session(_)) => EndedBy::Fault,
    }
}

/// The two ends of the hop that a path broke at, where they are known.
fn between<'a>(
    abort: &Abort,
    machine: &'a str,
    relay: Option<&'a str>,
    agent: Option<&'a str>,
) -> Option<(&'a str, &'a str)> {
    if ![Code::CONN_LOST, Code::FORWARD_DEAD, Code::DIAL_FAILED].contains(&abort.code) {
        return None;
    }
    match abort.hops {
        0 => Some((machine, relay?)),
        1 => Some((relay?, agent?)),
        2 => Some((agent?, "its server")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pump::Beside;

    #[test]
    fn the_hop_that_broke_is_named_by_its_two_ends() {
        let at = |code, hops| Abort { hops, ..Abort::new(code, "why") };
        let (relay, agent) = (Some("relay-b"), Some("db-2"));
        for (abort, relay, agent, expected) in [
            (at(Code::CONN_LOST, 0), relay, agent, Some(("web-1", "relay-b"))),
            (at(Code::CONN_LOST, 0), relay, None, Some(("web-1", "relay-b"))),
            (at(Code::CONN_LOST, 0), None, agent, None),
            (at(Code::CONN_LOST, 1), relay, agent, Some(("relay-b", "db-2"))),
            (at(Code::CONN_LOST, 1), relay, None, None),
            (at(Code::CONN_LOST, 2), relay, agent, Some(("db-2", "its server"))),
            (at(Code::FORWARD_DEAD, 2), relay, agent, Some(("db-2", "its server"))),
            (at(Code::DIAL_FAILED, 2), relay, agent, Some(("db-2", "its server"))),
            (at(Code::CONN_LOST, 3), relay, agent, None),
            // Nothing broke between two processes.
            (at(Code::DRAIN_DEADLINE, 1), relay, agent, None),
            (at(Code::TIMEOUT, 0), relay, agent, None),
        ] {
            assert_eq!(between(&abort, "web-1", relay, agent), expected, "{abort:?}");
        }
    }

    #[test]
    fn what_the_server_says_of_itself_is_no_fault_of_the_path() {
        let flow = Flow::new(
            &crate::pump::replay::ReplayMemory::default(),
            Beside::Application,
            &Arc::default(),
            None,
        );
        let session = |code| Err(Broken::Session(Abort::new(code, "why")));
        for (result, expected) in [
            (session(Code::PEER_RESET), EndedBy::Server),
            (session(Code::app(7).unwrap()), EndedBy::Server),
            (Ok(()), EndedBy::Server),
            (session(Code::CONN_LOST), EndedBy::Fault),
            (session(Code::DRAIN_DEADLINE), EndedBy::Fault),
            (session(Code::SHUTDOWN), EndedBy::Fault),
            (session(Code::TIMEOUT), EndedBy::Fault),
            (session(Code::FORWARD_DEAD), EndedBy::Fault),
            (session(Code::OFFLINE), EndedBy::Fault),
            (Err(Broken::PeerGone), EndedBy::Application),
            (Err(Broken::Local(Abort::new(Code::PEER_RESET, "why"))), EndedBy::Application),
            (Err(Broken::Closed(Abort::new(Code::PEER_RESET, "why"))), EndedBy::Application),
        ] {
            assert_eq!(ended_by(&flow, &result), expected, "{result:?}");
        }
    }
}
