//! A status address under attack: what it shows may wait, what the process carries does not. `cargo xtask attacked`
//! measures it over several rounds.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hopline_admin::MAX_CONNECTIONS;
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use crate::harness::{Conn, PATIENCE, Process, World, WorldOptions, descriptors, hopline, until};
use crate::series::rss_kib;

/// Connections that are held and say nothing: far more than are served at once. They are this process's descriptors.
const HELD: usize = 4 * MAX_CONNECTIONS;
/// Connections that say a byte now and then.
const SLOW: usize = 100;
/// What the process may have grown by, in KiB, once the attack is over.
const GROWTH_KIB: u64 = 8 << 10;

/// A sidecar whose status address is of TCP, on the path of a world.
struct Victim {
    process: Process,
    status: SocketAddr,
    mapping: SocketAddr,
    _folder: TempDir,
}

impl Victim {
    fn start(world: &World) -> Self {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("edge.yaml");
        let text = "status: 127.0.0.1:0\nconnect: { t0: { listen: \"127.0.0.1:0\" } }\n";
        std::fs::write(&file, text).unwrap();
        let mut command = hopline();
        command.arg("up").arg("-c").arg(&file).arg("--state").arg(&world.sidecar.state);
        let process = Process::spawn("victim", folder.path(), command);
        let mapping = process.logged("mapping open mapping=t0 listens=").parse().unwrap();
        let status = process.logged("status address open address=").parse().unwrap();
        process.logged("link up");
        Self { process, status, mapping, _folder: folder }
    }
}

/// Everything at once, until told to stop: connections held, bytes that drip, bytes that are no request, and requests.
fn attack(address: SocketAddr, stop: &AtomicBool, refused: &AtomicUsize) {
    let wait = |time| std::thread::sleep(Duration::from_millis(time));
    let connect = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        // Most of them stay in the kernel's queue, or come to nothing.
        let _ = socket.connect(&address.into());
        TcpStream::from(socket)
    };
    let go_on = || !stop.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let held: Vec<_> = (0..HELD).map(|_| connect()).collect();
            while go_on() {
                wait(20);
            }
            drop(held);
        });
        scope.spawn(|| {
            let mut slow: Vec<_> = (0..SLOW).map(|_| connect()).collect();
            for byte in b"GET /status HTTP/1.1\r\nHost: localhost\r\nX: ".iter().cycle().take_while(|_| go_on()) {
                for stream in &mut slow {
                    // One that was cut comes again.
                    if matches!(stream.write(&[*byte]), Err(error) if error.kind() != std::io::ErrorKind::WouldBlock) {
                        *stream = connect();
                    }
                }
                wait(100);
            }
        });
        scope.spawn(|| {
            let garbage: [&[u8]; 4] = [
                &[0; 4_096],
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                &[b'A'; 20_000],
            ];
            for bytes in garbage.iter().cycle().take_while(|_| go_on()) {
                let _ = connect().write(bytes);
                wait(2);
            }
        });
        scope.spawn(|| {
            while go_on() {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                let _ = stream.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
                let mut answer = Vec::new();
                let _ = stream.read_to_end(&mut answer);
                refused.fetch_add(usize::from(answer.is_empty()), Ordering::Relaxed);
            }
        });
    });
}

/// How long the slowest of a hundred exchanges takes, of so many.
fn p99(app: &mut Conn, server: &mut Conn, count: usize) -> Duration {
    let mut took: Vec<_> = (0..count)
        .map(|_| {
            let began = Instant::now();
            app.write_all(&[7; 64]).unwrap();
            server.read_exact(&mut [0; 64]).unwrap();
            server.write_all(&[8; 64]).unwrap();
            app.read_exact(&mut [0; 64]).unwrap();
            began.elapsed()
        })
        .collect();
    took.sort();
    took[(count - 1) * 99 / 100]
}

#[test]
fn an_attack_on_the_status_address_takes_nothing_from_the_path() {
    let wanted = std::env::var("HOPLINE_ATTACK_ROUNDS").ok().map(|rounds| rounds.parse().unwrap());
    let (rounds, exchanges) = wanted.map_or((1, 300), |rounds: usize| (rounds, 4_000));
    let _share = descriptors(HELD + SLOW + 20);
    let world = World::start(WorldOptions::default());
    let victim = Victim::start(&world);
    let mut app = Conn::connect(victim.mapping);
    let mut server = world.slots[0].accept();
    p99(&mut app, &mut server, 100);
    let before = (victim.process.descriptors(), rss_kib(&victim.process));
    let mut ratios = Vec::new();
    for round in 0..rounds {
        let quiet = p99(&mut app, &mut server, exchanges);
        let (stop, refused) = (AtomicBool::new(false), AtomicUsize::new(0));
        let (attacked, most) = std::thread::scope(|scope| {
            scope.spawn(|| attack(victim.status, &stop, &refused));
            until("all places are taken", PATIENCE, || {
                (victim.process.descriptors() >= before.0 + MAX_CONNECTIONS).then_some(())
            });
            let attacked = p99(&mut app, &mut server, exchanges);
            let most = victim.process.descriptors();
            stop.store(true, Ordering::Relaxed);
            (attacked, most)
        });
        // One more may be on its way out while the next is on its way in.
        assert!(most <= before.0 + MAX_CONNECTIONS + 2, "{most} descriptors, {} before", before.0);
        ratios.push(attacked.as_secs_f64() / quiet.as_secs_f64());
        println!(
            "round {round}: p99 {quiet:.0?} quiet, {attacked:.0?} attacked, ratio {:.2}; {most} descriptors, {} scrapes \
             without an answer",
            ratios[round],
            refused.load(Ordering::Relaxed)
        );
        until("its descriptors are back", 2 * PATIENCE, || {
            (victim.process.descriptors() <= before.0).then_some(())
        });
        let mut after = TcpStream::connect(victim.status).unwrap();
        after.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        after.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    ratios.sort_by(f64::total_cmp);
    let after = rss_kib(&victim.process);
    println!("median ratio {:.2}; resident KiB {} before, {after} after", ratios[rounds / 2], before.1);
    assert!(after < before.1 + GROWTH_KIB, "{} KiB before, {after} after", before.1);
}
