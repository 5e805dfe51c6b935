//! The terminal that the process was started on, and whether it has gone.

use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::{isatty, tcgetattr};

/// What there was of a terminal at the start.
#[derive(Debug)]
pub(super) struct Terminal {
    /// The process belonged to one: it is what `/dev/tty` leads to, until it hangs up.
    controlling: bool,
    /// Which of stdin, stdout and stderr were one.
    streams: [bool; 3],
}

impl Terminal {
    pub(super) fn now() -> Self {
        Self { controlling: open().is_ok(), streams: streams().map(isatty) }
    }

    /// Whether there was a terminal, and it has hung up.
    pub(super) fn has_hung_up(&self) -> bool {
        let lost = self.controlling && matches!(open(), Err(Errno::NXIO | Errno::IO));
        let hung_up =
            |(was, stream): (bool, BorrowedFd<'_>)| was && tcgetattr(stream).err() == Some(Errno::IO);
        lost || self.streams.into_iter().zip(streams()).any(hung_up)
    }
}

fn open() -> Result<(), Errno> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open("/dev/tty", flags, Mode::empty()).map(drop)
}

fn streams() -> [BorrowedFd<'static>; 3] {
    [stdin(), stdout(), stderr()]
}
