//! When to stop.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

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

/// SIGTERM and SIGINT, listened to from now on; SIGHUP too where there is something to read again.
#[derive(Debug)]
pub(crate) struct Stop {
    terminate: Signal,
    interrupt: Signal,
    hangup: Option<Signal>,
}

impl Stop {
    /// For a command that has no config file to read again: a terminal that hangs up ends it.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("listening for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("listening for SIGINT")?,
            hangup: None,
        })
    }

    /// For a command that reads its config file again on SIGHUP.
    pub(crate) fn listen_with_reload() -> anyhow::Result<Self> {
        let hangup = signal(SignalKind::hangup()).context("listening for SIGHUP")?;
        Ok(Self { hangup: Some(hangup), ..Self::listen()? })
    }

    /// Waits for the next of SIGTERM, SIGINT and SIGHUP. Cancel safe.
    pub(crate) async fn next(&mut self) -> Next {
        tokio::select! {
            _ = self.terminate.recv() => Next::Stop(How::Drain),
            _ = self.interrupt.recv() => Next::Stop(How::Now),
            () = hung_up(&mut self.hangup) => Next::Reload,
        }
    }

    /// Waits for the next of SIGTERM and SIGINT. Cancel safe.
    pub(crate) async fn wait(&mut self) -> How {
        tokio::select! {
            _ = self.terminate.recv() => How::Drain,
            _ = self.interrupt.recv() => How::Now,
        }
    }
}

async fn hung_up(hangup: &mut Option<Signal>) {
    match hangup {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}
