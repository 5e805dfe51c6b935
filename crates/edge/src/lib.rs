//! The edge: sidecar mappings, agent services, links to the relay.
