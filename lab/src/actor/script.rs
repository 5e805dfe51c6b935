//! Scripts: what a connection does, step by step. The table stands in [`super`].

use std::collections::HashSet;
use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::emit;
use super::proxy;
use super::stream::Stream;
use super::tally::Outcome;
use crate::seeded::Seeded;
use crate::shell::now_ms;

/// One step.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Op {
    /// Writes the next bytes of the own seeded stream.
    Send {
        bytes: u64,
        #[serde(default)]
        per_s: Option<u64>,
        /// So many with each write, instead of as many as fit.
        #[serde(default)]
        chunk: Option<usize>,
    },
    /// Writes this text.
    Text(String),
    /// Reads so many bytes, which are the next ones of the peer's seeded stream.
    Recv {
        bytes: u64,
        #[serde(default)]
        per_s: Option<u64>,
    },
    /// Reads to the end, which is a FIN behind bytes of the peer's stream.
    RecvFin,
    /// The same, but any end will do: the outcome says which it was.
    RecvEnd {
        #[serde(default)]
        per_s: Option<u64>,
    },
    /// Reads to a FIN what the own side has sent: for an echo.
    RecvOwn,
    /// Reads until this text has come.
    RecvText(String),
    /// Sends back what comes, until a FIN.
    Echo,
    /// Writes these steps as a line of JSON, for an `obey` at the other side.
    Ask(Vec<Self>),
    /// Reads such a line and does its steps.
    Obey,
    /// Sends a piece, waits until it has come back, and again: so often, or for so long.
    PingPong {
        bytes: usize,
        #[serde(default)]
        times: Option<u64>,
        #[serde(default)]
        for_ms: Option<u64>,
        #[serde(default)]
        pause_ms: u64,
    },
    /// Does nothing for so many milliseconds.
    Wait(u64),
    /// The same, for a random time between the two.
    WaitBetween(u64, u64),
    /// Does nothing until this flag is set.
    Until(String),
    /// Prints a `said` event with this word.
    Say(String),
    Fin,
    Rst,
    Close,
    ShutRd,
    /// Does these steps on a thread of their own. The script ends when both have.
    Also(Vec<Self>),
    Repeat {
        times: u64,
        ops: Vec<Self>,
    },
    /// Carries bytes both ways between this connection and that address, until either ends, or as the limits say.
    Proxy {
        to: String,
        #[serde(default)]
        limits: proxy::Limits,
    },
}

impl Op {
    fn word(&self) -> &'static str {
        match self {
            Self::Send { .. } => "send",
            Self::Text(_) => "text",
            Self::Recv { .. } => "recv",
            Self::RecvFin => "recv_fin",
            Self::RecvEnd { .. } => "recv_end",
            Self::RecvOwn => "recv_own",
            Self::RecvText(_) => "recv_text",
            Self::Echo => "echo",
            Self::Ask(_) => "ask",
            Self::Obey => "obey",
            Self::PingPong { .. } => "ping_pong",
            Self::Wait(_) | Self::WaitBetween(..) => "wait",
            Self::Until(_) => "until",
            Self::Say(_) => "say",
            Self::Fin => "fin",
            Self::Rst => "rst",
            Self::Close => "close",
            Self::ShutRd => "shut_rd",
            Self::Also(_) => "also",
            Self::Repeat { .. } => "repeat",
            Self::Proxy { .. } => "proxy",
        }
    }
}

/// Flags that scripts wait for.
#[derive(Debug, Default)]
pub(super) struct Flags {
    set: Mutex<HashSet<String>>,
    more: Condvar,
}

impl Flags {
    pub(super) fn set(&self, flag: &str) {
        self.set.lock().unwrap_or_else(PoisonError::into_inner).insert(flag.to_owned());
        self.more.notify_all();
    }

    fn wait(&self, flag: &str) {
        let held = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.more.wait_while(held, |set| !set.contains(flag)).unwrap_or_else(PoisonError::into_inner));
    }
}

/// One connection and where its seeded streams are.
#[derive(Debug)]
pub(super) struct Conn {
    stream: Stream,
    number: u64,
    began: Instant,
    own_seed: u32,
    own: Mutex<Seeded>,
    peers: Mutex<Seeded>,
    flags: Arc<Flags>,
}

/// The seed of what the dialling side sends; the accepting side has the next one.
const DIALLER: u32 = 1;

impl Conn {
    pub(super) fn new(stream: Stream, number: u64, dialled: Option<Instant>, flags: Arc<Flags>) -> Self {
        let (own_seed, peers) =
            if dialled.is_some() { (DIALLER, DIALLER + 1) } else { (DIALLER + 1, DIALLER) };
        let began = dialled.unwrap_or_else(Instant::now);
        let (own, peers) = (Mutex::new(Seeded::new(own_seed)), Mutex::new(Seeded::new(peers)));
        Self { stream, number, began, own_seed, own, peers, flags }
    }

