//! Split halves and their drops.

use hopline_link::Code;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::one_session;

#[tokio::test]
async fn each_half_works_in_its_own_task_and_both_make_the_session_again() {
    let (near, mut far) = one_session().await;
    let (mut read, mut write) = near.split();
    let writer = tokio::spawn(async move {
        write.write_all(&[5; 300_000]).await.unwrap();
        write
    });
    let reader = tokio::spawn(async move {
        let mut got = vec![0; 300_000];
        read.read_exact(&mut got).await.unwrap();
        read
    });
    let mut got = vec![0; 300_000];
    far.read_exact(&mut got).await.unwrap();
    far.write_all(&got).await.unwrap();
    let (write, read) = (writer.await.unwrap(), reader.await.unwrap());
    let near = read.reunite(write).unwrap();
    assert_eq!(near.abort_reason(), None);
    near.end();
    far.shutdown().await.unwrap();
    assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
    near.finish().await.unwrap();
}

#[tokio::test]
async fn halves_of_two_sessions_are_no_session() {
    let ((one, _far), (two, _other)) = (one_session().await, one_session().await);
    let ((read, _), (_, write)) = (one.split(), two.split());
    assert!(read.reunite(write).is_err());
}

#[tokio::test]
async fn a_writing_half_dropped_before_its_end_is_a_cut() {
    let (near, far) = one_session().await;
    let (read, write) = near.split();
    drop(write);
    let abort = far.read_bytes().await.unwrap_err();
    assert_eq!((abort.code, abort.hops), (Code::PEER_RESET, 1));
    assert_eq!(read.session().abort_reason().unwrap().code, Code::PEER_RESET);
}

#[tokio::test]
async fn a_writing_half_dropped_after_its_end_changes_nothing() {
    let (near, mut far) = one_session().await;
    let (mut read, mut write) = near.split();
    write.write_all(b"ask").await.unwrap();
    write.shutdown().await.unwrap();
    drop(write);
    let mut asked = String::new();
    far.read_to_string(&mut asked).await.unwrap();
    far.write_all(asked.as_bytes()).await.unwrap();
    far.shutdown().await.unwrap();
    let mut told = String::new();
    read.read_to_string(&mut told).await.unwrap();
    assert_eq!(told, "ask");
    drop(read);
    far.finish().await.unwrap();
}

#[tokio::test]
async fn a_reading_half_may_go_first() {
    let (near, mut far) = one_session().await;
    let (read, mut write) = near.split();
    drop(read);
    write.write_all(b"only this way").await.unwrap();
    write.shutdown().await.unwrap();
    let mut got = String::new();
    far.read_to_string(&mut got).await.unwrap();
    assert_eq!(got, "only this way");
}
