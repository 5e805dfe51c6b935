//! One mapping: a local socket, and the connections that come to it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hopline_config::MappingConfig;
use hopline_link::{Abort, Code};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::fault::Figures;
use crate::local::{BindError, ListenSpec, ListenerHealth, LocalListener, LocalStream};
use crate::opening::Opening;
use crate::pump::{Broken, Connection};
use crate::uplinks::Uplinks;

/// How long until a socket that could not be opened is tried again.
pub(crate) const BIND_AGAIN: Duration = Duration::from_secs(5);

/// One mapping and its figures.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) config: MappingConfig,
    pub(crate) figures: Arc<Figures>,
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
    /// A mapping that goes on with the figures of its name's earlier entry.
    pub(crate) fn new(config: MappingConfig, spec: ListenSpec, figures: Arc<Figures>) -> Self {
        Self { config, figures, spec, socket: watch::Sender::new(None), closing: watch::Sender::new(false) }
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
        if let Some(mut listener) = listener {
            loop {
                let stream = tokio::select! {
                    stream = listener.accept() => stream,
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
        let _open = self.figures.sessions.begin();
        let deadline = Instant::now() + self.config.open_timeout;
        let connection = Connection::new(stream);
        let Some(local) = connection.stream() else { return Ok(()) };
        let service = self.config.service.as_str();
        let (flow, session, result) = match Opening::new(uplinks, local, service, deadline) {
            Ok(opening) => opening.carry().await,
            Err(abort) => return Err(self.failed(abort)),
        };
        if let Some(session) = session {
            flow.close(connection, &session, &result).await;
        }
        match result {
            // An application that resets its own connection has no fault to be told of.
            Ok(()) | Err(Broken::Local(_) | Broken::Left) => Ok(()),
            Err(Broken::Session(abort)) => Err(self.failed(abort)),
        }
    }

    fn failed(&self, abort: Abort) -> Abort {
        self.figures.fault.note(&abort);
        abort
    }
}
