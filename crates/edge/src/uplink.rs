//! One link to one relay: dialled, used, lost, dialled again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hopline_identity::{relay_name, relay_server_name};
use hopline_link::{Abort, Code, Config, LinkEnd, Mux, Session, Side, tune_tcp};
use hopline_route_proto::{
    Announce, ControlDecoder, ControlMessage as _, EdgeToRelay, Leaving, RelayToEdge, RoutingHeader,
};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::agent::Agent;
use crate::backoff::Backoff;
use crate::forward::dial::{DialOptions, dial};
use crate::sidecar::Sidecar;
use crate::uplinks::{Uplink, Uplinks};

/// How long one dial may take, TLS handshake included.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// How a link was left.
enum Left {
    Lost(LinkEnd),
    /// The relay has a newer process of this machine.
    Replaced,
}

/// Keeps a link to one relay until the edge is on its way out and the link it has then is over.
pub(crate) async fn run(
    uplinks: Arc<Uplinks>,
    uplink: Arc<Uplink>,
    sidecar: Arc<Sidecar>,
    agent: Arc<Agent>,
) {
    let mut backoff = Backoff::new(Instant::now());
    let mut first = true;
    // They outlive the link: each has its own end to see to.
    let mut sessions = JoinSet::new();
    let mut leaving = uplinks.leaving();
    loop {
        let dialled = async {
            if !first {
                tokio::time::sleep(backoff.pause(Instant::now(), rand::random())).await;
            }
            dial_until_up(&uplinks, &uplink, &backoff).await
        };
        let tls = tokio::select! {
            biased;
            _ = leaving.wait_for(Option::is_some) => break,
            tls = dialled => tls,
        };
        first = false;
        let up = Instant::now();
        let left = use_link(&uplinks, &uplink, &sidecar, &agent, tls, &mut sessions).await;
        uplinks.change(&uplink, |state| {
            state.mux = None;
            state.announced = false;
            state.agents.clear();
            state.agents_told = None;
        });
        backoff.lost(up, Instant::now());
        let abort = match left {
            Left::Lost(end) => end.abort(),
            Left::Replaced => {
                backoff.sent_away();
                Abort::new(Code::REFUSED, "a newer process of this machine has taken over")
            }
        };
        if leaving.borrow().is_some() {
            break;
        }
        tracing::warn!(relay = %uplink.relay, reason = %abort.code, "link lost: {}", abort.message);
        uplink.fault.note(&abort);
    }
    while sessions.join_next().await.is_some() {}
}

