//! A resolver before name servers that answer, fail or say nothing.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

mod fake;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use fake::{Fake, Reply};
use hopline_dns::{MAX_WAITING, ResolveError, Resolver, Sources};

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Sources in a folder of their own; a silent name server is given up after a second.
fn sources(folder: &Path, servers: &[SocketAddr], resolv_conf: &str, hosts: &str) -> Sources {
    let sources = Sources {
        resolv_conf: folder.join("resolv.conf"),
        hosts: folder.join("hosts"),
        servers: servers.to_vec(),
    };
    fs::write(&sources.resolv_conf, format!("{resolv_conf}\noptions timeout:1\n")).unwrap();
    fs::write(&sources.hosts, hosts).unwrap();
    sources
}

struct World {
    folder: tempfile::TempDir,
    server: Fake,
    resolver: Resolver,
}

async fn world(resolv_conf: &str, hosts: &str) -> World {
    let folder = tempfile::tempdir().unwrap();
    let server = Fake::start().await;
    let resolver = Resolver::new(sources(folder.path(), &[server.address], resolv_conf, hosts));
    World { folder, server, resolver }
}

impl World {
    async fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let addresses = self.resolver.resolve(host, 80).await?;
        assert!(addresses.iter().all(|address| address.port() == 80));
        Ok(addresses.iter().map(SocketAddr::ip).collect())
    }
}

#[tokio::test]
async fn literals_and_localhost_ask_nobody() {
    let world = world("", "10.9.9.9 localhost").await;
    assert_eq!(world.resolve("10.0.0.3").await, Ok(vec!["10.0.0.3".parse().unwrap()]));
    assert_eq!(world.resolve("::1").await, Ok(vec!["::1".parse().unwrap()]));
    for name in ["localhost", "LocalHost.", "db.localhost"] {
        let both = vec!["::1".parse().unwrap(), "127.0.0.1".parse().unwrap()];
        assert_eq!(world.resolve(name).await, Ok(both), "{name}");
    }
    let zone = world.resolver.resolve("fe80::1%lo", 80).await.unwrap();
    assert!(matches!(zone[0], SocketAddr::V6(address) if address.scope_id() != 0), "{zone:?}");
    let error = world.resolver.resolve("fe80::1%nosuch0", 80).await.unwrap_err();
    assert_eq!(error.to_string(), "fe80::1%nosuch0: there is no network interface \"nosuch0\"");
    assert_eq!(world.server.datagrams(), 0);
}

#[tokio::test]
async fn an_answer_is_kept_for_its_ttl_and_for_a_second_at_least() {
    let world = world("", "").await;
    world.server.say("db.internal", Reply::V4(vec![A], 0));
    world.server.say("web.internal", Reply::V4(vec![B], 60));
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1_500) {
        assert_eq!(world.resolve("db.internal").await, Ok(vec![A.into()]));
        assert_eq!(world.resolve("WEB.internal.").await, Ok(vec![B.into()]));
        tokio::task::yield_now().await;
    }
    let asked = world.server.asked();
    let of = |name: &str| asked.iter().filter(|asked| *asked == name).count();
    assert_eq!(of("web.internal"), 1);
    // As many as there were seconds, on whatever machine.
    let seconds = began.elapsed().as_secs() as usize + 1;
    assert!((2..=seconds).contains(&of("db.internal")), "{asked:?} in {seconds} s");
}

#[tokio::test]
async fn a_hundred_lookups_at_once_are_one_query() {
    let world = world("", "").await;
    world.server.say("db.internal", Reply::V4(vec![A, B], 60));
    let lookups = (0..100).map(|_| world.resolve("db.internal"));
    for found in futures(lookups).await {
        assert_eq!(found, Ok(vec![A.into(), B.into()]));
    }
    assert_eq!(world.server.asked(), ["db.internal"]);
}

