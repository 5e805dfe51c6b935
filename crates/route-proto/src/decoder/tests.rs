use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::control::{
    Announce, Announced, Draining, EdgeToRelay, Leaving, Refusal, RelayToEdge, Replaced, ServiceAd, Welcome,
};

/// All that a decoder gives for `input`, cut at these places.
fn decode<M: ControlMessage>(input: &[u8], cuts: &[usize]) -> (Vec<M>, u64, Result<(), ControlError>) {
    let mut decoder = ControlDecoder::<M>::new();
    let mut messages = Vec::new();
    let mut from = 0;
    for to in cuts.iter().copied().chain([input.len()]) {
        decoder.handle_data(&input[from..to]);
        from = to;
        loop {
            match decoder.poll_message() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(decoder.poll_message().err(), Some(error), "a fault is for good");
                    break;
                }
            }
        }
    }
    (messages, decoder.skipped(), decoder.finish())
}

fn any_text() -> impl Strategy<Value = String> {
    "[a-z \u{e9}]{0,20}"
}

fn from_edge() -> impl Strategy<Value = EdgeToRelay> {
    let ad = (any_text(), any::<i32>(), any::<i32>()).prop_map(|(name, protocol, state)| ServiceAd {
        name,
        protocol,
        state,
    });
    prop_oneof![
        (any::<u64>(), vec(any::<u8>(), 0..20), any_text(), vec(ad, 0..5)).prop_map(
            |(revision, instance, version, services)| EdgeToRelay::Announce(Announce {
                revision,
                instance: instance.into(),
                version,
                services,
                yields: false
            })
        ),
        any::<u64>().prop_map(|deadline_ms| EdgeToRelay::Leaving(Leaving { deadline_ms })),
    ]
}

fn from_relay() -> impl Strategy<Value = RelayToEdge> {
    let refusal = (any_text(), any::<u32>(), any_text()).prop_map(|(name, reason, message)| Refusal {
        name,
        reason,
        message,
    });
    prop_oneof![
        (any_text(), any_text(), any_text())
            .prop_map(|(relay, version, machine)| RelayToEdge::Welcome(Welcome { relay, version, machine })),
        (any::<u64>(), vec(refusal, 0..5), any::<u32>()).prop_map(|(revision, refused, refused_total)| {
            RelayToEdge::Announced(Announced { revision, refused, refused_total })
        }),
        any_text().prop_map(|message| RelayToEdge::Replaced(Replaced { message })),
        any::<u64>().prop_map(|deadline_ms| RelayToEdge::Draining(Draining { deadline_ms })),
    ]
}

fn frames<M: ControlMessage>(messages: &[M]) -> Vec<u8> {
    messages.iter().flat_map(|message| message.to_frame().unwrap()).collect()
}

fn cuts_of(cuts: &[proptest::sample::Index], len: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(len + 1)).collect();
    cuts.sort_unstable();
    cuts
}

#[test]
fn newer_messages_and_fields_are_skipped() {
    let leaving = EdgeToRelay::Leaving(Leaving { deadline_ms: 5 });
    let mut input = leaving.to_frame().unwrap().to_vec();
    input.extend_from_slice(b"\x00"); // no message at all: nothing known in it
    input.extend_from_slice(b"\x04\xfa\x06\x01x"); // a message of number 111
    input.extend_from_slice(b"\x06\x12\x04\x08\x05\x28\x09"); // Leaving with a field 5 beside the deadline
    let (messages, skipped, end) = decode::<EdgeToRelay>(&input, &[]);
    assert_eq!(messages, [leaving.clone(), leaving]);
    assert_eq!(skipped, 2);
    assert_eq!(end, Ok(()));
}

#[test]
fn every_fault_has_its_error() {
    let fault = |input: &[u8]| decode::<EdgeToRelay>(input, &[]).2.unwrap_err();
    assert_eq!(fault(&[0x80, 0x00]), ControlError::Length(VarintError::NotCanonical));
    assert_eq!(fault(&[0xff; 10]), ControlError::Length(VarintError::TooLarge));
    assert_eq!(fault(&[0x81, 0x80, 0x04]), ControlError::TooLong(65_537));
    assert_eq!(fault(&[0x80, 0x80, 0x04]), ControlError::Truncated);
    assert_eq!(fault(&[0x80]), ControlError::Truncated);
    assert_eq!(fault(&[2, 0x12]), ControlError::Truncated);
    assert!(matches!(fault(&[2, 0x12, 0x05]), ControlError::Malformed(_)));
    // A name that is not UTF-8.
    assert!(matches!(fault(b"\x07\x0a\x05\x22\x03\x0a\x01\xff"), ControlError::Malformed(_)));
}

