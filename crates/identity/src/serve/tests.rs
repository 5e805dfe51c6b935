use prost::Message as _;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, PKCS_ECDSA_P384_SHA384, SanType};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, duplex};

use super::*;
use crate::files::faults::Failing;
use crate::lock::FolderLock;
use crate::records::{list_machines, list_tokens};
use crate::relay::revoke_token;
use crate::standing::remove_machine;
use crate::token::Token;
use crate::token::tests::{CANARY, canary_token, leaks, name};

struct Relay {
    state: RelayState,
    dir: TempDir,
    token: Token,
}

/// A relay that knows the canary token, good for `uses`.
fn relay(uses: u32) -> Relay {
    let dir = tempfile::tempdir().unwrap();
    let state = RelayState::open(dir.path(), &name("relay-a")).unwrap();
    let token = canary_token("relay:1", state.authority_fingerprint());
    let record = TokenRecord {
        id: token.id.clone(),
        secret_sha256: secret_digest(CANARY),
        relay: token.relay.clone(),
        grants: token.grants.clone(),
        created_s: 1,
        expires_s: token.expires_s,
        uses,
        uses_left: uses,
        used_by: Vec::new(),
        used_s: None,
    };
    write_token(dir.path(), &record).unwrap();
    Relay { state, dir, token }
}

fn request(csr_der: Vec<u8>) -> JoinRequest {
    JoinRequest {
        token_id: "0123456789abcdef".to_owned(),
        secret: CANARY.to_vec(),
        name: "web-1".to_owned(),
        csr_der,
        version: JOIN_VERSION,
    }
}

fn csr(key: &KeyPair) -> Vec<u8> {
    CertificateParams::default().serialize_request(key).unwrap().der().to_vec()
}

/// Sends raw bytes, and an end if they are not a whole request, and returns what the relay made of it and all that it
/// sent back.
async fn answer(state: &RelayState, bytes: &[u8]) -> (Result<JoinedMachine, ServeJoinError>, Vec<u8>) {
    let (mut near, far) = duplex(256 * 1024);
    near.write_all(bytes).await.unwrap();
    let is_whole =
        bytes.first_chunk().is_some_and(|len| bytes.len() == 4 + u32::from_be_bytes(*len) as usize);
    if !is_whole {
        near.shutdown().await.unwrap();
    }
    let result = serve_join(far, state).await;
    let mut reply = Vec::new();
    near.read_to_end(&mut reply).await.unwrap();
    (result, reply)
}

fn framed(request: &JoinRequest) -> Vec<u8> {
    let body = request.encode_to_vec();
    [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], &body].concat()
}

fn outcome(reply: &[u8]) -> Outcome {
    JoinReply::decode(&reply[4..]).unwrap().outcome.unwrap()
}

#[tokio::test]
async fn only_the_key_of_a_signing_request_counts() {
    let relay = relay(1);
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "root");
    params.subject_alt_names = vec![
        SanType::DnsName("relay.hopline".try_into().unwrap()),
        SanType::URI("hopline://machine/db-1".try_into().unwrap()),
    ];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::Any];
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let greedy = params.serialize_request(&key).unwrap().der().to_vec();

    let (result, reply) = answer(&relay.state, &framed(&request(greedy))).await;
    assert_eq!(result.unwrap().name, name("web-1"));
    let Outcome::Issued(issued) = outcome(&reply) else { panic!("refused") };
    let leaf = x509_parser::parse_x509_certificate(&issued.chain_der[0]).unwrap().1;
    assert_eq!(Facts::read(&issued.chain_der[0]).unwrap().machine_name(), Some(name("web-1")));
    assert_eq!(leaf.subject_alternative_name().unwrap().unwrap().value.general_names.len(), 1);
    let usage = leaf.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.client_auth && !usage.server_auth && !usage.any);
    assert!(!leaf.is_ca());
    assert_eq!(leaf.subject().to_string(), "CN=web-1");
    assert!(leaf.validity().time_to_expiration().is_some());
}

