//! Two processes, one link, one session. Here the carrier is a pipe in memory; a `TcpStream` goes in the same way.

use std::error::Error;
use std::time::Duration;

use hopline_link::{Config, Mux, Side};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Says hello over a link.
pub async fn run() -> Result<String, Box<dyn Error>> {
    let (here, there) = tokio::io::duplex(64 << 10);
    let client = Mux::spawn(here, Config::new(Side::Dialer, [1; 16], "client"))?;
    let server = Mux::spawn(there, Config::new(Side::Listener, [2; 16], "server"))?;
    tokio::spawn(async move {
        while let Some(mut session) = server.accept().await {
            session.answer("");
            let mut name = String::new();
            session.read_to_string(&mut name).await?;
            session.write_all(format!("hello, {name}").as_bytes()).await?;
            session.shutdown().await?;
        }
        Ok::<_, std::io::Error>(())
    });
    let mut session = client.open_within("greet", Duration::from_secs(5)).await?;
    session.write_all(b"world").await?;
    session.shutdown().await?;
    let mut greeting = String::new();
    session.read_to_string(&mut greeting).await?;
    Ok(greeting)
}

#[expect(clippy::print_stdout, reason = "an example shows what it did")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("{}", run().await?);
    Ok(())
}
