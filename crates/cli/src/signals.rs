//! What each signal means, decided before anything else is done. `docs/operations.md` has the table.
//!
//! - SIGTERM drains, SIGINT ends, and a second one of either ends a drain.
//! - SIGHUP reads the config file again. But when the terminal that the process was started on has hung up, it is a
//!   SIGTERM: an edge whose window was closed must not go on holding its ports. Where SIGHUP was ignored from the
//!   start, as under `nohup`, it never ends anything.
//! - SIGUSR1, SIGUSR2, SIGALRM and the like do nothing. SIGPIPE is ignored by Rust's runtime, SIGXFSZ here: a log that
//!   meets a limit is no reason to end.
//!
//! A command that ends by itself gets the default actions back: see [`Signals::leave`].

mod hangup;
mod terminal;

use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Context as _;
use rustix::process::Signal;
use signal_hook::low_level::{emulate_default_handler, pipe};
use tokio::net::UnixStream;
use tokio::time::sleep_until;

use self::hangup::{Hangup, Meaning};
use self::terminal::Terminal;

/// Signals that do nothing.
const HARMLESS: [Signal; 8] = [
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::VTALARM,
    Signal::PROF,
    Signal::IO,
    Signal::POWER,
    Signal::XFSZ,
];

/// How to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// SIGTERM: let open sessions run on to the drain's deadline. A second signal stops at once.
    Drain,
    /// SIGINT: say goodbye and leave.
    Now,
}

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Stop(How),
    /// SIGHUP: read the config file again.
    Reload,
}

/// The signals of this process. From the moment on at which it is made none is lost, and none ends the process by
/// default.
#[derive(Debug)]
pub(crate) struct Signals {
    caught: [Caught; 3],
    terminal: Option<Terminal>,
    by_default: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Caught {
    signal: i32,
    /// Was ignored when the process started.
    ignored: bool,
    arrived: StdStream,
}

impl Signals {
    /// Decides on every signal. The first thing that the process does.
    pub(crate) fn decide() -> io::Result<Self> {
        let ignored = ignored();
        let by_default = Arc::new(AtomicBool::new(false));
        let catch = |signal: Signal| {
            let signal = signal.as_raw();
            let is_ignored = ignored & (1 << (signal - 1)) != 0;
            if !is_ignored {
                signal_hook::flag::register_conditional_default(signal, Arc::clone(&by_default))?;
            }
            let (arrived, told) = StdStream::pair()?;
            arrived.set_nonblocking(true)?;
            pipe::register(signal, told)?;
            io::Result::Ok(Caught { signal, ignored: is_ignored, arrived })
        };
        // SIGHUP first: it is the one that comes to processes that have just started.
        let (hangup, terminate, interrupt) = (catch(Signal::HUP)?, catch(Signal::TERM)?, catch(Signal::INT)?);
        for signal in HARMLESS {
            signal_hook::flag::register(signal.as_raw(), Arc::<AtomicBool>::default())?;
        }
        // Whoever ignores SIGHUP lives on without its terminal.
        let terminal = (!hangup.ignored).then(Terminal::now);
        Ok(Self { caught: [hangup, terminate, interrupt], terminal, by_default })
    }

    /// For a command that ends by itself: signals that end a process by default do, those that have come included.
    /// Gives back what it was given, so that no such command begins without it.
    pub(crate) fn leave<T>(self, args: T) -> io::Result<T> {
        self.by_default.store(true, Ordering::SeqCst);
        for Caught { signal, ignored, arrived } in &self.caught {
            if !ignored && io::Read::read(&mut &*arrived, &mut [0]).is_ok_and(|n| n > 0) {
                emulate_default_handler(*signal)?;
            }
        }
        Ok(args)
    }

    /// For a command that runs until it is told to stop. Must be called on a runtime.
    pub(crate) fn listen(self) -> anyhow::Result<Stop> {
        let [hangup, terminate, interrupt] = self.caught.map(|caught| UnixStream::from_std(caught.arrived));
        Ok(Stop {
            hangup: hangup.context("listening for SIGHUP")?,
            terminate: terminate.context("listening for SIGTERM")?,
            interrupt: interrupt.context("listening for SIGINT")?,
            terminal: self.terminal.map(|terminal| (terminal, Hangup::new(Instant::now()))),
        })
    }
}

/// The signals that were ignored when the process started, as bits; none where the system does not say.
fn ignored() -> u64 {
    // In one read: until there are handlers, every moment counts.
    let mut status = [0; 4 << 10];
    let file = std::fs::File::open("/proc/self/status");
    let read = file.and_then(|mut file| io::Read::read(&mut file, &mut status)).unwrap_or(0);
    let status = String::from_utf8_lossy(&status[..read]);
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

/// SIGTERM, SIGINT and SIGHUP as they come.
#[derive(Debug)]
pub(crate) struct Stop {
    hangup: UnixStream,
    terminate: UnixStream,
    interrupt: UnixStream,
    terminal: Option<(Terminal, Hangup)>,
}

impl Stop {
    /// Waits for the next of SIGTERM, SIGINT and SIGHUP. Cancel safe.
    pub(crate) async fn next(&mut self) -> Next {
        loop {
            let look = self.terminal.as_ref().and_then(|(_, hangup)| hangup.next_look());
            tokio::select! {
                biased;
                () = arrives(&self.interrupt) => return Next::Stop(How::Now),
                () = arrives(&self.terminate) => return Next::Stop(How::Drain),
                () = arrives(&self.hangup) => {
                    let hung_up = |(terminal, hangup): &mut (Terminal, Hangup)| {
                        hangup.handle_signal(Instant::now(), terminal.has_hung_up()) == Meaning::Stop
                    };
                    return if self.terminal.as_mut().is_some_and(hung_up) { stop_without_terminal() } else { Next::Reload };
                }
                () = at(look) => {
                    let hung_up = |(terminal, hangup): &mut (Terminal, Hangup)| {
                        hangup.handle_look(Instant::now(), terminal.has_hung_up())
                    };
                    if self.terminal.as_mut().is_some_and(hung_up) {
                        return stop_without_terminal();
                    }
                }
            }
        }
    }

    /// Waits until it is time to stop; for a command that has nothing to read again. Cancel safe.
    pub(crate) async fn wait(&mut self) -> How {
        loop {
            if let Next::Stop(how) = self.next().await {
                return how;
            }
        }
    }

    /// While it drains: waits for a second SIGTERM or SIGINT. Cancel safe.
    pub(crate) async fn again(&mut self) {
        tokio::select! {
            () = arrives(&self.terminate) => {}
            () = arrives(&self.interrupt) => {}
        }
    }
}

fn stop_without_terminal() -> Next {
    tracing::info!("the terminal has hung up");
    Next::Stop(How::Drain)
}

/// Waits for a signal; several that came meanwhile are one.
async fn arrives(signal: &UnixStream) {
    loop {
        // The other end lives in the signal's handler, as long as the process.
        if signal.readable().await.is_err() {
            return std::future::pending().await;
        }
        if signal.try_read(&mut [0; 64]).is_ok_and(|n| n > 0) {
            return;
        }
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
