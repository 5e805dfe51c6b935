//! One link to one relay: dialled, used, lost, dialled again. While it is silent, another one is dialled beside it.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hopline_dns::Resolver;
use hopline_identity::{Machine, connection_fault, relay_name, relay_server_name};
use hopline_link::{Abort, Backoff, Code, Config, LinkEnd, Mux, Session, Side, reset_if_dead, tune_tcp};
use hopline_route_proto::RoutingHeader;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Uplink, Uplinks, control};
use crate::dial::{DialOptions, dial_and};

/// How long one dial may take, TLS handshake included.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a link that another one has succeeded is looked at: whether it is heard again, and nobody needs it.
const LOOK: Duration = Duration::from_secs(1);

/// Why an uplink has lost its link.
pub(super) enum UplinkExit {
    Lost(LinkEnd),
    /// The relay has a newer process of this machine.
    Replaced,
}

/// Keeps a link to one relay until the edge is on its way out and the link it has then is over.
pub(crate) async fn run(uplinks: Arc<Uplinks>, uplink: Arc<Uplink>) {
    let mut backoff = Backoff::new(Instant::now());
    let mut first = true;
    let mut refused: Option<String> = None;
    let mut leaving = uplinks.leaving();
    let task = UplinkTask { uplinks, uplink };
    let (uplinks, uplink) = (&task.uplinks, &task.uplink);
    let mut tasks = JoinSet::new();
    loop {
        let dialled = async {
            if !first {
                tokio::time::sleep(backoff.pause(Instant::now(), rand::random())).await;
            }
            dial_until_up(uplinks, uplink, &backoff).await
        };
        let dialled = tokio::select! {
            biased;
            _ = leaving.wait_for(Option::is_some) => break,
            dialled = dialled => dialled,
        };
        first = false;
        let up = Instant::now();
        let exit = task.use_links(dialled, &backoff, &mut tasks).await;
        uplinks.change(uplink, |state| {
            state.mux = None;
            state.announced = false;
            state.agents.clear();
            state.agents_told = None;
        });
        backoff.lost(up, Instant::now());
        let (abort, known) = match exit {
            UplinkExit::Lost(end) => (end.abort(), false),
            // It was said when the relay said so.
            UplinkExit::Replaced => {
                (Abort::new(Code::REFUSED, "a newer process of this machine has taken over"), true)
            }
        };
        if abort.code == Code::UNAUTHORIZED || known {
            backoff.sent_away();
        }
        if leaving.borrow().is_some() {
            break;
        }
        // A relay that sends this process away does so each time.
        let again = refused.as_ref() == Some(&abort.message);
        refused = (abort.code == Code::UNAUTHORIZED).then(|| abort.message.clone());
        if !known && !again {
            tracing::warn!(relay = %uplink.relay, reason = %abort.code, "link lost: {}", abort.message);
        }
        uplink.fault.note(&abort);
    }
    // UplinkTask that were succeeded are seen out, and each driver sends what it has.
    while tasks.join_next().await.is_some() {}
}

/// Dials until one dial succeeds. A dial that hangs does not hold up the next: each has a socket of its own, since
/// the path may be back while an old socket still waits for its retransmission.
async fn dial_until_up(uplinks: &Uplinks, uplink: &Uplink, backoff: &Backoff) -> Dialled {
    let mut dials = JoinSet::new();
    let mut said = None;
    loop {
        let relay = uplink.relay.clone();
        // As it is now: another `join` may have renewed its certificate.
        let (machine, resolver) = (uplinks.identity(), uplinks.resolver.clone());
        dials.spawn(async move { dial_once(&resolver, &relay.host, relay.port, machine).await });
        let pause = tokio::time::sleep(backoff.pause(Instant::now(), rand::random()));
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => break,
                Some(done) = dials.join_next() => match done {
                    Ok(Ok(tls)) => return tls,
                    Ok(Err(error)) => {
                        uplink.counts.dial_failed();
                        uplink.fault.note(&Abort::new(Code::CONN_LOST, error.clone()));
                        // One line for each new cause, not one for each dial.
                        if said.as_ref() != Some(&error) {
                            tracing::warn!(relay = %uplink.relay, "can't reach the relay: {error}");
                            said = Some(error);
                        }
                    }
                    Err(error) => tracing::error!(%error, "a dial ended badly"),
                },
            }
        }
    }
}

