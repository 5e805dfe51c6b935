//! Opens while something is away and comes back (P6, P7): none that begins after the loss fails, none reaches the
//! server twice. And a machine's newer process takes over from one that only looks alive.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::ends::reason_at;
use crate::harness::{
    Conn, Ended, Kind, PATIENCE, Process, Share, World, WorldOptions, descriptors, hopline, until,
};

/// Between two opens.
const EVERY: Duration = Duration::from_millis(10);

/// Opens that wait at once, at most: each is two descriptors of this process.
const AT_ONCE: usize = 150;

/// How one open went.
struct Open {
    began: Instant,
    answered: bool,
}

/// Applications that connect all the time, each with a request of its own, and a server that answers each and
/// counts how often it came.
struct Load {
    stop: Arc<AtomicBool>,
    begun: Arc<AtomicUsize>,
    applications: Option<JoinHandle<Vec<Open>>>,
    seen: Arc<Mutex<BTreeMap<String, u32>>>,
    _share: Share,
}

/// A test that fails must not leave it running.
impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Load {
    fn start(server: &TcpListener, mapping: SocketAddr, every: Duration) -> Self {
        let share = descriptors(2 * AT_ONCE);
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new(BTreeMap::new()));
        let listener = server.try_clone().unwrap();
        let count = Arc::clone(&seen);
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let count = Arc::clone(&count);
                std::thread::spawn(move || answer(stream, &count));
            }
        });
        let begun = Arc::new(AtomicUsize::new(0));
        let (stopped, counter) = (Arc::clone(&stop), Arc::clone(&begun));
        let applications = std::thread::spawn(move || {
            let mut opens = Vec::new();
            for number in 0.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let over = opens.iter().filter(|open: &&JoinHandle<Open>| open.is_finished()).count();
                if opens.len() - over < AT_ONCE {
                    opens.push(std::thread::spawn(move || open(mapping, number)));
                }
                counter.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(every);
            }
            opens.into_iter().map(|open| open.join().unwrap()).collect()
        });
        Self { stop, begun, applications: Some(applications), seen, _share: share }
    }

    /// Waits until so many further opens have begun, or were due while as many as may be were waiting.
    fn go_on(&self, opens: usize) {
        let enough = self.begun.load(Ordering::Relaxed) + opens;
        until("opens go on", PATIENCE, || (self.begun.load(Ordering::Relaxed) >= enough).then_some(()));
    }

    /// Waits until a request that begins now is answered.
    fn works(&self, mapping: SocketAddr) {
        until("an open is answered again", PATIENCE, || open(mapping, u64::MAX).answered.then_some(()));
        self.seen.lock().unwrap().remove(&u64::MAX.to_string());
    }

    /// Ends the load: no open failed, and no request came twice.
    fn finish(self) {
        self.finish_after(None);
    }

    /// Ends the load: no open that began after `loss` failed, and no request came twice.
    fn finish_after(mut self, loss: Option<Instant>) {
        self.stop.store(true, Ordering::Relaxed);
        let opens = self.applications.take().unwrap().join().unwrap();
        let failed = opens.iter().filter(|open| !open.answered);
        let began: Vec<_> =
            failed.filter(|open| loss.is_none_or(|loss| open.began > loss)).map(|open| open.began).collect();
        assert!(
            began.is_empty(),
            "of {} opens these failed, begun at {began:?}; loss: {loss:?}",
            opens.len()
        );
        let seen = self.seen.lock().unwrap();
        let twice: Vec<_> = seen.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "requests that ran twice: {twice:?}");
    }
}

fn open(mapping: SocketAddr, number: u64) -> Open {
    let began = Instant::now();
    let request = format!("{number}\n");
    let exchange = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(mapping)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(request.as_bytes())?;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        Ok(line)
    };
    Open { began, answered: exchange().is_ok_and(|answer| answer == request) }
}

fn answer(stream: TcpStream, seen: &Mutex<BTreeMap<String, u32>>) {
    let mut reader = BufReader::new(&stream);
    let mut line = String::new();
    // One that is cut short is no request.
    if reader.read_line(&mut line).is_ok() && line.ends_with('\n') {
        *seen.lock().unwrap().entry(line.trim().to_owned()).or_default() += 1;
        let _ = (&stream).write_all(line.as_bytes());
        let _ = reader.read_to_end(&mut Vec::new());
    }
}

/// P6: while the only relay drains, is gone and comes back, opens wait.
#[test]
fn p6_opens_wait_for_a_relay_that_restarts() {
    let options = WorldOptions { relay_host: "127.0.7.11", drain: "1s", ..WorldOptions::default() };
    let mut world = World::start(options);
    let (mut held, _server) = world.slots[0].pair(Kind::Tcp);
    let load = Load::start(&world.slots[0].server, world.slots[0].address(), EVERY);
    load.works(world.slots[0].address());
    world.relay.process.signal(Signal::TERM);
    assert_eq!(held.drain(), (Vec::new(), Ended::Reset), "what is open is cut at the deadline");
    reason_at(&world, "t0", "drain_deadline", 1);
    assert!(world.relay.process.wait_exit(PATIENCE).success());
    load.go_on(50);
    world.restart_relay();
    load.works(world.slots[0].address());
    load.finish();
}

/// P7: the relay is killed and started again. What was on its way in that moment goes on, and nothing runs twice.
#[test]
fn p7_no_open_fails_when_the_relay_is_killed() {
    let mut world = World::start(WorldOptions { relay_host: "127.0.7.12", ..WorldOptions::default() });
    let load = Load::start(&world.slots[0].server, world.slots[0].address(), Duration::from_millis(2));
    load.works(world.slots[0].address());
    load.go_on(100);
    world.relay.process.kill();
    load.go_on(50);
    world.restart_relay();
    load.works(world.slots[0].address());
    load.finish();
}

