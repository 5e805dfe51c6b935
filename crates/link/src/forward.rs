//! What a hop does with a session that goes on: joins it, and bounds the wait for its answer.

use std::time::Duration;

use hopline_link_proto::Code;
use tokio::time::timeout;

use crate::session::Session;
use crate::splice::{SpliceOutcome, splice};

/// Joins `left`, which arrived and was not answered, with `right`, which was just opened to carry it on, and waits
/// until both are over. See [`splice`](crate::splice()) for what passes.
///
/// With `answer_timeout`, no answer from further on within that time ends both sides with `timeout`: the origin
/// reads this hop's index with it. Without, the origin's own time alone bounds the open. Nothing else is bounded
/// here: a session that was answered may idle for as long as it likes.
///
/// Dropped before it resolves, the sessions stay joined, and the answer is no longer bounded.
pub async fn forward(left: Session, right: Session, answer_timeout: Option<Duration>) -> SpliceOutcome {
    let mut spliced = splice(left, right);
    if let Some(limit) = answer_timeout {
        if let Ok(outcome) = timeout(limit, &mut spliced).await {
            return outcome;
        }
        if !spliced.is_answered() {
            let seconds = limit.as_secs_f64();
            spliced.abort(Code::TIMEOUT, &format!("no answer from further on within {seconds:.1} s"));
        }
    }
    spliced.await
}
