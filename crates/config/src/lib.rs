//! The YAML file of an edge (`hopline up -c FILE`) or a relay (`hopline relay -c FILE`): as written, as resolved,
//! all faults in one run.
//!
//! **The main decision: the file is walked as a tree of positions, not deserialised.** Whoever writes a config by
//! hand wants to hear of every mistake at once, each with its line and column, the bad value and what would be
//! right. A deserialiser stops at the first fault and knows the place of few of them. So there are three steps:
//!
//! 1. `yaml` turns the events of `saphyr-parser` into a small tree in which each key and value knows where it
//!    stands. It reads events, not the tree that `saphyr` itself builds: that one recurses as deep as the file
//!    nests, expands aliases and keeps one of two equal keys. Here depth and number of nodes are bounded, and
//!    aliases, anchors, tags and a second document are refused.
//! 2. `section` opens a mapping of that tree against the list of keys that its place knows, so that unknown keys,
//!    duplicates, and keys that belong to a later version (the table in `pending`) are found in one way everywhere.
//! 3. `edge` and `relay` fetch the values, parse them into types and fill in every default. What comes out
//!    ([`EdgeConfig`], [`RelayFileConfig`]) has no option left where a default exists.
//!
//! Nothing here reads a file, an environment variable or the network: text and [`Env`] go in. The value types
//! ([`Endpoint`], [`Listen`]) are useful without
//! YAML too; flags and tokens are parsed by the same code and read the same words.
//!
//! ```
//! use hopline_config::{Env, parse_edge};
//!
//! let env = Env::new("app.yaml").runtime_dir("/run/user/1000");
//! let faults = parse_edge(b"connect: { ledger: { open_timeout: 10 } }", &env).unwrap_err();
//! assert_eq!(
//!     faults.to_string(),
//!     r#"app.yaml:1:36: connect.ledger.open_timeout: "10": a duration needs a unit, such as 10s, 500ms or 1m 30s"#
//! );
//! ```

mod address;
mod edge;
mod env;
mod fault;
mod log;
mod path;
mod pending;
mod relay;
mod section;
mod status;
mod suggest;
mod yaml;

pub use address::{AddressError, BindAddress, Endpoint, Listen, StatusAddress};
pub use edge::{EdgeConfig, MappingConfig, Protocol, ServiceConfig, parse_edge};
pub use env::Env;
pub use fault::{Checked, Fault, Faults, Notice};
pub use log::{LogConfig, LogFormat, LogLevel, LogWordError};
pub use path::{MAX_SOCKET_PATH_BYTES, PathError};
pub use relay::{RelayFileConfig, parse_relay};
pub use status::{HostName, StatusConfig};

/// The largest file that is read, in bytes.
pub const MAX_FILE_BYTES: usize = 1024 * 1024;
/// The most services of an edge, and the most mappings.
pub const MAX_ENTRIES: usize = 4_096;
/// The most entries of a list (`relay:`, `allow:`).
pub const MAX_LIST: usize = 1_024;
/// How long an open may take when nothing is said.
pub const DEFAULT_OPEN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
/// Default grace period for open sessions after SIGTERM.
pub const DEFAULT_DRAIN: std::time::Duration = std::time::Duration::from_secs(10);
/// How long opens are held for a path that may come back, when nothing is said.
pub const DEFAULT_HOLD: std::time::Duration = std::time::Duration::from_secs(10);
