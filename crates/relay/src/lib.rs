//! The relay: routing core (pure), server, registrations, joins.
