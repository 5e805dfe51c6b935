//! Drives a gRPC application: commands on its stdin, events from its stdout (`apps/README.md` is the contract).

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::ChildStdin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use crate::process::Process;

/// One line of an application.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    /// When, by CLOCK_MONOTONIC.
    pub(crate) mono_ms: f64,
    /// What: `handler`, `end`, ...
    pub(crate) kind: String,
    /// Of which call; empty when of none.
    pub(crate) call: String,
    /// The whole line.
    pub(crate) body: Value,
}

impl Event {
    /// Reads one line.
    ///
    /// # Errors
    ///
    /// When it is not a JSON object with `event` and `mono_ms`.
    pub(crate) fn parse(line: &str) -> anyhow::Result<Self> {
        let body: Value = serde_json::from_str(line).with_context(|| format!("not JSON: {line:?}"))?;
        let kind = body["event"].as_str().with_context(|| format!("no event: {line}"))?.to_owned();
        let mono_ms = body["mono_ms"].as_f64().with_context(|| format!("no mono_ms: {line}"))?;
        let call = body["call"].as_str().unwrap_or_default().to_owned();
        Ok(Self { mono_ms, kind, call, body })
    }

    /// A text of the line; empty when it is not there.
    pub(crate) fn text(&self, key: &str) -> &str {
        self.body[key].as_str().unwrap_or_default()
    }

    /// A count of the line; 0 when it is not there.
    pub(crate) fn count(&self, key: &str) -> u64 {
        self.body[key].as_u64().unwrap_or_default()
    }
}

#[derive(Debug, Default)]
struct Heard {
    events: Mutex<(Vec<Event>, Option<String>)>,
    more: Condvar,
}

/// A running application, client or server.
#[derive(Debug)]
pub(crate) struct App {
    process: Process,
    stdin: Option<ChildStdin>,
    heard: Arc<Heard>,
}

impl App {
    /// Takes a process that was started with pipes.
    ///
    /// # Errors
    ///
    /// When it has none.
    pub(crate) fn take(mut process: Process) -> anyhow::Result<Self> {
        let (stdin, stdout) = process.pipes()?;
        let heard = Arc::new(Heard::default());
        let shared = Arc::clone(&heard);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let parsed = line.map_err(Into::into).and_then(|line| Event::parse(&line));
                let mut held = shared.events.lock().unwrap_or_else(PoisonError::into_inner);
                match parsed {
                    Ok(event) => held.0.push(event),
                    Err(error) => held.1 = Some(format!("{error:#}")),
                }
                shared.more.notify_all();
            }
            let mut held = shared.events.lock().unwrap_or_else(PoisonError::into_inner);
            held.1.get_or_insert_with(|| "it has ended".to_owned());
            shared.more.notify_all();
        });
        Ok(Self { process, stdin: Some(stdin), heard })
    }

    /// Its process.
    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// All events so far.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.heard.events.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// The first event that `wanted` accepts; waits for it up to `patience`, and gives none when it did not come.
    ///
    /// # Errors
    ///
    /// When the application ended, or printed what is no event, without having printed it.
    pub(crate) fn find(
        &self,
        patience: Duration,
        wanted: impl Fn(&Event) -> bool,
    ) -> anyhow::Result<Option<Event>> {
        self.find_from(0, patience, wanted)
    }

    fn find_from(
        &self,
        mut seen: usize,
        patience: Duration,
        wanted: impl Fn(&Event) -> bool,
    ) -> anyhow::Result<Option<Event>> {
        let until = Instant::now() + patience;
        let mut held = self.heard.events.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(event) = held.0[seen..].iter().find(|event| wanted(event)) {
                return Ok(Some(event.clone()));
            }
            seen = held.0.len();
            if let Some(why) = &held.1 {
                bail!("{}: {why}: {}", self.process.name(), self.process.last_words());
            }
            let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            else {
                return Ok(None);
            };
            held = self.heard.more.wait_timeout(held, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The same for an event that has to come.
    ///
    /// # Errors
    ///
    /// When it did not.
    pub(crate) fn expect(&self, kind: &str, call: &str, patience: Duration) -> anyhow::Result<Event> {
        self.find(patience, |event| event.kind == kind && event.call == call)?.with_context(|| {
            format!("{}: no {kind} of {call:?} within {:.1} s", self.process.name(), patience.as_secs_f64())
        })
    }

    /// Starts a call: `call` and `method`, and what `arguments` adds.
    ///
    /// # Errors
    ///
    /// When the application is gone.
    pub(crate) fn call(&mut self, call: &str, method: &str, arguments: Value) -> anyhow::Result<()> {
        let mut line = arguments;
        line["op"] = json!("call");
        line["call"] = json!(call);
        line["method"] = json!(method);
        self.say(&line)
    }

    /// Makes an echo call with a deadline of 10 s and waits for its end.
    ///
    /// # Errors
    ///
    /// When it did not end within 20 s.
    pub(crate) fn echo(&mut self, call: &str) -> anyhow::Result<Event> {
        self.call(call, "echo", json!({"bytes": 64, "seed": 1, "deadline_ms": 10_000}))?;
        self.expect("end", call, Duration::from_secs(20))
    }

    /// The channel's state as the library calls it.
    ///
    /// # Errors
    ///
    /// When the application does not answer.
    pub(crate) fn state(&mut self) -> anyhow::Result<String> {
        let from = self.events().len();
        self.say(&json!({"op": "state"}))?;
        let event = self.find_from(from, Duration::from_secs(5), |event| event.kind == "state")?;
        Ok(event.context("no state")?.text("state").to_owned())
    }

    /// Says one command.
    ///
    /// # Errors
    ///
    /// When the application is gone.
    pub(crate) fn say(&mut self, line: &Value) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().context("stdin is closed")?;
        writeln!(stdin, "{line}").with_context(|| format!("command to {}", self.process.name()))
    }
}