#[tokio::test]
async fn a_signing_request_must_be_signed_by_its_own_p256_key() {
    let relay = relay(1);
    let good = csr(&KeyPair::generate().unwrap());
    let mut foreign = good.clone();
    let last = foreign.len() - 1;
    foreign[last] ^= 1;
    let mut trailing = good.clone();
    trailing.push(0);
    let p384 = csr(&KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap());
    for bad in [foreign, trailing, p384, Vec::new(), good[..good.len() / 2].to_vec(), vec![0x30; 5000]] {
        let (result, _) = answer(&relay.state, &framed(&request(bad))).await;
        assert!(matches!(result, Err(ServeJoinError::Refused(Refusal::SigningRequest))), "{result:?}");
    }
    let (result, _) = answer(&relay.state, &framed(&request(good))).await;
    result.unwrap();
}

/// Name and signing request are bad too, so a relay that looked at them first would say so.
#[tokio::test]
async fn a_bad_token_is_all_that_its_bearer_learns() {
    let relay = relay(1);
    let bad_rest = JoinRequest { name: "../x".to_owned(), ..request(vec![1, 2, 3]) };
    let used_up = Relay { token: relay.token.clone(), ..self::relay(0) };
    let wrong_secret = JoinRequest { secret: vec![7; 32], ..bad_rest.clone() };
    let no_secret = JoinRequest { secret: Vec::new(), ..bad_rest.clone() };
    let unknown = JoinRequest { token_id: "ffffffffffffffff".to_owned(), ..bad_rest.clone() };
    let traversal = JoinRequest { token_id: "../machines/web-1".to_owned(), ..bad_rest.clone() };
    let cases = [
        (&relay, wrong_secret, Refusal::SecretWrong(relay.token.id.clone())),
        (&relay, no_secret, Refusal::SecretWrong(relay.token.id.clone())),
        (&relay, unknown, Refusal::TokenGone("ffffffffffffffff".to_owned())),
        (&relay, traversal, Refusal::TokenUnknown),
        (&used_up, bad_rest.clone(), Refusal::TokenUsedUp(relay.token.id.clone())),
    ];
    for (relay, request, expected) in cases {
        let (result, reply) = answer(&relay.state, &framed(&request)).await;
        match result {
            Err(ServeJoinError::Refused(refusal)) => assert_eq!(refusal, expected),
            other => panic!("{other:?}"),
        }
        let told = Refused { message: "token refused: unknown, expired or used up".to_owned() };
        assert_eq!(outcome(&reply), Outcome::Refused(told));
    }
    // With a good token the name is looked at.
    let (result, _) = answer(&relay.state, &framed(&bad_rest)).await;
    assert!(matches!(result, Err(ServeJoinError::Refused(Refusal::Name(_)))), "{result:?}");
    let newer = JoinRequest { version: 2, ..bad_rest };
    let (result, _) = answer(&relay.state, &framed(&newer)).await;
    assert!(matches!(result, Err(ServeJoinError::Refused(Refusal::Version(2)))), "{result:?}");
}

