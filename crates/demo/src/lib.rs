//! The demo: a gRPC service, a whole path around it in one process, and a table of promises measured.
