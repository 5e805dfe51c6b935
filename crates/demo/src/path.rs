//! The path under the rows: relay, agent and sidecar, started as the binary starts them. The only module that
//! knows their crates.

use std::net::SocketAddr;
use std::path::{Path as FilePath, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use hopline_config::{Env, parse_edge};
use hopline_edge::Edge;
use hopline_identity::{Machine, TokenSpec, create_token, join};
use hopline_names::Grants;
use hopline_relay::{Relay, RelayConfig};
use tokio::time::Instant;

use crate::blackhole::Blackhole;

/// The service as the sidecar's unix mapping names it.
pub(crate) const SERVICE: &str = "demo";
/// The same server under the name that the sidecar's TCP mapping has.
const SERVICE_BY_TCP: &str = "demo-tcp";
/// A mapping whose service nobody publishes.
pub(crate) const NOBODY: &str = "nobody";

/// The join tokens are redeemed at once.
const TOKEN_TTL: Duration = Duration::from_secs(60);
/// How long an edge's first link may take; on one machine it takes milliseconds.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// A running path; [`Path::shutdown`] ends it in order.
#[derive(Debug)]
pub struct Path {
    /// The sidecar's unix socket for the service.
    pub socket: PathBuf,
    /// The sidecar's TCP mapping of the same service.
    pub tcp: SocketAddr,
    /// The sidecar's unix socket for a service that nobody publishes.
    pub nobody: PathBuf,
    /// The sidecar's status page, `http://HOST:PORT`.
    pub status: String,
    /// Stands between agent and relay.
    pub hop: Blackhole,
    /// From when on the relay, which has just started, refuses a name that it has never seen, instead of holding the open.
    pub offline_from: Instant,
    relay: Relay,
    agent: Edge,
    sidecar: Edge,
}

impl Path {
    /// Starts relay, agent and sidecar with all their files in `folder`; the agent forwards to `server`.
    ///
    /// # Errors
    ///
    /// When a part does not start, with the part's name.
    pub async fn start(folder: &FilePath, server: SocketAddr) -> anyhow::Result<Self> {
        let state = folder.join("relay");
        let config = RelayConfig { listen: "127.0.0.1:0".to_owned(), ..RelayConfig::new(&state) };
        // Half a second more than the relay's own, for a busy machine.
        let offline_from = Instant::now() + config.hold + Duration::from_millis(500);
        let relay = Relay::start(config).await.context("the relay")?;
        let address = relay.local_addr().context("the relay does not listen")?;
        let hop = Blackhole::start(address).await.context("the proxy between agent and relay")?;

        let machine = enrol(folder, &state, address, "demo-agent", &["demo", "demo-*"], &[]).await?;
        let agent = start_edge(&agent_file(hop.address(), server), machine).await.context("the agent")?;

        let sockets = Sockets::in_folder(folder);
        let machine = enrol(folder, &state, address, "demo-app", &[], &["*"]).await?;
        let text = sidecar_file(address, &sockets)?;
        let sidecar = start_edge(&text, machine).await.context("the sidecar")?;

        let status = sidecar.status_addr().context("the sidecar has no status address")?.to_string();
        let tcp = sidecar.listens(SERVICE_BY_TCP).context("the sidecar's TCP mapping has no socket")?;
        let tcp = tcp.parse().with_context(|| format!("the sidecar's TCP mapping listens at {tcp:?}"))?;
        Ok(Self {
            socket: sockets.app,
            tcp,
            nobody: sockets.nobody,
            status: format!("http://{status}"),
            hop,
            offline_from,
            relay,
            agent,
            sidecar,
        })
    }

    /// Ends the edges, then the relay.
    pub async fn shutdown(self) {
        self.sidecar.shutdown().await;
        self.agent.shutdown().await;
        self.relay.shutdown().await;
    }
}

/// Where the sidecar's unix sockets lie.
struct Sockets {
    app: PathBuf,
    nobody: PathBuf,
}

impl Sockets {
    fn in_folder(folder: &FilePath) -> Self {
        Self { app: folder.join("demo.sock"), nobody: folder.join("nobody.sock") }
    }
}

/// Makes a token at the relay and redeems it, as `hopline token create` and `hopline join` do.
async fn enrol(
    folder: &FilePath,
    state: &FilePath,
    relay: SocketAddr,
    name: &str,
    publish: &[&str],
    dial: &[&str],
) -> anyhow::Result<Machine> {
    let patterns = |texts: &[&str]| texts.iter().map(|text| text.parse()).collect::<Result<_, _>>();
    let grants = Grants { publish: patterns(publish)?, dial: patterns(dial)? };
    let spec = TokenSpec { relay: relay.to_string(), grants, ttl: TOKEN_TTL, uses: 1 };
    let token =
        create_token(state, &spec, SystemTime::now()).with_context(|| format!("a join token for {name}"))?;
    join(&token, &name.parse()?, &folder.join(name)).await.with_context(|| format!("joining as {name}"))
}

/// The agent's file: it reaches the relay by the proxy and finds a dead path within 4.5 s.
fn agent_file(relay: SocketAddr, server: SocketAddr) -> String {
    let port = server.port();
    format!(
        "relay: [\"{relay}\"]\n\
         keepalive: fast\n\
         services:\n  \
           {SERVICE}: {{ grpc: {{ tcp: {port} }} }}\n  \
           {SERVICE_BY_TCP}: {{ grpc: {{ tcp: {port} }} }}\n"
    )
}

/// The sidecar's file: two ways to the service, one to nobody, everything else at its default.
fn sidecar_file(relay: SocketAddr, sockets: &Sockets) -> anyhow::Result<String> {
    let (app, nobody) = (quoted(&sockets.app)?, quoted(&sockets.nobody)?);
    Ok(format!(
        "relay: [\"{relay}\"]\n\
         status: 127.0.0.1:0\n\
         connect:\n  \
           {SERVICE}: {{ listen: {app} }}\n  \
           {SERVICE_BY_TCP}: {{ listen: \"127.0.0.1:0\" }}\n  \
           {NOBODY}: {{ listen: {nobody} }}\n"
    ))
}

/// `unix:PATH` in double quotes, with what YAML reads otherwise escaped.
fn quoted(path: &FilePath) -> anyhow::Result<String> {
    let path = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(format!("\"unix:{}\"", path.replace('\\', "\\\\").replace('"', "\\\"")))
}

/// Starts an edge from its file, as `hopline up` does, and waits for its first link.
async fn start_edge(text: &str, machine: Machine) -> anyhow::Result<Edge> {
    let config = parse_edge(text.as_bytes(), &Env::new("the demo's own file"))?.config;
    let edge = Edge::start(config, machine).await?;
    tokio::time::timeout(READY_WITHIN, edge.ready())
        .await
        .with_context(|| format!("no link to the relay within {} s", READY_WITHIN.as_secs()))?;
    Ok(edge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_files_are_without_faults() {
        let (relay, server) = ("127.0.0.1:7443".parse().unwrap(), "127.0.0.1:50051".parse().unwrap());
        let agent = parse_edge(agent_file(relay, server).as_bytes(), &Env::new("agent")).unwrap();
        assert_eq!(agent.config.services.len(), 2);
        assert_eq!(agent.notices, []);

        let sockets = Sockets::in_folder(FilePath::new("/tmp/a \"strange\" \\ folder: #1"));
        let text = sidecar_file(relay, &sockets).unwrap();
        let sidecar = parse_edge(text.as_bytes(), &Env::new("sidecar")).unwrap();
        assert_eq!(sidecar.config.connect.len(), 3);
        let listen = sidecar.config.connect[0].listen.to_string();
        assert_eq!(listen, format!("unix:{}", sockets.app.display()));
        assert_eq!(sidecar.notices, []);
    }
}