#[test]
fn messages_before_a_fault_are_given_and_none_after_it() {
    let leaving = EdgeToRelay::Leaving(Leaving { deadline_ms: 5 });
    let frame = leaving.to_frame().unwrap();
    let input = [&frame[..], &[0x80, 0x00], &frame].concat();
    let (messages, _, end) = decode::<EdgeToRelay>(&input, &[]);
    assert_eq!(messages, [leaving]);
    assert_eq!(end, Err(ControlError::Length(VarintError::NotCanonical)));
}

#[test]
fn the_longest_message_passes() {
    let text = "m".repeat(MAX_CONTROL_LEN - 8);
    let frame = RelayToEdge::Replaced(Replaced { message: text.clone() }).to_frame().unwrap();
    let (messages, ..) = decode::<RelayToEdge>(&frame, &[1, 2, 3, 70]);
    assert_eq!(messages, [RelayToEdge::Replaced(Replaced { message: text })]);
}

proptest! {
    #[test]
    fn round_trip_from_edge(sent in vec(from_edge(), 0..6), cuts: Vec<proptest::sample::Index>) {
        let input = frames(&sent);
        let (messages, skipped, end) = decode(&input, &cuts_of(&cuts, input.len()));
        prop_assert_eq!((messages, skipped, end), (sent, 0, Ok(())));
    }

    #[test]
    fn round_trip_from_relay(sent in vec(from_relay(), 0..6), cuts: Vec<proptest::sample::Index>) {
        let input = frames(&sent);
        let (messages, skipped, end) = decode(&input, &cuts_of(&cuts, input.len()));
        prop_assert_eq!((messages, skipped, end), (sent, 0, Ok(())));
    }

    /// Damaged or arbitrary bytes: no panic, and the same result however they are cut.
    #[test]
    fn every_cut_gives_the_same(
        sent in vec(from_edge(), 0..4),
        damage in vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
        tail in vec(any::<u8>(), 0..30),
        cuts: Vec<proptest::sample::Index>,
    ) {
        let mut input = frames(&sent);
        input.extend_from_slice(&tail);
        for (at, byte) in damage {
            if !input.is_empty() {
                let at = at.index(input.len());
                input[at] = byte;
            }
        }
        let whole = decode::<EdgeToRelay>(&input, &[]);
        prop_assert_eq!(&decode(&input, &cuts_of(&cuts, input.len())), &whole);
        let each_byte: Vec<usize> = (0..input.len()).collect();
        prop_assert_eq!(&decode(&input, &each_byte), &whole);
    }

    #[test]
    fn any_body(body in vec(any::<u8>(), 0..200)) {
        let _ = EdgeToRelay::from_body(&body);
        let _ = RelayToEdge::from_body(&Bytes::from(body));
    }
}

/// The longest lists that a config file may have.
#[test]
fn long_lists_go_in_parts() {
    let name = |n: usize| format!("{n:04}{}", "x".repeat(59));
    let services = (0..4_096).map(|n| ServiceAd { name: name(n), protocol: 1, state: 1 }).collect();
    let announce = EdgeToRelay::Announce(Announce {
        revision: u64::MAX,
        instance: Bytes::from_static(&[7; 16]),
        version: "x".repeat(64),
        services,
        yields: true,
    });
    let interest =
        EdgeToRelay::Interest(crate::control::Interest { services: (0..4_096).map(name).collect() });
    let leaving = EdgeToRelay::Leaving(Leaving { deadline_ms: 1 });
    let mut bytes = Vec::new();
    for message in [&announce, &leaving, &interest] {
        bytes.extend_from_slice(&message.to_frame().unwrap());
    }
    let cuts: Vec<usize> = (0..bytes.len()).step_by(16_384).collect();
    let (messages, skipped, end) = decode::<EdgeToRelay>(&bytes, &cuts);
    assert!(messages == [announce, leaving, interest] && skipped == 0 && end == Ok(()), "other messages");
}

#[test]
fn parts_that_are_no_message() {
    let long = EdgeToRelay::Interest(crate::control::Interest { services: vec!["x".repeat(100_000)] });
    let frames = long.to_frame().unwrap();
    let (len, used) = hopline_varint::read(&frames).unwrap();
    let first = &frames[..used + usize::try_from(len).unwrap()];
    let leaving = EdgeToRelay::Leaving(Leaving { deadline_ms: 1 }).to_frame().unwrap();

    let (messages, _, end) = decode::<EdgeToRelay>(first, &[]);
    assert_eq!((messages.len(), end), (0, Err(ControlError::Truncated)));
    let (messages, _, end) = decode::<EdgeToRelay>(&[first, &leaving[..]].concat(), &[]);
    assert_eq!((messages.len(), end), (0, Err(ControlError::BetweenParts)));
    let (_, _, end) = decode::<EdgeToRelay>(&first.repeat(11), &[]);
    assert!(matches!(end, Err(ControlError::WholeTooLong(_))), "{end:?}");
}
