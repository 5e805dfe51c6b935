//! Joining, and what a token is good for.

use std::time::{Duration, SystemTime};

use crate::common::{Outcome, Relay, dial, grants, name, relay_with_machine, spec, token};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hopline_identity::{
    JoinError, JoinedMachine, Machine, Refusal, RelayState, ServeJoinError, StateError, Token, TokenSpec,
    create_token, join, list_machines, list_tokens, relay_name, revoke_token,
};

const TOKEN_REFUSED: &str = "token refused: unknown, expired or used up";

fn refusal(error: JoinError) -> String {
    match error {
        JoinError::Refused { message, .. } => message,
        other => panic!("{other}"),
    }
}

fn cause(result: Result<JoinedMachine, ServeJoinError>) -> Refusal {
    match result {
        Err(ServeJoinError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_machine_joins_and_its_link_is_authenticated() {
    let (relay_dir, machine_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut relay = Relay::start(relay_dir.path()).await;
    let token = token(relay_dir.path(), &relay.address, 1);

    let machine = join(&token, &name("web-1"), machine_dir.path()).await.unwrap();
    assert_eq!(machine.name().as_str(), "web-1");
    assert_eq!(machine.relays(), [relay.address.as_str()]);
    assert_eq!(*machine.grants(), grants(&["ledger"], &["batch-*"]));
    let life = machine.expires().duration_since(SystemTime::now()).unwrap();
    assert!(
        life > Duration::from_secs(364 * 86_400) && life <= Duration::from_secs(365 * 86_400),
        "{life:?}"
    );
    let joined = relay.joined().await.unwrap();
    assert_eq!((joined.name.as_str(), joined.token.as_str()), ("web-1", token.id()));

    // Twice: the second handshake must prove the key again, since resumption is off.
    let machine = Machine::load(machine_dir.path()).unwrap();
    for _ in 0..2 {
        let (chain, verdict) = dial(machine.client_config(), &relay.address).await.unwrap();
        assert_eq!(verdict, b'y');
        assert_eq!(relay_name(&chain), Some(name("relay-a")));
        let identity = relay.linked().await.unwrap();
        assert_eq!(identity.name.as_str(), "web-1");
        assert_eq!(identity.grants, grants(&["ledger"], &["batch-*"]));
    }
}

#[tokio::test]
async fn a_token_is_used_up() {
    let (mut relay, relay_dir, _machine, _machine_dir) = relay_with_machine("web-1").await;
    let token = token(relay_dir.path(), &relay.address, 1);
    join(&token, &name("web-2"), tempfile::tempdir().unwrap().path()).await.unwrap();
    relay.joined().await.unwrap();

    let error = join(&token, &name("web-3"), tempfile::tempdir().unwrap().path()).await.unwrap_err();
    assert_eq!(refusal(error), TOKEN_REFUSED);
    assert_eq!(cause(relay.joined().await), Refusal::TokenGone(token.id().to_owned()));
    assert_eq!(list_tokens(relay_dir.path()).unwrap().records, []);
    let machines = list_machines(relay_dir.path()).unwrap().records;
    let names: Vec<_> = machines.into_iter().map(|info| info.name).collect();
    assert_eq!(names, [name("web-1"), name("web-2")]);
}

#[tokio::test]
async fn expired_revoked_and_foreign_tokens_are_refused_alike() {
    let relay_dir = tempfile::tempdir().unwrap();
    let mut relay = Relay::start(relay_dir.path()).await;
    let yesterday = SystemTime::now() - Duration::from_secs(86_400);
    let revoked = token(relay_dir.path(), &relay.address, 1);
    // Last: what has expired goes with the next change.
    let expired = create_token(relay_dir.path(), &spec(&relay.address), yesterday).unwrap();
    revoke_token(relay_dir.path(), revoked.id()).unwrap();
    revoke_token(relay_dir.path(), revoked.id()).unwrap_err();

    for (token, expected) in [
        (&expired, Refusal::TokenExpired(expired.id().to_owned())),
        (&revoked, Refusal::TokenGone(revoked.id().to_owned())),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let error = join(token, &name("web-1"), dir.path()).await.unwrap_err();
        assert_eq!(refusal(error), TOKEN_REFUSED);
        assert_eq!(cause(relay.joined().await), expected);
        Machine::load(dir.path()).unwrap_err();
    }
    assert_eq!(list_machines(relay_dir.path()).unwrap().records, []);
}

#[tokio::test]
async fn a_token_for_another_authority_gets_no_secret() {
    let (dir_a, dir_b, machine_dir) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut relay_b = Relay::start(dir_b.path()).await;
    RelayState::open(dir_a.path(), &name("relay-a")).unwrap();
    let token_of_a = token(dir_a.path(), &relay_b.address, 1);
    let error = join(&token_of_a, &name("web-1"), machine_dir.path()).await.unwrap_err();
    assert!(error.to_string().contains("not the relay that the token was made for"), "{error}");
    // The handshake failed before any request could be sent.
    assert!(matches!(relay_b.outcome().await, Outcome::Tls(_)));
}

/// Each pair meets at two relays on one folder, so that the lock is tested and not only the mutex in one process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_concurrent_joins_one_gets_the_last_use() {
    let relay_dir = tempfile::tempdir().unwrap();
    let relay_a = Relay::start(relay_dir.path()).await;
    let relay_b = Relay::start(relay_dir.path()).await;
    let rounds = 12;
    for round in 0..rounds {
        let token_a = token(relay_dir.path(), &relay_a.address, 1);
        let second = if round % 2 == 0 { &relay_a.address } else { &relay_b.address };
        let token_b = with_address(&token_a, second);
        let (dir_a, dir_b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (name_a, name_b) = (name(&format!("a{round}")), name(&format!("b{round}")));
        let (a, b) =
            tokio::join!(join(&token_a, &name_a, dir_a.path()), join(&token_b, &name_b, dir_b.path()));
        let lost = match (a, b) {
            (Ok(_), Err(lost)) | (Err(lost), Ok(_)) => lost,
            (a, b) => panic!("round {round}: {a:?} {b:?}"),
        };
        assert_eq!(refusal(lost), TOKEN_REFUSED);
    }
    assert_eq!(list_machines(relay_dir.path()).unwrap().records.len(), rounds);
    assert_eq!(list_tokens(relay_dir.path()).unwrap().records, []);
}

#[tokio::test]
async fn a_name_belongs_to_its_key() {
    let (mut relay, relay_dir, _machine, machine_dir) = relay_with_machine("web-1").await;
    let fresh = TokenSpec { uses: 2, grants: grants(&["ledger"], &["*"]), ..spec(&relay.address) };
    let fresh = create_token(relay_dir.path(), &fresh, SystemTime::now()).unwrap();

    let error = join(&fresh, &name("web-1"), tempfile::tempdir().unwrap().path()).await.unwrap_err();
    assert!(refusal(error).starts_with("machine name web-1 belongs to another key"));
    assert_eq!(cause(relay.joined().await), Refusal::NameTaken(name("web-1")));
    let left = |id: &str| {
        let tokens = list_tokens(relay_dir.path()).unwrap().records;
        tokens.iter().find(|info| info.id == id).unwrap().uses_left
    };
    assert_eq!(left(fresh.id()), 2, "a refusal costs no use");

    // The same folder holds the key: allowed, at the price of a use, and the new token's grants count.
    let machine = join(&fresh, &name("web-1"), machine_dir.path()).await.unwrap();
    assert_eq!(machine.grants().dial, grants(&[], &["*"]).dial);
    relay.joined().await.unwrap();
    assert_eq!(left(fresh.id()), 1);
    dial(machine.client_config(), &relay.address).await.unwrap();
    assert_eq!(relay.linked().await.unwrap().grants.dial, machine.grants().dial);
}

#[tokio::test]
async fn a_second_try_after_a_refusal_uses_the_same_key() {
    let (relay_dir, machine_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let relay = Relay::start(relay_dir.path()).await;
    let yesterday = SystemTime::now() - Duration::from_secs(86_400);
    let expired = create_token(relay_dir.path(), &spec(&relay.address), yesterday).unwrap();
    join(&expired, &name("web-1"), machine_dir.path()).await.unwrap_err();
    let key = std::fs::read(machine_dir.path().join("machine.key")).unwrap();
    join(&token(relay_dir.path(), &relay.address, 1), &name("web-1"), machine_dir.path()).await.unwrap();
    assert_eq!(std::fs::read(machine_dir.path().join("machine.key")).unwrap(), key);
}

#[tokio::test]
async fn folders_that_are_taken() {
    let (relay, relay_dir, _machine, machine_dir) = relay_with_machine("web-1").await;
    let token = token(relay_dir.path(), &relay.address, 5);
    let error = join(&token, &name("web-2"), machine_dir.path()).await.unwrap_err();
    assert!(matches!(&error, JoinError::OtherMachine { name, .. } if name.as_str() == "web-1"));
    assert!(error.to_string().contains("--state"), "{error}");

    let error = join(&token, &name("web-2"), relay_dir.path()).await.unwrap_err();
    assert!(matches!(error, JoinError::State(StateError::OtherKind { .. })), "{error}");
    let error = RelayState::open(machine_dir.path(), &name("relay-a")).unwrap_err();
    assert!(error.to_string().contains("two folders"), "{error}");

    assert_eq!(
        list_tokens(relay_dir.path()).unwrap().records.iter().map(|info| info.uses_left).max(),
        Some(5)
    );
}

#[tokio::test]
async fn a_token_made_while_the_relay_runs_counts_at_once() {
    let relay_dir = tempfile::tempdir().unwrap();
    let mut relay = Relay::start(relay_dir.path()).await;
    let late = token(relay_dir.path(), &relay.address, 1);
    join(&late, &name("web-2"), tempfile::tempdir().unwrap().path()).await.unwrap();
    assert_eq!(relay.joined().await.unwrap().name.as_str(), "web-2");
    // Also where nothing runs now.
    token(relay_dir.path(), "127.0.0.1:1", 1);
}

/// The folder of a relay that does not run.
fn made_relay_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    RelayState::open(dir.path(), &name("relay-a")).unwrap();
    dir
}

/// Replaces the address, the first field of a token's body.
fn with_address(token: &Token, to: &str) -> Token {
    let text = token.reveal();
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text.strip_prefix("hopline-join-1.").unwrap()).unwrap();
    let rest = &bytes[2 + token.relay().len()..];
    let mut changed = vec![bytes[0], u8::try_from(to.len()).unwrap()];
    changed.extend_from_slice(to.as_bytes());
    changed.extend_from_slice(rest);
    format!("hopline-join-1.{}", BASE64_URL_SAFE_NO_PAD.encode(changed)).parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_never_answers_costs_ten_seconds() {
    let relay_dir = made_relay_dir();
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let token = token(relay_dir.path(), &silent.local_addr().unwrap().to_string(), 1);
    let began = tokio::time::Instant::now();
    let error = join(&token, &name("web-1"), tempfile::tempdir().unwrap().path()).await.unwrap_err();
    assert!(error.to_string().contains("no answer within 10 s"), "{error}");
    assert!(began.elapsed() < Duration::from_millis(10_100), "{:?}", began.elapsed());
}

#[tokio::test]
async fn nobody_at_the_address() {
    let relay_dir = made_relay_dir();
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let error = join(&token(relay_dir.path(), &gone, 1), &name("web-1"), tempfile::tempdir().unwrap().path())
        .await
        .unwrap_err();
    assert!(matches!(&error, JoinError::Reach(_)) && error.to_string().contains(&gone), "{error}");
}

/// Each error of a damaged file says to join again; doing so must mend it.
#[tokio::test]
async fn joining_again_mends_a_folder() {
    let (relay, relay_dir, _machine, machine_dir) = relay_with_machine("web-1").await;
    let token = token(relay_dir.path(), &relay.address, 3);
    for file in ["machine.json", "machine.pem", "ca.pem"] {
        std::fs::write(machine_dir.path().join(file), "half").unwrap();
        Machine::load(machine_dir.path()).unwrap_err();
        if file == "machine.json" {
            let error = join(&token, &name("web-2"), machine_dir.path()).await.unwrap_err();
            assert!(
                matches!(&error, JoinError::OtherMachine { name, .. } if name.as_str() == "web-1"),
                "{error}"
            );
        }
        join(&token, &name("web-1"), machine_dir.path()).await.unwrap();
        Machine::load(machine_dir.path()).unwrap();
    }
    std::fs::write(machine_dir.path().join("machine.key"), "half").unwrap();
    let error = join(&token, &name("web-1"), machine_dir.path()).await.unwrap_err();
    assert!(matches!(error, JoinError::KeyDamaged { .. }), "{error}");
}
