//! What a client dials: a unix socket or a TCP address, by hand or with a gRPC channel on it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::{Channel, Endpoint};

use crate::proto::v1::demo_client::DemoClient;
use crate::server::MAX_MESSAGE;

/// Where an application connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The path of a unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

/// Both kinds of socket as one type.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Target {
    /// One connection, without anything on it.
    pub(crate) async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Unix(path) => Box::new(UnixStream::connect(path).await?),
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
        })
    }

    /// A connected gRPC channel with tonic's defaults: no keepalive, no deadline. The authority is
    /// `localhost`, since some servers refuse the path of a socket there.
    pub(crate) async fn channel(&self) -> Result<Channel, tonic::transport::Error> {
        let target = self.clone();
        Endpoint::from_static("http://localhost")
            .connect_with_connector(tower::service_fn(move |_uri| {
                let target = target.clone();
                async move { target.connect().await.map(TokioIo::new) }
            }))
            .await
    }

    /// The demo's client on a channel of its own.
    pub(crate) async fn client(&self) -> Result<DemoClient<Channel>, tonic::transport::Error> {
        let client = DemoClient::new(self.channel().await?);
        Ok(client.max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}
