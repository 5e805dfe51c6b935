//! One link, pure: frames, session states, credit, liveness, drain, aborts.
