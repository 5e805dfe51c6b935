//! A chain of three links whose middle one falls silent: no byte, no end, no reset. Both ends read an error that says
//! which hop died, within that link's bound, and never a clean end.

use std::error::Error;
use std::time::Duration;

use hopline_link::{Abort, Code, Config, LinkEnd, Liveness, Mux, Side, splice};
use tokio::io::{copy_bidirectional, duplex};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// What each end read, and how long after the cut.
#[derive(Debug)]
pub struct Outcome {
    /// The end that opened.
    pub origin: (Abort, Duration),
    /// The end that answered.
    pub far: (Abort, Duration),
    /// What the middle link itself is for the relay beside it: a dead peer.
    pub beside: LinkEnd,
}

/// Opens across three hops, cuts the middle one, waits for both ends.
pub async fn run(liveness: Liveness) -> Result<Outcome, Box<dyn Error>> {
    let (cut, middle_cut) = oneshot::channel();
    let (origin, first_in) = link(liveness, None).await?;
    let (first_out, second_in) = link(liveness, Some(middle_cut)).await?;
    let (second_out, far) = link(liveness, None).await?;
    let middle = first_out.clone();
    tokio::spawn(relay(first_in, first_out));
    tokio::spawn(relay(second_in, second_out));
    let far_session = tokio::spawn(async move {
        let session = far.accept().await?;
        session.answer("");
        Some((far, session))
    });
    let session = origin.open_within("", Duration::from_secs(5)).await?;
    let (_far, far_session) = far_session.await?.ok_or("the link is down")?;

    drop(cut);
    let began = Instant::now();
    let ends = tokio::join!(
        async { (session.aborted().await, began.elapsed()) },
        async { (far_session.aborted().await, began.elapsed()) },
        middle.closed(),
    );
    Ok(Outcome { origin: ends.0, far: ends.1, beside: ends.2 })
}

async fn relay(from: Mux, to: Mux) {
    while let Some(left) = from.accept().await {
        match to.open(left.header().clone()) {
            Ok(right) => drop(splice(left, right)),
            Err(error) => left.abort(Code::OFFLINE, error.to_string()),
        }
    }
}

/// A link in memory, up at both ends; its wire carries until `cut`.
async fn link(liveness: Liveness, cut: Option<oneshot::Receiver<()>>) -> Result<(Mux, Mux), Box<dyn Error>> {
    let ((a, mut near), (mut far, b)) = (duplex(64 << 10), duplex(64 << 10));
    tokio::spawn(async move {
        let black_hole = async {
            match cut {
                Some(cut) => drop(cut.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = copy_bidirectional(&mut near, &mut far) => return,
            () = black_hole => {}
        }
        // Both ends stay open, and nothing passes any more.
        let _open = (near, far);
        std::future::pending::<()>().await;
    });
    // The dialing side picks; the listener adopts it.
    let config = Config { liveness: Some(liveness), ..Config::new(Side::Dialer, [1; 16], "dialer") };
    let dialer = Mux::spawn(a, config)?;
    let listener = Mux::spawn(b, Config::new(Side::Listener, [2; 16], "listener"))?;
    dialer.up().await?;
    listener.up().await?;
    Ok((dialer, listener))
}

#[expect(clippy::print_stdout, reason = "an example shows what it did")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let Outcome { origin, far, beside } = run(Liveness::FAST).await?;
    for (end, (abort, after)) in [("origin", origin), ("far end", far)] {
        println!("{end}: {} at hop {} after {after:.1?}: {}", abort.code, abort.hops, abort.message);
    }
    println!("the relay beside the dead link: {beside}");
    Ok(())
}
