//! One conversation of two links, delivered whole, cut at every place, and byte by byte: both must send and tell
//! the same (WIRE-1). Its two halves as scripts are the golden conversation of this version.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::runner::Player;
use crate::words;

/// Who does what; time goes on for both. Every type of frame goes by.
const STEPS: [&str; 46] = [
    "0 link dialer early=300 first=3000 max=3000",
    "1 link listener early=300 first=3000 max=3000",
    "0 call open \"ledger\"",
    "0 call write 1 \"PRI * HTTP/2.0\"",
    "0 call write 1 280*x",
    "1 call answer 1 \"yes\"",
    "1 call read 1",
    "1 call write 1 2000*y",
    "1 call write 1 1500*z",
    "0 call answered 1",
    "0 call read 1 700",
    "0 call read 1",
    "0 call read 1",
    "1 call open \"back\"",
    "0 call open \"to be refused\"",
    "0 call write 3 \"early\"",
    "1 call abort 3 not_found \"no such name\"",
    "0 raw data 3 \"late\"",
    "0 call release 3",
    "1 call release 3",
    "at 5s",
    "0 call answer 2 \"here\"",
    "1 call write 2 300*w",
    "1 call write 2 100*v",
    "1 call end 2",
    "0 call read 2",
    "0 call read 2",
    "0 call end 2",
    "1 call read 2",
    "0 raw ext 55 c0ffee",
    "1 raw ext 7f \"\"",
    "0 raw credit 1 +5",
    "at 6s",
    "0 call write 1 \"a\"",
    "at 7s",
    "0 call write 1 \"b\"",
    "at 8.5s",
    "0 call write 1 \"c\"",
    "1 raw presence",
    "at 16s",
    "1 call drain 10s",
    "0 call open \"too late\"",
    "0 call abort 1 app_7 \"enough\"",
    "1 call read 1",
    "1 call read 1",
    "0 call close shutdown \"bye\"",
];

/// How bytes arrive.
#[derive(Clone, Copy, Debug)]
enum Delivery {
    Whole,
    /// Cut in two at this place of all that side 0, or 1, receives.
    Cut(usize, usize),
    Bytes,
}

struct Pair {
    players: [Player; 2],
    /// Bytes that each has received.
    received: [usize; 2],
    delivery: Delivery,
    /// What each has seen and done, as a script.
    scripts: [String; 2],
}

impl Pair {
    fn note(&mut self, side: usize, line: &str) {
        let _ = writeln!(self.scripts[side], "{line}");
    }

    fn note_said(&mut self, side: usize) {
        let said = std::mem::take(&mut self.players[side].said);
        said.iter().for_each(|line| self.note(side, &format!("  {line}")));
    }

    /// Hands over what both have sent until both are silent.
    fn exchange(&mut self) {
        loop {
            let mut silent = true;
            for to in 0..2 {
                let sent = std::mem::take(&mut self.players[1 - to].raw);
                if !sent.is_empty() {
                    silent = false;
                    self.deliver(to, &sent);
                }
            }
            if silent {
                return;
            }
        }
    }

    fn deliver(&mut self, to: usize, bytes: &[u8]) {
        let from = self.received[to];
        self.received[to] += bytes.len();
        let pieces: Vec<&[u8]> = match self.delivery {
            Delivery::Cut(side, at) if side == to && (from + 1..from + bytes.len()).contains(&at) => {
                let (a, b) = bytes.split_at(at - from);
                vec![a, b]
            }
            Delivery::Whole | Delivery::Cut(..) => vec![bytes],
            Delivery::Bytes => bytes.chunks(1).collect(),
        };
        self.players[to].receive(&pieces);
        self.note(to, &format!("> hex {}", words::hex(bytes)));
        self.note_said(to);
    }

    fn step(&mut self, step: &str) {
        let Some((who, what)) = step.split_once(' ') else { panic!("no step: {step:?}") };
        if who == "at" {
            self.run_to(what);
        } else if let Some(frame) = what.strip_prefix("raw ") {
            let side = usize::from(who == "1");
            let bytes = words::encode(frame);
            self.deliver(1 - side, &bytes);
        } else {
            let side = usize::from(who == "1");
            self.note(side, what);
            self.players[side].play(what);
            self.note_said(side);
        }
        self.exchange();
    }

    /// In steps of half a second, so that both are at the same time when bytes pass.
    fn run_to(&mut self, time: &str) {
        let until: f64 = time.trim_end_matches('s').parse().unwrap_or_else(|_| panic!("no time: {time:?}"));
        let mut at = self.players[0].elapsed().as_secs_f64();
        while at < until {
            at += 0.5;
            for side in 0..2 {
                let line = format!("at {at}s");
                self.players[side].play(&line);
                self.note(side, &line);
                self.note_said(side);
            }
            self.exchange();
        }
    }
}

/// Both scripts, what was counted at both, and the bytes that each received.
fn converse(delivery: Delivery) -> ([String; 2], String, [usize; 2]) {
    let mut pair = Pair {
        players: [Player::new(), Player::new()],
        received: [0; 2],
        delivery,
        scripts: [String::new(), String::new()],
    };
    // The hellos cross.
    for step in &STEPS[..2] {
        let Some((who, what)) = step.split_once(' ') else { panic!("no step: {step:?}") };
        let side = usize::from(who == "1");
        pair.note(side, what);
        pair.players[side].play(what);
        pair.note_said(side);
    }
    pair.exchange();
    STEPS[2..].iter().for_each(|step| pair.step(step));
    let [a, b] = &mut pair.players;
    // How many small pieces were copied is how the bytes were cut.
    let counters = [a, b].map(|player| {
        let mut counters = player.link().counters();
        counters.limits.small_piece = 0;
        counters
    });
    let counted = format!("{counters:?}");
    (pair.scripts, counted, pair.received)
}

#[test]
fn wire_1_a_cut_anywhere_changes_nothing() {
    let whole = converse(Delivery::Whole);
    assert_eq!(converse(Delivery::Bytes), whole, "byte by byte");
    let mut cuts = 0;
    for side in 0..2 {
        for at in 1..whole.2[side] {
            assert_eq!(converse(Delivery::Cut(side, at)), whole, "side {side} cut at {at}");
            cuts += 1;
        }
    }
    assert!(cuts > 4_000, "{cuts} cuts");
}

/// The golden conversation: what this version says today is what it said when it was recorded. The scripts are
/// replayed by `every_dialogue_is_as_written` too, which never changes what a peer says in them; so a recording
/// of an older version stays one.
#[test]
fn the_golden_conversation_is_as_recorded() {
    let (scripts, ..) = converse(Delivery::Whole);
    for (side, script) in ["dialer", "listener"].into_iter().zip(scripts) {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/wire/golden-1-{side}.txt"));
        let script =
            format!("# Golden conversation of wire version 1, the {side}'s half: see `cuts.rs`.\n{script}");
        if std::env::var_os("HOPLINE_BLESS").is_some() {
            std::fs::write(&path, &script).unwrap();
        }
        let recorded = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(recorded == script, "{}: {}", path.display(), crate::runner::difference(&recorded, &script));
    }
}
