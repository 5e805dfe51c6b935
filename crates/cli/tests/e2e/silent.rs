//! A link that falls silent, though new connections get through: another one is dialled beside it.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hopline_admin::status::LinkState;

use crate::harness::{Ended, Kind, PATIENCE, World, WorldOptions, grow_old, until};

/// A way to the relay that can swallow what its connections say, and lets later ones through.
struct Way {
    address: SocketAddr,
    /// Connections below this number are swallowed.
    swallowed: Arc<AtomicUsize>,
    opened: Arc<AtomicUsize>,
}

impl Way {
    fn to(relay: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (swallowed, opened) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let way = Self { address, swallowed: Arc::clone(&swallowed), opened: Arc::clone(&opened) };
        std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                let far = TcpStream::connect(relay).unwrap();
                let number = opened.fetch_add(1, Ordering::SeqCst);
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let swallowed = Arc::clone(&swallowed);
                    std::thread::spawn(move || pass(from, &to, || number < swallowed.load(Ordering::SeqCst)));
                }
            }
        });
        way
    }

    /// Nothing that the connections of now say arrives any more, and none of them ends.
    fn swallow(&self) {
        self.swallowed.store(self.opened.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Connections so far.
    fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }
}

fn pass(mut from: TcpStream, mut to: &TcpStream, swallowed: impl Fn() -> bool) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer);
        if swallowed() {
            // Whatever it was, an end as well.
            match read {
                Ok(1..) => continue,
                Ok(0) | Err(_) => return std::mem::forget(from),
            }
        }
        match read {
            Ok(n @ 1..) if to.write_all(&buffer[..n]).is_ok() => {}
            Ok(_) | Err(_) => return drop(to.shutdown(Shutdown::Both)),
        }
    }
}

/// A sidecar whose only way to the relay is this.
fn through_a_way(world: &mut World) -> Way {
    let way = Way::to(world.relay.address);
    let path = world.folder().join("sidecar.yaml");
    let file = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("relay: [\"{}\"]\n{file}", way.address)).unwrap();
    world.sidecar.process.kill();
    world.restart_sidecar();
    assert_eq!(way.opened(), 1);
    way
}

/// P7, F74: opens that went out on a link just when it fell silent are not lost with it: they go out again, once
/// another link is up, long before the silent one is condemned and before their own time is over.
#[test]
fn f74_opens_on_a_silent_link_move_to_the_next() {
    let options = WorldOptions { keepalive: "fast,timeout=18s", ..WorldOptions::default() };
    let mut world = World::start(options);
    let way = through_a_way(&mut world);
    let (mut app, mut server) = world.slots[0].pair(Kind::Tcp);
    grow_old(&mut app, &mut server);

    way.swallow();
    let mut opened: Vec<_> = (0..3)
        .map(|number| {
            let mut app = world.slots[0].dial(Kind::Tcp);
            app.write_all(&[number]).unwrap();
            app
        })
        .collect();
    let mut said = Vec::new();
    for _ in 0..3 {
        let mut server = world.slots[0].accept();
        let mut byte = [0];
        server.read_exact(&mut byte).unwrap();
        server.write_all(&byte).unwrap();
        said.push((byte[0], server));
    }
    for (number, app) in opened.iter_mut().enumerate() {
        let mut byte = [0xff];
        app.read_exact(&mut byte).unwrap();
        assert_eq!(usize::from(byte[0]), number);
    }
    said.sort_by_key(|(number, _)| *number);
    assert_eq!(said.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2], "each once");
    assert_eq!(way.opened(), 2);
    // The old link is not condemned: its session has not ended.
    app.set_patience(std::time::Duration::from_millis(1));
    assert!(app.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
}

/// P7: a sidecar's link falls silent. Long before it is condemned another one is up, and opens go over it; a session on
/// the old one ends when that is found dead, with its reason.
#[test]
fn p7_a_silent_link_has_another_one_dialled_beside_it() {
    let options = WorldOptions { keepalive: "fast,timeout=10s", ..WorldOptions::default() };
    let mut world = World::start(options);
    let way = through_a_way(&mut world);
    let (mut app, mut server) = world.slots[0].pair(Kind::Tcp);
    grow_old(&mut app, &mut server);

    way.swallow();
    until("another link is in use", PATIENCE, || {
        let links = world.sidecar.status().links;
        (way.opened() > 1 && links[0].state == LinkState::Up).then_some(())
    });
    // The old link is not condemned: its session has not ended.
    app.set_patience(std::time::Duration::from_millis(1));
    assert!(app.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    world.works(&world.slots[0]);
    world.sidecar.process.logged("takes its place");

    app.set_patience(PATIENCE);
    assert_eq!(app.drain(), (Vec::new(), Ended::Reset));
    crate::ends::reason_at(&world, "t0", "conn_lost", 0);
    world.works(&world.slots[0]);
    assert_eq!(way.opened(), 2, "the second one is the link now");
}
