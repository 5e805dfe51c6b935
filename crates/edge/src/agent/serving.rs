//! One session at the agent, from its open to its end: the dial, the bytes, and another session that takes the place of
//! one whose path was lost.

use std::time::Duration;

use bytes::Bytes;
use hopline_accounting::access::Access;
use hopline_config::Protocol;
use hopline_link::{Abort, Code, Session};
use hopline_names::{ConnectionId, SessionId};
use tokio::time::{Instant, sleep_until, timeout};

use super::Service;
use super::known_sessions::{KnownSession, ResumeAttempt};
use crate::dial::{DIAL_TIMEOUT, DialError, DialKind, DialOptions, GRPC_USER_TIMEOUT, dial};
use crate::local::LocalStream;
use crate::pump::replay::{REPLAY_WINDOW, ReplayMemory};
use crate::pump::{Beside, Broken, Connection, Flow};
use crate::trail::{Dialled, Trails, loop_abort};

/// How much longer the replay window lasts here than at the sidecar: for the answer's way, and for the clock's.
const REPLAY_WINDOW_MARGIN: Duration = Duration::from_millis(500);
/// How long a resume attempt is waited for, counted from the last byte that its lost link had heard: as long as an open
/// may take by default. A path that is found dead by its silence has used that up (P4).
const RESUME_WITHIN: Duration = Duration::from_secs(10);
/// What is left of an open's time when its dial gives up, for the reason's way to the sidecar: a twentieth, within these
/// bounds.
const LEAST_MARGIN: Duration = Duration::from_millis(20);
const MOST_MARGIN: Duration = Duration::from_secs(1);
/// How long a dial may take whatever the open says.
const LONGEST_DIAL: Duration = Duration::from_secs(600);

/// A session that is served.
#[derive(Debug)]
pub(crate) struct Serving<'a> {
    service: &'a Service,
    session: Session,
    known: KnownSession,
    flow: Flow,
}

/// What its open says.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) id: SessionId,
    /// The machine that dialled.
    pub(crate) peer: Option<&'a str>,
    /// For how long the sidecar waits for the answer, if it has said so.
    pub(crate) time_left: Option<Duration>,
    /// What its connection comes of.
    pub(crate) trail: &'a [ConnectionId],
}

/// What happened first.
enum Turn {
    Ended(Result<(), Broken>),
    Resume(ResumeAttempt),
    WindowEnded,
    /// The server is the session's own application.
    Loop,
}

impl<'a> Serving<'a> {
    pub(crate) fn new(
        service: &'a Service,
        session: Session,
        known: KnownSession,
        memory: &ReplayMemory,
    ) -> Self {
        let flow = Flow::new(memory, Beside::Server, &service.figures.bytes, None);
        Self { service, session, known, flow }
    }

    /// Serves it to its end.
    pub(crate) async fn run(mut self, asked: &Asked<'_>, trails: &Trails) {
        let began = Instant::now();
        let end = self.serve(asked, trails).await;
        let line = Access {
            service: Some(self.service.config.name.as_str()),
            peer: asked.peer,
            duration: began.elapsed(),
            forth: self.flow.received(),
            back: self.flow.sent(),
            ..Access::default()
        };
        line.log(&asked.id, end.as_ref());
    }

    /// How it ended, if not clean.
    async fn serve(&mut self, asked: &Asked<'_>, trails: &Trails) -> Option<Abort> {
        let dialled = loop {
            if let Some(dialled) = self.dial(asked.time_left).await {
                break dialled;
            }
            // Who asked has given up, and the server has not seen anything of it.
            match self.known.forget() {
                Ok(()) => return Some(self.session.aborted().await),
                // A resume attempt has arrived meanwhile.
                Err(attempt) => self.session = attempt.session,
            }
        };
        let connection = match dialled {
            Ok(stream) => Connection::new(LocalStream::from(stream)),
            Err(error) => {
                let abort = Abort::new(code_of(&error), error.to_string());
                self.service.figures.opens.refuse(abort.code);
                self.service.figures.fault.note(&abort);
                self.session.abort_with(abort.clone());
                return Some(abort);
            }
        };
        let local = connection.stream()?;
        let mut dialled = trails.enter(local, self.service.config.name.as_str(), asked.trail);
        // A drain waits until the last bytes are delivered, too.
        let _open = self.service.figures.sessions.begin();
        self.service.figures.opens.accept();
        self.session.answer(Bytes::new());
        let mut window_end = Instant::now() + REPLAY_WINDOW + REPLAY_WINDOW_MARGIN;
        let result = loop {
            match self.turn(local, window_end, &mut dialled).await {
                Turn::Loop => return Some(self.end_loop()),
                Turn::WindowEnded => self.end_replay_window(),
                Turn::Resume(attempt) => window_end = self.resume(attempt),
                Turn::Ended(Err(_)) if dialled.is_loop() => return Some(self.end_loop()),
                Turn::Ended(result) => match self.wait_for_resume(&result).await {
                    Some(attempt) => window_end = self.resume(attempt),
                    None => break result,
                },
            }
        };
        let result = self.flow.close(connection, &self.session, result, |_| None).await;
        match &result {
            // An application that leaves is no fault of the service.
            Ok(()) => {}
            Err(Broken::Session(abort)) if abort.code == Code::PEER_RESET => {}
            Err(broken) => self.service.figures.fault.note(&broken.abort()),
        }
        result.err().map(|broken| broken.abort())
    }

