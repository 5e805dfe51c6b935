//! Why something ended: one closed list of reasons, and a range for applications.

use std::fmt;

/// Why a session, an open or a link ended.
///
/// A number on the wire, a word everywhere else: `/status`, `/metrics`, logs and the command line print
/// [`Code::name`]. Numbers below [`Code::APP`] belong to Hopline; a number of that range that this version does
/// not know is kept and passed on, and prints as `unknown_N`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(u32);

/// A closed list: an enum whose variants have a word each.
macro_rules! words {
    ($(#[$doc:meta])* $type:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type {
            $($(#[$of])* $variant,)*
        }

        impl $type {
            /// All of them, in the order of their declaration: `self as usize` is the index.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Its word in `/status`, `/metrics` and logs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }
    };
}
pub(crate) use words;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $reason:ident, $word:literal;)*) => {
        impl Code {
            $($(#[$doc])* pub const $name: Self = Self($number);)*

            /// Every reason of the closed list, in the order of its number.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// What it is counted as.
            #[must_use]
            pub const fn reason(self) -> Reason {
                match self.0 {
                    $($number => Reason::$reason,)*
                    Self::APP.. => Reason::Application,
                    _ => Reason::Other,
                }
            }
        }

        words! {
            /// What a [`Code`] is counted as, and whom it is laid to: whatever peers send, there are so many.
            Reason {
                $($(#[$doc])* $reason = $word,)*
                /// Any code of an application.
                Application = "application",
                /// Any code that this version does not know.
                Other = "other",
            }
        }
    };
}

codes! {
    /// A link died under the session: silent for its bound, or its carrier failed.
    CONN_LOST = 1, ConnLost, "conn_lost";
    /// A drain reached its deadline with the session still open.
    DRAIN_DEADLINE = 2, DrainDeadline, "drain_deadline";
    /// A deadline of the one who aborts has passed.
    TIMEOUT = 3, Timeout, "timeout";
    /// The far side does not want this open.
    REFUSED = 4, Refused, "refused";
    /// No such name for this machine.
    NOT_FOUND = 5, NotFound, "not_found";
    /// The name may be dialled, and nobody serves it now.
    OFFLINE = 6, Offline, "offline";
    /// The machine may not do this.
    UNAUTHORIZED = 7, Unauthorized, "unauthorized";
    /// The agent could not connect to the server.
    DIAL_FAILED = 8, DialFailed, "dial_failed";
    /// The forward hop was found dead.
    FORWARD_DEAD = 9, ForwardDead, "forward_dead";
    /// The application or the server reset its connection, or went away without ending it.
    PEER_RESET = 10, PeerReset, "peer_reset";
    /// A limit was reached.
    OVERLOAD = 11, Overload, "overload";
    /// A process ended its sessions because it stops.
    SHUTDOWN = 12, Shutdown, "shutdown";
    /// A process on its way out takes no new sessions; the open is safe to send elsewhere.
    DRAINING = 13, Draining, "draining";
    /// The peer broke a rule of the wire.
    PROTOCOL = 14, Protocol, "protocol";
    /// Our own fault.
    INTERNAL = 15, Internal, "internal";
}

impl Reason {
    /// The reason of a word that [`Code::name`] or [`Reason::name`] printed, perhaps that of another version.
    #[must_use]
    pub fn from_name(word: &str) -> Self {
        let listed = Self::ALL.iter().copied().find(|reason| reason.name() == word);
        listed.unwrap_or(if word.starts_with("app_") { Self::Application } else { Self::Other })
    }
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
        Self::ALL.iter().copied().find(|code| code.reason().name() == name)
    }

    /// The reason's word: one of the closed list, `app_N`, or `unknown_N`.
    #[must_use]
    pub fn name(self) -> std::borrow::Cow<'static, str> {
        match (self.reason(), self.app_number()) {
            (_, Some(n)) => format!("app_{n}").into(),
            (Reason::Other, None) => format!("unknown_{}", self.0).into(),
            (reason, None) => reason.name().into(),
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

    #[test]
    fn each_code_is_counted_as_one_reason() {
        assert_eq!(Reason::ALL.len(), Code::ALL.len() + 2);
        for (index, code) in Code::ALL.iter().enumerate() {
            assert_eq!(code.reason(), Reason::ALL[index]);
            assert_eq!(Reason::from_name(&code.name()), code.reason());
        }
        let (app, unknown) = (Code::app(7).unwrap(), Code::from_number(77).unwrap());
        for (code, reason) in [(app, Reason::Application), (unknown, Reason::Other)] {
            assert_eq!((code.reason(), Reason::from_name(&code.name())), (reason, reason));
            assert_eq!(Reason::from_name(reason.name()), reason);
        }
    }
}
