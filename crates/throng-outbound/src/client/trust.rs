//! The certificates that TLS trusts.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use throng_trust::TrustError;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, DEFAULT_VERSIONS};

/// Settings of TLS: which authorities may certify the endpoints. `Clone` shares them.
#[derive(Clone)]
pub struct Trust(pub(super) Option<Arc<ClientConfig>>);

impl Trust {
    /// Trusts the authorities in `file`, or else those that the system trusts.
    ///
    /// # Errors
    ///
    /// [`TrustError`] if there is none.
    pub fn load(file: Option<&Path>) -> Result<Trust, TrustError> {
        let provider = Arc::new(ring::default_provider());
        let trust = throng_trust::Trust::load(file)?;
        Ok(Trust(Some(Arc::new(trust.client_config(provider, DEFAULT_VERSIONS)?))))
    }

    /// Trusts no authority: for endpoints without TLS.
    pub fn none() -> Trust {
        Trust(None)
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trust")
    }
}
