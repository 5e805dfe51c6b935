//! Clocks that jump, and machines that sleep.

use std::io::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rand::RngExt as _;
use rustix::process::Signal;

use super::kit::{BASE, figure};
use super::shape::{app, count, serve};
use crate::capture::Capture;
use crate::fault::Fault;
use crate::inside::{self, connect, exchange};
use crate::result::Bound;
use crate::scenario::{Case, Figure, Scenario};
use crate::shell::now_ms;
use crate::status;
use crate::world::{Options, Way};

const SLEPT: &[Figure] = &[
    figure("ended", "the session that slept", "", Bound::Word(&["error"])),
    figure("back_s", "service after the end of the sleep", "s", Bound::AtMost(5.0)),
];
const CYCLES: &[Figure] = &[
    figure("failed", "of 4 sleeps, those without service after 5 s", "", Bound::AtMost(0.0)),
    figure("back_s", "the slowest service after a sleep", "s", Bound::AtMost(5.0)),
];
const TOLD: &[Figure] = &[
    figure("uptime_s", "uptime after a jump of an hour", "s", Bound::AtMost(120.0)),
    figure("age_s", "age of the last error", "s", Bound::AtMost(120.0)),
    figure("drain_s", "a drain of 10 s ends its session after", "s", Bound::Within(9.5, 10.5)),
];
const BURST: &[Figure] = &[
    figure("sent", "packets with payload in the first second awake", "", Bound::AtMost(3.0)),
    figure("works", "the session afterwards", "", Bound::Word(&["yes"])),
];
const STEPS: &[Figure] = &[
    figure("ended", "of 500 sessions, ended", "", Bound::AtMost(0.0)),
    figure("fresh", "a new session", "", Bound::Word(&["works"])),
    figure("links", "links that were lost", "", Bound::AtMost(0.0)),
];

pub(in crate::scenario) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "f169-slept-long",
        promise: "F169",
        what: "The sidecar's machine sleeps for 15 s (SIGSTOP; keepalive fast, dead within 4.5 s): its link has died meanwhile.",
        figures: SLEPT,
        ways: &[Way::Tcp],
        seconds: 30,
        run: slept,
        ..BASE
    },
    Scenario {
        name: "f170-sleep-cycles",
        promise: "F170",
        what: "Four sleeps of 1 to 7 s, 10 s apart, each followed by an open; nobody helps. Directly: the same pauses, without a \
               sidecar.",
        figures: CYCLES,
        seconds: 58,
        run: cycles,
        ..BASE
    },
    Scenario {
        name: "f172-status-and-clock",
        promise: "F172",
        what: "The wall clock of relay, agent and sidecar jumps an hour forward: what /status says in seconds, and a drain's \
               deadline, follow the monotonic clock.",
        figures: TOLD,
        ways: &[Way::Tcp],
        seconds: 30,
        run: told,
        ..BASE
    },
    Scenario {
        name: "f173-no-burst",
        promise: "F173",
        what: "The sidecar sleeps for 8 s, longer than a ping interval and as long as a link allows (P11): no ping is caught up on.",
        figures: BURST,
        ways: &[Way::Tcp],
        seconds: 25,
        run: burst,
        ..BASE
    },
    Scenario {
        name: "f175-clock-steps",
        promise: "F175",
        what: "The wall clock steps an hour forward, two back, and home again during 500 sessions.",
        figures: STEPS,
        seconds: 30,
        run: steps,
        ..BASE
    },
];

fn freeze() -> Fault {
    Fault::Freeze { process: "sidecar".to_owned() }
}

fn slept(case: &mut Case<'_>) -> anyhow::Result<()> {
    let world = case.world_with(Options { sidecar_keepalive: "fast", ..Options::plain(case.way) })?;
    let _server = serve(&world, inside::echo)?;
    let mut stream = app(&world, |target| {
        let mut stream = connect(target)?;
        inside::again(&mut stream)?;
        Ok(stream)
    })?;
    std::thread::sleep(Duration::from_secs(2));
    let asleep = world.apply(&freeze())?;
    std::thread::sleep(Duration::from_secs(15));
    let awake_ms = asleep.heal()?;
    app(&world, exchange)?;
    case.number("back_s", (now_ms() - awake_ms) / 1e3);
    let (how, _) = inside::end(&mut stream);
    case.word("ended", if how == "fin" || how == "silent" { how } else { "error".to_owned() });
    Ok(())
}

