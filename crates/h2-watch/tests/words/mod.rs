//! HTTP/2 in a few words, and a connection in virtual time.

use std::time::{Duration, Instant};

use hopline_h2_watch::{Counters, EndedBy, Hint, HintKind, Limits, MappingWatch, Status, Watcher};

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// A block of literals that no table keeps.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name, value] {
            assert!(text.len() < 127, "longer lengths are not needed here");
            out.push(text.len() as u8);
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

pub(crate) fn headers(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream, &block(fields))
}

/// A request as grpc-go sends it, with a deadline if `timeout` is not empty.
pub(crate) fn request(stream: u32, timeout: &str) -> Vec<u8> {
    request_of(stream, timeout, "localhost", "grpc-go/1.85.0")
}

pub(crate) fn request_of(stream: u32, timeout: &str, authority: &str, agent: &str) -> Vec<u8> {
    let mut fields = vec![
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/ledger.Ledger/Get"),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("user-agent", agent),
        ("te", "trailers"),
    ];
    if !timeout.is_empty() {
        fields.push(("grpc-timeout", timeout));
    }
    headers(stream, 0, &fields)
}

pub(crate) fn response(stream: u32) -> Vec<u8> {
    headers(stream, 0, &[(":status", "200"), ("content-type", "application/grpc")])
}

pub(crate) fn trailers(stream: u32, status: &str, message: &str) -> Vec<u8> {
    headers(stream, END_STREAM, &[("grpc-status", status), ("grpc-message", message)])
}

/// A message of so many bytes, in one frame.
pub(crate) fn message(stream: u32, bytes: usize) -> Vec<u8> {
    let mut payload = vec![0];
    payload.extend_from_slice(&(bytes as u32).to_be_bytes());
    payload.resize(5 + bytes, 7);
    frame(DATA, 0, stream, &payload)
}

pub(crate) fn window_update(stream: u32, bytes: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
}

pub(crate) fn settings(pairs: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (id, value) in pairs {
        payload.extend_from_slice(&id.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    frame(SETTINGS, 0, 0, &payload)
}

pub(crate) fn ping(flags: u8, payload: u64) -> Vec<u8> {
    frame(PING, flags, 0, &payload.to_be_bytes())
}

pub(crate) fn goaway(last: u32, code: u32, debug: &str) -> Vec<u8> {
    let mut payload = last.to_be_bytes().to_vec();
    payload.extend_from_slice(&code.to_be_bytes());
    payload.extend_from_slice(debug.as_bytes());
    frame(GOAWAY, 0, 0, &payload)
}

pub(crate) fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

/// Any instant will do: only differences are used.
#[expect(clippy::disallowed_methods, reason = "a beginning for virtual time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A mapping and one connection of it, in virtual time.
pub(crate) struct Talk {
    pub(crate) began: Instant,
    pub(crate) now: Instant,
    pub(crate) mapping: MappingWatch,
    pub(crate) watcher: Watcher,
}

impl Talk {
    /// A connection whose two sides have said their settings.
    pub(crate) fn begin() -> Self {
        let mut talk = Self::fresh();
        talk.hello();
        talk
    }

    pub(crate) fn fresh() -> Self {
        let now = now();
        let mut mapping = MappingWatch::new(true, Limits::default(), now);
        let watcher = mapping.connect(now);
        Self { began: now, now, mapping, watcher }
    }

    pub(crate) fn hello(&mut self) {
        self.client(&[PREFACE, &settings(&[])].concat());
        self.server(&[settings(&[]), frame(SETTINGS, ACK, 0, &[])].concat());
        self.client(&frame(SETTINGS, ACK, 0, &[]));
    }

    pub(crate) fn client(&mut self, bytes: &[u8]) {
        self.watcher.handle_from_client(bytes, self.now);
    }

    pub(crate) fn server(&mut self, bytes: &[u8]) {
        self.watcher.handle_from_server(bytes, self.now);
    }

    /// Time passes; what becomes due meanwhile is handled when it is due.
    pub(crate) fn wait(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(due) = self.watcher.poll_timeout().filter(|due| *due <= end) {
            self.watcher.handle_timeout(due);
            assert!(self.watcher.poll_timeout().is_none_or(|next| next > due), "a timeout that stays");
        }
        self.now = end;
    }

    pub(crate) fn wait_ms(&mut self, ms: u64) {
        self.wait(Duration::from_millis(ms));
    }

    /// A unary call that takes `ms`.
    pub(crate) fn call(&mut self, stream: u32, timeout: &str, ms: u64, status: &str) {
        self.client(&[request(stream, timeout), frame(DATA, END_STREAM, stream, &[0; 5])].concat());
        self.wait_ms(ms);
        let answer = [response(stream), message(stream, 10), trailers(stream, status, "")].concat();
        self.server(&answer);
    }

    /// The connection ends, and another begins.
    pub(crate) fn reconnect(&mut self, ended_by: EndedBy) {
        self.watcher.close(ended_by, self.now);
        self.mapping.fold(&mut self.watcher, self.now);
        self.watcher = self.mapping.connect(self.now);
    }

    pub(crate) fn hints(&mut self) -> Vec<Hint> {
        self.mapping.fold(&mut self.watcher, self.now);
        self.mapping.hints(self.now)
    }

    /// Kinds of the hints that stand.
    pub(crate) fn kinds(&mut self) -> Vec<HintKind> {
        self.hints().into_iter().map(|hint| hint.kind).collect()
    }

    /// The one hint that stands.
    pub(crate) fn only(&mut self, kind: HintKind) -> Hint {
        let mut hints = self.hints();
        assert_eq!(hints.iter().map(|hint| hint.kind).collect::<Vec<_>>(), [kind]);
        hints.remove(0)
    }

    pub(crate) fn counters(&mut self) -> Counters {
        self.mapping.fold(&mut self.watcher, self.now);
        self.mapping.counters().clone()
    }

    /// Counts of calls by status, those above zero.
    pub(crate) fn ended(&mut self) -> Vec<(&'static str, u64)> {
        let counters = self.counters();
        Status::all()
            .map(|status| (status.name(), counters.ended_with(status)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}
