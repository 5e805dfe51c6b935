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

/// SIGTERM, SIGINT and SIGHUP, listened to from now on.
#[derive(Debug)]
pub(crate) struct Stop {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Stop {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("listening for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("listening for SIGINT")?,
            hangup: signal(SignalKind::hangup()).context("listening for SIGHUP")?,
        })
    }

    /// Waits for the next of SIGTERM, SIGINT and SIGHUP. Cancel safe.
    pub(crate) async fn next(&mut self) -> Next {
        tokio::select! {
            _ = self.terminate.recv() => Next::Stop(How::Drain),
            _ = self.interrupt.recv() => Next::Stop(How::Now),
            _ = self.hangup.recv() => Next::Reload,
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
