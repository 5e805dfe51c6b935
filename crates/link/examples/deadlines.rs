//! Deadlines across two hops. Each side's deadlines are its own; giving up travels as an abort.

use std::error::Error;
use std::io;
use std::time::Duration;

use hopline_link::{Abort, Code, Config, Mux, Side, splice};
use tokio::io::{AsyncReadExt, duplex};
use tokio::time::Instant;

/// What each end saw.
#[derive(Debug)]
pub struct Outcome {
    /// The budget that the far end read in the header.
    pub budget: String,
    /// How the origin's read ended, and after what time.
    pub read: (io::ErrorKind, Duration),
    /// What the far end, two links away, read when the origin gave up.
    pub abort: Abort,
}

/// The reason for which this application gives up; its codes begin at 0.
const GAVE_UP: Code = Code::app(1).expect("1 is an application's code");

/// Opens across both hops, reads under a deadline, gives up.
pub async fn run() -> Result<Outcome, Box<dyn Error>> {
    let (origin, relay_in) = link("origin", "relay").await?;
    let (relay_out, far) = link("relay", "far").await?;
    tokio::spawn(relay(relay_in, relay_out));
    let far = tokio::spawn(async move {
        let session = far.accept().await?;
        session.answer("");
        let budget = String::from_utf8_lossy(session.header()).into_owned();
        // It never sends anything; it waits for the origin.
        Some((budget, session.aborted().await))
    });

    // The open is bounded across every hop. The budget is in the header: the far end may need it.
    let mut session = origin.open_within("5s", Duration::from_secs(5)).await?;
    let began = Instant::now();
    session.set_read_deadline(began + Duration::from_millis(200)); // this side only
    let Err(error) = session.read(&mut [0; 16]).await else { return Err("nobody sends".into()) };
    let read = (error.kind(), began.elapsed());
    // The session lives: a new deadline would let it go on. This caller has had enough.
    session.abort(GAVE_UP, "caller gave up");
    let (budget, abort) = far.await?.ok_or("the link is down")?;
    Ok(Outcome { budget, read, abort })
}

async fn relay(from: Mux, to: Mux) {
    while let Some(left) = from.accept().await {
        match to.open(left.header().clone()) {
            Ok(right) => drop(splice(left, right)),
            Err(error) => left.abort(Code::OFFLINE, error.to_string()),
        }
    }
}

/// A link in memory, up at both ends.
async fn link(dialer: &str, listener: &str) -> Result<(Mux, Mux), Box<dyn Error>> {
    let (a, b) = duplex(64 << 10);
    let dialer = Mux::spawn(a, Config::new(Side::Dialer, [1; 16], dialer))?;
    let listener = Mux::spawn(b, Config::new(Side::Listener, [2; 16], listener))?;
    dialer.up().await?;
    listener.up().await?;
    Ok((dialer, listener))
}

#[expect(clippy::print_stdout, reason = "an example shows what it did")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let Outcome { budget, read, abort } = run().await?;
    println!("the far end was told {budget}; the origin's read ended with {:?} after {:?}", read.0, read.1);
    println!("the far end read {} over {} links: {}", abort.code, abort.hops, abort.message);
    Ok(())
}