async fn dial_once(resolver: &Resolver, host: &str, port: u16, machine: Machine) -> Result<Dialled, String> {
    // A clock that is wrong may be set, and a certificate renewed: both are looked at anew each time.
    machine.check_dates().map_err(|fault| fault.to_string())?;
    let options = DialOptions { timeout: DIAL_TIMEOUT, keepalive: false, user_timeout: None };
    let tls = TlsConnector::from(machine.client_config());
    let shake = async |stream: TcpStream, _| {
        tune_tcp(&stream)?;
        tls.connect(relay_server_name(), stream).await.map_err(|error| {
            let why = machine.clock_fault(&error).unwrap_or_else(|| connection_fault(&error));
            io::Error::new(error.kind(), format!("TLS handshake: {why}"))
        })
    };
    let tls = dial_and(resolver, host, port, &options, shake).await.map_err(|error| error.to_string())?;
    Ok(Dialled { tls, machine })
}

/// A connection to a relay, and as whom.
struct Dialled {
    tls: TlsStream<TcpStream>,
    machine: Machine,
}

/// What the links of one uplink have in common: the one in use, and those that it has succeeded.
#[derive(Clone)]
struct UplinkTask {
    uplinks: Arc<Uplinks>,
    uplink: Arc<Uplink>,
}

/// A link that has just come up.
struct Started {
    mux: Mux,
    control: Session,
    peer: Option<String>,
    address: Option<String>,
    /// With the certificate that was shown.
    machine: Machine,
}

impl UplinkTask {
    /// Uses a link until its end; should it fall silent and another one come up beside it, that one from there on.
    /// `tasks` holds the drivers, and the links that were succeeded.
    async fn use_links(&self, dialled: Dialled, backoff: &Backoff, tasks: &mut JoinSet<()>) -> UplinkExit {
        let mut link = match self.start(dialled, tasks).await {
            Ok(link) => link,
            Err(end) => {
                self.uplink.counts.dial_failed();
                return UplinkExit::Lost(end);
            }
        };
        loop {
            tracing::info!(relay = %self.uplink.relay, name = link.peer.as_deref().unwrap_or("?"), "link up");
            let (mux, shown) = (link.mux.clone(), link.machine.clone());
            let (retire, retired) = watch::channel(false);
            let mut serving = Box::pin(self.clone().serve(link, retired));
            link = tokio::select! {
                exit = &mut serving => return exit,
                next = self.beside(&mux, &shown, backoff, tasks) => next,
            };
            if link.machine.is_same(&shown) {
                tracing::warn!(relay = %self.uplink.relay, "link silent; another one is up, and takes its place");
            } else {
                tracing::info!(relay = %self.uplink.relay, "certificate renewed; a link with the new one takes over");
            }
            let (task, next) = (self.clone(), link.mux.clone());
            tasks.spawn(async move {
                // The relay has the services of the next link before it lets go of this one's: else an open that comes
                // in between is refused.
                let succeeded = async {
                    task.uplinks.announced_on(&task.uplink, &next).await;
                    retire.send_replace(true);
                };
                see_out(&mux, succeeded, serving).await;
                task.uplinks.change(&task.uplink, |state| state.retired.retain(is_there));
            });
        }
    }

    /// Another link, once this one has fallen silent and has not been heard again before the other is up, or once the
    /// machine's certificate is another one than this link has shown.
    async fn beside(
        &self,
        mux: &Mux,
        shown: &Machine,
        backoff: &Backoff,
        tasks: &mut JoinSet<()>,
    ) -> Started {
        let mut status = mux.watch();
        let mut identity = self.uplinks.identity_changes();
        loop {
            // The senders live in `mux` and in the uplinks.
            let renewed = tokio::select! {
                _ = identity.wait_for(|machine| !machine.is_same(shown)) => true,
                _ = status.wait_for(|status| status.suspect) => false,
            };
            let heard = async {
                if renewed {
                    std::future::pending::<()>().await;
                }
                drop(status.wait_for(|status| !status.suspect).await);
            };
            let dialled = tokio::select! {
                () = heard => continue,
                dialled = dial_until_up(&self.uplinks, &self.uplink, backoff) => dialled,
            };
            let Ok(next) = self.start(dialled, tasks).await else {
                // A relay that takes the connection and no link is not asked in a loop.
                self.uplink.counts.dial_failed();
                tokio::time::sleep(backoff.pause(Instant::now(), rand::random())).await;
                continue;
            };
            if renewed || status.borrow().suspect {
                return next;
            }
            next.mux.close(Code::SHUTDOWN, "the link before this one was heard again");
        }
    }

