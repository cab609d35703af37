//! The constants of server keys.

/// The prefix of every key.
pub use throng_wire::credential::SERVER_KEY_PREFIX as PREFIX;

/// Prefix of a key's hash in settings.
pub(super) const HASH_PREFIX: &str = "sha256:";

/// The most keys of a server. Each request with a key is compared with all of them.
pub(crate) const SERVER_KEYS_MAX: usize = 256;
