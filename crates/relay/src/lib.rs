//! The relay: routing core (pure), server, registrations, joins.

pub mod core;