    /// A link up to its hello, and its control session.
    async fn start(&self, dialled: Dialled, tasks: &mut JoinSet<()>) -> Result<Started, LinkEnd> {
        let Dialled { tls, machine } = dialled;
        let (tcp, session) = tls.get_ref();
        let peer = session.peer_certificates().and_then(relay_name).map(|name| name.to_string());
        let address = tcp.peer_addr().map(|address| address.to_string()).ok();
        let uplinks = &self.uplinks;
        let config = Config {
            liveness: Some(uplinks.liveness),
            ..Config::new(Side::Dialer, *uplinks.instance.as_bytes(), uplinks.machine.name().as_str())
        };
        let (mux, driver) = Mux::new(tls, config)
            .map_err(|error| LinkEnd::Closed(Abort::new(Code::INTERNAL, error.to_string())))?;
        while tasks.try_join_next().is_some() {}
        let driver = driver.when_over(|end, tls| reset_if_dead(end, tls.get_ref().0));
        tasks.spawn(async { drop(driver.await) });
        mux.up().await.map_err(|error| error.0)?;
        let mut header = RoutingHeader::control();
        header.passing = uplinks.passing;
        match mux.open(header.encode()) {
            Ok(control) => Ok(Started { mux, control, peer, address, machine }),
            Err(_) => Err(mux.closed().await),
        }
    }

    /// One link to its end. Takes the place of the one that the uplink had.
    async fn serve(self, link: Started, retired: watch::Receiver<bool>) -> UplinkExit {
        let Self { uplinks, uplink } = &self;
        let Started { mux, control, peer, address, machine: _ } = link;
        uplink.counts.dial_up();
        uplinks.change(uplink, |state| {
            state.retired.extend(state.mux.replace(mux.clone()));
            state.peer = peer;
            state.address = address;
            state.was_up = true;
            // Who publishes nothing has nothing to announce: and an announce would take over from a process of the
            // same machine that does publish.
            state.announced = uplinks.serves_nothing();
        });
        let mut status = mux.watch();
        let mut speak = pin!(control::speak(uplinks, uplink, control, retired));
        let exit = loop {
            tokio::select! {
                replaced = &mut speak => {
                    break if replaced { UplinkExit::Replaced } else { UplinkExit::Lost(mux.closed().await) };
                }
                // Who waits for a link looks again: this one has fallen silent, was heard again, or drains.
                Ok(()) = status.changed() => uplinks.change(uplink, |_| {}),
                session = mux.accept() => {
                    let Some(session) = session else {
                        // What the relay said last on the control session may say why.
                        let replaced = tokio::time::timeout(Duration::ZERO, &mut speak).await.unwrap_or(false)
                            || uplink.peek(|state| state.stands_by.is_some());
                        break if replaced { UplinkExit::Replaced } else { UplinkExit::Lost(mux.closed().await) };
                    };
                    // Without an agent that takes it, it ends by being dropped.
                    let _ = uplinks.arrivals.send(session).await;
                }
            }
        };
        uplink.counts.ended(&exit);
        uplinks.change(uplink, |state| state.count_out(&mux));
        exit
    }
}

fn is_there(mux: &Mux) -> bool {
    mux.watch().borrow().down.is_none()
}

/// A link that another one succeeds: until it is over, or it is succeeded, was heard again and no session needs it.
async fn see_out(mux: &Mux, succeeded: impl Future<Output = ()>, serving: impl Future<Output = UplinkExit>) {
    let mut serving = pin!(serving);
    let unused = async {
        succeeded.await;
        let mut looks = tokio::time::interval(LOOK);
        let mut times = 0;
        // Twice: the relay may not have read yet that no more are to come.
        while times < 2 {
            looks.tick().await;
            // The control session is always there.
            let unused = mux.info().sessions <= 1 && !mux.watch().borrow().suspect;
            times = if unused { times + 1 } else { 0 };
        }
    };
    tokio::select! {
        _ = &mut serving => return,
        () = unused => mux.close(Code::SHUTDOWN, "another link has taken its place"),
    }
    serving.await;
}
