//! A cut that says why (promise P19): what the application reads before its connection ends.

use std::fmt;
use std::time::Duration;

use crate::connection::Connection;
use crate::field::Implementation;
use crate::reader::{END_HEADERS, END_STREAM, GOAWAY, HEAD_BYTES, HEADERS, SETTINGS};
use crate::stream::Stream;

/// Bytes of a message before it is escaped; what is longer loses its end.
const MESSAGE_BYTES: usize = 512;
/// UNAVAILABLE.
const GRPC_STATUS: &[u8] = b"14";
/// `:status 200`, an entry of the static table.
const STATUS_200: u8 = 0x88;
/// A table of size 0: what a client that has lowered its table may insist on at the beginning of a block.
const TABLE_OF_ZERO: u8 = 0x20;
/// A literal that no table may ever keep, with a name that is spelled out.
const NEVER_INDEXED: u8 = 0x10;

/// Why a session was cut. As text: `hopline: conn_lost at hop 1, relay-a to db-1, silent for 15.0 s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause<'a> {
    /// The word of the reason.
    pub reason: &'a str,
    /// How many links it crossed.
    pub hop: u8,
    /// The two ends of that hop, where they are known.
    pub between: Option<(&'a str, &'a str)>,
    /// How long the hop had been silent, where that was the reason.
    pub silent: Option<Duration>,
}

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hopline: {} at hop {}", self.reason, self.hop)?;
        if let Some((near, far)) = self.between {
            write!(f, ", {near} to {far}")?;
        }
        if let Some(silent) = self.silent {
            write!(f, ", silent for {:.1} s", silent.as_secs_f64())?;
        }
        Ok(())
    }
}

/// See [`crate::Watcher::explain`].
pub(crate) fn explain(connection: &Connection, cause: &Cause<'_>) -> Option<Vec<u8>> {
    if !connection.server.at_boundary() {
        return None;
    }
    let mut out = Vec::new();
    if !connection.server_ready {
        if connection.streams.len() == 0 {
            return None;
        }
        // Clients that send a call before the server's settings have come want to see some first.
        frame(&mut out, SETTINGS, 0, 0, &[]);
    }
    let mut message = cause.to_string();
    message.truncate(message.floor_char_boundary(MESSAGE_BYTES));
    let goaway = connection.goaway.map_or(u32::MAX, |goaway| goaway.last);
    let mut resize = connection.resize_due;
    for (id, stream) in connection.streams.iter() {
        let may_end = stream.position.is_between() || takes_trailers_inside(connection.tally.agent);
        // Beyond the server's own GOAWAY the client knows already that nothing was done.
        if stream.grpc && may_end && id <= goaway {
            let block = block(stream, &message, std::mem::take(&mut resize));
            frame(&mut out, HEADERS, END_STREAM | END_HEADERS, id, &block);
        }
    }
    // No higher than an earlier one, or the client would call it a fault.
    let last = connection.newest.min(goaway);
    let mut payload = last.to_be_bytes().to_vec();
    payload.extend_from_slice(&0_u32.to_be_bytes());
    payload.extend_from_slice(message.as_bytes());
    frame(&mut out, GOAWAY, 0, 0, &payload);
    Some(out)
}

/// Which clients take a status in the middle of a message for what it says. Measured: grpcio 1.85.3, grpc-js 1.14.7
/// and tonic 0.14.9 do; grpc-go 1.85.0 says INTERNAL `unexpected EOF` instead, where the end of the connection is
/// UNAVAILABLE. The others were not measured.
fn takes_trailers_inside(agent: Implementation) -> bool {
    matches!(agent, Implementation::Python | Implementation::Node | Implementation::Tonic)
}

fn block(stream: &Stream, message: &str, resize: bool) -> Vec<u8> {
    let mut block = Vec::new();
    if resize {
        block.push(TABLE_OF_ZERO);
    }
    if stream.http_status.is_none() {
        block.push(STATUS_200);
        literal(&mut block, b"content-type", b"application/grpc");
    }
    literal(&mut block, b"grpc-status", GRPC_STATUS);
    literal(&mut block, b"grpc-message", &escaped(message));
    block
}

/// As `grpc-message` wants it: visible ASCII as it is, but for the percent sign.
fn escaped(message: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len());
    for byte in message.bytes() {
        if (0x20..0x7f).contains(&byte) && byte != b'%' {
            out.push(byte);
        } else {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
    out
}

fn literal(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    block.push(NEVER_INDEXED);
    for text in [name, value] {
        length(block, text.len());
        block.extend_from_slice(text);
    }
}

/// A string's length, not Huffman-coded: seven bits, then seven more at a time.
fn length(block: &mut Vec<u8>, length: usize) {
    let Some(mut rest) = length.checked_sub(0x7f) else {
        block.push(length as u8);
        return;
    };
    block.push(0x7f);
    while rest >= 0x80 {
        block.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    block.push(rest as u8);
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.reserve(HEAD_BYTES + payload.len());
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_as_text() {
        let whole = Cause {
            reason: "conn_lost",
            hop: 1,
            between: Some(("relay-a", "db-1")),
            silent: Some(Duration::from_millis(15_004)),
        };
        assert_eq!(whole.to_string(), "hopline: conn_lost at hop 1, relay-a to db-1, silent for 15.0 s");
        let bare = Cause { reason: "drain_deadline", hop: 0, between: None, silent: None };
        assert_eq!(bare.to_string(), "hopline: drain_deadline at hop 0");
    }

    #[test]
    fn lengths_and_escapes() {
        for (number, bytes) in [(0, &[0][..]), (126, &[126]), (127, &[127, 0]), (1_536, &[127, 0x81, 0x0b])] {
            let mut out = Vec::new();
            length(&mut out, number);
            assert_eq!(out, bytes, "{number}");
        }
        assert_eq!(escaped("a b%c\u{e4}\n"), b"a b%25c%C3%A4%0A");
    }
}