/// P7: the agent is killed and started again.
#[test]
fn p7_opens_wait_for_an_agent_that_was_killed() {
    let mut world = World::start(WorldOptions::default());
    let load = Load::start(&world.slots[0].server, world.slots[0].address(), EVERY);
    load.works(world.slots[0].address());
    world.agent.process.kill();
    let killed = Instant::now();
    load.go_on(50);
    world.restart_agent();
    load.works(world.slots[0].address());
    load.finish_after(Some(killed));
}

/// A second process of the agent's machine.
fn start_newer(world: &World) -> Process {
    let file = std::fs::read_to_string(world.folder().join("agent.yaml")).unwrap();
    let without_status: String =
        file.lines().filter(|line| !line.starts_with("status:")).map(|line| format!("{line}\n")).collect();
    let path = world.folder().join("newer.yaml");
    std::fs::write(&path, without_status).unwrap();
    let mut command = hopline();
    command.arg("up").arg("-c").arg(&path).arg("--state").arg(&world.agent.state);
    Process::spawn("newer", world.folder(), command)
}

/// F112: a machine comes back while its old link still looks alive: the newest process has its names at once.
#[test]
fn f112_a_newer_process_takes_over_at_once() {
    let world = World::start(WorldOptions::default());
    world.works(&world.slots[0]);
    world.agent.process.pause();
    let newer = start_newer(&world);
    newer.logged("link up");
    // Its services follow its link. An open before that goes to the older one, and with it.
    world.relay.process.logged("takes over");
    world.works(&world.slots[0]);
    // The older one is told when it wakes.
    world.agent.process.resume();
    world.agent.process.logged("taken over");
    world.works(&world.slots[0]);
}

/// F116: an open that went to the older process and has said nothing goes on at the newer one.
#[test]
fn f116_an_open_at_the_older_process_goes_to_the_newer_one() {
    let world = World::start(WorldOptions::default());
    world.works(&world.slots[0]);
    // What has just ended counts until its other end has the last bytes, which a paused agent would not say.
    world.settled(&world.slots[0]);
    world.agent.process.pause();
    let mut app = world.slots[0].dial(Kind::Tcp);
    until("the open is at the relay", PATIENCE, || (world.mapping("t0").sessions.open == 1).then_some(()));
    let newer = start_newer(&world);
    world.relay.process.logged("takes over");
    let mut server = world.slots[0].accept();
    server.write_all(b"hello").unwrap();
    assert_eq!(app.chunk(5), b"hello");
    drop(newer);
    world.agent.process.resume();
}

/// P14: an open that nobody answers ends at its open timeout, and the agent finds it gone.
#[test]
fn p14_no_answer_within_the_open_timeout() {
    let world = World::start(WorldOptions {
        services: "  slow: { tcp: { tcp: 9 } }\n",
        mappings: "  slow: { listen: \"127.0.0.1:0\", open_timeout: 300ms }\n",
        ..WorldOptions::default()
    });
    world.agent.process.pause();
    let mut app = Conn::connect(world.mapping("slow").listen);
    assert_eq!(app.drain_at_once(), (Vec::new(), Ended::Reset));
    reason_at(&world, "slow", "timeout", 0);
    world.agent.process.resume();
    world.works(&world.slots[0]);
    assert_eq!(world.service("slow").sessions.total, 0, "nobody waited for it any more");
}

/// P14: a relay with a bound of its own gives up earlier, and says that it was the one.
#[test]
fn p14_no_answer_within_the_relays_answer_timeout() {
    // Long enough for the answer of a healthy agent on a busy machine: 300 ms were not.
    let world = World::start(WorldOptions { relay_file: "answer_timeout: 2s\n", ..WorldOptions::default() });
    // What is answered in time is not touched later.
    let (mut app, mut server) = world.slots[0].answered_pair(Kind::Tcp);
    world.agent.process.pause();
    let mut late = world.slots[0].dial(Kind::Tcp);
    assert_eq!(late.drain_within(Duration::from_secs(4)), (Vec::new(), Ended::Reset));
    reason_at(&world, "t0", "timeout", 1);
    world.agent.process.resume();
    app.write_all(b"still here").unwrap();
    assert_eq!(server.chunk(10), b"still here");
}

/// P8: a thousand connections to a service that nobody serves: each is refused and counted, and nothing is left.
#[test]
fn p8_a_thousand_refusals_leave_nothing_behind() {
    let world = World::start(WorldOptions::default());
    world.works(&world.slots[0]);
    world.agent.process.signal(Signal::TERM);
    assert!(world.agent.process.wait_exit(PATIENCE).success());
    let mapping = world.mapping("t0");
    until("its sessions are over", PATIENCE, || (world.mapping("t0").sessions.open == 0).then_some(()));
    let processes = [&world.relay.process, &world.sidecar.process];
    let before = processes.map(Process::descriptors);
    for _ in 0..1_000 {
        let mut app = Conn::connect(&mapping.listen);
        assert_eq!(app.drain_at_once(), (Vec::new(), Ended::Reset));
    }
    reason_at(&world, "t0", "offline", 1);
    assert_eq!(world.relay.status().opens.refused["offline"], 1_000);
    until("descriptors are back at baseline", PATIENCE, || {
        let now = processes.map(Process::descriptors);
        now.iter().zip(before).all(|(now, before)| *now <= before).then_some(())
    });
    assert_eq!(world.mapping("t0").sessions.total, mapping.sessions.total + 1_000);
}
