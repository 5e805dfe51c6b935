//! The agent: dials the real server for each session that arrives.

pub(crate) mod known_sessions;
mod serving;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use hopline_accounting::access::Access;
use hopline_config::{Protocol, ServiceConfig};
use hopline_dns::Resolver;
use hopline_link::{Abort, Code, Session};
use hopline_route_proto::{self as route_proto, RoutingHeader, ServiceAd, ServiceState};

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::figures::{Figures, Sessions};
use crate::links::Uplinks;
use crate::pump::replay::ReplayMemory;
use crate::trail::{Trails, loop_abort};
use known_sessions::{KnownSessions, Lookup, ResumeAttempt};
use serving::{Asked, Serving, refuse};

/// One published service and its figures.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) config: ServiceConfig,
    pub(crate) resolver: Resolver,
    pub(crate) figures: Arc<Figures>,
}

#[derive(Debug)]
pub(crate) struct Agent {
    known: KnownSessions,
    memory: ReplayMemory,
    /// Sessions that are served, whatever became of their service.
    served: Sessions,
    trails: Trails,
    resolver: Resolver,
    services: RwLock<BTreeMap<String, Arc<Service>>>,
    uplinks: Arc<Uplinks>,
}

impl Agent {
    pub(crate) fn new(
        configs: &[ServiceConfig],
        uplinks: &Arc<Uplinks>,
        trails: Trails,
        resolver: Resolver,
    ) -> Self {
        let agent = Self {
            known: KnownSessions::default(),
            memory: ReplayMemory::default(),
            served: Sessions::default(),
            trails,
            resolver,
            services: RwLock::default(),
            uplinks: Arc::clone(uplinks),
        };
        agent.apply(configs);
        agent
    }

    /// Makes the services those of `configs`; returns the names of those that were added, changed or removed.
    /// Sessions that are open run on to the server that they have.
    pub(crate) fn apply(&self, configs: &[ServiceConfig]) -> Vec<String> {
        let mut services = self.services.write().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *services);
        let mut touched = Vec::new();
        for config in configs {
            let name = config.name.to_string();
            let service = match before.remove(&name) {
                Some(service) if service.config == *config => service,
                older => {
                    touched.push(name.clone());
                    let figures = older.map(|service| Arc::clone(&service.figures)).unwrap_or_default();
                    Arc::new(Service { config: config.clone(), resolver: self.resolver.clone(), figures })
                }
            };
            services.insert(name, service);
        }
        touched.extend(before.into_keys());
        drop(services);
        if !touched.is_empty() {
            self.uplinks.publish(self.ads());
        }
        touched
    }

    /// The replay buffers of this agent's sessions.
    pub(crate) fn memory(&self) -> &ReplayMemory {
        &self.memory
    }

    /// Waits until no session is served, those of services that a reload has taken away included.
    pub(crate) async fn none_served(&self) {
        self.served.none_open().await;
    }

    pub(crate) fn services(&self) -> Vec<Arc<Service>> {
        self.services.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// What the relays are told.
    fn ads(&self) -> Vec<ServiceAd> {
        let ad = |service: &Arc<Service>| ServiceAd {
            name: service.config.name.to_string(),
            protocol: match service.config.protocol {
                Protocol::Grpc => route_proto::Protocol::Grpc,
                Protocol::Tcp => route_proto::Protocol::Tcp,
            }
            .into(),
            state: ServiceState::Up.into(),
        };
        self.services().iter().map(ad).collect()
    }

    fn find(&self, name: &str) -> Option<Arc<Service>> {
        self.services.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Serves the sessions that arrive; dropped, it ends them.
    pub(crate) async fn run(self: Arc<Self>, mut arrivals: mpsc::Receiver<Session>) {
        let mut sessions = JoinSet::new();
        loop {
            tokio::select! {
                session = arrivals.recv() => {
                    let Some(session) = session else { return };
                    let agent = Arc::clone(&self);
                    sessions.spawn(async move { agent.serve(session).await });
                }
                Some(_) = sessions.join_next() => {}
            }
        }
    }

    /// One session, from its open to its end.
    async fn serve(&self, session: Session) {
        let header = match RoutingHeader::decode(session.header()) {
            Ok(header) => header,
            Err(error) => return session.abort(Code::PROTOCOL, error.to_string()),
        };
        let Some((name, id)) = header.service().cloned().zip(header.session_id()) else { return };
        let (name, peer) = (name.as_str(), header.source.as_ref().map(|source| source.as_str()));
        let refuse_with = |abort: Abort| {
            Access { service: Some(name), peer, ..Access::default() }.log(&id, Some(&abort));
            session.abort_with(abort);
        };
        let Some(service) = self.find(name) else {
            return refuse_with(Abort::new(Code::NOT_FOUND, "this agent does not publish that name"));
        };
        let allowed = service.config.allow.as_ref().is_none_or(|globs| {
            header
                .source
                .as_ref()
                .is_some_and(|source| globs.iter().any(|glob| glob.matches(source.as_str())))
        });
        if !allowed {
            let source = peer.unwrap_or("?");
            let abort = Abort::new(Code::UNAUTHORIZED, format!("{source} is not in the agent's allow: list"));
            service.figures.opens.refuse(abort.code);
            service.figures.fault.note(&abort);
            return refuse_with(abort);
        }
        if self.trails.is_loop(name, &header.trail) {
            let abort = loop_abort(name, &service.config.target);
            service.figures.opens.refuse(abort.code);
            service.figures.fault.note(&abort);
            return refuse_with(abort);
        }
        let key = (header.source.clone(), id);
        let now = Instant::now();
        let session = match header.again {
            None => session,
            Some(received) => match self.known.resume(&key, ResumeAttempt { session, received }, now) {
                Lookup::Taken => return,
                Lookup::New(attempt) if attempt.received == 0 => attempt.session,
                Lookup::New(attempt) | Lookup::Served(attempt) => return refuse(&attempt.session),
            },
        };
        match self.known.begin(key, now) {
            Some(known) => {
                let _open = self.served.begin();
                let asked = Asked { id, peer, time_left: header.time_left, trail: &header.trail };
                Serving::new(&service, session, known, &self.memory).run(&asked, &self.trails).await;
            }
            None => session.abort(Code::PROTOCOL, "a session of this id was opened before"),
        }
    }
}
