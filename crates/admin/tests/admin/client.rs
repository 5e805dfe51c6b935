//! Reading a status, from real servers and from what is none.

use super::support::Running;
use hopline_admin::client::{FetchError, MAX_ANSWER_BYTES, TIMEOUT, fetch};
use hopline_admin::status::Status;
use hopline_admin::{Address, text};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::time::Instant;

/// A server that answers every connection with these bytes and closes.
async fn canned(answer: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(&answer).await;
        }
    });
    address
}

#[tokio::test]
async fn every_form_of_address_reads_the_status() {
    let server = Running::tcp().await;
    let port = server.tcp_address().port();
    let folder = tempfile::tempdir().unwrap();
    let unix = Running::at(&Address::Unix(folder.path().join("s.sock"))).await;
    let v6 = Running::at(&Address::Tcp("[::1]:0".parse().unwrap())).await;
    let table = [
        format!("127.0.0.1:{port}"),
        format!("localhost:{port}"),
        format!("http://127.0.0.1:{port}"),
        format!("http://127.0.0.1:{port}/status"),
        v6.address.to_string(),
        unix.address.to_string(),
    ];
    assert_eq!(table.len(), 6);
    for address in table {
        let value = fetch(&address).await.unwrap();
        let status = Status::from_value(value).unwrap();
        assert!(text::render(&status, 80, false).starts_with("web-1: edge"), "{address}");
    }
}

#[tokio::test]
async fn where_nothing_listens_it_says_what_to_do() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = fetch(&free.to_string()).await.unwrap_err();
    let wanted = format!("nothing listens at {free}: is `hopline up` running with `status:` set?");
    assert_eq!(error.to_string(), wanted);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.sock");
    let address = format!("unix:{}", path.display());
    assert!(matches!(fetch(&address).await, Err(FetchError::NothingListens(_))), "no file");
    drop(UnixListener::bind(&path).unwrap());
    assert!(matches!(fetch(&address).await, Err(FetchError::NothingListens(_))), "a dead socket");
    assert!(matches!(fetch("7801").await, Err(FetchError::Address(_))));
}

#[tokio::test]
async fn answers_that_are_no_status() {
    let ok = |body: &str| format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let table: [(&str, String, &str); 6] = [
        ("ssh", "SSH-2.0-OpenSSH_9.6\r\n".into(), "is no status address"),
        ("nothing", String::new(), "is no status address"),
        ("html", ok("<html>"), "its answer is no JSON"),
        ("cut", "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{}".into(), "is no status address"),
        (
            "refusal",
            "HTTP/1.1 421 Misdirected Request\r\ncontent-length: 12\r\n\r\nno\u{1b}[2J way\nb".into(),
            "421 Misdirected Request: no\u{fffd}[2J way",
        ),
        ("empty refusal", "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n".into(), "503"),
    ];
    assert_eq!(table.len(), 6);
    for (what, answer, wanted) in table {
        let address = canned(answer.into_bytes()).await;
        let error = fetch(&address).await.unwrap_err().to_string();
        assert!(error.contains(wanted), "{what}: {error}");
        assert!(error.contains(&address), "{what}: {error}");
        assert_eq!(error.lines().count(), 1, "{what}: {error}");
    }
}

#[tokio::test]
async fn an_endless_answer_is_cut_off() {
    let mut answer = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
    answer.resize(answer.len() + MAX_ANSWER_BYTES + 1, b' ');
    let address = canned(answer).await;
    let error = fetch(&address).await.unwrap_err();
    assert!(matches!(error, FetchError::TooLong(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stays_silent_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let begin = Instant::now();
    let error = fetch(&address).await.unwrap_err();
    assert!(matches!(error, FetchError::Timeout(_)), "{error}");
    assert_eq!(begin.elapsed().as_secs(), TIMEOUT.as_secs());
}
