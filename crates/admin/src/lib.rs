//! The status address: /status, /healthz, /readyz, and the client that reads them.