#[tokio::test]
async fn garbage_is_refused_and_bounded() {
    let relay = relay(1);
    let whole = framed(&request(csr(&KeyPair::generate().unwrap())));
    for end in (0..whole.len()).step_by(7) {
        let (result, reply) = answer(&relay.state, &whole[..end]).await;
        assert!(matches!(result, Err(ServeJoinError::Io(_))), "cut at {end}: {result:?}");
        assert!(reply.is_empty());
    }
    for bytes in [&[0xff; 100][..], b"GET / HTTP/1.1\r\n\r\n", &[0, 1, 0, 1], &[0, 0, 0, 2, 0xff, 0xff]] {
        let (result, reply) = answer(&relay.state, bytes).await;
        assert!(matches!(result, Err(ServeJoinError::Malformed(_))), "{bytes:?}: {result:?}");
        assert_eq!(outcome(&reply), Outcome::Refused(Refused { message: "not a join request".to_owned() }));
    }
    // The longest that is read.
    let mut longest = 65_536_u32.to_be_bytes().to_vec();
    longest.resize(4 + 65_536, 0xff);
    let (result, _) = answer(&relay.state, &longest).await;
    assert!(matches!(result, Err(ServeJoinError::Malformed(_))), "{result:?}");
    // A whole body that is empty is a request of version 0.
    let (result, _) = answer(&relay.state, &[0, 0, 0, 0]).await;
    assert!(matches!(result, Err(ServeJoinError::Refused(Refusal::Version(0)))), "{result:?}");
    assert_eq!(list_machines(relay.dir.path()).unwrap().records, []);
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_costs_ten_seconds() {
    let relay = relay(1);
    let (_near, far) = duplex(1024);
    let began = tokio::time::Instant::now();
    let result = serve_join(far, &relay.state).await;
    assert!(matches!(result, Err(ServeJoinError::Timeout)), "{result:?}");
    assert_eq!(began.elapsed().as_secs(), 10);
}

/// Its token has one use, and that one is enough.
#[tokio::test]
async fn a_machine_that_did_not_hear_can_join_again_with_its_key() {
    let relay = relay(1);
    let request = framed(&request(csr(&KeyPair::generate().unwrap())));
    // Too little room for the answer.
    let (mut near, far) = duplex(64);
    let state = relay.state.clone();
    let serving = tokio::spawn(async move { serve_join(far, &state).await });
    near.write_all(&request).await.unwrap();
    while list_machines(relay.dir.path()).unwrap().records.is_empty() {
        tokio::task::yield_now().await;
    }
    drop(near);
    let result = serving.await.unwrap();
    assert!(
        matches!(&result, Err(ServeJoinError::ReplyLost { name, .. }) if name.as_str() == "web-1"),
        "{result:?}"
    );

    answer(&relay.state, &request).await.0.unwrap();
    let other = framed(&self::request(csr(&KeyPair::generate().unwrap())));
    let (result, _) = answer(&relay.state, &other).await;
    assert!(matches!(result, Err(ServeJoinError::Refused(Refusal::TokenUsedUp(_)))), "{result:?}");
    revoke_token(relay.dir.path(), &relay.token.id).unwrap();
    let (result, _) = answer(&relay.state, &request).await;
    assert!(matches!(result, Err(ServeJoinError::Refused(Refusal::TokenGone(_)))), "{result:?}");
}

/// Each use of a token is one machine's, however often that one has to come.
#[tokio::test]
async fn a_join_that_is_made_again_takes_no_further_use() {
    let relay = relay(2);
    let keys: Vec<KeyPair> = (0..3).map(|_| KeyPair::generate().unwrap()).collect();
    let named =
        |name: &str, key: &KeyPair| framed(&JoinRequest { name: name.to_owned(), ..request(csr(key)) });
    let [a, b, c] = [named("a", &keys[0]), named("b", &keys[1]), named("c", &keys[2])];
    for request in [&a, &a, &b, &a, &b] {
        answer(&relay.state, request).await.0.unwrap();
    }
    // Neither a third machine nor a second name of the first.
    for request in [c, named("d", &keys[0])] {
        let (result, _) = answer(&relay.state, &request).await;
        assert!(matches!(result, Err(ServeJoinError::Refused(Refusal::TokenGone(_)))), "{result:?}");
    }
}

/// What spares a machine a second use does not bring back one that was removed.
#[tokio::test]
async fn a_machine_that_was_removed_needs_another_use() {
    for uses in [1, 2] {
        let relay = relay(uses);
        let request = framed(&request(csr(&KeyPair::generate().unwrap())));
        for _ in 0..uses {
            answer(&relay.state, &request).await.0.unwrap();
            remove_machine(relay.dir.path(), "web-1").unwrap();
        }
        let (result, _) = answer(&relay.state, &request).await;
        assert!(matches!(result, Err(ServeJoinError::Refused(Refusal::TokenGone(_)))), "{result:?}");
        assert_eq!(list_machines(relay.dir.path()).unwrap().records, []);
    }
}

/// Somebody else holds the folder: joins get an answer before their machine loses patience. No thread waits with them, or
/// the one that there is would be held up, and with it all of them.
#[test]
fn a_lock_that_is_held_is_an_answer_and_no_use_is_taken() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .max_blocking_threads(1)
        .build()
        .unwrap();
    runtime.block_on(async {
        let relay = relay(1);
        let held = FolderLock::wait(relay.dir.path()).unwrap();
        let request = framed(&request(csr(&KeyPair::generate().unwrap())));
        let joins: Vec<_> = (0..200)
            .map(|_| {
                let (state, request) = (relay.state.clone(), request.clone());
                tokio::spawn(async move { answer(&state, &request).await })
            })
            .collect();
        for join in joins {
            let (result, reply) = join.await.unwrap();
            assert!(matches!(result, Err(ServeJoinError::State(StateError::Locked { .. }))), "{result:?}");
            let Outcome::Refused(refused) = outcome(&reply) else { panic!("issued") };
            assert!(refused.message.contains("nothing was changed, try again"), "{}", refused.message);
        }
        drop(held);
        answer(&relay.state, &request).await.0.unwrap();
    });
}

