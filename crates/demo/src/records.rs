//! What the service remembers of calls that named a call id: when the handler began and when its context ended.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock;

/// How many calls are remembered; the oldest is forgotten first. A client chooses ids, so it must not
/// choose how much memory they take.
pub(crate) const MAX_RECORDS: usize = 1_024;

/// One call as the server saw it, in microseconds on the process's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) began_us: u64,
    pub(crate) ended_us: Option<u64>,
}

/// The last [`MAX_RECORDS`] calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Records(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    calls: Mutex<VecDeque<(u64, Record)>>,
    changed: Notify,
}

impl Records {
    /// Notes that the handler of call `id` begins. It ends when the returned guard is dropped, which is
    /// what happens to a handler's future or stream when the call's context ends.
    pub(crate) fn begin(&self, id: u64) -> Running {
        if id != 0 {
            let mut calls = self.0.lock();
            if calls.len() == MAX_RECORDS {
                calls.pop_front();
            }
            calls.push_back((id, Record { began_us: clock::now_us(), ended_us: None }));
        }
        self.0.changed.notify_waiters();
        Running { id, records: Arc::clone(&self.0) }
    }

    /// The record of call `id` as soon as it has ended, or as it is after `patience`.
    pub(crate) async fn wait(&self, id: u64, patience: Duration) -> Option<Record> {
        let ended = async {
            loop {
                // Asked to listen before looking, or a change in between is missed.
                let changed = self.0.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if let Some(record) = self.0.find(id)
                    && record.ended_us.is_some()
                {
                    return record;
                }
                changed.await;
            }
        };
        match tokio::time::timeout(patience, ended).await {
            Ok(record) => Some(record),
            Err(_elapsed) => self.0.find(id),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, Record)>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, id: u64) -> Option<Record> {
        self.lock().iter().rev().find(|(known, _)| *known == id).map(|(_, record)| *record)
    }
}

/// A handler that runs; dropping it is the end.
#[derive(Debug)]
pub(crate) struct Running {
    id: u64,
    records: Arc<Shared>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let ended = clock::now_us();
        if let Some((_, record)) = self.records.lock().iter_mut().rev().find(|(known, _)| *known == self.id) {
            record.ended_us = Some(ended);
        }
        self.records.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_wait_returns_when_the_call_ends() {
        let records = Records::default();
        let running = records.begin(7);
        let waiting = tokio::spawn({
            let records = records.clone();
            async move { records.wait(7, LONG).await }
        });
        tokio::task::yield_now().await;
        drop(running);
        let record = waiting.await.unwrap().unwrap();
        assert!(record.ended_us.unwrap() >= record.began_us);
    }

    #[tokio::test]
    async fn a_wait_that_runs_out_says_what_is_known() {
        let records = Records::default();
        assert_eq!(records.wait(7, Duration::ZERO).await, None);
        let _running = records.begin(7);
        assert_eq!(records.wait(7, Duration::ZERO).await.unwrap().ended_us, None);
    }

    #[tokio::test]
    async fn only_the_last_calls_are_remembered_and_id_0_is_not() {
        let records = Records::default();
        drop(records.begin(0));
        assert_eq!(records.wait(0, Duration::ZERO).await, None);
        for id in 1..=MAX_RECORDS as u64 + 1 {
            drop(records.begin(id));
        }
        assert_eq!(records.wait(1, Duration::ZERO).await, None);
        assert!(records.wait(2, Duration::ZERO).await.is_some());
        assert_eq!(records.0.lock().len(), MAX_RECORDS);
    }
}
