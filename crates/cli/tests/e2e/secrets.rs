//! No secret in any log or on any command line, whatever is logged.

use std::path::Path;
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use prost::Message;

use crate::ends::reply_after_end;
use crate::harness::{Kind, World, WorldOptions};

/// The part of a token that is secret.
#[derive(Clone, PartialEq, Message)]
struct TokenBody {
    #[prost(bytes = "vec", tag = "4")]
    secret: Vec<u8>,
}

/// Every way in which bytes may come to stand in a text.
fn forms(bytes: &[u8]) -> Vec<String> {
    let decimal = bytes.iter().map(ToString::to_string).collect::<Vec<_>>();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut forms = vec![decimal[..12].join(", "), hex[..24].to_owned(), hex[..24].to_uppercase()];
    for skip in 0..3 {
        let part = base64::prelude::BASE64_STANDARD_NO_PAD.encode(&bytes[skip..]);
        forms.push(part[..16].replace('+', "-").replace('/', "_"));
        forms.push(part[..16].to_owned());
    }
    forms
}

fn secrets(world: &World) -> Vec<String> {
    let mut found = Vec::new();
    for machine in ["agent", "sidecar"] {
        let text = std::fs::read_to_string(world.folder().join(machine).with_extension("token")).unwrap();
        let body = text.trim().strip_prefix("hopline-join-1.").unwrap();
        let body = base64::prelude::BASE64_URL_SAFE_NO_PAD.decode(body).unwrap();
        let secret = TokenBody::decode(body.as_slice()).unwrap().secret;
        assert_eq!(secret.len(), 32);
        found.extend(forms(&secret));
    }
    for key in ["relay/ca.key", "agent/machine.key", "sidecar/machine.key"] {
        let pem = std::fs::read_to_string(world.folder().join(key)).unwrap();
        let lines: Vec<&str> = pem.lines().filter(|line| !line.starts_with("--")).collect();
        let der = base64::prelude::BASE64_STANDARD.decode(lines.concat()).unwrap();
        // Behind the head that all keys of the kind have in common: the private scalar.
        found.extend(forms(&der[36..68]));
        found.push(lines[1].to_owned());
    }
    found
}

/// F181, F182: at `trace`, with tokens redeemed, links made and sessions carried. F2: a server that thinks for longer
/// than two liveness bounds after the application's end.
#[test]
fn f181_no_secret_in_logs_and_command_lines() {
    let world =
        World::start(WorldOptions { log: "trace", keepalive: "fast", slots: 2, ..WorldOptions::default() });
    let secrets = secrets(&world);
    assert_eq!(secrets.len(), 2 * 9 + 3 * 10);
    thread::scope(|scope| {
        for (kind, slot) in Kind::BOTH.into_iter().zip(&world.slots) {
            let world = &world;
            scope.spawn(move || {
                world.works(slot);
                let (mut app, mut server) = slot.pair(kind);
                reply_after_end(&mut app, &mut server, Duration::from_millis(9_500));
            });
        }
    });
    for slot in &world.slots {
        world.settled(slot);
    }
    for process in world.processes() {
        let log = process.log();
        assert!(log.contains("TRACE"), "the log is at trace");
        // The search finds what is there.
        assert!(log.contains("hopline"));
        for (what, text) in [("log", log), ("command line", command_line(process.pid()))] {
            for secret in &secrets {
                assert!(!text.contains(secret), "a secret in the {what} of process {}", process.pid());
            }
        }
    }
    assert_eq!(world.agent.status().links[0].last_error, None, "the links lived through the silence");
    assert_eq!(world.sidecar.status().links[0].last_error, None, "the links lived through the silence");
}

fn command_line(pid: u32) -> String {
    let bytes = std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}
