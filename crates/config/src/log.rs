//! `log:`, the same in both files.

use std::str::FromStr;

use crate::fault::Report;
use crate::section::{Field, Place, Section};

/// What the process logs, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogConfig {
    /// The shape of a line.
    pub format: LogFormat,
    /// The least important lines that are written.
    pub level: LogLevel,
    /// Whether each session's end has a line.
    pub access: bool,
}

/// The shape of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// How important a log line is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Only what failed.
    Error,
    /// And what is worth waking a person.
    Warn,
    /// And each change of state.
    #[default]
    Info,
    /// And what led to it.
    Debug,
    /// And each packet.
    Trace,
}

/// The text is none of the words of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be one of {0}")]
pub struct LogWordError(&'static str);

impl FromStr for LogFormat {
    type Err = LogWordError;

    fn from_str(text: &str) -> Result<Self, LogWordError> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(LogWordError("text, json")),
        }
    }
}

impl FromStr for LogLevel {
    type Err = LogWordError;

    fn from_str(text: &str) -> Result<Self, LogWordError> {
        match text {
            "error" => Ok(Self::Error),
            "warn" => Ok(Self::Warn),
            "info" => Ok(Self::Info),
            "debug" => Ok(Self::Debug),
            "trace" => Ok(Self::Trace),
            _ => Err(LogWordError("error, warn, info, debug, trace")),
        }
    }
}

impl LogLevel {
    /// The word for it in the file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

pub(crate) fn parse_log(field: Option<Field<'_>>, report: &mut Report) -> LogConfig {
    let Some(section) = field.and_then(|f| Section::open(f, Place::Log, report)) else {
        return LogConfig::default();
    };
    LogConfig {
        format: section.parse("format", report).unwrap_or_default(),
        level: section.parse("level", report).unwrap_or_default(),
        access: section.bool("access", report).unwrap_or_default(),
    }
}
