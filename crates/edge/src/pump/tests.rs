use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use hopline_link::{Config, Mux, Side};
use rustix::event::{PollFd, PollFlags, poll};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use super::*;
use replay::{MAX_REPLAY, REPLAY_MEMORY, ReplayBuffer};

/// Both ends of an answered session.
async fn session() -> (Session, Session, [Mux; 2]) {
    let (here, there) = tokio::io::duplex(1 << 16);
    let dialer = Mux::spawn(here, Config::new(Side::Dialer, [1; 16], "here")).unwrap();
    let listener = Mux::spawn(there, Config::new(Side::Listener, [2; 16], "there")).unwrap();
    dialer.up().await.unwrap();
    let far = dialer.open(&b""[..]).unwrap();
    let near = listener.accept().await.unwrap();
    near.answer(Bytes::new());
    (near, far, [dialer, listener])
}

/// A server answers and closes while more is on its way to it, so that its kernel answers that with a reset. The far
/// application reads the answer, and an end, as it does directly.
#[tokio::test]
async fn an_end_that_lies_behind_an_answer_is_read_before_the_reset_that_came_after_it() {
    for round in 0..40 {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut early = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(b"answer").unwrap();
        drop(server);
        until(&early, PollFlags::RDHUP);
        early.write_all(b"late").unwrap();
        until(&early, PollFlags::ERR);
        early.set_nonblocking(true).unwrap();
        let connection = Connection::new(LocalStream::from(TcpStream::from_std(early).unwrap()));

        let (near, mut far, _links) = session().await;
        far.write_bytes(Bytes::from_static(b"more")).await.unwrap();
        let mut flow = Flow::new(&ReplayMemory::default(), Beside::Server, &Arc::default(), None);
        let agent = tokio::spawn(async move {
            let Some(local) = connection.stream() else { return };
            let result = flow.run(local, &near).await;
            let _ = flow.close(connection, &near, result, |_| None).await;
        });
        let mut answer = Vec::new();
        far.read_to_end(&mut answer).await.unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(answer, b"answer");
        agent.await.unwrap();
    }
}

/// Before the answer nothing is read that can't be kept: it waits in the connection. Afterwards it goes out, and the
/// session can't be started anew any more: not even what is kept of it goes out again then.
#[tokio::test]
async fn what_can_not_be_kept_is_not_read_before_the_answer() {
    let memory = ReplayMemory::default();
    let mut others = Vec::new();
    let fill = |others: &mut Vec<ReplayBuffer>| {
        while memory.used() < REPLAY_MEMORY {
            let mut kept = ReplayBuffer::new(&memory);
            assert!(kept.push(&Bytes::from(vec![0; MAX_REPLAY.min(REPLAY_MEMORY - memory.used())])));
            others.push(kept);
        }
    };
    let (near, far, _links) = session().await;
    let (stream, mut app) = std::os::unix::net::UnixStream::pair().unwrap();
    stream.set_nonblocking(true).unwrap();
    let local = LocalStream::from(tokio::net::UnixStream::from_std(stream).unwrap());
    let mut flow = Flow::new(&memory, Beside::Application, &Arc::default(), None);

    app.write_all(b"the beginning, ").unwrap();
    flow.inbound.step(&local, &far, Keep::All).await.unwrap();
    // There is room when the application has nothing to say, and none when it goes on.
    {
        let mut waiting = pin!(flow.inbound.step(&local, &far, Keep::All));
        assert!(poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await);
        fill(&mut others);
        app.write_all(b"and the rest").unwrap();
        waiting.await.unwrap();
    }
    assert!(!flow.inbound.may_step(), "it waits for the answer");
    assert!(local.has_unread());
    assert_eq!(flow.sent(), 15);
    assert!(flow.is_replayable() && flow.replay(0));
    flow.inbound.step(&local, &far, Keep::All).await.unwrap();

    // Somebody lets go of a little: so much is read.
    others.pop();
    let mut held = ReplayBuffer::new(&memory);
    held.reserve(REPLAY_MEMORY - memory.used() - 4);
    assert!(flow.inbound.may_step());
    flow.inbound.step(&local, &far, Keep::All).await.unwrap();
    assert_eq!(flow.sent(), 19);

    // After the answer it is not kept any more, and not said again.
    flow.inbound.step(&local, &far, Keep::Some).await.unwrap();
    assert_eq!(flow.sent(), 27);
    assert!(!flow.is_replayable() && !flow.replay(0));
    let mut said = Vec::new();
    while said.len() < 42 {
        said.extend(near.read_bytes().await.unwrap().unwrap());
    }
    assert_eq!(said, b"the beginning, the beginning, and the rest");
    drop((others, held, flow));
    assert_eq!(memory.used(), 0);
}

/// What the system says of a broken connection is told as what it is: a host that is silent is not blamed for a reset, and
/// a connection that was closed before is none of both.
#[test]
fn an_error_of_the_system_is_told_as_what_it_is() {
    use io::ErrorKind as Kind;
    for (kind, code, closed) in [
        (Kind::TimedOut, Code::FORWARD_DEAD, false),
        (Kind::HostUnreachable, Code::FORWARD_DEAD, false),
        (Kind::NetworkUnreachable, Code::FORWARD_DEAD, false),
        (Kind::ConnectionReset, Code::PEER_RESET, false),
        (Kind::ConnectionAborted, Code::PEER_RESET, false),
        (Kind::BrokenPipe, Code::PEER_RESET, true),
    ] {
        // An application has no forward that could be dead.
        for (beside, code) in [(Beside::Server, code), (Beside::Application, Code::PEER_RESET)] {
            let broken = Broken::local(&kind.into(), beside);
            assert_eq!(broken.abort().code, code, "{kind:?} beside {beside:?}");
            assert_eq!(matches!(broken, Broken::Closed(_)), closed, "{kind:?} beside {beside:?}");
        }
    }
}

fn until(stream: &std::net::TcpStream, event: PollFlags) {
    let mut fds = [PollFd::from_borrowed_fd(stream.as_fd(), event)];
    while !fds[0].revents().contains(event) {
        poll(&mut fds, None).unwrap();
    }
}