fn cycles(case: &mut Case<'_>) -> anyhow::Result<()> {
    let world = case.world_with(Options { sidecar_keepalive: "fast", ..Options::plain(case.way) })?;
    let _server = serve(&world, inside::echo)?;
    let mut random = case.random();
    let (mut failed, mut back_ms) = (0, 0.0_f64);
    for _ in 0..4 {
        // A link that lives shorter than 10 s, twice, is dialled again ever later: F92.
        std::thread::sleep(Duration::from_secs(10));
        let nap = Duration::from_millis(random.random_range(1_000..7_000));
        if case.way == Way::Direct {
            std::thread::sleep(nap);
        } else {
            let asleep = world.apply(&freeze())?;
            std::thread::sleep(nap);
            asleep.heal()?;
        }
        match app(&world, exchange) {
            Ok(took_ms) => {
                failed += usize::from(took_ms > 5_000.0);
                back_ms = back_ms.max(took_ms);
            }
            Err(_) => failed += 1,
        }
    }
    case.number("failed", count(failed));
    case.number("back_s", back_ms / 1e3);
    Ok(())
}

fn told(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut world = case.world_with(Options { faked_clock: true, ..Options::plain(case.way) })?;
    // Nobody serves yet, so this is an error to tell of.
    anyhow::ensure!(app(&world, |target| Ok(exchange(target).is_err()))?, "somebody serves");
    let _server = serve(&world, inside::echo)?;
    let _jumped = world.apply(&Fault::Clock { seconds: 3_600 })?;
    let status = world.status("sidecar")?;
    case.number("uptime_s", status["uptime_s"].as_f64().unwrap_or(f64::NAN));
    let raw = status::entry(&status, "mappings", "raw");
    let age = raw.and_then(|entry| entry["last_error"]["age_s"].as_f64());
    case.number("age_s", age.unwrap_or(f64::NAN));
    let mut stream = app(&world, |target| {
        let mut stream = connect(target)?;
        inside::again(&mut stream)?;
        Ok(stream)
    })?;
    std::thread::sleep(Duration::from_secs(2));
    let term_ms = world.signal("sidecar", Signal::TERM)?;
    let (_, end_ms) = inside::end(&mut stream);
    case.number("drain_s", (end_ms - term_ms) / 1e3);
    world.wait_end("sidecar")?;
    Ok(())
}

fn burst(case: &mut Case<'_>) -> anyhow::Result<()> {
    let world = case.world()?;
    let _server = serve(&world, inside::echo)?;
    let mut stream = app(&world, |target| {
        let mut stream = connect(target)?;
        inside::again(&mut stream)?;
        Ok(stream)
    })?;
    std::thread::sleep(Duration::from_secs(3));
    let capture = Capture::start(&world.net, "web", "eth0", 7_443, &case.folder)?;
    let asleep = world.apply(&freeze())?;
    std::thread::sleep(Duration::from_secs(8));
    asleep.heal()?;
    // The capture has the wall clock's time.
    let awake_s = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    std::thread::sleep(Duration::from_secs(2));
    let segments = capture.finish()?;
    let first_second = segments.iter().filter(|segment| {
        let own = segment.from_port != 7_443 && segment.payload > 0;
        own && segment.at_s > awake_s - 0.05 && segment.at_s < awake_s + 1.0
    });
    case.number("sent", count(first_second.count()));
    case.word("works", if inside::again(&mut stream).is_ok() { "yes" } else { "no" });
    Ok(())
}

fn steps(case: &mut Case<'_>) -> anyhow::Result<()> {
    let world = case.world_with(Options { faked_clock: true, ..Options::plain(case.way) })?;
    let _server = serve(&world, inside::echo)?;
    let mut streams = app(&world, |target| {
        (0..500)
            .map(|_| {
                let mut stream = connect(target)?;
                inside::again(&mut stream)?;
                Ok(stream)
            })
            .collect::<anyhow::Result<Vec<_>>>()
    })?;
    for seconds in [3_600, -3_600] {
        let step = match case.way {
            Way::Direct => None,
            Way::Unix | Way::Tcp => Some(world.apply(&Fault::Clock { seconds })?),
        };
        std::thread::sleep(Duration::from_secs(7));
        drop(step);
    }
    std::thread::sleep(Duration::from_secs(1));
    let mut ended = 0;
    for stream in &mut streams {
        stream.flush()?;
        ended += usize::from(inside::again(stream).is_err());
    }
    case.number("ended", count(ended));
    case.word("fresh", if app(&world, exchange).is_ok() { "works" } else { "broken" });
    if case.way != Way::Direct {
        let mut lost = 0.0;
        for edge in ["agent", "sidecar"] {
            lost += super::shape::metric(&world, edge, "hopline_link_ends_total{")?;
        }
        case.number("links", lost);
    }
    Ok(())
}