    /// Dials for as long as somebody wants the connection; `None` if nobody does any more.
    async fn dial(
        &mut self,
        time_left: Option<Duration>,
    ) -> Option<Result<tokio::net::TcpStream, DialError>> {
        let config = &self.service.config;
        let user_timeout = (config.protocol == Protocol::Grpc).then_some(GRPC_USER_TIMEOUT);
        let options =
            DialOptions { timeout: dial_timeout(time_left), user_timeout, ..DialOptions::default() };
        let dialled = dial(&self.service.resolver, &config.target.host, config.target.port, &options);
        tokio::pin!(dialled);
        loop {
            tokio::select! {
                biased;
                attempt = self.known.next_attempt() => self.session = attempt.session,
                _ = self.session.aborted() => return None,
                dialled = &mut dialled => return Some(dialled),
            }
        }
    }

    async fn turn(&mut self, local: &LocalStream, window_end: Instant, dialled: &mut Dialled) -> Turn {
        if !self.flow.is_replayable() {
            self.end_replay_window();
            return tokio::select! {
                biased;
                () = dialled.loops() => Turn::Loop,
                result = self.flow.run(local, &self.session) => Turn::Ended(result),
            };
        }
        tokio::select! {
            biased;
            () = dialled.loops() => Turn::Loop,
            attempt = self.known.next_attempt() => Turn::Resume(attempt),
            result = self.flow.run(local, &self.session) => Turn::Ended(result),
            () = sleep_until(window_end) => Turn::WindowEnded,
        }
    }

    /// Its server's connection is reset by being dropped, and so all that has come of it.
    fn end_loop(&self) -> Abort {
        let abort = loop_abort(self.service.config.name.as_str(), &self.service.config.target);
        self.service.figures.fault.note(&abort);
        self.session.abort_with(abort.clone());
        abort
    }

    fn end_replay_window(&mut self) {
        self.flow.end_replay_window();
        for attempt in self.known.close() {
            refuse(&attempt.session);
        }
    }

    /// After the session's end: a resume attempt, if the sidecar may lack something and makes one in time.
    async fn wait_for_resume(&mut self, result: &Result<(), Broken>) -> Option<ResumeAttempt> {
        if !self.flow.is_replayable() {
            return None;
        }
        let lost = match result {
            Err(Broken::Session(abort)) => abort.clone(),
            Err(Broken::Local(_) | Broken::Closed(_) | Broken::PeerGone) => return None,
            // Both ends are out. Whether the far one has arrived shows only now.
            Ok(()) => tokio::select! {
                biased;
                attempt = self.known.next_attempt() => return Some(attempt),
                finished = timeout(REPLAY_WINDOW, self.session.finish()) => finished.ok()?.err()?,
            },
        };
        if lost.code != Code::CONN_LOST {
            return None;
        }
        let silent = Duration::from_millis(lost.silent_ms.unwrap_or(0));
        let attempt = timeout(RESUME_WITHIN.saturating_sub(silent), self.known.next_attempt()).await.ok()?;
        tracing::debug!(service = %self.service.config.name, "a session whose path was lost goes on");
        Some(attempt)
    }

    /// Goes on with the session of a resume attempt; gives when its replay window ends.
    fn resume(&mut self, attempt: ResumeAttempt) -> Instant {
        self.session = attempt.session;
        self.session.answer(Bytes::new());
        self.flow.expect_repeats();
        if !self.flow.replay(attempt.received) {
            refuse(&self.session);
        }
        Instant::now() + REPLAY_WINDOW + REPLAY_WINDOW_MARGIN
    }
}

fn code_of(error: &DialError) -> Code {
    if error.kind == DialKind::Crowded { Code::OVERLOAD } else { Code::DIAL_FAILED }
}

/// How long the dial of an open may take whose sidecar waits so long for the answer: a little less, so that the
/// sidecar reads why it failed.
fn dial_timeout(time_left: Option<Duration>) -> Duration {
    let Some(time_left) = time_left else { return DIAL_TIMEOUT };
    let margin = (time_left / 20).clamp(LEAST_MARGIN, MOST_MARGIN);
    time_left.saturating_sub(margin).min(LONGEST_DIAL)
}

/// Refuses a resume attempt that cannot be served. Its sidecar knows why the path was lost.
pub(crate) fn refuse(session: &Session) {
    session.abort(Code::REFUSED, "the session cannot be resumed");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dial_ends_a_little_before_the_open_that_it_is_for() {
        let ms = Duration::from_millis;
        for (time_left, dial) in [
            (None, DIAL_TIMEOUT),
            (Some(ms(0)), ms(0)),
            (Some(ms(100)), ms(80)),
            (Some(ms(2_000)), ms(1_900)),
            (Some(ms(10_000)), ms(9_500)),
            (Some(ms(40_000)), ms(39_000)),
            (Some(Duration::MAX), LONGEST_DIAL),
        ] {
            assert_eq!(dial_timeout(time_left), dial, "{time_left:?}");
        }
    }
}
