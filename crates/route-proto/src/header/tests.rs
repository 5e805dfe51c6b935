use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn ledger() -> ServiceName {
    ServiceName::new("ledger").unwrap()
}

fn session_id() -> SessionId {
    SessionId::new([7; 16])
}

/// A header of raw fields.
fn raw(fields: &[(u64, &[u8])]) -> Vec<u8> {
    let mut out = vec![VERSION];
    for (field_type, value) in fields {
        write_field(&mut out, *field_type, value);
    }
    out
}

/// The two fields that a session needs, then `more`.
fn raw_session(more: &[(u64, &[u8])]) -> Vec<u8> {
    let mut fields: Vec<(u64, &[u8])> = vec![(SERVICE, b"ledger"), (SESSION, &[7; 16])];
    fields.extend_from_slice(more);
    raw(&fields)
}

#[test]
fn vectors() {
    let session = RoutingHeader::session(ledger(), session_id());
    let mut expected = b"\x01\x01\x06ledger\x02\x10".to_vec();
    expected.extend_from_slice(&[7; 16]);
    assert_eq!(session.encode(), expected);

    assert_eq!(RoutingHeader::control().encode(), &b"\x01\x05\x01\x01"[..]);

    let full = RoutingHeader {
        agent: Some(InstanceId::new([9; 16])),
        relay_hops: 300,
        source: Some(MachineName::new("web-1").unwrap()),
        again: Some(0),
        time_left: Some(Duration::from_secs(10)),
        trail: vec![ConnectionId::new([5; 16])],
        ..session
    };
    expected.extend_from_slice(b"\x03\x10");
    expected.extend_from_slice(&[9; 16]);
    expected.extend_from_slice(b"\x04\x02\xac\x02\x06\x05web-1\x07\x01\x00\x08\x02\x90\x4e\x09\x10");
    expected.extend_from_slice(&[5; 16]);
    assert_eq!(full.encode(), expected);
    assert_eq!(RoutingHeader::decode(&expected), Ok(full));
}

#[test]
fn defaults_may_be_written_out_and_order_is_free() {
    let written = raw(&[(KIND, &[0]), (RELAY_HOPS, &[0]), (SESSION, &[7; 16]), (SERVICE, b"ledger")]);
    assert_eq!(RoutingHeader::decode(&written), Ok(RoutingHeader::session(ledger(), session_id())));
}

#[test]
fn unknown_fields_survive_in_order() {
    let written =
        raw(&[(99, b"z"), (SERVICE, b"ledger"), (70, b""), (SESSION, &[7; 16]), (99, b"again"), (0, b"0")]);
    let header = RoutingHeader::decode(&written).unwrap();
    let kept: Vec<(u64, &[u8])> = header.unknown().iter().map(|f| (f.field_type, &f.value[..])).collect();
    assert_eq!(kept, [(99, &b"z"[..]), (70, b""), (99, b"again"), (0, b"0")]);
    assert_eq!(header.encode(), raw_session(&[(99, b"z"), (70, b""), (99, b"again"), (0, b"0")]));
}

#[test]
fn every_fault_has_its_error() {
    let sixty_four = "x".repeat(64);
    let cases: Vec<(Vec<u8>, HeaderError)> = vec![
        (vec![], HeaderError::Empty),
        (vec![0], HeaderError::Version(0)),
        (vec![2, 1, 1, b'a'], HeaderError::Version(2)),
        (vec![1], HeaderError::Missing { field_type: SERVICE }),
        (raw(&[(SERVICE, b"ledger")]), HeaderError::Missing { field_type: SESSION }),
        (vec![1, 0x80], HeaderError::Number(VarintError::Incomplete)),
        (vec![1, 0x81, 0x00, 0], HeaderError::Number(VarintError::NotCanonical)),
        (vec![1, 1], HeaderError::Number(VarintError::Incomplete)),
        (vec![1, 1, 0x86, 0x00], HeaderError::Number(VarintError::NotCanonical)),
        (vec![1, 1, 6, b'l'], HeaderError::Truncated { field_type: SERVICE }),
        (
            [&[1, 70][..], &[0xff; 9], &[1]].concat(), // a length of u64::MAX
            HeaderError::Truncated { field_type: 70 },
        ),
        (raw_session(&[(SERVICE, b"a")]), HeaderError::Duplicate { field_type: SERVICE }),
        (raw_session(&[(KIND, &[0]), (KIND, &[0])]), HeaderError::Duplicate { field_type: KIND }),
        (raw(&[(SERVICE, b"\xff")]), HeaderError::NotUtf8 { field_type: SERVICE }),
        (raw(&[(SERVICE, b"")]), HeaderError::Name { field_type: SERVICE, error: NameError }),
        (
            raw(&[(SERVICE, sixty_four.as_bytes())]),
            HeaderError::Name { field_type: SERVICE, error: NameError },
        ),
        (raw_session(&[(SOURCE, b"Web")]), HeaderError::Name { field_type: SOURCE, error: NameError }),
        (raw(&[(SESSION, &[7; 15])]), HeaderError::Length { field_type: SESSION, len: 15 }),
        (raw_session(&[(AGENT, &[7; 17])]), HeaderError::Length { field_type: AGENT, len: 17 }),
        (raw_session(&[(RELAY_HOPS, &[1, 1])]), HeaderError::Length { field_type: RELAY_HOPS, len: 2 }),
        (raw_session(&[(RELAY_HOPS, &[])]), HeaderError::Number(VarintError::Incomplete)),
        (raw_session(&[(RELAY_HOPS, &[0x80, 0])]), HeaderError::Number(VarintError::NotCanonical)),
        (raw_session(&[(TRAIL, &[])]), HeaderError::Length { field_type: TRAIL, len: 0 }),
        (raw_session(&[(TRAIL, &[7; 17])]), HeaderError::Length { field_type: TRAIL, len: 17 }),
        (raw_session(&[(TRAIL, &[7; 144])]), HeaderError::Length { field_type: TRAIL, len: 144 }),
        (raw_session(&[(KIND, &[2])]), HeaderError::Kind(2)),
        (raw(&[(KIND, &[1]), (SERVICE, b"a")]), HeaderError::Unexpected { field_type: SERVICE }),
        (raw(&[(KIND, &[1]), (SESSION, &[7; 16])]), HeaderError::Unexpected { field_type: SESSION }),
        (vec![1; MAX_HEADER_LEN + 1], HeaderError::TooLong(MAX_HEADER_LEN + 1)),
    ];
    assert_eq!(cases.len(), 29);
    for (bytes, error) in cases {
        assert_eq!(RoutingHeader::decode(&bytes), Err(error), "{bytes:02x?}");
    }
}

