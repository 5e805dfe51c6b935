//! The library as its users call it: deadlines, halves, opens, carriers, and what a dropped future costs.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

mod cancel;
mod carriers;
mod deadlines;
mod ends;
mod halves;
mod odd_carriers;
mod opens;

use hopline_link::{Config, Mux, Session, Side, splice};
use tokio::io::duplex;

fn config(side: Side, name: &str) -> Config {
    Config::new(side, [side as u8; 16], name)
}

/// Two ends of a link in memory, both up.
async fn in_memory() -> (Mux, Mux) {
    let (a, b) = duplex(256 << 10);
    let dialer = Mux::spawn(a, config(Side::Dialer, "dialer")).unwrap();
    let listener = Mux::spawn(b, config(Side::Listener, "listener")).unwrap();
    dialer.up().await.unwrap();
    listener.up().await.unwrap();
    (dialer, listener)
}

/// A session over one link, answered.
async fn one_session() -> (Session, Session) {
    let (dialer, listener) = in_memory().await;
    open(&dialer, &listener).await
}

async fn open(dialer: &Mux, listener: &Mux) -> (Session, Session) {
    let near = dialer.open(&b"h"[..]).unwrap();
    let far = listener.accept().await.unwrap();
    far.answer(&b"a"[..]);
    assert_eq!(near.answered().await.unwrap(), "a");
    (near, far)
}

/// The outer ends of two links whose inner ends a relay joins: whatever the first opens goes on over the second.
async fn two_hops() -> (Mux, Mux) {
    let (origin, relay_in) = in_memory().await;
    let (relay_out, far) = in_memory().await;
    tokio::spawn(async move {
        while let Some(left) = relay_in.accept().await {
            let right = relay_out.open(left.header().clone()).unwrap();
            drop(splice(left, right));
        }
    });
    (origin, far)
}
