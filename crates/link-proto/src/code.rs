//! Why something ended: one closed list of reasons, and a range for applications.

use std::fmt;

/// Why a session, an open or a link ended.
///
/// A number on the wire, a word everywhere else: `/status`, `/metrics`, logs and the command line print
/// [`Code::name`]. Numbers below [`Code::APP`] belong to Hopline; a number of that range that this version does
/// not know is kept and passed on, and prints as `unknown_N`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(u32);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $word:literal;)*) => {
        impl Code {
            $($(#[$doc])* pub const $name: Self = Self($number);)*

            /// Every reason of the closed list, in the order of its number.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            fn word(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($word),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// A link died under the session: silent for its bound, or its carrier failed.
    CONN_LOST = 1, "conn_lost";
    /// A drain reached its deadline with the session still open.
    DRAIN_DEADLINE = 2, "drain_deadline";
    /// A deadline of the one who aborts has passed.
    TIMEOUT = 3, "timeout";
    /// The far side does not want this open.
    REFUSED = 4, "refused";
    /// No such name for this machine.
    NOT_FOUND = 5, "not_found";
    /// The name may be dialled, and nobody serves it now.
    OFFLINE = 6, "offline";
    /// The machine may not do this.
    UNAUTHORIZED = 7, "unauthorized";
    /// The agent could not connect to the server.
    DIAL_FAILED = 8, "dial_failed";
    /// The forward hop was found dead.
    FORWARD_DEAD = 9, "forward_dead";
    /// The application or the server reset its connection, or went away without ending it.
    PEER_RESET = 10, "peer_reset";
    /// A limit was reached.
    OVERLOAD = 11, "overload";
    /// A process ended its sessions because it stops.
    SHUTDOWN = 12, "shutdown";
    /// A process on its way out takes no new sessions; the open is safe to send elsewhere.
    DRAINING = 13, "draining";
    /// The peer broke a rule of the wire.
    PROTOCOL = 14, "protocol";
    /// Our own fault.
    INTERNAL = 15, "internal";
}

impl Code {
    /// The first number that belongs to applications.
    pub const APP: u32 = 0x100;
    /// The highest number that a code may have.
    pub const MAX: u32 = (1 << 30) - 1;

    /// The application's own code `n`; `None` if it does not fit the wire (`n` up to `MAX - APP`).
    #[must_use]
    pub const fn app(n: u32) -> Option<Self> {
        if n <= Self::MAX - Self::APP { Some(Self(n + Self::APP)) } else { None }
    }

    /// The code with this number on the wire; `None` for 0 and above [`Code::MAX`].
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        if number == 0 || number > Self::MAX { None } else { Some(Self(number)) }
    }

    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The application's number, if this is an application's code.
    #[must_use]
    pub const fn app_number(self) -> Option<u32> {
        self.0.checked_sub(Self::APP)
    }

    /// The word of the closed list that `name` prints, back as a code; application codes as `app_N`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        if let Some(number) = name.strip_prefix("app_") {
            return number.parse().ok().and_then(Self::app);
        }
        Self::ALL.iter().copied().find(|code| code.word() == Some(name))
    }

    /// The reason's word: one of the closed list, `app_N`, or `unknown_N`.
    #[must_use]
    pub fn name(self) -> std::borrow::Cow<'static, str> {
        match (self.word(), self.app_number()) {
            (Some(word), _) => word.into(),
            (None, Some(n)) => format!("app_{n}").into(),
            (None, None) => format!("unknown_{}", self.0).into(),
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_go_both_ways() {
        assert_eq!(Code::ALL.len(), 15);
        for (index, code) in Code::ALL.iter().enumerate() {
            assert_eq!(code.number() as usize, index + 1);
            assert_eq!(Code::from_name(&code.name()), Some(*code));
        }
        assert_eq!(Code::app(7).unwrap().name(), "app_7");
        assert_eq!(Code::from_name("app_7"), Code::app(7));
        assert_eq!(Code::from_number(99).unwrap().name(), "unknown_99");
        assert_eq!(Code::from_number(0), None);
        assert_eq!(Code::from_number(Code::MAX + 1), None);
        assert_eq!(Code::app(Code::MAX), None);
    }
}
