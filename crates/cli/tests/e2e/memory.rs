//! What sessions cost whose readers take nothing: what `docs/limits.md` says, and nothing once they are gone.

use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{Conn, Kind, Process, Slot, World, WorldOptions, descriptors, until};

/// Downloads that nobody reads: some, and then more, so that what the process costs anyway does not count.
const SOME: usize = 60;
const MORE: usize = 120;
/// What each of their servers has to say: more than fits into all that is between it and its application.
const BYTES: usize = 600 << 10;
/// `send_queue` of `docs/limits.md`: what of a session waits at the agent.
const WAITING: usize = 64 << 10;
/// What a session may cost beside: its tasks, its connection, what its buffers are larger than what is in them.
const FIXED: usize = 40 << 10;
/// After this a session is not young any more, and what was kept of it is let go of.
const OLD: Duration = Duration::from_secs(2);

/// Resident bytes.
fn resident(process: &Process) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim_end_matches("kB").trim().parse::<usize>().unwrap() << 10
}

/// So many more downloads whose applications read nothing.
fn stick(slot: &Slot, downloads: usize) -> Vec<(Conn, Conn)> {
    let piece = vec![7; BYTES];
    let stick = |_| {
        let (app, mut server) = slot.pair(Kind::Unix);
        server.set_patience(Duration::from_millis(1));
        // Until its socket takes no more; the rest of the path is filled from there.
        let mut said = 0;
        while said < BYTES
            && let Ok(n) = server.write(&piece[said..])
        {
            said += n;
        }
        (app, server)
    };
    (0..downloads).map(stick).collect()
}

#[test]
fn downloads_that_nobody_reads_cost_what_the_limits_say() {
    let _share = descriptors(2 * (SOME + MORE));
    let world = World::start(WorldOptions { log: "info", ..WorldOptions::default() });
    let slot = &world.slots[0];
    world.works(slot);
    let agent = &world.agent.process;
    let idle = resident(agent);
    let mut stuck = stick(slot, SOME);
    thread::sleep(OLD);
    let before = resident(agent);
    stuck.extend(stick(slot, MORE));
    thread::sleep(OLD);
    let stuck_at = resident(agent);
    let each = stuck_at.saturating_sub(before) / MORE;
    println!("{} KiB idle, {} with some, {} each of the others", idle >> 10, before >> 10, each >> 10);
    assert!(each > WAITING / 4, "{each} bytes each: they are not stuck");
    assert!(each <= WAITING + FIXED, "{each} bytes each");
    drop(stuck);
    world.settled(slot);
    // The system's own allocator keeps all but a twentieth for good.
    let most = stuck_at.saturating_sub(idle) * 2 / 3;
    let began = Instant::now();
    until("what they cost is given back", Duration::from_secs(15), || {
        // Whoever looks, or calls, keeps its threads awake; so do the pings of an idle link.
        world.works(slot);
        let left = resident(agent).saturating_sub(idle);
        println!("{} KiB are left after {:?}", left >> 10, began.elapsed());
        (left <= most).then_some(())
    });
}
