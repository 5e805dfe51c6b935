//! The lab's gRPC application in Rust: a server and a client in one program. The command line and the lines that it
//! prints are those of `lab/apps/README.md`, the same in every language.

mod client;
mod codec;
mod events;
mod server;
mod stream;

use std::net::SocketAddr;

use clap::{Parser, Subcommand};
use serde_json::json;

#[derive(Debug, Parser)]
#[command(name = "hopline-lab-app")]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Serves.
    Server {
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: SocketAddr,
        /// A tonic server never objects to pings: there is nothing to permit.
        #[arg(long)]
        permit_keepalive: bool,
        /// Calls at once on a connection; 0 is the library's default.
        #[arg(long, default_value_t = 0)]
        max_streams: u32,
    },
    /// Makes the calls that stdin asks for.
    Client {
        /// HOST:PORT or unix:PATH
        #[arg(long)]
        target: String,
        /// Client keepalive interval; 0 is none.
        #[arg(long, default_value_t = 0)]
        keepalive_ms: u64,
        #[arg(long, default_value_t = 20_000)]
        keepalive_timeout_ms: u64,
        /// Ping without streams too.
        #[arg(long)]
        keepalive_idle: bool,
        /// A flow-control window that stays as it is; 0 is the library's default.
        #[arg(long, default_value_t = 0)]
        window: u32,
        /// The library's default `:authority` on a unix socket; it has none, the endpoint's URI says it.
        #[arg(long)]
        own_authority: bool,
    },
    /// Says what it is made of.
    Version,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Arguments::parse().role {
        Role::Server { listen, permit_keepalive: _, max_streams } => server::serve(listen, max_streams).await,
        Role::Client {
            target,
            keepalive_ms,
            keepalive_timeout_ms,
            keepalive_idle,
            window,
            own_authority: _,
        } => {
            let keepalive = client::Keepalive {
                interval_ms: keepalive_ms,
                timeout_ms: keepalive_timeout_ms,
                idle: keepalive_idle,
            };
            client::run(&target, &keepalive, window).await
        }
        Role::Version => {
            events::emit(json!({
                "event": "version", "impl": "rust", "library": format!("tonic {}", tonic_version()),
                "runtime": concat!("rust ", env!("CARGO_PKG_RUST_VERSION")),
            }));
            Ok(())
        }
    }
}

/// As the lockfile has it: tonic does not say its version.
fn tonic_version() -> &'static str {
    let lock = include_str!("../../../../Cargo.lock");
    let version =
        lock.split_once("name = \"tonic\"\nversion = \"").and_then(|(_, rest)| rest.split('"').next());
    version.unwrap_or("unknown")
}
