//! One link's core behind its lock, and whom to wake.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hopline_link_proto::{Abort, Code, Event, Link, SessionId};
use tokio::sync::watch;

use crate::deadline::Deadlines;
use crate::mux::Status;
use crate::splice::SpliceHandle;
use crate::sync::{AtomicWaker, Mutex, MutexGuard};

/// The time that the core sees: tokio's, so that a paused clock pauses links too.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Whom an event of one session concerns: its tag in the core. There is one for each session, so it is kept small.
#[derive(Debug)]
pub(crate) enum Slot {
    /// The tasks that wait at its handle.
    Handle(Waiters),
    /// The splice that has taken it over.
    Spliced(Arc<SpliceHandle>),
}

// Each end of each session pays for one.
const _: () = assert!(size_of::<Slot>() <= 4 * size_of::<usize>());

/// The tasks that wait at a session's handle, and until when.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    pub(crate) read: Option<Waker>,
    /// What few sessions have, and none for long.
    rare: Option<Box<RareWaiters>>,
}

#[derive(Debug, Default)]
pub(crate) struct RareWaiters {
    pub(crate) write: Option<Waker>,
    pub(crate) answer: Option<Waker>,
    pub(crate) deadlines: Deadlines,
}

impl RareWaiters {
    fn is_empty(&self) -> bool {
        self.write.is_none() && self.answer.is_none() && self.deadlines.is_none()
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::Handle(Waiters::default())
    }
}

impl Slot {
    /// Who waits at the handle, unless a splice has taken its place.
    pub(crate) fn waiters(&mut self) -> Option<&mut Waiters> {
        match self {
            Self::Handle(waiters) => Some(waiters),
            Self::Spliced(_) => None,
        }
    }

    pub(crate) fn splice(&self) -> Option<&Arc<SpliceHandle>> {
        match self {
            Self::Handle(_) => None,
            Self::Spliced(handle) => Some(handle),
        }
    }
}

impl Waiters {
    /// What is seldom there, made if it is not.
    pub(crate) fn rare(&mut self) -> &mut RareWaiters {
        self.rare.get_or_insert_default()
    }

    /// What is seldom there, if it is.
    pub(crate) fn rare_if_any(&mut self) -> Option<&mut RareWaiters> {
        self.rare.as_deref_mut()
    }

    /// Lets go of what holds nothing any more.
    pub(crate) fn shrink(&mut self) {
        if self.rare.as_ref().is_some_and(|rare| rare.is_empty()) {
            self.rare = None;
        }
    }

    /// Who waits to write. What has waited once may wait again: its place stays.
    pub(crate) fn take_write(&mut self) -> Option<Waker> {
        self.rare.as_mut()?.write.take()
    }

    fn take_answer(&mut self) -> Option<Waker> {
        let waker = self.rare.as_mut()?.answer.take();
        self.shrink();
        waker
    }
}

#[derive(Debug)]
pub(crate) struct LinkState {
    pub(crate) link: Link<Slot>,
    /// Sessions that the peer opened and nobody has accepted yet; the core bounds their number.
    pub(crate) opened: VecDeque<(SessionId, Bytes)>,
    pub(crate) acceptors: Vec<Waker>,
    /// The last handle is gone: the link says goodbye when its last session is over.
    unused: bool,
    /// The driver knows that the core has something to send, and will come for it.
    pub(crate) fetched: bool,
}

