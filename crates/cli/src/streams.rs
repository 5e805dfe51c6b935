//! Stdin and stdout as they were given to this process: blocking or not, of any kind. Their flags belong to everyone who
//! shares them and are left as they are.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::io::Errno;
use rustix::stdio::{stdin, stdout};

/// Read at once.
const PIECE: usize = 64 << 10;

/// Some bytes of stdin, as soon as there are any; 0 is its end.
pub(crate) fn read_stdin(buffer: &mut [u8]) -> io::Result<usize> {
    retried(stdin(), PollFlags::IN, || rustix::io::read(stdin(), &mut *buffer))
}

/// Stdin to its end, but no more than `max` bytes and one.
pub(crate) fn read_all_stdin(max: usize) -> io::Result<Vec<u8>> {
    let (mut bytes, mut piece) = (Vec::new(), vec![0; PIECE]);
    while bytes.len() <= max {
        match read_stdin(&mut piece)? {
            0 => break,
            n => bytes.extend_from_slice(&piece[..n]),
        }
    }
    bytes.truncate(max + 1);
    Ok(bytes)
}

/// Writes all of it to stdout.
pub(crate) fn write_stdout(mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match retried(stdout(), PollFlags::OUT, || rustix::io::write(stdout(), bytes))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => bytes = &bytes[n..],
        }
    }
    Ok(())
}

/// Stdout as a place to write to, without a buffer.
#[derive(Debug)]
pub(crate) struct Stdout;

impl io::Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_stdout(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether nobody can read stdout any more: its pipe has no reader, its socket or terminal has gone.
pub(crate) fn is_stdout_gone() -> bool {
    let mut polled = [PollFd::from_borrowed_fd(stdout(), PollFlags::empty())];
    let gone = PollFlags::ERR | PollFlags::HUP;
    poll(&mut polled, Some(&Timespec::default())).is_ok() && polled[0].revents().intersects(gone)
}

/// Whether the process was started without a stdout. Rust's runtime opens `/dev/null` in its place, for reading too;
/// whoever means `/dev/null` opens it for writing.
pub(crate) fn was_stdout_closed() -> bool {
    let Ok(place) = fstat(stdout()) else { return true };
    let is_null = FileType::from_raw_mode(place.st_mode) == FileType::CharacterDevice
        && rustix::fs::stat("/dev/null").is_ok_and(|null| null.st_rdev == place.st_rdev);
    is_null && fcntl_getfl(stdout()).is_ok_and(|flags| flags.contains(OFlags::RDWR))
}

/// Gives the end of what was written to whoever reads it, while this process goes on.
pub(crate) fn close_stdout() -> io::Result<()> {
    let nowhere = std::fs::File::options().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(nowhere)?)
}

/// Repeats a call until it does something; waits where the descriptor does not block by itself.
fn retried<T>(
    of: BorrowedFd<'_>,
    flags: PollFlags,
    mut call: impl FnMut() -> Result<T, Errno>,
) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut polled = [PollFd::from_borrowed_fd(of, flags)];
                match poll(&mut polled, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            result => return Ok(result?),
        }
    }
}
