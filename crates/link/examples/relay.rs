//! A relay: whoever connects is known by its name, and a session's header says to whom it goes.
//!
//! `cargo run --example relay -- 127.0.0.1:7000`

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use hopline_link::{Arrived, Config, Node, NodeConfig, Observation, Side, TrustedNames};
use tokio::net::TcpListener;

/// How long a target may take to answer before the origin reads `timeout` with this hop's index.
const ANSWER: Duration = Duration::from_secs(10);
/// How long open sessions may last once the relay is told to go.
const DRAIN: Duration = Duration::from_secs(30);

/// Relays until `stop` resolves, and then drains.
pub async fn relay(listener: TcpListener, stop: impl Future<Output = ()>) {
    let link = Config::new(Side::Listener, std::array::from_fn(|_| rand::random()), "relay");
    let names = TrustedNames::new("relay").expect("a name has at least one byte");
    let node = Node::builder(Arc::new(names), NodeConfig::new(link)).observer(log).build();
    let carries = node.clone();
    tokio::spawn(async move {
        while let Some(Arrived { session, .. }) = carries.accept().await {
            let relay = carries.clone();
            tokio::spawn(async move {
                let to = String::from_utf8_lossy(session.header()).into_owned();
                relay.forward(session, &to, "", Some(ANSWER)).await
            });
        }
    });
    tokio::select! {
        () = node.serve(listener) => {}
        () = stop => node.drain(DRAIN).await,
    }
}

fn log(observation: &Observation<'_>) {
    eprintln!("{}: {observation:?}", observation.label());
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address).await?;
    eprintln!("relaying on {}", listener.local_addr()?);
    relay(listener, async { drop(tokio::signal::ctrl_c().await) }).await;
    Ok(())
}