#[test]
fn unknown_fields_are_bounded() {
    let fields = |count: usize| raw_session(&vec![(50, &b"v"[..]); count]);
    assert_eq!(RoutingHeader::decode(&fields(MAX_UNKNOWN_FIELDS)).unwrap().unknown().len(), 32);
    assert_eq!(RoutingHeader::decode(&fields(MAX_UNKNOWN_FIELDS + 1)), Err(HeaderError::UnknownFields));

    // A type of one byte and a length of two.
    let big = vec![0; MAX_UNKNOWN_LEN - 3];
    assert!(RoutingHeader::decode(&raw_session(&[(50, &big)])).is_ok());
    let bigger = vec![0; MAX_UNKNOWN_LEN - 2];
    assert_eq!(RoutingHeader::decode(&raw_session(&[(50, &bigger)])), Err(HeaderError::UnknownFields));
}

#[test]
fn the_largest_header_fits() {
    let long = "x".repeat(63);
    let header = RoutingHeader {
        target: Target::Session { service: long.parse().unwrap(), session: session_id() },
        agent: Some(InstanceId::MAX),
        relay_hops: u64::MAX,
        source: Some(long.parse().unwrap()),
        again: Some(u64::MAX),
        time_left: Some(Duration::from_millis(u64::MAX)),
        trail: vec![ConnectionId::MAX; MAX_TRAIL],
        passing: true,
        unknown: vec![UnknownField { field_type: 50, value: vec![0; MAX_UNKNOWN_LEN - 3].into() }],
    };
    let bytes = header.encode();
    assert!(bytes.len() <= MAX_HEADER_LEN);
    assert_eq!(RoutingHeader::decode(&bytes), Ok(header));
}

fn any_header() -> impl Strategy<Value = RoutingHeader> {
    let name = "[a-z0-9][a-z0-9._-]{0,62}";
    let ident = || any::<[u8; 16]>();
    let target = prop_oneof![
        4 => (name.prop_map(|text| text.parse().unwrap()), ident())
            .prop_map(|(service, id)| Target::Session { service, session: SessionId::new(id) }),
        1 => Just(Target::Control),
    ];
    let unknown =
        (prop_oneof![Just(0), 11u64..300, any::<u64>().prop_map(|n| n | 16)], vec(any::<u8>(), 0..40))
            .prop_map(|(field_type, value)| UnknownField { field_type, value: value.into() });
    (
        target,
        proptest::option::of(ident().prop_map(InstanceId::new)),
        prop_oneof![Just(0), any::<u64>()],
        proptest::option::of(name.prop_map(|text| text.parse().unwrap())),
        proptest::option::of(any::<u64>()),
        proptest::option::of(any::<u64>().prop_map(Duration::from_millis)),
        vec(ident().prop_map(ConnectionId::new), 0..=MAX_TRAIL),
        any::<bool>(),
        vec(unknown, 0..MAX_UNKNOWN_FIELDS),
    )
        .prop_map(|(target, agent, relay_hops, source, again, time_left, trail, passing, unknown)| {
            RoutingHeader { target, agent, relay_hops, source, again, time_left, trail, passing, unknown }
        })
}

proptest! {
    #[test]
    fn round_trip(header in any_header()) {
        prop_assert_eq!(RoutingHeader::decode(&header.encode()), Ok(header));
    }

    /// A header that was cut is an error, or a header with fewer fields; it never makes something up.
    #[test]
    fn a_cut_header_has_fewer_fields(header in any_header(), cut: proptest::sample::Index) {
        let bytes = header.encode();
        if let Ok(shorter) = RoutingHeader::decode(&bytes[..cut.index(bytes.len())]) {
            prop_assert!(header.unknown.starts_with(&shorter.unknown));
            prop_assert!(shorter.agent.is_none() || shorter.agent == header.agent);
            prop_assert!(shorter.source.is_none() || shorter.source == header.source);
            if header.target != Target::Control {
                prop_assert_eq!(shorter.target, header.target);
            }
        }
    }

    /// What decodes from any bytes encodes within the limit, to the same header.
    #[test]
    fn any_bytes(mut bytes in vec(any::<u8>(), 0..200), versioned: bool) {
        if versioned && let Some(first) = bytes.first_mut() {
            *first = VERSION;
        }
        if let Ok(header) = RoutingHeader::decode(&bytes) {
            prop_assert_eq!(RoutingHeader::decode(&header.encode()), Ok(header));
        }
    }

    /// A valid header with a few bytes changed.
    #[test]
    fn damaged_bytes(header in any_header(), damage in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4)) {
        let mut bytes = header.encode().to_vec();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(header) = RoutingHeader::decode(&bytes) {
            prop_assert!(header.encode().len() <= MAX_HEADER_LEN);
        }
    }
}
