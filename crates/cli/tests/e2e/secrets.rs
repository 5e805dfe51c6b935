//! No secret in any log or on any command line, whatever is logged.

use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use prost::Message;

use crate::ends::reply_after_end;
use crate::harness::{Kind, World, WorldOptions, hopline};

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
    let machines = ["agent/machine.key", "sidecar/machine.key"].map(|key| world.folder().join(key));
    for key in [world.relay.state.join("ca.key")].into_iter().chain(machines) {
        let pem = std::fs::read_to_string(key).unwrap();
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
    // What goes wrong is logged too, and at least this much is said below `info`.
    let token = world.folder().join("agent.token");
    let args = [
        "join".as_ref(),
        token.as_os_str(),
        "--name".as_ref(),
        "third".as_ref(),
        "--state".as_ref(),
        world.folder().as_os_str(),
    ];
    let again = hopline().args(args).env("RUST_LOG", "trace").output().unwrap();
    assert!(!again.status.success());
    TcpStream::connect(world.relay.address).unwrap().write_all(b"garbage, and no TLS").unwrap();
    world.relay.process.logged("DEBUG TLS handshake failed");
    let said = [again.stdout, again.stderr].concat();
    no_secret(&secrets, "what `join` says", &String::from_utf8_lossy(&said));
    for process in world.processes() {
        let log = process.log();
        assert!(log.contains(" INFO "), "nothing in the log");
        no_secret(&secrets, "a log", &log);
        no_secret(&secrets, "a command line", &command_line(process.pid()));
    }
    assert_eq!(world.agent.status().links[0].last_error, None, "the links lived through the silence");
    assert_eq!(world.sidecar.status().links[0].last_error, None, "the links lived through the silence");
}

fn no_secret(secrets: &[String], place: &str, text: &str) {
    assert!(!secrets.iter().any(|secret| text.contains(secret)), "a secret in {place}:\n{text}");
}

fn command_line(pid: u32) -> String {
    let bytes = std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}
