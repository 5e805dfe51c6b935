use std::io::Write as _;
use std::os::fd::AsFd as _;

use hopline_link::{Config, Mux, Side};
use rustix::event::{PollFd, PollFlags, poll};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use super::*;

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
        let mut flow = Flow::new(&Memory::default(), &Arc::default(), None);
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

fn until(stream: &std::net::TcpStream, event: PollFlags) {
    let mut fds = [PollFd::from_borrowed_fd(stream.as_fd(), event)];
    while !fds[0].revents().contains(event) {
        poll(&mut fds, None).unwrap();
    }
}
