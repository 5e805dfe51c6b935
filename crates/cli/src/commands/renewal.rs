//! A machine's certificate that another `hopline join` renews while `hopline up` runs.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use hopline_edge::Edge;
use hopline_identity::Machine;
use tokio::time::{Interval, MissedTickBehavior};

/// How often the certificate's file is looked at.
const EVERY: Duration = Duration::from_secs(10);

/// What tells one file of a name from the next.
type Stamp = (u64, u64, i64, i64);

/// Watches the certificate in a machine's folder.
#[derive(Debug)]
pub(crate) struct Renewal {
    folder: PathBuf,
    file: PathBuf,
    seen: Option<Stamp>,
    looks: Interval,
}

impl Renewal {
    /// Watches from now on: `machine` was loaded from `folder` a moment ago.
    pub(crate) fn watch(folder: PathBuf, machine: &Machine) -> Self {
        let mut looks = tokio::time::interval(EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { folder, file: machine.certificate_path(), seen: None, looks }
    }

    /// Resolves when there is another file than before. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        loop {
            self.looks.tick().await;
            // No file is no new one: somebody is at work there.
            let Ok(found) = tokio::fs::metadata(&self.file).await else { continue };
            let stamp = (found.dev(), found.ino(), found.mtime(), found.mtime_nsec());
            // The first look only remembers, and whatever came between loading and it is taken up all the same.
            if self.seen.replace(stamp) != Some(stamp) {
                return;
            }
        }
    }

    /// Has the edge show what is in the folder now. The log says what came of it.
    pub(crate) async fn take_up(&self, edge: &Edge) {
        let folder = self.folder.clone();
        let loaded = tokio::task::spawn_blocking(move || Machine::load(&folder)).await;
        let renewed = match loaded {
            Ok(Ok(machine)) => {
                let until = humantime::format_rfc3339_seconds(machine.expires());
                edge.renew(machine).map(|renewed| renewed.then_some(until)).map_err(|error| error.to_string())
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match renewed {
            Ok(Some(until)) => {
                tracing::info!(%until, "this machine's certificate was renewed and is taken up")
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!("the certificate {} was not taken up: {error}", self.file.display());
            }
        }
    }
}
