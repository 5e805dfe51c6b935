//! Urgent TCP data: neither lost nor moved. What was urgent arrives in its place, as ordinary bytes.

use std::io::Write as _;

use socket2::SockRef;

use crate::harness::{Conn, Kind, pattern, shared};

fn say(from: &Conn, to: &mut Conn) {
    let Conn::Tcp(stream) = from else { panic!("unix sockets have none of this kind") };
    let mut expected = Vec::new();
    for number in 0..20_u8 {
        let before = pattern(number.into(), 1 + usize::from(number) * 700);
        from.handle().write_all(&before).unwrap();
        assert_eq!(SockRef::from(stream).send_out_of_band(&[b'!', number]).unwrap(), 2);
        expected.extend(before);
        expected.extend([b'!', number]);
    }
    from.handle().write_all(b"the end").unwrap();
    expected.extend(b"the end");
    assert!(to.chunk(expected.len()) == expected, "other bytes");
}

#[test]
fn urgent_data_keeps_its_place_both_ways() {
    let world = shared();
    let slot = world.slot();
    let (mut app, mut server) = slot.answered_pair(Kind::Tcp);
    say(&app, &mut server);
    say(&server, &mut app);
    app.end();
    assert_eq!(server.read_to_eof(), b"");
}
