//! A status server with a source that tests can hold up.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hopline_admin::metrics::{Metrics, families};
use hopline_admin::status::{EdgeBudgets, EdgeStatus, Role, Status};
use hopline_admin::{Address, Server, Source};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// What the server shows, and how it can be disturbed.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    /// Why it is not ready.
    pub(crate) not_ready: Mutex<Option<String>>,
    /// A snapshot waits while a test holds this.
    pub(crate) gate: tokio::sync::Mutex<()>,
    /// Snapshots begun.
    pub(crate) begun: AtomicUsize,
    /// The next snapshot panics.
    pub(crate) panic: Mutex<bool>,
    /// The machine's name.
    pub(crate) machine: Mutex<String>,
    /// The status to show in place of an empty one.
    pub(crate) status: Mutex<Option<Status>>,
}

struct Shown(Arc<Stage>);

impl Source for Shown {
    async fn status(&self) -> Status {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        assert!(!std::mem::take(&mut *self.0.panic.lock().unwrap()), "asked to");
        let _gate = self.0.gate.lock().await;
        if let Some(status) = &*self.0.status.lock().unwrap() {
            return status.clone();
        }
        Status::Edge(EdgeStatus {
            role: Role::Edge,
            machine: self.0.machine.lock().unwrap().clone(),
            version: "0.1.0".into(),
            uptime_s: 1.5,
            links: vec![],
            mappings: vec![],
            services: vec![],
            budgets: EdgeBudgets::default(),
            limits_reached: BTreeMap::new(),
        })
    }

    fn metrics(&self, metrics: &mut Metrics) {
        metrics.counter(&families::MAPPING_SESSIONS, ["of the source"], 3);
    }

    fn ready(&self) -> Result<(), String> {
        self.0.not_ready.lock().unwrap().clone().map_or(Ok(()), Err)
    }
}

/// A running server.
pub(crate) struct Running {
    pub(crate) stage: Arc<Stage>,
    pub(crate) address: Address,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    pub(crate) async fn tcp() -> Self {
        Self::at(&Address::Tcp("127.0.0.1:0".parse().unwrap())).await
    }

    pub(crate) async fn at(address: &Address) -> Self {
        let server = Server::bind(address).await.unwrap().allow_hosts(["Status.Example"]);
        let stage = Arc::new(Stage::default());
        *stage.machine.lock().unwrap() = "web-1".into();
        let address = server.local_addr().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let shown = Shown(Arc::clone(&stage));
        let task = tokio::spawn(server.serve(shown, async move {
            let _ = stopped.await;
        }));
        Self { stage, address, stop, task }
    }

    pub(crate) fn tcp_address(&self) -> SocketAddr {
        match &self.address {
            Address::Tcp(address) => *address,
            Address::Unix(_) => panic!("a unix socket"),
        }
    }

    pub(crate) fn unix_path(&self) -> PathBuf {
        match &self.address {
            Address::Unix(path) => Path::to_owned(path),
            Address::Tcp(_) => panic!("a TCP address"),
        }
    }

    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap();
    }

    /// Everything that the server answers to these bytes, until it closes.
    pub(crate) async fn exchange(&self, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.tcp_address()).await.unwrap();
        stream.write_all(request).await.unwrap();
        read_all(&mut stream).await
    }

    pub(crate) async fn get(&self, path: &str) -> String {
        self.exchange(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await
    }
}

/// Reads until the server closes; a reset counts as closing, after what had arrived.
pub(crate) async fn read_all(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}