/// Dials until one dial succeeds. A dial that hangs does not hold up the next: each has a socket of its own, since
/// the path may be back while an old socket still waits for its retransmission.
async fn dial_until_up(uplinks: &Uplinks, uplink: &Uplink, backoff: &Backoff) -> TlsStream<TcpStream> {
    let mut dials = JoinSet::new();
    let mut said = None;
    loop {
        let relay = uplink.relay.clone();
        let tls = TlsConnector::from(uplinks.machine.client_config());
        dials.spawn(async move {
            let dialled = tokio::time::timeout(DIAL_TIMEOUT, dial_once(&relay.host, relay.port, &tls)).await;
            dialled.unwrap_or_else(|_| Err(format!("no answer within {} s", DIAL_TIMEOUT.as_secs())))
        });
        let pause = tokio::time::sleep(backoff.pause(Instant::now(), rand::random()));
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => break,
                Some(done) = dials.join_next() => match done {
                    Ok(Ok(tls)) => return tls,
                    Ok(Err(error)) => {
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

async fn dial_once(host: &str, port: u16, tls: &TlsConnector) -> Result<TlsStream<TcpStream>, String> {
    let options = DialOptions { timeout: DIAL_TIMEOUT, keepalive: false, user_timeout: None };
    let stream = dial(host, port, &options).await.map_err(|error| error.to_string())?;
    tune_tcp(&stream).map_err(|error| error.to_string())?;
    let tls = tls.connect(relay_server_name(), stream).await;
    tls.map_err(|error| format!("TLS handshake with {host}:{port}: {error}"))
}

/// One link from its hello to its end.
async fn use_link(
    uplinks: &Arc<Uplinks>,
    uplink: &Arc<Uplink>,
    sidecar: &Arc<Sidecar>,
    agent: &Arc<Agent>,
    tls: TlsStream<TcpStream>,
    sessions: &mut JoinSet<()>,
) -> Left {
    let (tcp, session) = tls.get_ref();
    let peer = session.peer_certificates().and_then(relay_name);
    let address = tcp.peer_addr().map(|address| address.to_string()).ok();
    let config = Config {
        liveness: Some(uplinks.liveness),
        ..Config::new(Side::Dialer, *uplinks.instance.as_bytes(), uplinks.machine.name())
    };
    let mux = match Mux::spawn(tls, config) {
        Ok(mux) => mux,
        Err(error) => return Left::Lost(LinkEnd::Closed(Abort::new(Code::INTERNAL, error.to_string()))),
    };
    if let Err(error) = mux.up().await {
        return Left::Lost(error.0);
    }
    let Ok(control) = mux.open(RoutingHeader::control().encode()) else {
        return Left::Lost(mux.closed().await);
    };
    tracing::info!(relay = %uplink.relay, name = peer.as_deref().unwrap_or("?"), "link up");
    uplinks.change(uplink, |state| {
        state.mux = Some(mux.clone());
        state.peer.clone_from(&peer);
        state.address.clone_from(&address);
        state.was_up = true;
        // Who publishes nothing has nothing to announce: and an announce would take over from a process of the
        // same machine that does publish.
        state.announced = agent.is_empty();
    });
    let mut status = mux.watch();
    let mut speak = std::pin::pin!(speak_control(uplinks, uplink, sidecar, agent, control));
    loop {
        tokio::select! {
            replaced = &mut speak => {
                return if replaced { Left::Replaced } else { Left::Lost(mux.closed().await) };
            }
            // Who waits for a link looks again: this one has fallen silent, was heard again, or drains.
            Ok(()) = status.changed() => uplinks.change(uplink, |_| {}),
            session = mux.accept() => {
                let Some(session) = session else {
                    // What the relay said last on the control session may say why.
                    let replaced = tokio::time::timeout(Duration::ZERO, &mut speak).await.unwrap_or(false);
                    return if replaced { Left::Replaced } else { Left::Lost(mux.closed().await) };
                };
                let agent = Arc::clone(agent);
                sessions.spawn(async move { agent.serve(session).await });
            }
        }
        while sessions.try_join_next().is_some() {}
    }
}

/// Says what this edge serves and dials, and takes what the relay says. True if the relay sent this process away.
async fn speak_control(
    uplinks: &Uplinks,
    uplink: &Uplink,
    sidecar: &Sidecar,
    agent: &Agent,
    control: Session,
) -> bool {
    let mut lists = agent.revision();
    lists.mark_unchanged();
    if !agent.is_empty() && !announce(uplinks, agent, &control).await {
        return false;
    }
    let mut mappings = sidecar.revision();
    mappings.mark_changed();
    let mut asked = uplinks.asked();
    let mut decoder = ControlDecoder::new();
    let mut leaving = uplinks.leaving();
    let mut told = false;
    loop {
        let read = tokio::select! {
            read = control.read_bytes() => read,
            Ok(()) = lists.changed() => {
                if !announce(uplinks, agent, &control).await {
                    return false;
                }
                continue;
            }
            Ok(()) = async { tokio::select! { changed = mappings.changed() => changed, asked = asked.changed() => asked } } => {
                if !say(&control, &EdgeToRelay::Interest(sidecar.interest())).await {
                    return false;
                }
                continue;
            }
            deadline = wait_leaving(&mut leaving), if !told => {
                told = true;
                if !say(&control, &EdgeToRelay::Leaving(Leaving { deadline_ms: deadline })).await {
                    return false;
                }
                continue;
            }
        };
        let Ok(Some(bytes)) = read else { return false };
        decoder.handle_data(&bytes);
        loop {
            match decoder.poll_message() {
                Ok(None) => break,
                Ok(Some(RelayToEdge::Replaced(replaced))) => {
                    tracing::warn!("{}", replaced.message);
                    return true;
                }
                Ok(Some(message)) => take_message(uplinks, uplink, message),
                Err(error) => {
                    control.abort(Code::PROTOCOL, error.to_string());
                    return false;
                }
            }
        }
    }
}

fn take_message(uplinks: &Uplinks, uplink: &Uplink, message: RelayToEdge) {
    match message {
        RelayToEdge::Welcome(welcome) => uplinks.change(uplink, |state| state.peer = Some(welcome.relay)),
        RelayToEdge::Announced(announced) => {
            for refusal in &announced.refused {
                tracing::warn!(
                    service = refusal.name,
                    "the relay does not take this service: {}",
                    refusal.message
                );
            }
            uplinks.change(uplink, |state| {
                state.announced = true;
                state.refused = announced.refused.into_iter().map(|refusal| refusal.name).collect();
            });
        }
        RelayToEdge::Agents(agents) => uplinks.change(uplink, |state| {
            state.agents_told = Some(Instant::now());
            state.agents.extend(agents.services.into_iter().map(|of| (of.service, of.agents)));
        }),
        // The link says that it drains, too.
        RelayToEdge::Draining(_) => {}
        // It ends the link, before this.
        RelayToEdge::Replaced(_) => {}
    }
}

/// Waits until this edge is on its way out: within how many milliseconds.
async fn wait_leaving(leaving: &mut watch::Receiver<Option<Duration>>) -> u64 {
    let deadline = leaving.wait_for(Option::is_some).await.map(|deadline| deadline.unwrap_or_default());
    match deadline {
        Ok(deadline) => u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX),
        // The edge is gone, and this task with it in a moment.
        Err(_) => std::future::pending().await,
    }
}

async fn announce(uplinks: &Uplinks, agent: &Agent, control: &Session) -> bool {
    let lists = agent.revision();
    let revision = *lists.borrow();
    say(
        control,
        &EdgeToRelay::Announce(Announce {
            revision,
            instance: Bytes::copy_from_slice(uplinks.instance.as_bytes()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            services: agent.ads(),
        }),
    )
    .await
}

/// False if the link is over, or the message can't be sent.
async fn say(control: &Session, message: &EdgeToRelay) -> bool {
    match message.to_frame() {
        Ok(frame) => control.write_bytes(frame).await.is_ok(),
        Err(error) => {
            tracing::error!(%error, "the relay can't be told");
            false
        }
    }
}
