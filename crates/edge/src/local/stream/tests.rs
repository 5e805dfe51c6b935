use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

async fn tcp_pair() -> (LocalStream, LocalStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let app = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (listener.accept().await.unwrap().0.into(), app.into())
}

async fn pairs() -> [(LocalStream, LocalStream); 2] {
    let (unix, unix_app) = UnixStream::pair().unwrap();
    [tcp_pair().await, (unix.into(), unix_app.into())]
}

#[tokio::test]
async fn bytes_pass_both_ways_and_ends_one_way_each() {
    for (mut stream, mut app) in pairs().await {
        assert!(stream.is_write_vectored());
        let pieces = [IoSlice::new(b"he"), IoSlice::new(b"llo")];
        assert_eq!(stream.write_vectored(&pieces).await.unwrap(), 5);
        stream.shutdown().await.unwrap();
        assert!(stream.write_ended());
        let mut got = Vec::new();
        app.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"hello");
        app.write_all(b"reply").await.unwrap();
        app.shutdown_write().unwrap();
        got.clear();
        stream.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"reply");
    }
}

#[tokio::test]
async fn the_calls_without_mut_do_the_same() {
    for (stream, app) in pairs().await {
        let mut byte = [0; 1];
        assert_eq!(stream.try_read(&mut byte).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        std::future::poll_fn(|cx| app.poll_write_ready(cx)).await.unwrap();
        assert_eq!(app.try_write(b"ab").unwrap(), 2);
        assert_eq!(app.try_write_vectored(&[IoSlice::new(b"c"), IoSlice::new(b"d")]).unwrap(), 2);
        app.shutdown_write().unwrap();
        let mut got = bytes::BytesMut::with_capacity(64);
        loop {
            std::future::poll_fn(|cx| stream.poll_read_ready(cx)).await.unwrap();
            match stream.try_read_buf(&mut got) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        assert_eq!(&got[..], b"abcd");
        assert_eq!(stream.try_read(&mut byte).unwrap(), 0);
    }
}

#[tokio::test]
async fn a_tcp_reset_is_read_as_one_after_the_bytes_before_it() {
    let (mut stream, mut app) = tcp_pair().await;
    stream.write_all(b"last words").await.unwrap();
    let mut got = [0; 10];
    app.read_exact(&mut got).await.unwrap();
    stream.reset();
    assert_eq!(app.read(&mut got).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_unix_reset_is_a_close() {
    let (stream, mut app) = {
        let (stream, app) = UnixStream::pair().unwrap();
        (LocalStream::from(stream), LocalStream::from(app))
    };
    assert!(stream.is_unix());
    stream.set_nodelay(true).unwrap();
    stream.reset();
    assert_eq!(app.read(&mut [0; 1]).await.unwrap(), 0);
}