async fn futures<F: Future>(all: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    let mut done = Vec::new();
    std::future::poll_fn(|context| {
        all.retain_mut(|future| match future.as_mut().poll(context) {
            std::task::Poll::Ready(output) => {
                done.push(output);
                false
            }
            std::task::Poll::Pending => true,
        });
        if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done
}

#[tokio::test]
async fn no_such_name_is_said_with_who_said_it_and_believed_for_a_moment() {
    let world = world("search a.example b.example", "").await;
    for _ in 0..100 {
        let error = world.resolve("db").await.unwrap_err();
        let wanted = format!(
            "the name server {} has no address of db.a.example, db.b.example, db",
            world.server.address
        );
        assert_eq!(error.to_string(), wanted);
    }
    assert_eq!(world.server.asked(), ["db.a.example", "db.b.example", "db"]);
    world.server.say("db.b.example", Reply::V4(vec![A], 60));
    let began = Instant::now();
    while world.resolve("db").await != Ok(vec![A.into()]) {
        assert!(began.elapsed() < Duration::from_secs(20), "it is asked for again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn search_domains_and_ndots_are_obeyed() {
    let world = world("search corp.example\noptions ndots:2", "").await;
    world.server.say("db.eu.corp.example", Reply::V4(vec![A], 60));
    world.server.say("a.b.c", Reply::V4(vec![B], 60));
    assert_eq!(world.resolve("db.eu").await, Ok(vec![A.into()]));
    assert_eq!(world.resolve("a.b.c").await, Ok(vec![B.into()]));
    assert!(world.resolve("absolute.").await.is_err());
    assert_eq!(world.server.asked(), ["db.eu.corp.example", "a.b.c", "absolute"]);
}

#[tokio::test]
async fn the_hosts_file_goes_first_and_is_read_again_when_it_changes() {
    let world = world("", "10.0.0.1 db.internal db # the old one\n").await;
    for name in ["db", "DB.internal"] {
        assert_eq!(world.resolve(name).await, Ok(vec![A.into()]));
    }
    fs::write(world.folder.path().join("hosts"), "10.0.0.2 db.internal db other\n").unwrap();
    let began = Instant::now();
    while world.resolve("db").await != Ok(vec![B.into()]) {
        assert!(began.elapsed() < Duration::from_secs(20), "it is read again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(world.resolve("other").await, Ok(vec![B.into()]));
    assert_eq!(world.server.datagrams(), 0);
}

#[tokio::test]
async fn a_changed_resolv_conf_is_read_again() {
    let world = world("search old.example", "").await;
    world.server.say("db.old.example", Reply::V4(vec![A], 3_600));
    world.server.say("db.new.example", Reply::V4(vec![B], 3_600));
    assert_eq!(world.resolve("db").await, Ok(vec![A.into()]));
    fs::write(world.folder.path().join("resolv.conf"), "search new.example\n").unwrap();
    let began = Instant::now();
    while world.resolve("db").await != Ok(vec![B.into()]) {
        assert!(began.elapsed() < Duration::from_secs(20), "it is read again, and the old answer goes");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn other_name_servers_are_taken_over() {
    let world = world("", "").await;
    let other = Fake::start().await;
    world.server.say("db.internal", Reply::V4(vec![A], 3_600));
    other.say("db.internal", Reply::V4(vec![B], 3_600));
    assert_eq!(world.resolve("db.internal").await, Ok(vec![A.into()]));
    world.resolver.use_servers(vec![other.address]);
    assert_eq!(world.resolve("db.internal").await, Ok(vec![B.into()]));
}

#[tokio::test]
async fn a_silent_name_server_is_named_and_holds_up_no_other_name() {
    let world = world("", "10.0.0.2 known\n").await;
    world.server.say("db.internal", Reply::Nothing);
    world.server.say("web.internal", Reply::V4(vec![A], 0));
    let began = Instant::now();
    let silent = futures((0..200).map(|_| world.resolve("db.internal")));
    let others = async {
        for _ in 0..20 {
            assert_eq!(world.resolve("known").await, Ok(vec![B.into()]));
            assert_eq!(world.resolve("web.internal").await, Ok(vec![A.into()]));
        }
        began.elapsed()
    };
    let (silent, others) = tokio::join!(silent, others);
    assert!(others < Duration::from_millis(900), "{others:?}");
    assert!(began.elapsed() >= Duration::from_millis(900), "they have waited");
    for found in silent {
        let error = found.unwrap_err().to_string();
        let wanted = format!("no answer from the name server {} within ", world.server.address);
        assert!(error.starts_with(&wanted), "{error}");
    }
    assert_eq!(
        world.server.asked().iter().filter(|name| *name == "db.internal").count(),
        1,
        "and again, the same"
    );
}

#[tokio::test]
async fn more_than_may_wait_are_refused_at_once() {
    let world = world("", "").await;
    world.server.say("db.internal", Reply::Nothing);
    let found = futures((0..MAX_WAITING + 10).map(|_| world.resolve("db.internal"))).await;
    let crowded = |found: &&Result<_, _>| matches!(found, Err(ResolveError::Crowded { .. }));
    assert_eq!(found.iter().filter(crowded).count(), 10);
    assert_eq!(
        found
            .iter()
            .filter_map(|found| found.as_ref().err())
            .find(|error| matches!(error, ResolveError::Crowded { .. }))
            .unwrap()
            .to_string(),
        "1024 lookups of db.internal wait for its name server already"
    );
}

#[tokio::test]
async fn the_next_name_server_is_asked_beside_a_silent_one_and_before_it_afterwards() {
    let (silent, good) = (Fake::start().await, Fake::start().await);
    let folder = tempfile::tempdir().unwrap();
    let of = sources(folder.path(), &[silent.address, good.address], "", "");
    fs::write(&of.resolv_conf, "options timeout:10\n").unwrap();
    let resolver = Resolver::new(of);
    for name in ["one.internal", "two.internal"] {
        silent.say(name, Reply::Nothing);
        good.say(name, Reply::V4(vec![A], 60));
    }
    let began = Instant::now();
    assert_eq!(resolver.resolve("one.internal", 1).await, Ok(vec![(A, 1).into()]));
    let first = began.elapsed();
    assert!((Duration::from_millis(900)..Duration::from_secs(5)).contains(&first), "{first:?}");
    let asked_before = silent.datagrams();
    let began = Instant::now();
    assert_eq!(resolver.resolve("two.internal", 1).await, Ok(vec![(A, 1).into()]));
    assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
    assert!(!silent.asked().contains(&"two.internal".to_owned()), "{asked_before}");
}

#[tokio::test]
async fn a_name_server_that_fails_is_passed_over_and_named_when_all_do() {
    let (bad, good) = (Fake::start().await, Fake::start().await);
    let folder = tempfile::tempdir().unwrap();
    let resolver = Resolver::new(sources(folder.path(), &[bad.address, good.address], "", ""));
    bad.say("db.internal", Reply::ServFail);
    good.say("db.internal", Reply::V4(vec![A], 60));
    assert_eq!(resolver.resolve("db.internal", 1).await, Ok(vec![(A, 1).into()]));
    bad.say("web.internal", Reply::ServFail);
    good.say("web.internal", Reply::ServFail);
    let error = resolver.resolve("web.internal", 1).await.unwrap_err().to_string();
    let wanted = format!("the name server failed: {}: SERVFAIL; {}: SERVFAIL", bad.address, good.address);
    assert_eq!(error, wanted);
}

#[tokio::test]
async fn a_server_that_ignores_queries_for_ipv6_costs_next_to_nothing() {
    let world = world("", "").await;
    world.server.say("db.internal", Reply::V4Alone(vec![A], 60));
    let began = Instant::now();
    assert_eq!(world.resolve("db.internal").await, Ok(vec![A.into()]));
    assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
}

/// F125: what was known goes on working while no name server answers.
#[tokio::test]
async fn a_name_that_was_known_outlives_its_name_server() {
    let world = world("", "").await;
    world.server.say("db.internal", Reply::V4(vec![A], 0));
    assert_eq!(world.resolve("db.internal").await, Ok(vec![A.into()]));
    world.server.say("db.internal", Reply::Nothing);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        let lookup = Instant::now();
        assert_eq!(world.resolve("db.internal").await, Ok(vec![A.into()]));
        assert!(lookup.elapsed() < Duration::from_millis(900), "{:?}", lookup.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(world.server.asked().len() >= 2, "it was asked for again");
    world.server.say("db.internal", Reply::V4(vec![B], 60));
    let began = Instant::now();
    while world.resolve("db.internal").await != Ok(vec![B.into()]) {
        assert!(began.elapsed() < Duration::from_secs(20), "the new answer is taken");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn without_any_file_addresses_and_localhost_work() {
    let folder = tempfile::tempdir().unwrap();
    let gone = folder.path().join("gone");
    let resolver = Resolver::new(Sources { resolv_conf: gone.clone(), hosts: gone, servers: Vec::new() });
    assert_eq!(resolver.resolve("127.0.0.1", 1).await, Ok(vec![(Ipv4Addr::LOCALHOST, 1).into()]));
    assert_eq!(resolver.resolve("localhost", 1).await.unwrap().len(), 2);
}
