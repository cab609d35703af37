//! Names, account, authority.

use std::path::PathBuf;

/// The directory of Let's Encrypt.
pub const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// The directory of its staging environment, whose certificates clients do not trust.
pub const LETS_ENCRYPT_STAGING: &str = "https://acme-staging-v02.api.letsencrypt.org/directory";

/// The certificates to obtain, and their authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcmeSettings {
    /// DNS names, in lower case. Each gets a certificate of its own.
    pub names: Vec<String>,
    /// Where the authority reaches the operator.
    pub email: Option<String>,
    /// The URL of the authority's directory.
    pub directory: String,
    /// Where everything is kept. Made if it does not exist.
    pub state: PathBuf,
}
