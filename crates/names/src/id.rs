//! Ids of 16 random bytes.

use std::fmt;

/// An id must be 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id is 16 bytes, not {len}")]
pub struct IdError {
    /// How many bytes there were.
    pub len: usize,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// Made of 16 bytes that its owner draws at random; prints as 32 hexadecimal digits.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 16]);

        impl $name {
            /// The lowest id in the order of ids, for ranges.
            pub const MIN: Self = Self([0; 16]);
            /// The highest id in the order of ids, for ranges.
            pub const MAX: Self = Self([0xff; 16]);

            /// The id made of these bytes.
            #[must_use]
            pub const fn new(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }

            /// The id's bytes.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }
        }

        impl TryFrom<&[u8]> for $name {
            type Error = IdError;

            fn try_from(bytes: &[u8]) -> Result<Self, IdError> {
                bytes.try_into().map(Self).map_err(|_| IdError { len: bytes.len() })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id! {
    /// One session from the application to the server, over however many links and paths it goes.
    SessionId
}

id! {
    /// One start of an edge process.
    InstanceId
}

id! {
    /// One connection between an application and a mapping, or an agent and its server: of both ends' addresses, not drawn
    /// at random, so that both ends come to the same.
    ConnectionId
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_bytes_and_as_text() {
        let bytes: Vec<u8> = (0..16).collect();
        let id = InstanceId::try_from(&bytes[..]).unwrap();
        assert_eq!(id.to_string(), "000102030405060708090a0b0c0d0e0f");
        assert_eq!(id.as_bytes()[..], bytes);
        for len in [0, 15, 17] {
            assert_eq!(SessionId::try_from(&vec![0; len][..]), Err(IdError { len }));
        }
    }
}
