//! From an application's connection to an answered session: waiting for a link, and trying again where that is safe.
//!
//! What the application says goes out at once, before the answer. It is also kept (by reference, at most
//! [`KEPT`] bytes) until the answer comes, so that an open that was refused by somebody on its way out can go out
//! again, whole, elsewhere. It goes out again only after such a refusal, or when nothing of the application's had
//! gone out: a request must not run twice.

use std::time::{Duration, Instant};

use bytes::Bytes;
use hopline_link::{Abort, Code, Mux, OpenError, Session};
use hopline_route_proto::{Name, RoutingHeader, SessionId};

use crate::local::{LocalStream, gone};
use crate::pump::{Broken, Inbound};
use crate::uplinks::Uplinks;

/// Bytes of the application that are kept until the answer comes; more are not read before it.
const KEPT: usize = 64 << 10;
/// Between an open that was refused and the next, so that two processes on their way out are not asked in a loop.
const PAUSE: Duration = Duration::from_millis(20);

/// An open under way: what the application has said so far.
#[derive(Debug)]
pub(crate) struct Opening<'a> {
    uplinks: &'a Uplinks,
    local: &'a LocalStream,
    header: Bytes,
    deadline: Instant,
    kept: Vec<Bytes>,
    kept_len: usize,
    inbound: Inbound,
    /// The application has said something and left: that is to arrive, and nothing of it will follow.
    left: bool,
}

impl<'a> Opening<'a> {
    pub(crate) fn new(
        uplinks: &'a Uplinks,
        local: &'a LocalStream,
        service: &str,
        deadline: Instant,
    ) -> Result<Self, Abort> {
        let name = Name::new(service).map_err(|error| Abort::new(Code::INTERNAL, error.to_string()))?;
        // One id for all attempts.
        let header = RoutingHeader::session(name, SessionId::new(rand::random())).encode();
        Ok(Self {
            uplinks,
            local,
            header,
            deadline,
            kept: Vec::new(),
            kept_len: 0,
            inbound: Inbound::default(),
            left: false,
        })
    }

    /// An answered session, and what is left of the application's direction.
    pub(crate) async fn run(mut self) -> Result<(Session, Inbound), Broken> {
        loop {
            let session = tokio::select! {
                biased;
                session = self.open() => session.map_err(Broken::Session)?,
                // An application that gives up while its open is held leaves nothing behind.
                () = gone(self.local), if !self.left => return Err(Broken::Left),
            };
            match self.until_answered(&session).await {
                Ok(()) => return Ok((session, self.inbound)),
                Err(Broken::Session(abort)) if self.may_repeat(&abort) => {
                    tracing::debug!(reason = %abort.code, hop = abort.hops, "open refused; trying again");
                    tokio::time::sleep(PAUSE).await;
                }
                Err(broken) => {
                    session.abort_with(broken.abort());
                    return Err(broken);
                }
            }
        }
    }

    /// Opens a session on the best link and says again what was said before. Nothing has gone out on a link that
    /// refuses at once, so another may be tried.
    async fn open(&self) -> Result<Session, Abort> {
        loop {
            let mux: Mux = self.uplinks.wait(self.deadline).await?;
            let session = match mux.open(self.header.clone()) {
                Ok(session) => session,
                Err(OpenError::Down(_) | OpenError::NotUp | OpenError::Draining) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Err(error @ (OpenError::TooManySessions(_) | OpenError::Exhausted)) => {
                    return Err(Abort::new(Code::OVERLOAD, error.to_string()));
                }
                Err(error @ OpenError::Header { .. }) => {
                    return Err(Abort::new(Code::INTERNAL, error.to_string()));
                }
            };
            for bytes in &self.kept {
                session.write_bytes(bytes.clone()).await?;
            }
            if self.inbound.is_ended() {
                session.end();
            }
            return Ok(session);
        }
    }

    /// Carries what the application says until the answer comes.
    async fn until_answered(&mut self, session: &Session) -> Result<(), Broken> {
        let answered = tokio::time::timeout_at(self.deadline.into(), session.answered());
        tokio::pin!(answered);
        loop {
            let more = self.kept_len < KEPT && !self.inbound.is_ended() && !self.left;
            tokio::select! {
                biased;
                answered = &mut answered => return match answered {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(abort)) => Err(Broken::Session(abort)),
                    Err(_) => {
                        let abort = Abort::new(Code::TIMEOUT, "no answer within the open timeout");
                        session.abort_with(abort.clone());
                        Err(Broken::Session(abort))
                    }
                },
                next = self.inbound.next(self.local, session), if more => match next {
                    Ok(Some(bytes)) => {
                        self.kept_len += bytes.len();
                        self.kept.push(bytes.clone());
                        session.write_bytes(bytes).await.map_err(Broken::Session)?;
                    }
                    Ok(None) => session.end(),
                    // The answer says more than the session's end does: it is read first.
                    Err(Broken::Session(_)) => tokio::task::yield_now().await,
                    Err(broken) => self.has_left(broken)?,
                },
                () = gone(self.local), if !more && !self.left => self.has_left(Broken::Left)?,
            }
        }
    }

    /// Whoever resets its connection has given up. So has one that leaves without a word; but the last words of one
    /// that closed its unix socket behind them are carried, as they are for one that closes a TCP connection.
    fn has_left(&mut self, how: Broken) -> Result<(), Broken> {
        if !self.local.is_unix() || self.is_untouched() {
            return Err(how);
        }
        self.left = true;
        Ok(())
    }

    fn is_untouched(&self) -> bool {
        self.kept.is_empty() && !self.inbound.is_ended()
    }

    fn may_repeat(&self, abort: &Abort) -> bool {
        is_safe_to_repeat(abort.code, self.is_untouched()) && Instant::now() < self.deadline
    }
}

/// Whether an open that failed so may go out again. A link that was lost, or whose peer left without a drain, may have
/// carried the open as far as the server: then only if nothing was said yet.
fn is_safe_to_repeat(code: Code, untouched: bool) -> bool {
    code == Code::DRAINING || (untouched && [Code::CONN_LOST, Code::SHUTDOWN].contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_never_said_twice() {
        for (code, untouched, repeat) in [
            (Code::DRAINING, true, true),
            (Code::DRAINING, false, true),
            (Code::CONN_LOST, true, true),
            (Code::CONN_LOST, false, false),
            (Code::SHUTDOWN, true, true),
            (Code::SHUTDOWN, false, false),
            (Code::OFFLINE, true, false),
            (Code::DIAL_FAILED, true, false),
            (Code::TIMEOUT, true, false),
        ] {
            assert_eq!(is_safe_to_repeat(code, untouched), repeat, "{code}, untouched: {untouched}");
        }
    }
}
