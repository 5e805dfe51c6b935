//! The peers, each as its own documents say to use it.

mod h2;
mod hopline;
mod quinn;
mod tcp;
mod tokio_yamux;
mod yamux;

pub use h2::{H2, H2Large};
pub use hopline::{Hopline, HoplineByReference};
pub use quinn::Quinn;
pub use tcp::Tcp;
pub use tokio_yamux::{TokioYamux, TokioYamuxWriteOnly};
pub use yamux::Yamux;
