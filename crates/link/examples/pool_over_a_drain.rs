//! A pool over a drain: the peer is replaced, no call fails, and a stream that was open runs to its end.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use hopline_link::{Arrived, Config, Node, NodeConfig, Pool, PoolConfig, Side, TrustedNames};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::sync::watch;

const WITHIN: Duration = Duration::from_secs(5);

/// What the client saw.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Who answered each call, made one after another around the drain.
    pub calls: Vec<String>,
    /// What the stream said that was open all the time.
    pub stream: String,
}

/// Calls, drains the server, calls on.
pub async fn run() -> Result<Outcome, Box<dyn Error>> {
    let (old, new) = (server(), server());
    serve(&old, "old");
    serve(&new, "new");
    // Where a dial comes out: as a load balancer's address does.
    let (current, behind) = watch::channel(old.clone());
    let dial = move || {
        let (near, far) = duplex(64 << 10);
        let server = behind.borrow().clone();
        async move {
            tokio::spawn(async move { server.take(far).await });
            Ok(near)
        }
    };
    let auth = Arc::new(TrustedNames::new("client").ok_or("a name")?);
    let config = PoolConfig::new(Config::new(Side::Dialer, [1; 16], "client"));
    let pool = Pool::builder("server", auth, config).spawn(dial);

    let mut outcome = Outcome::default();
    let mut stream = pool.open("", WITHIN).await?;
    outcome.calls.push(call(&pool).await?);
    // The old server goes: it takes nothing new, and lets what is open run for a minute.
    current.send_replace(new);
    let drained = tokio::spawn(async move { old.drain(Duration::from_secs(60)).await });
    for _ in 0..20 {
        outcome.calls.push(call(&pool).await?);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stream.write_all(b"the stream has not noticed").await?;
    stream.shutdown().await?;
    stream.read_to_string(&mut outcome.stream).await?;
    drained.await?;
    Ok(outcome)
}

async fn call(pool: &Pool) -> Result<String, Box<dyn Error>> {
    let session = pool.open("", WITHIN).await?;
    let who = session.answered().await?;
    session.end();
    while session.read_bytes().await?.is_some() {}
    session.finish().await?;
    Ok(String::from_utf8_lossy(&who).into_owned())
}

fn server() -> Node {
    let config = NodeConfig::new(Config::new(Side::Listener, [2; 16], "server"));
    Node::builder(Arc::new(TrustedNames::new("server").expect("a name")), config).build()
}

/// Answers with `who`, and gives back what it reads.
fn serve(node: &Node, who: &'static str) {
    let node = node.clone();
    tokio::spawn(async move {
        while let Some(Arrived { mut session, .. }) = node.accept().await {
            tokio::spawn(async move {
                session.answer(who);
                let mut said = Vec::new();
                session.read_to_end(&mut said).await?;
                session.write_all(&said).await?;
                session.shutdown().await
            });
        }
    });
}

#[expect(clippy::print_stdout, reason = "an example shows what it did")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let Outcome { calls, stream } = run().await?;
    println!("answered by {}", calls.join(", "));
    println!("{stream}");
    Ok(())
}