    /// Runs a script to its end or its first fault. The connection is closed when it is dropped.
    pub(super) fn run(self: &Arc<Self>, ops: &[Op]) -> Outcome {
        let mut run = Run { conn: self, done: Outcome::default(), beside: Vec::new() };
        if let Err(fault) = run.all(ops) {
            run.done.fault = Some(fault);
            // Threads beside it may wait for the peer.
            let _ = self.stream.shutdown(Shutdown::Both);
        }
        let mut done = run.done;
        for thread in run.beside {
            done.join(thread.join().unwrap_or_default());
        }
        done.ms = self.began.elapsed().as_secs_f64() * 1e3;
        done
    }
}

#[derive(Debug)]
struct Run<'a> {
    conn: &'a Arc<Conn>,
    done: Outcome,
    beside: Vec<std::thread::JoinHandle<Outcome>>,
}

impl Run<'_> {
    fn all(&mut self, ops: &[Op]) -> Result<(), String> {
        for op in ops {
            self.one(op)
                .map_err(|why| if why.contains(": ") { why } else { format!("{}: {why}", op.word()) })?;
            self.done.marks.push((op.word(), now_ms()));
        }
        Ok(())
    }

    fn one(&mut self, op: &Op) -> Result<(), String> {
        let conn = Arc::clone(self.conn);
        let stream = &conn.stream;
        let gone = |result: io::Result<()>| result.map_err(|error| how(&error));
        match op {
            Op::Send { bytes, per_s, chunk } => self.send(*bytes, *per_s, *chunk),
            Op::Text(text) => gone(stream.write_all(text.as_bytes())),
            Op::Recv { bytes, per_s } => match self.recv(Some(*bytes), *per_s)? {
                None => Ok(()),
                Some(end) => Err(end),
            },
            Op::RecvFin => {
                let end = self.recv(None, None)?.unwrap_or_default();
                self.done.end = Some(end.clone());
                if end == "fin" { Ok(()) } else { Err(end) }
            }
            Op::RecvEnd { per_s } => {
                self.done.end = self.recv(None, *per_s)?;
                Ok(())
            }
            Op::RecvOwn => {
                let mut own = Seeded::new(conn.own_seed);
                match self.read(None, None, &mut own)? {
                    Some(end) if end != "fin" => Err(end),
                    _ => Ok(()),
                }
            }
            Op::RecvText(text) => self.recv_text(text).map(drop),
            Op::Ask(ops) => {
                let mut line = serde_json::to_string(ops).map_err(|error| error.to_string())?;
                line.push('\n');
                gone(stream.write_all(line.as_bytes()))
            }
            Op::Obey => {
                let line = self.recv_text("\n")?;
                let ops: Vec<Op> = serde_json::from_slice(&line).map_err(|error| error.to_string())?;
                self.all(&ops)
            }
            Op::Echo => self.echo(),
            Op::PingPong { bytes, times, for_ms, pause_ms } => {
                self.ping_pong(*bytes, *times, *for_ms, *pause_ms)
            }
            Op::Wait(ms) => {
                std::thread::sleep(Duration::from_millis(*ms));
                Ok(())
            }
            Op::WaitBetween(least, most) => {
                let ms = ChaCha8Rng::seed_from_u64(conn.number).random_range(*least..=*most);
                std::thread::sleep(Duration::from_millis(ms));
                Ok(())
            }
            Op::Until(flag) => {
                conn.flags.wait(flag);
                Ok(())
            }
            Op::Say(word) => {
                emit(json!({"event": "said", "call": word, "conn": conn.number}));
                Ok(())
            }
            // What the peer has ended already cannot be ended again.
            Op::Fin => drop_result(stream.shutdown(Shutdown::Write)),
            Op::Close => drop_result(stream.shutdown(Shutdown::Both)),
            Op::ShutRd => drop_result(stream.shutdown(Shutdown::Read)),
            Op::Rst => drop_result(stream.reset()),
            Op::Also(ops) => {
                let ops = ops.clone();
                self.beside.push(std::thread::spawn(move || conn.run(&ops)));
                Ok(())
            }
            Op::Repeat { times, ops } => (0..*times).try_for_each(|_| self.all(ops)),
            Op::Proxy { to, limits } => gone(proxy::carry(stream, to, conn.number, limits)),
        }
    }

    fn send(&mut self, bytes: u64, per_s: Option<u64>, chunk: Option<usize>) -> Result<(), String> {
        let mut own = self.conn.own.lock().unwrap_or_else(PoisonError::into_inner);
        let piece = chunk.unwrap_or_else(|| piece(per_s));
        let mut left = bytes;
        while left > 0 {
            let bytes = own.take(usize::try_from(left).unwrap_or(piece).min(piece));
            self.conn.stream.write_all(&bytes).map_err(|error| how(&error))?;
            left -= bytes.len() as u64;
            self.done.sent += bytes.len() as u64;
            rest(per_s);
        }
        Ok(())
    }

    /// Reads so many bytes, or to the end; gives how it ended, if it did. Bytes are those of the peer's stream.
    fn recv(&mut self, bytes: Option<u64>, per_s: Option<u64>) -> Result<Option<String>, String> {
        let conn = Arc::clone(self.conn);
        let mut peers = conn.peers.lock().unwrap_or_else(PoisonError::into_inner);
        self.read(bytes, per_s, &mut peers)
    }

    fn read(
        &mut self,
        bytes: Option<u64>,
        per_s: Option<u64>,
        source: &mut Seeded,
    ) -> Result<Option<String>, String> {
        let mut buffer = vec![0; piece(per_s)];
        let mut left = bytes.unwrap_or(u64::MAX);
        let mut last = Instant::now();
        while left > 0 {
            let room = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let length = match self.conn.stream.read(&mut buffer[..room]) {
                Ok(0) => return Ok(Some("fin".to_owned())),
                Ok(length) => length,
                Err(error) => return Ok(Some(how(&error))),
            };
            self.done.first_ms.get_or_insert_with(|| self.conn.began.elapsed().as_secs_f64() * 1e3);
            if source.take(length) != buffer[..length] {
                return Err(format!("wrong bytes after {}", self.done.received));
            }
            self.done.received += length as u64;
            left -= length as u64;
            rest(per_s);
            self.done.gap_ms = self.done.gap_ms.max(last.elapsed().as_secs_f64() * 1e3);
            last = Instant::now();
        }
        Ok(None)
    }

    fn recv_text(&mut self, text: &str) -> Result<Vec<u8>, String> {
        let mut seen = Vec::new();
        let mut byte = [0; 1];
        // Byte by byte: what comes behind the text is the next step's.
        while !seen.ends_with(text.as_bytes()) {
            match self.conn.stream.read(&mut byte) {
                Ok(0) => return Err("fin".to_owned()),
                Ok(_) => seen.push(byte[0]),
                Err(error) => return Err(how(&error)),
            }
            self.done.first_ms.get_or_insert_with(|| self.conn.began.elapsed().as_secs_f64() * 1e3);
        }
        self.done.received += seen.len() as u64;
        Ok(seen)
    }

    fn echo(&mut self) -> Result<(), String> {
        let mut buffer = vec![0; 65_536];
        loop {
            let length = match self.conn.stream.read(&mut buffer) {
                Ok(0) => {
                    self.done.end = Some("fin".to_owned());
                    return Ok(());
                }
                Ok(length) => length,
                Err(error) => {
                    self.done.end = Some(how(&error));
                    return Err(how(&error));
                }
            };
            self.done.received += length as u64;
            self.conn.stream.write_all(&buffer[..length]).map_err(|error| how(&error))?;
            self.done.sent += length as u64;
        }
    }

    fn ping_pong(
        &mut self,
        bytes: usize,
        times: Option<u64>,
        for_ms: Option<u64>,
        pause_ms: u64,
    ) -> Result<(), String> {
        let began = Instant::now();
        let mut left = times.unwrap_or(u64::MAX);
        let mut back = vec![0; bytes];
        while left > 0 && for_ms.is_none_or(|ms| began.elapsed() < Duration::from_millis(ms)) {
            let ping = self.conn.own.lock().unwrap_or_else(PoisonError::into_inner).take(bytes);
            let sent = Instant::now();
            self.conn.stream.write_all(&ping).map_err(|error| how(&error))?;
            self.done.sent += bytes as u64;
            let mut had = 0;
            while had < bytes {
                match self.conn.stream.read(&mut back[had..]) {
                    Ok(0) => return Err("fin".to_owned()),
                    Ok(length) => had += length,
                    Err(error) => return Err(how(&error)),
                }
                self.done.first_ms.get_or_insert_with(|| self.conn.began.elapsed().as_secs_f64() * 1e3);
            }
            self.done.received += bytes as u64;
            if back != ping {
                return Err("wrong bytes".to_owned());
            }
            self.done.rounds_ms.push(sent.elapsed().as_secs_f64() * 1e3);
            left -= 1;
            std::thread::sleep(Duration::from_millis(pause_ms));
        }
        Ok(())
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the arm of a step that cannot fail")]
fn drop_result(_: io::Result<()>) -> Result<(), String> {
    Ok(())
}

/// How much is written or read at once: what a twentieth of a second allows.
fn piece(per_s: Option<u64>) -> usize {
    let slow = per_s.and_then(|per_s| usize::try_from(per_s / 20).ok());
    slow.map_or(65_536, |slow| slow.clamp(1, 65_536))
}

fn rest(per_s: Option<u64>) {
    if per_s.is_some() {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A word for an error of a socket.
#[expect(clippy::wildcard_enum_match_arm, reason = "the kinds have no end")]
pub(super) fn how(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionReset => "reset".to_owned(),
        io::ErrorKind::BrokenPipe => "pipe".to_owned(),
        io::ErrorKind::ConnectionRefused => "refused".to_owned(),
        io::ErrorKind::ConnectionAborted => "aborted".to_owned(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "timeout".to_owned(),
        _ => error.to_string(),
    }
}
