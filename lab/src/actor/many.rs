//! Runs scripts on many connections: those that are accepted, and those that are dialled.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::emit;
use super::script::{Conn, Flags, Op, how};
use super::stream::{Listener, Stream};
use super::tally::{Outcome, Tally};

/// Enough for a script; there are thousands of them.
const STACK: usize = 128 << 10;

/// All scripts of this process by their name.
#[derive(Debug, Default)]
pub(super) struct Scripted {
    named: Mutex<HashMap<String, Named>>,
    flags: Arc<Flags>,
}

#[derive(Debug, Clone)]
struct Named {
    tally: Arc<Mutex<Tally>>,
    listener: Option<Arc<Listener>>,
}

/// A `serve` or a `run`.
#[derive(Debug, Clone, Deserialize)]
struct Wanted {
    name: String,
    address: String,
    script: Vec<Op>,
    #[serde(default = "one")]
    count: u64,
    #[serde(default)]
    parallel: Option<u64>,
    #[serde(default)]
    per_s: Option<f64>,
    #[serde(default = "two_minutes")]
    patience_ms: u64,
}

fn one() -> u64 {
    1
}

fn two_minutes() -> u64 {
    120_000
}

impl Scripted {
    /// None yet. The process may have as many descriptors as the system allows.
    ///
    /// # Errors
    ///
    /// When the limit cannot be set.
    pub(super) fn start() -> anyhow::Result<Self> {
        let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        limit.current = limit.maximum;
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?;
        Ok(Self::default())
    }

    /// Does one command.
    ///
    /// # Errors
    ///
    /// When it is none, or the address cannot be listened on.
    pub(super) fn obey(&self, op: &str, command: &Value) -> anyhow::Result<()> {
        let name = command["name"].as_str().context("no name")?;
        match op {
            "serve" => self.serve(Wanted::deserialize(command)?),
            "run" => self.run(Wanted::deserialize(command)?),
            "counts" => {
                let tally = self.named(name)?.tally;
                let call = command["call"].as_str().unwrap_or(name);
                let body = tally.lock().unwrap_or_else(PoisonError::into_inner).body("counts", call);
                emit(body);
                Ok(())
            }
            "flag" => {
                self.flags.set(name);
                Ok(())
            }
            "stop" => Ok(self.named(name)?.listener.context("no listener")?.stop()?),
            _ => bail!("no such op: {op:?}"),
        }
    }

    fn named(&self, name: &str) -> anyhow::Result<Named> {
        let named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        named.get(name).cloned().with_context(|| format!("nothing has the name {name:?}"))
    }

    fn add(&self, name: &str, listener: Option<Arc<Listener>>) -> Arc<Mutex<Tally>> {
        let tally = Arc::new(Mutex::new(Tally::default()));
        let named = Named { tally: Arc::clone(&tally), listener };
        self.named.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), named);
        tally
    }

    fn serve(&self, wanted: Wanted) -> anyhow::Result<()> {
        let listener = Arc::new(Listener::bind(&wanted.address)?);
        let tally = self.add(&wanted.name, Some(Arc::clone(&listener)));
        let flags = Arc::clone(&self.flags);
        emit(json!({"event": "listening", "call": wanted.name}));
        let script = Arc::new(wanted.script);
        let patience = Duration::from_millis(wanted.patience_ms);
        std::thread::spawn(move || {
            while let Ok(stream) = listener.accept(patience) {
                let number = begin(&tally);
                let (script, tally, flags) = (Arc::clone(&script), Arc::clone(&tally), Arc::clone(&flags));
                let conn = Conn::new(stream, number, None, flags);
                let work = move || end(&tally, Arc::new(conn).run(&script));
                if Builder::new().stack_size(STACK).spawn(work).is_err() {
                    return;
                }
            }
        });
        Ok(())
    }

    fn run(&self, wanted: Wanted) -> anyhow::Result<()> {
        let tally = self.add(&wanted.name, None);
        let wanted = Arc::new(wanted);
        let next = Arc::new(AtomicU64::new(0));
        let began = Instant::now();
        let mut workers = Vec::new();
        for _ in 0..wanted.parallel.unwrap_or(wanted.count).min(wanted.count) {
            let (wanted, next, tally, flags) =
                (Arc::clone(&wanted), Arc::clone(&next), Arc::clone(&tally), Arc::clone(&self.flags));
            let work = move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= wanted.count {
                        return;
                    }
                    wait_for_turn(began, number, wanted.per_s);
                    begin(&tally);
                    end(&tally, dial(&wanted, number, &flags));
                }
            };
            workers.push(Builder::new().stack_size(STACK).spawn(work)?);
        }
        std::thread::spawn(move || {
            for worker in workers {
                let _ = worker.join();
            }
            let body = tally.lock().unwrap_or_else(PoisonError::into_inner).body("ran", &wanted.name);
            emit(body);
        });
        Ok(())
    }
}

fn wait_for_turn(began: Instant, number: u64, per_s: Option<f64>) {
    #[expect(clippy::cast_precision_loss, reason = "the number of a connection")]
    let turn = per_s.map(|per_s| Duration::from_secs_f64(number as f64 / per_s));
    if let Some(turn) = turn {
        std::thread::sleep(turn.saturating_sub(began.elapsed()));
    }
}

fn dial(wanted: &Wanted, number: u64, flags: &Arc<Flags>) -> Outcome {
    let began = Instant::now();
    match Stream::dial(&wanted.address, Duration::from_millis(wanted.patience_ms)) {
        Ok(stream) => Arc::new(Conn::new(stream, number, Some(began), Arc::clone(flags))).run(&wanted.script),
        Err(error) => {
            let ms = began.elapsed().as_secs_f64() * 1e3;
            Outcome { fault: Some(format!("dial: {}", how(&error))), ms, ..Outcome::default() }
        }
    }
}

/// Counts one more, and gives its number.
fn begin(tally: &Mutex<Tally>) -> u64 {
    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    tally.begun += 1;
    tally.begun - 1
}

fn end(tally: &Mutex<Tally>, outcome: Outcome) {
    tally.lock().unwrap_or_else(PoisonError::into_inner).add(outcome);
}
