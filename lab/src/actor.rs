//! The raw TCP actor: a process on a host that does to TCP connections what it is told, one JSON command a line, and
//! says what it sees, one JSON event a line. It begins with `hopline-lab actor`.
//!
//! | command | what it does |
//! |---|---|
//! | `{"op": "listen", "address": A}` | accepts; each connection is sent one byte, and numbered from 0 |
//! | `{"op": "dial", "address": A, "count": N}` | opens connections, numbered on |
//! | `{"op": "send", "conn": N, "bytes": B, "seed": S}` | writes that many bytes of the seeded stream, from its start |
//! | `{"op": "fin", "conn": N}` | closes the sending side |
//! | `{"op": "rst", "conn": N}` | closes with a reset |
//! | `{"op": "close", "conn": N}` | closes |
//! | `{"op": "pace", "conn": N, "bytes_per_s": B}` | reads no faster; 0 stops reading, none reads freely |
//! | `{"op": "serve", "name": S, "address": A, "script": [...]}` | accepts; each connection does the script |
//! | `{"op": "run", "name": S, "address": A, "script": [...], "count": N, "parallel": P, "per_s": R}` | opens so many connections (1), so many at once (all), so many a second (no limit), and does the script on each |
//! | `{"op": "counts", "name": S, "call": C}` | says what became of these connections so far |
//! | `{"op": "flag", "name": S}` | lets scripts go on that wait for it |
//! | `{"op": "stop", "name": S}` | that listener refuses from now on |
//!
//! An address is `HOST:PORT`, or `unix:PATH` for `serve` and `run`. `"patience_ms"` of these two is how long a read or
//! write may wait (120 s).
//!
//! Events: `listening`, `open`, `first` (the first byte came), `sent` (with `error` if it failed), and `end` with `how`
//! (`fin`, `reset`, or the error) and the received count and hash. Of scripts: `said`, `ran` when all of a `run` have
//! ended, `counts`. The last two hold what became of the connections ([`tally`]): `ok`, `faults` by step and error, `ends`,
//! bytes, times, and the `marks` of the last one: each step that was done, with its time.
//!
//! The steps of a script. Bytes are those of a seeded stream for each direction, and what is read is held against it.
//!
//! | step | what it does |
//! |---|---|
//! | `{"send": {"bytes": B, "per_s": R, "chunk": C}}` | writes the next bytes |
//! | `{"text": T}` | writes a text |
//! | `{"recv": {"bytes": B, "per_s": R}}` | reads so many bytes; an end is a fault |
//! | `"recv_fin"` | reads to the end; any end but a FIN is a fault |
//! | `{"recv_end": {"per_s": R}}` | reads to the end; the outcome says how it ended |
//! | `"recv_own"` | reads to a FIN what the own side has sent: for an `echo` at the other |
//! | `{"recv_text": T}` | reads until this has come |
//! | `"echo"` | sends back what comes, until a FIN |
//! | `{"ping_pong": {"bytes": B, "times": N, "for_ms": M, "pause_ms": M}}` | for an `echo` at the other side; times each round |
//! | `{"wait": MS}`, `{"wait_between": [MS, MS]}` | does nothing |
//! | `{"until": S}` | waits for a flag |
//! | `{"say": S}` | prints an event `said` with `call` S |
//! | `"fin"`, `"rst"`, `"close"`, `"shut_rd"` | ends the sending side; resets; ends both; ends the reading side |
//! | `{"also": [...]}` | does these steps at the same time |
//! | `{"repeat": {"times": N, "ops": [...]}}` | does them so often |
//! | `{"ask": [...]}`, `"obey"` | writes steps as a line; reads such a line and does the steps: so the client says what the server does |
//! | `{"proxy": {"to": A, "limits": {...}}}` | carries bytes to that address; cuts after `idle_ms`, `after_ms`, or `step_bytes` |
//!
//! A connection is closed at its script's end: by a reset where unread bytes are left, as the kernel does.

mod many;
mod proxy;
mod script;
mod stream;
mod tally;

use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::seeded::{Seeded, hex};
use crate::shell::now_ms;

/// Reads freely.
const FREE: i64 = -1;

#[derive(Debug, Clone)]
struct Connection {
    stream: Arc<TcpStream>,
    /// Bytes per second.
    pace: Arc<AtomicI64>,
}

type Connections = Arc<Mutex<Vec<Connection>>>;

/// Obeys stdin until it ends.
///
/// # Errors
///
/// When a line is no command, or a connection cannot be made.
pub(crate) fn run() -> anyhow::Result<()> {
    let all = Connections::default();
    let scripted = many::Scripted::start()?;
    emit(json!({"event": "ready"}));
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let command: Value = serde_json::from_str(&line).with_context(|| format!("command {line:?}"))?;
        obey(&all, &scripted, &command).with_context(|| line.clone())?;
    }
    Ok(())
}

