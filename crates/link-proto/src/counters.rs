//! What a link counts.

use crate::frame::{FrameError, kind};
use crate::hello::HelloError;
use crate::limits::LimitCounters;
use crate::link::ProtocolError;

/// What a link has counted since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Payload bytes of sessions received.
    pub data_in: u64,
    /// Payload bytes of sessions sent.
    pub data_out: u64,
    /// Opens of the peer that were refused for a limit.
    pub opens_over_limit: u64,
    /// Frames for sessions that are already over.
    pub late_frames: u64,
    /// Extension frames skipped.
    pub extensions_skipped: u64,
    /// Windows that shrank, because their reader was slow or the budget short.
    pub windows_narrowed: u64,
    /// How often each limit was met.
    pub limits: LimitCounters,
}

impl Counters {
    /// A rule that the peer broke may be a limit that it passed.
    pub(crate) fn note(&mut self, error: &ProtocolError) {
        let limits = &mut self.limits;
        let limit = match error {
            ProtocolError::TooManyOpens(_) => &mut limits.refused_sessions,
            ProtocolError::CreditOverflow(_) => &mut limits.credit,
            ProtocolError::PingFlood => &mut limits.ping_burst,
            ProtocolError::Frame(frame) => match frame {
                FrameError::TooLong { kind: kind::OPEN | kind::ANSWER, .. } => &mut limits.header_bytes,
                FrameError::TooLong { .. } => &mut limits.body_bytes,
                FrameError::Message(_) => &mut limits.message_bytes,
                FrameError::Hello(HelloError::Name(_)) => &mut limits.name_bytes,
                FrameError::UnknownType(_)
                | FrameError::Number(_)
                | FrameError::Body(_)
                | FrameError::EmptyData
                | FrameError::SessionZero(_)
                | FrameError::Hello(
                    HelloError::Magic
                    | HelloError::Field(_)
                    | HelloError::Missing(_)
                    | HelloError::Liveness(_)
                    | HelloError::Version { .. },
                ) => return,
            },
            // Counted where it is known whether the session was answered.
            ProtocolError::Credit(_) => return,
            ProtocolError::Hello
            | ProtocolError::OpenOrder(_)
            | ProtocolError::NeverOpened(_)
            | ProtocolError::Answer(_)
            | ProtocolError::AfterEnd(_)
            | ProtocolError::EndBeforeAnswer(_)
            | ProtocolError::EndAck(_) => return,
        };
        *limit += 1;
    }
}
