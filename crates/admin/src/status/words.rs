//! The words of the states: as in the JSON, for people and for labels.

use super::{AgentState, FarState, LinkState, MappingState, RelayState, ServiceState};

macro_rules! words {
    ($($type:ident { $($variant:ident = $word:literal),* })*) => {$(
        impl $type {
            /// The word that the JSON has for it.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }
        }
    )*};
}

words! {
    LinkState {
        Connecting = "connecting", Up = "up", Suspect = "suspect", Draining = "draining", Standby = "standby", Down = "down",
        Unknown = "unknown"
    }
    MappingState {
        Starting = "starting", Ready = "ready", Held = "held", Degraded = "degraded", Failed = "failed",
        Unknown = "unknown"
    }
    ServiceState {
        Starting = "starting", Up = "up", Down = "down", Frozen = "frozen", Unauthorized = "unauthorized",
        Unknown = "unknown"
    }
    FarState { Up = "up", Suspect = "suspect", Down = "down", Lost = "lost", Unknown = "unknown" }
    AgentState { Up = "up", Down = "down", Draining = "draining", Unknown = "unknown" }
    RelayState { Up = "up", Draining = "draining", Unknown = "unknown" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_json() {
        fn check<T: serde::Serialize + Copy>(values: &[T], word: fn(T) -> &'static str) {
            for value in values {
                assert_eq!(serde_json::to_value(value).unwrap(), word(*value));
            }
        }
        use LinkState as L;
        check(&[L::Connecting, L::Up, L::Suspect, L::Draining, L::Down, L::Unknown], L::word);
        use MappingState as M;
        check(&[M::Starting, M::Ready, M::Held, M::Degraded, M::Failed, M::Unknown], M::word);
        use ServiceState as S;
        check(&[S::Starting, S::Up, S::Down, S::Frozen, S::Unauthorized, S::Unknown], S::word);
        use FarState as F;
        check(&[F::Up, F::Suspect, F::Down, F::Lost, F::Unknown], F::word);
        use AgentState as A;
        check(&[A::Up, A::Down, A::Draining, A::Unknown], A::word);
        use RelayState as R;
        check(&[R::Up, R::Draining, R::Unknown], R::word);
    }
}
