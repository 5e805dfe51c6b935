//! Stdin and stdout of a pipe. Each has a thread: where they block, it is the thread that waits.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, mpsc, oneshot};

use crate::streams;

/// Most bytes that wait for stdout. As much as a TCP socket would hold for a slow reader, so that what a server says
/// just before it resets its connection is not lost to one.
const MOST: usize = 8 << 20;
/// Read from stdin at once.
const PIECE: usize = 64 << 10;
/// Pieces of stdin that wait.
const PIECES: usize = 4;

/// What goes to stdout, on its way there.
#[derive(Debug)]
pub(super) struct Output {
    shared: Arc<Shared>,
    written: oneshot::Receiver<io::Result<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    more: Condvar,
    room: Notify,
}

#[derive(Debug, Default)]
struct State {
    pieces: VecDeque<Vec<u8>>,
    bytes: usize,
    ended: bool,
}

impl Output {
    pub(super) fn start() -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let (done, written) = oneshot::channel();
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new().name("stdout".to_owned()).spawn(move || {
            let result = of_thread.write();
            // Nobody waits for it when the command is over.
            let _ = done.send(result);
        })?;
        Ok(Self { shared, written })
    }

    /// Takes a piece, once there is room for more.
    ///
    /// # Errors
    /// Why nothing more can be written.
    pub(super) async fn push(&mut self, piece: Vec<u8>) -> io::Result<()> {
        while self.shared.lock().bytes >= MOST {
            // A permit is kept for who comes later, so that no wake-up is lost.
            tokio::select! {
                () = self.shared.room.notified() => {}
                result = &mut self.written => return result.unwrap_or_else(|_| Err(failed())),
            }
        }
        let mut state = self.shared.lock();
        state.bytes += piece.len();
        state.pieces.push_back(piece);
        self.shared.more.notify_one();
        Ok(())
    }

    /// Nothing more comes.
    pub(super) fn end(&self) {
        self.shared.lock().ended = true;
        self.shared.more.notify_one();
    }

    /// Resolves when everything up to the end is written, or nothing more can be. Cancel safe.
    ///
    /// # Errors
    /// Why nothing more can be written.
    pub(super) async fn written(&mut self) -> io::Result<()> {
        (&mut self.written).await.unwrap_or_else(|_| Err(failed()))
    }
}

fn failed() -> io::Error {
    io::Error::other("its writer has failed")
}

impl Shared {
    fn write(&self) -> io::Result<()> {
        while let Some(piece) = self.next() {
            streams::write_stdout(&piece)?;
            self.lock().bytes -= piece.len();
            self.room.notify_one();
        }
        Ok(())
    }

    fn next(&self) -> Option<Vec<u8>> {
        let mut state = self.lock();
        loop {
            if let Some(piece) = state.pieces.pop_front() {
                return Some(piece);
            }
            if state.ended {
                return None;
            }
            state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What comes from stdin, an empty piece being its end. Its thread reads on only as pieces are taken.
pub(super) fn input() -> io::Result<mpsc::Receiver<io::Result<Vec<u8>>>> {
    let (pieces, read) = mpsc::channel(PIECES);
    std::thread::Builder::new().name("stdin".to_owned()).spawn(move || {
        loop {
            let mut piece = vec![0; PIECE];
            let result = streams::read_stdin(&mut piece);
            let over = !matches!(result, Ok(1..));
            let result = result.map(|n| {
                piece.truncate(n);
                piece
            });
            if pieces.blocking_send(result).is_err() || over {
                return;
            }
        }
    })?;
    Ok(read)
}