/// A machine that went away while its join waited for the lock has spent nothing.
#[tokio::test]
async fn a_join_whose_machine_has_gone_takes_no_use() {
    let relay = relay(1);
    let held = FolderLock::wait(relay.dir.path()).unwrap();
    let (mut near, far) = duplex(64 * 1024);
    near.write_all(&framed(&request(csr(&KeyPair::generate().unwrap())))).await.unwrap();
    let state = relay.state.clone();
    let serving = tokio::spawn(async move { serve_join(far, &state).await });
    // It waits: nobody else can have a turn.
    while relay.state.is_idle() {
        tokio::task::yield_now().await;
    }
    drop(near);
    let result = serving.await.unwrap();
    assert!(matches!(result, Err(ServeJoinError::Gone)), "{result:?}");
    drop(held);
    assert_eq!(list_machines(relay.dir.path()).unwrap().records, []);
    assert_eq!(list_tokens(relay.dir.path()).unwrap().records[0].uses_left, 1);
}

/// The relay's disk fails at any one of its changes: the same machine comes again with the same token, and no other does.
#[tokio::test]
async fn a_disk_that_fails_at_the_relay_spends_no_token() {
    let mut failed = 0;
    for good in 0.. {
        let relay = relay(1);
        let request = framed(&request(csr(&KeyPair::generate().unwrap())));
        let failing = Failing::after(relay.dir.path(), good);
        let (result, _) = answer(&relay.state, &request).await;
        if !failing.met() {
            result.unwrap();
            break;
        }
        failed += 1;
        drop(failing);
        answer(&relay.state, &request).await.0.unwrap();
        let other = framed(&JoinRequest {
            name: "web-2".to_owned(),
            ..self::request(csr(&KeyPair::generate().unwrap()))
        });
        answer(&relay.state, &other).await.0.unwrap_err();
        let listed = list_machines(relay.dir.path()).unwrap();
        assert_eq!((listed.records.len(), listed.unreadable.len()), (1, 0), "after {good} changes");
    }
    // Two files of five changes each, one removed with its folder synced.
    assert_eq!(failed, 12);
}

#[tokio::test]
async fn no_secret_in_what_is_logged_or_sent() {
    let relay = relay(1);
    let key = KeyPair::generate().unwrap();
    let mut texts = vec![format!("{:?}", request(csr(&key))), format!("{:?}", relay.state)];
    let requests = [
        JoinRequest { token_id: "ffffffffffffffff".to_owned(), ..request(Vec::new()) },
        JoinRequest { version: 9, ..request(Vec::new()) },
        JoinRequest { name: "Bad".to_owned(), ..request(Vec::new()) },
        JoinRequest { secret: [CANARY.as_slice(), b"x"].concat(), ..request(Vec::new()) },
        request(vec![1]),
        request(csr(&key)),
        request(csr(&KeyPair::generate().unwrap())),
    ];
    let mut refused = 0;
    for request in requests {
        let (result, reply) = answer(&relay.state, &framed(&request)).await;
        texts.push(format!("{result:?}"));
        texts.push(String::from_utf8_lossy(&reply).into_owned());
        if let Err(error) = result {
            texts.push(error.to_string());
            refused += 1;
        }
    }
    assert_eq!(refused, 6);
    for text in texts {
        assert!(!leaks(&text, &relay.token), "{text}");
    }
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_the_relays_own_fault() {
    let relay = relay(1);
    let path = relay.dir.path().join("tokens/0123456789abcdef.json");
    std::fs::write(&path, "{").unwrap();
    let (result, reply) = answer(&relay.state, &framed(&request(csr(&KeyPair::generate().unwrap())))).await;
    assert!(matches!(result, Err(ServeJoinError::State(StateError::Damaged { .. }))), "{result:?}");
    let Outcome::Refused(refused) = outcome(&reply) else { panic!("issued") };
    assert!(refused.message.contains("log") && !refused.message.contains("tokens"), "{}", refused.message);
}
