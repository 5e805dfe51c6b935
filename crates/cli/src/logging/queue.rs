//! Lines on their way to stderr: a bounded queue, and one thread that writes.
//!
//! Whoever logs never waits: a pipe that nobody reads, a full disk or a terminal that has gone must not hold up a link.
//! What does not fit, or can't be written, is dropped, counted ([`log_lines`]) and spoken of in its place once
//! lines can be written again. What is still queued when the process ends is written as long as it moves.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hopline_accounting::log_lines;

/// Most bytes that wait, each line with [`OVERHEAD`].
const MAX_BYTES: usize = 1 << 20;
const OVERHEAD: usize = 64;
/// Written at once: lines of several processes don't mix in a pipe up to this size.
const BATCH: usize = 4 << 10;

/// Where lines go.
pub(super) trait Sink {
    /// Writes some of it, as soon as any is taken; may wait for as long as it takes.
    ///
    /// # Errors
    /// Why nothing of it can be written.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
}

/// The queue. Its writer is a thread that runs [`Queue::run`].
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// The writer holds lines that it has taken and not written.
    writing: bool,
    /// Batches that the writer has come to an end with.
    done: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Entry {
    Line(Vec<u8>),
    /// So many lines were dropped here.
    Dropped(u64),
}

/// What is written at once.
#[derive(Debug, Default, PartialEq, Eq)]
struct Batch {
    bytes: Vec<u8>,
    lines: u64,
    /// Lines that it says were dropped.
    said: u64,
}

