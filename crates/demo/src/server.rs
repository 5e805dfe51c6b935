//! The service on a listener, with reflection, so that grpcurl needs no .proto file.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::proto::DESCRIPTORS;
use crate::proto::v1::demo_server::DemoServer;
use crate::service::DemoService;

/// The largest message that the service takes or sends: 64 MiB.
pub const MAX_MESSAGE: usize = 64 * 1024 * 1024;

/// Where the service listens.
#[derive(Debug)]
pub enum Listener {
    /// A TCP port; its connections have TCP_NODELAY set.
    Tcp(TcpListener),
    /// A unix socket.
    Unix(UnixListener),
}

/// Why the service could not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The descriptor set that was compiled in cannot be read.
    #[error("reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The transport failed.
    #[error("gRPC server: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves the demo's gRPC service and its reflection (v1 and v1alpha) until `shutdown` is ready and every
/// connection has ended.
///
/// # Errors
///
/// When reflection cannot be built or the transport fails.
pub async fn serve(listener: Listener, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
    let demo = DemoServer::new(DemoService::default())
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let reflection =
        || tonic_reflection::server::Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
    let router = Server::builder()
        .add_service(demo)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    match listener {
        Listener::Tcp(listener) => {
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            router.serve_with_incoming_shutdown(incoming, shutdown).await?;
        }
        Listener::Unix(listener) => {
            router.serve_with_incoming_shutdown(UnixListenerStream::new(listener), shutdown).await?;
        }
    }
    Ok(())
}

/// The service running in a task of its own on a loopback port of its own; dropping it ends the task.
#[derive(Debug)]
pub(crate) struct LocalServer {
    address: SocketAddr,
    task: JoinHandle<Result<(), ServeError>>,
}

impl LocalServer {
    /// Starts the service on a free port of 127.0.0.1.
    pub(crate) async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(serve(Listener::Tcp(listener), std::future::pending()));
        Ok(Self { address, task })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}
