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

/// SIGTERM and SIGINT, listened to from now on.
#[derive(Debug)]
pub(crate) struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("listening for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("listening for SIGINT")?,
        })
    }

    /// Waits for the next of them. Cancel safe.
    pub(crate) async fn wait(&mut self) -> How {
        tokio::select! {
            _ = self.terminate.recv() => How::Drain,
            _ = self.interrupt.recv() => How::Now,
        }
    }
}
