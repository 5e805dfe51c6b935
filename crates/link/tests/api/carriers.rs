//! Every carrier carries: TCP, a unix socket, memory, and any pair of a reader and a writer.

use hopline_link::{Mux, Side, tune_tcp};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, duplex};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use crate::{config, open};

/// A link over these two ends carries a megabyte each way, with its ends.
async fn carries<T: AsyncRead + AsyncWrite + Send + Unpin + 'static>(a: T, b: T) {
    let dialer = Mux::spawn(a, config(Side::Dialer, "a")).unwrap();
    let listener = Mux::spawn(b, config(Side::Listener, "b")).unwrap();
    dialer.up().await.unwrap();
    listener.up().await.unwrap();
    let (near, far) = open(&dialer, &listener).await;
    let side = |session: hopline_link::Session, byte: u8| async move {
        let (mut read, mut write) = session.split();
        let writer = async {
            write.write_all(&vec![byte; 1 << 20]).await.unwrap();
            write.shutdown().await.unwrap();
        };
        let mut got = Vec::new();
        let ((), read) = tokio::join!(writer, read.read_to_end(&mut got));
        assert_eq!(read.unwrap(), 1 << 20);
        assert!(got.iter().all(|b| *b == 3 - byte));
    };
    tokio::join!(side(near, 1), side(far, 2));
    dialer.close(hopline_link::Code::SHUTDOWN, "done");
    listener.closed().await;
}

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (a, b) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let (a, b) = (a.unwrap(), b.unwrap().0);
    tune_tcp(&a).unwrap();
    tune_tcp(&b).unwrap();
    (a, b)
}

#[tokio::test]
async fn over_tcp() {
    let (a, b) = tcp_pair().await;
    carries(a, b).await;
}

#[tokio::test]
async fn over_a_unix_socket() {
    let (a, b) = UnixStream::pair().unwrap();
    carries(a, b).await;
}

#[tokio::test]
async fn over_memory() {
    let (a, b) = duplex(1 << 16);
    carries(a, b).await;
}

#[tokio::test]
async fn over_a_reader_and_a_writer_that_give_a_byte_at_a_time() {
    let (a, b) = duplex(1);
    let (a_read, a_write) = tokio::io::split(a);
    let (dialer, listener) = (tokio::io::join(a_read, a_write), b);
    let dialer = Mux::spawn(dialer, config(Side::Dialer, "a")).unwrap();
    let listener = Mux::spawn(listener, config(Side::Listener, "b")).unwrap();
    dialer.up().await.unwrap();
    let (near, mut far) = open(&dialer, &listener).await;
    near.write_bytes(vec![5; 5_000].into()).await.unwrap();
    near.end();
    let mut got = Vec::new();
    far.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, [5; 5_000]);
}
