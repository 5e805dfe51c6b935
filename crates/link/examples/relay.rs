//! A relay: whoever connects says its name in its hello, and a session's header says to whom it goes.
//!
//! `cargo run --example relay -- 127.0.0.1:7000`

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hopline_link::{Code, Config, Mux, Side, close_all, splice};
use tokio::net::{TcpListener, TcpStream};

/// The links by the names of their peers. Whoever connects is believed: over TLS the certificate would say it.
type Peers = Arc<Mutex<HashMap<String, Mux>>>;

/// Relays until `stop` resolves, and then says goodbye.
pub async fn relay(listener: TcpListener, stop: impl Future<Output = ()>) {
    let peers = Peers::default();
    let accept = async {
        while let Ok((carrier, _)) = listener.accept().await {
            tokio::spawn(serve(carrier, Arc::clone(&peers)));
        }
    };
    tokio::select! {
        () = accept => {}
        () = stop => {}
    }
    let links: Vec<Mux> = peers.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
    close_all(&links, Code::SHUTDOWN, "the relay stops", Duration::from_secs(1)).await;
}

async fn serve(carrier: TcpStream, peers: Peers) {
    let _ = hopline_link::tune_tcp(&carrier);
    let Ok(mux) = Mux::spawn(carrier, Config::new(Side::Listener, [0; 16], "relay")) else { return };
    let Ok(peer) = mux.up().await else { return };
    let find = |name: &str| peers.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
    peers.lock().unwrap_or_else(PoisonError::into_inner).insert(peer.name, mux.clone());
    while let Some(session) = mux.accept().await {
        match find(&String::from_utf8_lossy(session.header())).map(|to| to.open("")) {
            Some(Ok(onward)) => drop(splice(session, onward)),
            Some(Err(error)) => session.abort(Code::OFFLINE, error.to_string()),
            None => session.abort(Code::NOT_FOUND, "nobody of that name is linked"),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address).await?;
    eprintln!("relaying on {}", listener.local_addr()?);
    relay(listener, async { drop(tokio::signal::ctrl_c().await) }).await;
    Ok(())
}
