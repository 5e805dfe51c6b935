//! Dialogues of one link with scripted bytes: `tests/wire/*.txt`.
//!
//! Lines at the margin are what is done to the link; indented lines are all that it sent and told, in order, and
//! are compared. `HOPLINE_BLESS=1 cargo test -p hopline-link-proto --test wire` writes them anew: review the diff.
//!
//! ```text
//! link listener sessions=2     a new link; `up listener` also exchanges hellos, unseen
//! > open 1 "h"                 bytes from the peer: words of one frame, see `words`
//!   event opened 1 "h"
//! flood 300 ping 1             one frame so many times, in one piece
//! call answer 1 "ok"           a call of the owner
//!   < 0301808003026f6b  answer 1 +49152 "ok"
//! at 5s                        time goes on, from timeout to timeout
//!   @5s < 0901  ping 1
//! ```

#[path = "wire/cuts.rs"]
mod cuts;
#[path = "wire/runner.rs"]
mod runner;
mod words;

use std::collections::BTreeSet;
use std::path::PathBuf;

use hopline_link_proto::{FrameError, HelloError, ProtocolError};

fn scripts() -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/wire");
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut found: Vec<_> = entries
        .map(|entry| entry.unwrap_or_else(|error| panic!("{error}")).path())
        .filter(|path| path.extension().is_some_and(|end| end == "txt"))
        .collect();
    found.sort();
    found
}

#[test]
fn every_dialogue_is_as_written() {
    let bless = std::env::var_os("HOPLINE_BLESS").is_some();
    let scripts = scripts();
    assert!(scripts.len() >= 12, "{} scripts", scripts.len());
    let mut wrong = Vec::new();
    for path in scripts {
        let want = std::fs::read_to_string(&path).unwrap();
        let got = runner::run(&want);
        if bless {
            std::fs::write(&path, got).unwrap();
        } else if got != want {
            wrong.push(format!("{}\n{}", path.display(), runner::difference(&want, &got)));
        }
    }
    assert!(wrong.is_empty(), "HOPLINE_BLESS=1 writes what is so now:\n{}", wrong.join("\n"));
}

/// The match has no wildcard: a new variant does not compile until it has a name here, and then fails until a
/// script shows it.
fn name(error: &ProtocolError) -> &'static str {
    match error {
        ProtocolError::Hello => "Hello",
        ProtocolError::OpenOrder(_) => "OpenOrder",
        ProtocolError::TooManyOpens(_) => "TooManyOpens",
        ProtocolError::NeverOpened(_) => "NeverOpened",
        ProtocolError::Answer(_) => "Answer",
        ProtocolError::Credit(_) => "Credit",
        ProtocolError::CreditOverflow(_) => "CreditOverflow",
        ProtocolError::AfterEnd(_) => "AfterEnd",
        ProtocolError::EndBeforeAnswer(_) => "EndBeforeAnswer",
        ProtocolError::EndAck(_) => "EndAck",
        ProtocolError::PingFlood => "PingFlood",
        ProtocolError::Frame(frame) => match frame {
            FrameError::UnknownType(_) => "Frame(UnknownType",
            FrameError::Number(_) => "Frame(Number",
            FrameError::TooLong { .. } => "Frame(TooLong",
            FrameError::Body(_) => "Frame(Body",
            FrameError::Message(_) => "Frame(Message",
            FrameError::EmptyData => "Frame(EmptyData",
            FrameError::SessionZero(_) => "Frame(SessionZero",
            FrameError::Hello(hello) => match hello {
                HelloError::Magic => "Frame(Hello(Magic",
                HelloError::Field(_) => "Frame(Hello(Field",
                HelloError::Name(_) => "Frame(Hello(Name",
                HelloError::Missing(_) => "Frame(Hello(Missing",
                HelloError::Liveness(_) => "Frame(Hello(Liveness",
                HelloError::Version { .. } => "Frame(Hello(Version",
            },
        },
    }
}

#[test]
fn every_illegal_thing_has_a_script() {
    let frames = |error: FrameError| ProtocolError::Frame(error);
    let hellos = |error: HelloError| frames(FrameError::Hello(error));
    let all = [
        ProtocolError::Hello,
        ProtocolError::OpenOrder(0),
        ProtocolError::TooManyOpens(0),
        ProtocolError::NeverOpened(0),
        ProtocolError::Answer(0),
        ProtocolError::Credit(0),
        ProtocolError::CreditOverflow(0),
        ProtocolError::AfterEnd(0),
        ProtocolError::EndBeforeAnswer(0),
        ProtocolError::EndAck(0),
        ProtocolError::PingFlood,
        frames(FrameError::UnknownType(0)),
        frames(FrameError::Number(0)),
        frames(FrameError::TooLong { kind: 0, len: 0, max: 0 }),
        frames(FrameError::Body(0)),
        frames(FrameError::Message(0)),
        frames(FrameError::EmptyData),
        frames(FrameError::SessionZero(0)),
        hellos(HelloError::Magic),
        hellos(HelloError::Field(0)),
        hellos(HelloError::Name(0)),
        hellos(HelloError::Missing(0)),
        hellos(HelloError::Liveness(hopline_link_proto::LivenessError::Bound)),
        hellos(HelloError::Version { peer_min: 0, peer_max: 0 }),
    ];
    let mut seen = BTreeSet::new();
    for path in scripts() {
        let text = std::fs::read_to_string(&path).unwrap();
        for line in text.lines().filter(|line| line.starts_with(' ')) {
            let Some((_, error)) = line.split_once("event down protocol ") else { continue };
            seen.extend(all.iter().map(name).filter(|name| {
                error.strip_prefix(*name).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
            }));
        }
    }
    let missing: Vec<_> = all.iter().map(name).filter(|name| !seen.contains(name)).collect();
    assert!(missing.is_empty(), "no script shows {missing:?}");
}

/// Each type of frame of the wire, with its bytes, stands in some script in each direction.
#[test]
fn every_frame_is_shown_sent_and_received() {
    let mut lines: Vec<String> = Vec::new();
    for path in scripts() {
        lines.extend(std::fs::read_to_string(&path).unwrap().lines().map(str::to_owned));
    }
    for frame in [
        "hello", "open", "answer", "data", "end", "end-ack", "credit", "abort", "goodbye", "ping", "pong",
        "presence", "drain",
    ] {
        let received = lines
            .iter()
            .any(|line| line.strip_prefix("> ").is_some_and(|words| words::split(words)[0] == frame));
        let sent = lines.iter().any(|line| {
            line.starts_with(' ')
                && line.split_once("< ").is_some_and(|(_, rest)| words::split(rest)[1] == frame)
        });
        assert!(received && sent, "{frame}: received {received}, sent {sent}");
    }
}