impl LinkState {
    /// Whether the driver has to be told that there is something to send.
    pub(crate) fn wants_driver(&mut self) -> bool {
        let wants = !self.fetched && self.link.has_output();
        self.fetched |= wants;
        wants
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<LinkState>,
    pub(crate) driver: AtomicWaker,
    pub(crate) status: watch::Sender<Status>,
    /// Two links are always locked in the order of this number.
    pub(crate) order: u64,
}

/// What is left to do once no lock is held.
#[derive(Debug, Default)]
pub(crate) struct After {
    wakers: Vec<Waker>,
    splices: Vec<Arc<SpliceHandle>>,
    /// The link whose driver does it.
    driver: Option<u64>,
    /// That link has more to send: a driver that woke itself would go to the end of its runtime's queue, from where
    /// another thread takes it, at two wake-ups per frame.
    again: bool,
}

/// How long a link that nobody uses any more may take to deliver what was left to it. A peer that reads on takes
/// one trip; one that does not read would hold the link for ever.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// What the peer reads then.
const UNUSED: &str = "the link is no longer used";

static ORDER: AtomicU64 = AtomicU64::new(0);

impl Shared {
    pub(crate) fn new(link: Link<Slot>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(LinkState {
                link,
                opened: VecDeque::new(),
                acceptors: Vec::new(),
                unused: false,
                fetched: false,
            }),
            driver: AtomicWaker::new(),
            status: watch::Sender::new(Status::default()),
            order: ORDER.fetch_add(1, Ordering::Relaxed),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LinkState> {
        // A panic elsewhere leaves the core whole: each of its calls ends in a consistent state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the core, wakes whom that concerns, and has the driver look at everything anew.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut LinkState) -> T) -> T {
        self.change(change, |_| true)
    }

    /// Like [`Shared::with`], for what moves no deadline: the driver is woken only if there is something to send
    /// that it does not know of.
    pub(crate) fn with_bytes<T>(&self, change: impl FnOnce(&mut LinkState) -> T) -> T {
        self.change(change, LinkState::wants_driver)
    }

    fn change<T>(
        &self,
        change: impl FnOnce(&mut LinkState) -> T,
        wants_driver: impl FnOnce(&mut LinkState) -> bool,
    ) -> T {
        let mut after = After::default();
        let (result, wake) = {
            let mut state = self.lock();
            let result = change(&mut state);
            self.collect(&mut state, &mut after);
            (result, wants_driver(&mut state))
        };
        if wake {
            self.driver.wake();
        }
        after.run();
        result
    }

    /// A driver's call of its own core. The driver is not told that there is something to send: true says so.
    pub(crate) fn turn(&self, change: impl FnOnce(&mut Link<Slot>)) -> bool {
        let mut after = After { driver: Some(self.order), ..After::default() };
        {
            let mut state = self.lock();
            change(&mut state.link);
            self.collect(&mut state, &mut after);
            state.fetched = state.link.has_output();
            after.again = state.fetched;
        }
        after.run()
    }

    /// Looks at the core, or notes a waker in it, where nothing can follow from it.
    pub(crate) fn peek<T>(&self, look: impl FnOnce(&mut LinkState) -> T) -> T {
        look(&mut self.lock())
    }

    /// Turns the core's events into things to do after the lock.
    pub(crate) fn collect(&self, state: &mut LinkState, after: &mut After) {
        while let Some(event) = state.link.poll_event() {
            match event {
                Event::Readable(id) => after.session(state, id, |waiters| waiters.read.take()),
                Event::Writable(id) => after.session(state, id, Waiters::take_write),
                Event::Answered(id) => after.session(state, id, Waiters::take_answer),
                Event::Opened { id, header } => {
                    state.opened.push_back((id, header));
                    after.wakers.append(&mut state.acceptors);
                }
                Event::Up(peer) => self.status.send_modify(|status| status.up = Some(peer)),
                Event::Suspect => self.status.send_modify(|status| status.suspect = true),
                Event::Recovered => self.status.send_modify(|status| status.suspect = false),
                Event::PeerDrains { deadline_ms } => {
                    self.status.send_modify(|status| status.peer_drains_ms = Some(deadline_ms));
                }
                Event::Drained => {
                    self.status.send_modify(|status| status.drained = true);
                    if state.unused {
                        state.link.close(Code::SHUTDOWN, UNUSED);
                    }
                }
                Event::Down(end) => {
                    self.status.send_modify(|status| status.down = Some(end));
                    after.wakers.append(&mut state.acceptors);
                    state.opened.clear();
                    for slot in state.link.tags() {
                        after.splices.extend(slot.splice().cloned());
                    }
                }
            }
        }
    }
}

impl After {
    fn session(
        &mut self,
        state: &mut LinkState,
        id: SessionId,
        take: impl FnOnce(&mut Waiters) -> Option<Waker>,
    ) {
        match state.link.tag(id) {
            Some(Slot::Spliced(handle)) => self.splices.push(Arc::clone(handle)),
            Some(Slot::Handle(waiters)) => self.wakers.extend(take(waiters)),
            None => {}
        }
    }

    /// Has this link's driver come.
    pub(crate) fn drive(&mut self, shared: &Shared) {
        if self.driver == Some(shared.order) {
            self.again = true;
        } else {
            shared.driver.wake();
        }
    }

    /// With no lock held: wakes, and runs the splices that have something to move. True if the driver that does it
    /// has more to send.
    pub(crate) fn run(mut self) -> bool {
        loop {
            for waker in self.wakers.drain(..) {
                waker.wake();
            }
            let Some(handle) = self.splices.pop() else { return self.again };
            handle.run(&mut self);
        }
    }
}

/// Ends the link when the last handle of it is gone: nobody is left who could use it. Sessions whose handles were
/// dropped clean get their last bytes, ends and acknowledgements out first, for at most [`LAST_WORDS`].
#[derive(Debug)]
pub(crate) struct Guard(pub(crate) Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        let drained = self.0.status.borrow().drained;
        self.0.with(|state| {
            state.unused = true;
            for (id, _) in state.opened.drain(..) {
                state.link.abort(id, Abort::new(Code::DRAINING, UNUSED));
                state.link.release(id);
            }
            if drained || state.link.open_sessions() == 0 {
                state.link.close(Code::SHUTDOWN, UNUSED);
            } else {
                state.link.drain(now(), LAST_WORDS);
            }
        });
    }
}
