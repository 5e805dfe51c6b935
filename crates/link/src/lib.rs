//! The tokio driver of a link: carriers, sessions as AsyncRead and AsyncWrite, splice.