impl Queue {
    /// Adds a line, its end included; never waits for the writer.
    pub(super) fn push(&self, line: &[u8]) {
        let mut state = self.lock();
        let size = line.len() + OVERHEAD;
        if state.bytes + size <= MAX_BYTES {
            state.bytes += size;
            state.entries.push_back(Entry::Line(line.to_vec()));
        } else {
            log_lines::note_dropped(1);
            match state.entries.back_mut() {
                Some(Entry::Dropped(count)) => *count += 1,
                _ => state.entries.push_back(Entry::Dropped(1)),
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until everything is written, `limit` at most, and no longer than `still` without any progress.
    pub(super) fn flush(&self, limit: Duration, still: Duration) {
        let began = Instant::now();
        let (mut moved, mut state) = (began, self.lock());
        while state.writing || !state.entries.is_empty() {
            let done = state.done;
            let left = limit.saturating_sub(began.elapsed()).min(still.saturating_sub(moved.elapsed()));
            if left.is_zero() {
                return;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.done != done {
                moved = Instant::now();
            }
        }
    }

    /// Writes what comes, for ever. `notice` makes the line that says how many were dropped.
    pub(super) fn run(&self, sink: &mut impl Sink, notice: impl Fn(u64) -> String) {
        let (mut lost, mut torn) = (0, false);
        loop {
            let mut batch = self.take(&notice);
            if lost > 0 {
                batch.bytes.splice(..0, notice(lost).into_bytes());
                batch.said += lost;
            }
            if torn {
                batch.bytes.insert(0, b'\n');
            }
            (lost, torn) = match write_all(sink, &batch.bytes) {
                Ok(()) => (0, false),
                Err(written) => {
                    log_lines::note_dropped(batch.lines);
                    (batch.said + batch.lines, torn || written > 0)
                }
            };
            let mut state = self.lock();
            state.writing = false;
            state.done += 1;
            drop(state);
            self.changed.notify_all();
        }
    }

    /// The next lines, as soon as there are some.
    fn take(&self, notice: &impl Fn(u64) -> String) -> Batch {
        let mut state = self.lock();
        while state.entries.is_empty() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.writing = true;
        let mut batch = Batch::default();
        while let Some(entry) = state.entries.front() {
            let more = match entry {
                Entry::Line(line) => line.len(),
                Entry::Dropped(_) => 0,
            };
            if !batch.bytes.is_empty() && batch.bytes.len() + more > BATCH {
                break;
            }
            match state.entries.pop_front() {
                Some(Entry::Line(line)) => {
                    state.bytes -= line.len() + OVERHEAD;
                    batch.bytes.extend_from_slice(&line);
                    batch.lines += 1;
                }
                Some(Entry::Dropped(count)) => {
                    batch.bytes.extend_from_slice(notice(count).as_bytes());
                    batch.said += count;
                }
                None => break,
            }
        }
        batch
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes all of it.
///
/// # Errors
/// How much was written when nothing more could be.
fn write_all(sink: &mut impl Sink, bytes: &[u8]) -> Result<(), usize> {
    let mut written = 0;
    while written < bytes.len() {
        match sink.write(&bytes[written..]) {
            Ok(0) | Err(_) => return Err(written),
            Ok(n) => written += n,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    /// Says what it was given, and answers as it is told to: how much it takes, or an error.
    struct Told {
        given: Sender<Vec<u8>>,
        answers: Receiver<io::Result<usize>>,
    }

    impl Sink for Told {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.given.send(bytes.to_vec()).unwrap();
            self.answers.recv().unwrap().map(|most| most.min(bytes.len()))
        }
    }

    struct Written {
        queue: Arc<Queue>,
        given: Receiver<Vec<u8>>,
        answers: Sender<io::Result<usize>>,
    }

    impl Written {
        fn new() -> Self {
            let queue = Arc::new(Queue::default());
            let ((given, seen), (answers, told)) = (channel(), channel());
            let of_thread = Arc::clone(&queue);
            thread::spawn(move || {
                of_thread.run(&mut Told { given, answers: told }, |n| format!("({n} dropped)\n"));
            });
            Self { queue, given: seen, answers }
        }

        fn next(&self) -> String {
            String::from_utf8(self.given.recv_timeout(LONG).unwrap()).unwrap()
        }

        fn answer(&self, answer: io::Result<usize>) {
            self.answers.send(answer).unwrap();
        }
    }

    fn full() -> io::Error {
        io::ErrorKind::StorageFull.into()
    }

    #[test]
    fn a_writer_that_is_stuck_holds_up_nobody_and_what_was_dropped_is_said_in_its_place() {
        let written = Written::new();
        written.queue.push(b"first\n");
        assert_eq!(written.next(), "first\n");
        // It is stuck from here on.
        let line = [[b'x'; 999].as_slice(), b"\n"].concat();
        let room = MAX_BYTES / (line.len() + OVERHEAD);
        let before = log_lines::dropped();
        for _ in 0..room + 7 {
            written.queue.push(&line);
        }
        assert!(log_lines::dropped() >= before + 7);
        assert!(written.queue.lock().bytes <= MAX_BYTES);
        let began = Instant::now();
        written.queue.flush(LONG, Duration::from_millis(50));
        assert!(began.elapsed() < Duration::from_secs(10), "it waits for what does not move");

        written.answer(Ok(usize::MAX));
        let mut lines = 0;
        loop {
            let batch = written.next();
            written.answer(Ok(usize::MAX));
            assert!(batch.len() <= BATCH);
            lines += batch.matches('x').count() / 999;
            if batch.contains("dropped") {
                assert!(batch.ends_with("(7 dropped)\n"), "{batch}");
                break;
            }
        }
        assert_eq!(lines, room);
        written.queue.push(b"again\n");
        assert_eq!(written.next(), "again\n");
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_said_when_they_can() {
        let written = Written::new();
        written.queue.push(b"to a full disk\n");
        written.next();
        written.answer(Ok(5));
        assert_eq!(written.next(), "full disk\n");
        written.answer(Err(full()));
        written.queue.push(b"lost too\n");
        assert_eq!(written.next(), "\n(1 dropped)\nlost too\n");
        written.answer(Err(full()));
        written.queue.push(b"there is room\n");
        assert_eq!(written.next(), "\n(2 dropped)\nthere is room\n");
        written.answer(Ok(usize::MAX));
        written.queue.push(b"good\n");
        assert_eq!(written.next(), "good\n");
    }

    #[test]
    fn the_end_waits_for_what_moves() {
        let written = Written::new();
        for n in 0..20 {
            written.queue.push(format!("{n}\n").as_bytes());
        }
        for _ in 0..50 {
            written.answer(Ok(1));
        }
        written.queue.flush(LONG, LONG);
        assert!(written.queue.lock().entries.is_empty());
    }
}
