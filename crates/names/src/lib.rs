//! Names of services and machines, the patterns that match them, what they grant, and ids: pure.
//!
//! # The main decision: checked once, where text comes in
//!
//! A name enters the program in many places: a config file, a flag, a certificate, a record on disk, a message of a
//! peer. Each of them parses the text into a type of this crate, and from then on holds a value that keeps the rule.
//! Nobody checks twice, nothing downstream has a branch for a bad name, and the compiler tells a service from a
//! machine. There is one rule, one limit and one error text for each type, so whatever one part of the program writes,
//! every other part reads.
//!
//! Names are lower case and hold no slash, no `%` and no `*`: they are safe as the name of a file, in a URI, in a
//! metric's label and on a terminal. The error texts never repeat what was given, which may be a secret in the wrong
//! place; whoever reports them says which text was meant.
//!
//! The crate does no I/O and reads no clock.

mod grants;
mod id;
mod name;

pub use grants::Grants;
pub use id::{ConnectionId, IdError, InstanceId, SessionId};
pub use name::{MAX_LEN, MachineName, NameError, Pattern, PatternError, ServiceName};
