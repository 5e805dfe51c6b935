//! Threads of the lab on hosts: raw TCP clients and servers that a scenario is itself, without a process between. A thread
//! that has entered a host makes its sockets there; where a process has to die, [`crate::actor`] is one.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::hosts::Net;
use crate::shell::now_ms;

/// For anything of a raw connection.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Does work in a thread on a host, and waits for it.
///
/// # Errors
///
/// When the host cannot be entered, or the work fails.
pub(crate) fn on<T: Send>(
    net: &Net,
    host: &str,
    work: impl FnOnce() -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    let namespace = open(net, host)?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter(&namespace)?;
            work()
        });
        thread.join().map_err(|_| anyhow!("a thread on {host} panicked"))?
    })
}

fn open(net: &Net, host: &str) -> anyhow::Result<File> {
    let path = format!("/run/netns/{}", net.namespace(host));
    File::open(&path).with_context(|| path)
}

fn enter(namespace: &File) -> anyhow::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).context("entering a host")
}

/// A raw server in threads of the lab. Dropping it closes its socket; connections that it has run on.
#[derive(Debug)]
pub(crate) struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on a host and gives each connection to `serve`, in a thread of its own.
    ///
    /// # Errors
    ///
    /// When the address cannot be taken.
    pub(crate) fn start(
        net: &Net,
        host: &str,
        address: &str,
        serve: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let listener =
            on(net, host, || Ok(TcpListener::bind(address)?)).with_context(|| address.to_owned())?;
        listener.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let serve = Arc::new(serve);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        let serve = Arc::clone(&serve);
                        // A connection that cannot be set up, or has no thread, is closed: the client reads it.
                        if set_up(&stream).is_ok() {
                            let _ = std::thread::Builder::new()
                                .stack_size(128 << 10)
                                .spawn(move || serve(stream));
                        }
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(2)),
                }
            }
        });
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)
}

/// Says everything back, and ends when the client does.
pub(crate) fn echo(stream: TcpStream) {
    let mut buffer = vec![0; 16_384];
    while let Ok(length @ 1..) = (&stream).read(&mut buffer) {
        if (&stream).write_all(&buffer[..length]).is_err() {
            break;
        }
    }
}

/// Connects, from a thread that is on a host. Reads and writes wait at most [`PATIENCE`].
///
/// # Errors
///
/// When nobody answers within 10 s.
pub(crate) fn connect(address: &str) -> anyhow::Result<TcpStream> {
    let address: SocketAddr = address.parse().with_context(|| format!("the address {address:?}"))?;
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(10))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// One exchange with an echo: the time that it took in milliseconds, from the dial on.
///
/// # Errors
///
/// When it breaks, or ends.
pub(crate) fn exchange(address: &str) -> anyhow::Result<f64> {
    let began = now_ms();
    let mut stream = connect(address)?;
    again(&mut stream)?;
    Ok(now_ms() - began)
}

/// One exchange on a connection to an echo.
///
/// # Errors
///
/// When it breaks, or ends.
pub(crate) fn again(stream: &mut TcpStream) -> anyhow::Result<()> {
    stream.write_all(b"ping")?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer)?;
    anyhow::ensure!(&answer == b"ping", "another answer");
    Ok(())
}

/// How a connection ends, and when: reads to its end. `fin`, `reset`, `silent` after [`PATIENCE`], or the error.
pub(crate) fn end(stream: &mut TcpStream) -> (String, f64) {
    let mut buffer = [0; 4_096];
    let how = loop {
        match stream.read(&mut buffer) {
            Ok(0) => break "fin".to_owned(),
            Ok(_) => {}
            Err(error) => break how(&error),
        }
    };
    (how, now_ms())
}

#[expect(clippy::wildcard_enum_match_arm, reason = "kinds of errors have no end")]
fn how(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionReset => "reset".to_owned(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "silent".to_owned(),
        kind => kind.to_string(),
    }
}