fn obey(all: &Connections, scripted: &many::Scripted, command: &Value) -> anyhow::Result<()> {
    let op = command["op"].as_str().context("no op")?;
    let address = || command["address"].as_str().context("no address");
    match op {
        "serve" | "run" | "counts" | "flag" | "stop" => scripted.obey(op, command)?,
        "listen" => {
            let listener = TcpListener::bind(address()?)?;
            emit(json!({"event": "listening", "address": listener.local_addr()?.to_string()}));
            let all = Arc::clone(all);
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    // Who is gone already is seen by its reader.
                    let _ = (&stream).write_all(b"!");
                    add(&all, stream);
                }
            });
        }
        "dial" => {
            for _ in 0..command["count"].as_u64().unwrap_or(1) {
                add(all, TcpStream::connect(address()?)?);
            }
        }
        _ => {
            let number = command["conn"].as_u64().context("no conn")?;
            let held = all.lock().unwrap_or_else(PoisonError::into_inner);
            let connection = held.get(usize::try_from(number)?).context("no such conn")?.clone();
            drop(held);
            on_one(op, number, &connection, command)?;
        }
    }
    Ok(())
}

fn on_one(op: &str, number: u64, connection: &Connection, command: &Value) -> anyhow::Result<()> {
    let Connection { stream, pace } = connection;
    match op {
        "send" => {
            let mut left = command["bytes"].as_u64().context("no bytes")?;
            let seed = u32::try_from(command["seed"].as_u64().unwrap_or(1))?;
            let stream = Arc::clone(stream);
            std::thread::spawn(move || {
                let mut source = Seeded::new(seed);
                let mut sent: u64 = 0;
                let mut error = Value::Null;
                while left > 0 {
                    let bytes = source.take(usize::try_from(left.min(16_384)).unwrap_or(16_384));
                    if let Err(fault) = (&*stream).write_all(&bytes) {
                        error = json!(fault.to_string());
                        break;
                    }
                    left -= bytes.len() as u64;
                    sent += bytes.len() as u64;
                }
                emit(json!({"event": "sent", "conn": number, "sent": sent, "error": error}));
            });
        }
        // A connection that is gone cannot be closed; its reader has said so.
        "fin" => drop(stream.shutdown(Shutdown::Write)),
        "close" => drop(stream.shutdown(Shutdown::Both)),
        "rst" => {
            // Not a close with a linger time of 0: its reader still holds the socket.
            rustix::net::connect_unspec(&**stream)?;
        }
        "pace" => pace.store(command["bytes_per_s"].as_i64().unwrap_or(FREE), Ordering::Relaxed),
        _ => anyhow::bail!("no such op: {op:?}"),
    }
    Ok(())
}

fn add(all: &Connections, stream: TcpStream) {
    let connection = Connection { stream: Arc::new(stream), pace: Arc::new(AtomicI64::new(FREE)) };
    let mut held = all.lock().unwrap_or_else(PoisonError::into_inner);
    let number = held.len();
    held.push(connection.clone());
    drop(held);
    emit(json!({"event": "open", "conn": number}));
    std::thread::spawn(move || read(number, &connection));
}

fn read(number: usize, connection: &Connection) {
    let mut hash = Sha256::new();
    let mut count: u64 = 0;
    let mut buffer = vec![0; 16_384];
    let how = loop {
        let pace = connection.pace.load(Ordering::Relaxed);
        if pace == 0 {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        let room = room(pace, buffer.len());
        match (&*connection.stream).read(&mut buffer[..room]) {
            Ok(0) => break "fin".to_owned(),
            Ok(length) => {
                if count == 0 {
                    emit(json!({"event": "first", "conn": number}));
                }
                hash.update(&buffer[..length]);
                count += length as u64;
                if pace > 0 {
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break "reset".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    let hash = hex(&hash.finalize());
    emit(json!({"event": "end", "conn": number, "how": how, "received": count, "received_sha256": hash}));
}

/// How many bytes one read takes: a slow reader those that a twentieth of a second allows.
fn room(pace: i64, most: usize) -> usize {
    if pace == FREE {
        return most;
    }
    usize::try_from(pace / 20).map_or(most, |room| room.clamp(1, most))
}

fn emit(mut event: Value) {
    event["mono_ms"] = json!(now_ms());
    if writeln!(std::io::stdout().lock(), "{event}").is_err() {
        std::process::exit(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_reader_takes_all_and_a_slow_one_its_share() {
        assert_eq!(room(FREE, 16_384), 16_384);
        assert_eq!(room(20_000, 16_384), 1_000);
        assert_eq!(room(10, 16_384), 1);
        assert_eq!(room(10_000_000, 16_384), 16_384);
    }
}
