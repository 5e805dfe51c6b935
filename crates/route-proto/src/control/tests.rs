use super::*;

#[test]
fn vectors() {
    let announce = EdgeToRelay::Announce(Announce {
        revision: 3,
        instance: vec![7; 16].into(),
        version: "1".into(),
        services: vec![
            ServiceAd { name: "a".into(), protocol: Protocol::Grpc.into(), state: ServiceState::Down.into() },
            ServiceAd { name: "b".into(), ..ServiceAd::default() },
        ],
        yields: false,
    });
    let mut body = b"\x08\x03\x12\x10".to_vec();
    body.extend_from_slice(&[7; 16]);
    body.extend_from_slice(b"\x1a\x011\x22\x07\x0a\x01a\x10\x01\x18\x01\x22\x03\x0a\x01b");
    let mut expected = vec![body.len() as u8 + 2, 0x0a, body.len() as u8];
    expected.extend_from_slice(&body);
    assert_eq!(announce.to_frame().unwrap(), expected);

    let draining = RelayToEdge::Draining(Draining { deadline_ms: 10_000 });
    assert_eq!(draining.to_frame().unwrap(), &b"\x05\x22\x03\x08\x90\x4e"[..]);
}

#[test]
fn vectors_of_who_serves_what() {
    let interest = EdgeToRelay::Interest(Interest { services: vec!["ledger".to_owned()] });
    assert_eq!(interest.to_frame().unwrap(), &b"\x0a\x1a\x08\x0a\x06ledger"[..]);
    let agent = AgentFact {
        instance: Bytes::from_static(&[9; 16]),
        machine: "db-1".to_owned(),
        state: AgentState::Suspect.into(),
        rtt_us: Some(5),
        heard_ms: Some(0),
    };
    assert_eq!(agent.agent_state(), AgentState::Suspect);
    assert_eq!(agent.instance_id(), Ok(InstanceId::new([9; 16])));
    let ledger = ServiceAgents { service: "ledger".to_owned(), agents: vec![agent] };
    let mut expected = b"\x2c\x2a\x2a\x0a\x28\x0a\x06ledger\x12\x1e\x0a\x10".to_vec();
    expected.extend_from_slice(&[9; 16]);
    expected.extend_from_slice(b"\x12\x04db-1\x18\x01\x20\x05\x28\x00");
    let agents = RelayToEdge::Agents(Agents { services: vec![ledger] });
    assert_eq!(agents.to_frame().unwrap(), expected);
    assert_eq!(RelayToEdge::from_body(&expected[1..]), Ok(Body::Message(agents)));
}

#[test]
fn an_instance_is_16_bytes() {
    let announce = |len: usize| Announce { instance: vec![1; len].into(), ..Announce::default() };
    assert_eq!(announce(16).instance_id(), Ok(InstanceId::new([1; 16])));
    assert_eq!(announce(15).instance_id(), Err(IdError { len: 15 }));
    assert_eq!(announce(0).instance_id(), Err(IdError { len: 0 }));
}

#[test]
fn a_message_that_the_peer_would_refuse_is_not_made() {
    let message = |len: usize| RelayToEdge::Replaced(Replaced { message: "m".repeat(len) });
    // Around the text: type and length (3 bytes) of the text, type and length (4 bytes) of the message.
    let most = MAX_CONTROL_LEN - 8;
    assert_eq!(message(most).to_frame().unwrap().len(), MAX_CONTROL_LEN + 3);
    // One byte more, and it goes in two parts.
    let parts = message(most + 1).to_frame().unwrap();
    assert!(parts.len() > MAX_CONTROL_LEN + 6, "{}", parts.len());
    let most = MAX_WHOLE_LEN - 8;
    message(most).to_frame().unwrap();
    assert_eq!(message(most + 1).to_frame(), Err(EncodeError::TooLong(MAX_WHOLE_LEN + 1)));
}
