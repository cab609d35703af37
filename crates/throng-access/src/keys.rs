//! The keys that verify tokens.
//!
//! | module | what it is |
//! |---|---|
//! | `key` | one key, and the algorithms that it accepts |
//! | `secret` | secrets, and what is no secret |
//! | `pem` | public keys in PEM |
//! | `jwks` | JSON Web Key sets (RFC 7517) |
//! | `set` | keys by their id |
//! | `sources` | the keys of all sources together |
//! | `refresh` | when a key set at a URL is read again |
//! | `published` | a value that is swapped while threads read it |

mod jwks;
mod key;
mod pem;
mod published;
mod refresh;
mod secret;
mod set;
mod sources;

pub use jwks::{JWKS_BYTES_MAX, Jwks, JwksError, JwksSource};
pub use key::{Fingerprint, Key, KeyError};
pub use published::{PublishedKeys, Reader};
#[cfg(test)]
pub(crate) use refresh::REFETCH_MS_MIN;
pub use refresh::{Refresh, RefreshSettings, Unknown};
pub(crate) use set::Candidates;
pub use set::{KEYS_MAX, KeySet, SetError};
pub use sources::{KeySources, SourceId};
