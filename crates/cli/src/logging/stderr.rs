//! Stderr as it was given to this process, blocking or not.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::stdio::stderr;

use super::queue::Sink;

/// Between two attempts where the system says that there is room and then takes nothing.
const PAUSE: Duration = Duration::from_millis(10);
/// The longest wait for room before it is tried again.
const WAIT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The descriptor. Its flags belong to all who share it, and are left as they are.
#[derive(Debug)]
pub(super) struct Stderr;

impl Sink for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match rustix::io::write(stderr(), bytes) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let mut polled = [PollFd::from_borrowed_fd(stderr(), PollFlags::OUT)];
                    if poll(&mut polled, Some(&WAIT)) != Ok(0) {
                        std::thread::sleep(PAUSE);
                    }
                }
                result => return Ok(result?),
            }
        }
    }
}
