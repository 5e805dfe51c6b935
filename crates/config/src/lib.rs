//! The YAML file of an edge or a relay: as written, as resolved, all faults in one run.
