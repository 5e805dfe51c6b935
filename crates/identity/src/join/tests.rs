use rustls::pki_types::PrivateKeyDer;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::RelayState;
use crate::files::faults::Failing;
use crate::token::tests::{CANARY, canary_token, grants, leaks, name};
use crate::wire::Refused;

/// A relay with the right authority that answers one join with whatever `reply` makes of the request.
async fn join_with(reply: impl FnOnce(&RelayState, JoinRequest) -> Vec<u8>) -> (JoinError, Token, TempDir) {
    let (relay_dir, machine_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let state = RelayState::open(relay_dir.path(), &name("relay-a")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let token = canary_token(&address, state.authority_fingerprint());
    let serving = async {
        let (tcp, _) = listener.accept().await.unwrap();
        let mut stream = TlsAcceptor::from(state.server_config()).accept(tcp).await.unwrap();
        let request: JoinRequest = wire::read(&mut stream).await.unwrap();
        assert_eq!(request.secret, CANARY);
        let bytes = reply(&state, request);
        stream.write_all(&bytes).await.unwrap();
        stream.shutdown().await.unwrap();
    };
    let name = name("web-1");
    let (joined, ()) = tokio::join!(join(&token, &name, machine_dir.path()), serving);
    (joined.unwrap_err(), token, machine_dir)
}

fn framed(outcome: Option<Outcome>) -> Vec<u8> {
    use prost::Message as _;
    let body = JoinReply { outcome }.encode_to_vec();
    [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], &body].concat()
}

/// The honest reply for `key` as machine `name`.
fn issued(state: &RelayState, name: &MachineName, key: &KeyPair) -> Issued {
    let certificate = state.authority().issue_machine(name, key, std::time::SystemTime::now()).unwrap();
    Issued {
        chain_der: vec![certificate.to_vec()],
        ca_der: state.authority().certificate().to_vec(),
        name: name.to_string(),
        publish: Vec::new(),
        dial: Vec::new(),
    }
}

fn fault(error: &JoinError) -> &str {
    let JoinError::BadReply { fault, .. } = error else { panic!("{error}") };
    fault
}

/// After a join that failed there is a key, and nothing that could be taken for a machine.
fn assert_nothing_stored(dir: &TempDir) {
    assert!(dir.path().join(MACHINE_KEY).exists());
    for file in [MACHINE_CERTIFICATE, MACHINE_FACTS, AUTHORITY_CERTIFICATE] {
        assert!(!dir.path().join(file).exists(), "{file}");
    }
}

#[tokio::test]
async fn a_certificate_for_another_key_or_name_is_not_stored() {
    let (error, _, dir) = join_with(|state, _| {
        framed(Some(Outcome::Issued(issued(state, &name("web-1"), &KeyPair::generate().unwrap()))))
    })
    .await;
    assert_eq!(fault(&error), "its certificate is for another key");
    assert_nothing_stored(&dir);

    let (error, _, dir) = join_with(|state, _| {
        framed(Some(Outcome::Issued(issued(state, &name("web-2"), &KeyPair::generate().unwrap()))))
    })
    .await;
    assert_eq!(fault(&error), "its certificate is for another name");
    assert_nothing_stored(&dir);
}

#[tokio::test]
async fn an_authority_other_than_the_pinned_one_is_not_stored() {
    let other = tempfile::tempdir().unwrap();
    let other = RelayState::open(other.path(), &name("relay-b")).unwrap();
    let (error, _, dir) = join_with(|_, _| {
        framed(Some(Outcome::Issued(issued(&other, &name("web-1"), &KeyPair::generate().unwrap()))))
    })
    .await;
    assert_eq!(fault(&error), "it names another certificate authority than the token");
    assert_nothing_stored(&dir);
}

#[tokio::test]
async fn replies_that_are_none() {
    let mut huge = u32::MAX.to_be_bytes().to_vec();
    huge.extend_from_slice(&[0; 100]);
    for bytes in [huge, framed(None), vec![0, 0, 0, 2, 0xff, 0xff]] {
        let (error, token, dir) = join_with(|_, _| bytes).await;
        assert!(!fault(&error).is_empty());
        assert!(!leaks(&format!("{error} {error:?}"), &token));
        assert_nothing_stored(&dir);
    }
    let (error, _, dir) = join_with(|_, _| vec![0, 0, 1, 0, 1, 2, 3]).await;
    assert!(matches!(error, JoinError::Io { .. }), "{error}");
    assert_nothing_stored(&dir);
}

#[tokio::test]
async fn a_refusal_is_shown_bounded_and_without_control_characters() {
    let message = format!("\u{1b}[2Jno\n{}", "x".repeat(10_000));
    let (error, token, dir) = join_with(|_, _| framed(Some(Outcome::Refused(Refused { message })))).await;
    let text = error.to_string();
    assert!(matches!(error, JoinError::Refused { .. }), "{error}");
    assert!(text.len() < 500 && !text.contains(char::is_control) && text.contains("[2Jno"), "{text}");
    assert!(!leaks(&format!("{text} {error:?}"), &token));
    assert_nothing_stored(&dir);
}

#[tokio::test]
async fn a_machine_shows_no_key() {
    let (relay_dir, machine_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let state = RelayState::open(relay_dir.path(), &name("relay-a")).unwrap();
    let place = Place::prepare(machine_dir.path(), &name("web-1")).unwrap();
    let busy = Place::prepare(machine_dir.path(), &name("web-1")).err();
    assert!(matches!(busy, Some(JoinError::Busy { .. })), "one join at a time in a folder");
    let (der, pem) = (place.key.serialize_der(), place.key.serialize_pem());
    let issued = issued(&state, &name("web-1"), &place.key);
    place.store(&name("web-1"), "relay:1", Grants::default(), issued).unwrap();
    let machine = Machine::load(machine_dir.path()).unwrap();
    let text = format!("{machine:?} {machine:#?}");
    assert!(text.contains("web-1"));
    let der = PrivateKeyDer::try_from(der).unwrap();
    let bytes = format!("{:?}", &der.secret_der()[40..48]);
    for needle in [bytes.trim_matches(['[', ']']), pem.lines().nth(1).unwrap(), "PRIVATE"] {
        assert!(!text.contains(needle), "{text}");
    }
}

/// The machine's disk fails at any one of its changes: the folder holds a whole machine or none, and the same token, which
/// is good for one, makes it whole when there is room again.
#[tokio::test]
async fn a_disk_that_fails_at_the_machine_spends_no_token() {
    let relay_dir = tempfile::tempdir().unwrap();
    let state = RelayState::open(relay_dir.path(), &name("relay-a")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let stream = TlsAcceptor::from(state.server_config()).accept(tcp).await.unwrap();
            // What it comes to is seen at the machine.
            drop(crate::serve_join(stream, &state).await);
        }
    });
    let spec = crate::TokenSpec {
        relay: address,
        grants: grants(&[], &["*"]),
        ttl: std::time::Duration::from_secs(600),
        uses: 1,
    };
    let mut failed = 0;
    for good in 0.. {
        let token = crate::create_token(relay_dir.path(), &spec, std::time::SystemTime::now()).unwrap();
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("machine");
        let name = name(&format!("web-{good}"));
        let failing = Failing::after(&dir, good);
        let joined = join(&token, &name, &dir).await;
        if !failing.met() {
            joined.unwrap();
            break;
        }
        failed += 1;
        // The last change is the folder's sync: then all is there, and not known to be safe.
        let text = joined.unwrap_err().to_string();
        assert!(text.contains(dir.to_str().unwrap()), "{text}");
        match Machine::load(&dir) {
            Ok(_) | Err(LoadMachineError::NotJoined { .. }) => {}
            Err(error) => panic!("after {good} changes: {error}"),
        }
        drop(failing);
        join(&token, &name, &dir).await.unwrap();
    }
    // The folder; five changes for each of version and key; ten for the room that is taken beforehand; three files
    // written and named, and the folder synced.
    assert_eq!(failed, 1 + 5 + 5 + 10 + 13);
}
