//! Why a server key is refused.

use super::limits::{HASH_PREFIX, PREFIX, SERVER_KEYS_MAX};

/// Why a key or its hash is invalid. No sentence contains either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ServerKeyError {
    /// It does not begin with [`PREFIX`].
    #[error("a server key begins with {PREFIX}")]
    NoPrefix,
    /// Its length or its last characters are wrong.
    #[error("this server key is mistyped or cut off")]
    Mistyped,
    /// The server has no such key.
    #[error("this server key is not known here")]
    Unknown,
    /// A hash is not `sha256:` and 64 hexadecimal digits.
    #[error("the hash of a server key is {HASH_PREFIX} and 64 hexadecimal digits")]
    BadHash,
    /// There are more keys than [`SERVER_KEYS_MAX`].
    #[error("there are more than {SERVER_KEYS_MAX} server keys")]
    TooMany,
    /// Two keys have the same name or the same hash.
    #[error("two server keys have the same name or the same hash")]
    Twice,
    /// The system gave no random bytes.
    #[error("the system has no random bytes")]
    NoRandom,
}

impl ServerKeyError {
    /// A short word for counters, of the errors of a key that a client has shown.
    pub fn label(self) -> &'static str {
        match self {
            ServerKeyError::Unknown => "unknown_server_key",
            _ => "malformed_server_key",
        }
    }
}
