//! `hopline status` in a terminal, in a pipe, with and without colours.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::harness::{hopline, shared};

/// What a terminal of so many columns is shown, and the exit code.
fn in_terminal(columns: u16, address: &str, variables: &[(&str, &str)]) -> (String, Option<i32>) {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    tcsetwinsize(&terminal, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let path = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
    let other_end = File::options().read(true).write(true).open(path).unwrap();
    let mut command = hopline();
    command
        .args(["status", address])
        .envs(variables.iter().copied())
        .stdout(Stdio::from(OwnedFd::from(other_end)));
    let mut child = command.spawn().unwrap();
    // The last holder of the other end is the child: its exit ends what is read here.
    drop(command);
    let (mut screen, mut buffer) = (Vec::new(), [0; 4_096]);
    let mut terminal = File::from(terminal);
    while let Ok(count @ 1..) = terminal.read(&mut buffer) {
        screen.extend_from_slice(&buffer[..count]);
    }
    let code = child.wait().unwrap().code();
    (String::from_utf8(screen).unwrap().replace("\r\n", "\n"), code)
}

fn without_colours(text: &str) -> String {
    ["\u{1b}[32m", "\u{1b}[33m", "\u{1b}[31m", "\u{1b}[0m"]
        .iter()
        .fold(text.to_owned(), |text, code| text.replace(code, ""))
}

fn longest(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap()
}

/// Colours where somebody sees them and has not asked for none; as wide as the terminal is; and the same exit code.
#[test]
fn status_fits_the_terminal_that_it_is_shown_in() {
    let world = shared();
    world.works(world.slot());
    for address in [&world.sidecar.admin, &world.relay.admin] {
        let mut whole = Vec::new();
        for columns in [80, 200] {
            let (screen, code) = in_terminal(columns, address, &[]);
            assert_eq!(code, Some(0), "{screen}");
            assert!(screen.contains("\u{1b}[32mall is well\u{1b}[0m"), "{screen}");
            let text = without_colours(&screen);
            assert!(!text.contains('\u{1b}') && !text.contains('…'), "{text}");
            assert!(longest(&text) <= usize::from(columns), "{columns} columns:\n{text}");
            whole.push(text);
        }
        assert!(whole[0].lines().count() >= whole[1].lines().count());
        let (plain, code) = in_terminal(80, address, &[("NO_COLOR", "1")]);
        assert_eq!((plain.contains('\u{1b}'), code), (false, Some(0)), "{plain}");
        let (asked, _) = in_terminal(200, address, &[("COLUMNS", "60")]);
        assert!(longest(&without_colours(&asked)) <= 60, "{asked}");

        let piped = hopline().args(["status", address]).output().unwrap();
        let text = String::from_utf8(piped.stdout).unwrap();
        assert_eq!((piped.status.code(), text.contains('\u{1b}')), (Some(0), false), "{text}");
        assert!(longest(&text) <= 100, "{text}");
    }
    let (screen, code) = in_terminal(80, "unix:/nowhere/at-all.sock", &[]);
    assert_eq!((screen.as_str(), code), ("", Some(1)), "what failed is said on stderr");
}
