//! One mapping: a local socket, and the connections that come to it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hopline_admin::access::Access;
use hopline_config::MappingConfig;
use hopline_h2_watch::{Cause, EndedBy};
use hopline_link::{Abort, Code};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::fault::{Figures, log_end};
use crate::inspect::{Inspection, TICK};
use crate::local::{BindError, ListenSpec, ListenerHealth, LocalListener, LocalStream};
use crate::opening::{Carried, Opening};
use crate::pump::{Broken, Connection, Flow, say_last};
use crate::uplinks::Uplinks;

/// How long until a socket that could not be opened is tried again.
pub(crate) const BIND_AGAIN: Duration = Duration::from_secs(5);

/// From so much silence of a link on it is worth a word in the reason.
const SILENCE: Duration = Duration::from_secs(1);

/// One mapping and its figures.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) config: MappingConfig,
    pub(crate) figures: Arc<Figures>,
    pub(crate) inspection: Arc<Inspection>,
    spec: ListenSpec,
    socket: watch::Sender<Option<Socket>>,
    closing: watch::Sender<bool>,
}

/// The socket of a mapping, while it is open.
#[derive(Debug, Clone)]
pub(crate) struct Socket {
    /// `unix:PATH` or `HOST:PORT`.
    pub(crate) listens: String,
    pub(crate) health: ListenerHealth,
}

impl Mapping {
    /// A mapping; it goes on with the figures of its name's earlier entry, and with what that has read if it still reads.
    pub(crate) fn new(config: MappingConfig, spec: ListenSpec, before: Option<&Self>) -> Self {
        let figures = before.map(|before| Arc::clone(&before.figures)).unwrap_or_default();
        let inspection = before.map(|before| &before.inspection).filter(|of| of.is_on() == config.inspect);
        let inspection = inspection.cloned().unwrap_or_else(|| Inspection::new(config.inspect));
        Self {
            config,
            figures,
            inspection,
            spec,
            socket: watch::Sender::new(None),
            closing: watch::Sender::new(false),
        }
    }

    pub(crate) fn socket(&self) -> Option<Socket> {
        self.socket.borrow().clone()
    }

    /// Opens the socket; a failure is kept for the status.
    pub(crate) async fn bind(&self) -> Result<LocalListener, BindError> {
        let listener =
            LocalListener::bind(self.config.service.as_str(), &self.spec).await.inspect_err(|error| {
                self.figures.fault.note(&Abort::new(Code::INTERNAL, error.to_string()));
            })?;
        let listens = match (listener.unix_path(), listener.tcp_addresses().first()) {
            (Some(path), _) => format!("unix:{}", path.display()),
            (None, Some(address)) => address.to_string(),
            (None, None) => self.config.listen.to_string(),
        };
        tracing::info!(mapping = %self.config.service, %listens, "mapping open");
        self.socket.send_replace(Some(Socket { listens, health: listener.health() }));
        Ok(listener)
    }

    /// Closes the socket; connections that came by it run on. Resolves when its address is free.
    pub(crate) async fn close(&self) {
        self.closing.send_replace(true);
        // The sender lives in `self`.
        drop(self.socket.subscribe().wait_for(Option::is_none).await);
    }

    /// Accepts connections until the mapping is closed or the edge is on its way out; those that are open then run
    /// on. Without a listener it tries to get one first.
    pub(crate) async fn serve(self: Arc<Self>, listener: Option<LocalListener>, uplinks: Arc<Uplinks>) {
        let mut closing = self.closing.subscribe();
        let mut leaving = uplinks.leaving();
        let stop = async {
            tokio::select! {
                _ = closing.wait_for(|closing| *closing) => {}
                _ = leaving.wait_for(Option::is_some) => {}
            }
        };
        tokio::pin!(stop);
        let listener = match listener {
            Some(listener) => Some(listener),
            None => tokio::select! {
                listener = self.bind_later() => Some(listener),
                () = &mut stop => None,
            },
        };
        let mut tasks = JoinSet::new();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        if let Some(mut listener) = listener {
            loop {
                let stream = tokio::select! {
                    stream = listener.accept() => stream,
                    _ = ticks.tick(), if self.inspection.is_busy() => {
                        self.inspection.tick(uplinks.round_trip(self.config.service.as_str()));
                        continue;
                    }
                    // It comes from a task that was spawned below, after the look above.
                    () = self.inspection.woken(), if !self.inspection.is_busy() => continue,
                    () = &mut stop => break,
                };
                let (mapping, uplinks) = (Arc::clone(&self), Arc::clone(&uplinks));
                tasks.spawn(async move {
                    // The application learns it from its connection, people from the status.
                    let _ = mapping.carry(stream, &uplinks).await;
                });
                while tasks.try_join_next().is_some() {}
            }
        }
        self.socket.send_replace(None);
        while tasks.join_next().await.is_some() {}
    }

    async fn bind_later(&self) -> LocalListener {
        loop {
            tokio::time::sleep(BIND_AGAIN).await;
            if let Ok(listener) = self.bind().await {
                return listener;
            }
        }
    }

    /// One application's connection, from its accept to its end.
    pub(crate) async fn carry(&self, stream: LocalStream, uplinks: &Arc<Uplinks>) -> Result<(), Abort> {
        let _open = (self.figures.sessions.begin(), uplinks.carried.begin());
        let began = Instant::now();
        let deadline = began + self.config.open_timeout;
        let connection = Connection::new(stream);
        let Some(local) = connection.stream() else { return Ok(()) };
        let inspected = self.inspection.connect();
        let service = self.config.service.as_str();
        let opening = Opening::new(uplinks, local, service, &self.figures, deadline, inspected.clone());
        let carried = match opening {
            Ok(opening) => opening.carry().await,
            Err(abort) => return Err(self.failed(abort)),
        };
        let Carried { mut flow, session, result, id, relay, agent } = carried;
        let ended_by = ended_by(&flow, &result);
        let last_words = |abort: &Abort| {
            let inspected = inspected.as_ref().filter(|_| self.config.explain)?;
            let cause = Cause {
                reason: &abort.code.name(),
                hop: u8::try_from(abort.hops).unwrap_or(u8::MAX),
                between: between(abort, uplinks.machine.name(), relay.as_deref(), agent.as_deref()),
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
            mapping: Some(service),
            peer: agent.as_deref(),
            relay: relay.as_deref(),
            duration: began.elapsed(),
            forth: flow.sent(),
            back: flow.received(),
            ..Access::default()
        };
        log_end(&line, id, broken.as_ref());
        match result {
            // An application that resets its own connection has no fault to be told of.
            Ok(()) | Err(Broken::Local(_) | Broken::Closed(_) | Broken::Left) => Ok(()),
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
        Err(Broken::Local(_) | Broken::Closed(_) | Broken::Left) => EndedBy::Application,
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
