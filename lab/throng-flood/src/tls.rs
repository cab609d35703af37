//! TLS of clients and publishers.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | this file | [`TlsTarget`]: how to shake hands with the server of a URL |
//! | `connections` | the TLS of many connections, by position, without I/O |
//! | `counts` | handshakes by version and suite, and their times |
//! | `failure` | why a handshake or a connection fails |
//!
//! # Invariants
//!
//! * Between two records a connection has [`ClientSession`](throng_tls::ClientSession)'s 112 bytes
//!   and nothing else, besides its ticket if clients resume.
//! * A certificate is checked unless the plan says `insecure`.

mod connections;
mod counts;
mod failure;

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use throng_tls::{Connector, LeastVersion, provider, self_test};
use throng_trust::{Trust, TrustError};

pub(crate) use connections::{Arrived, TlsConnections, TlsEnd};
pub(crate) use counts::TlsCounts;
pub(crate) use failure::TlsFailure;

use crate::plan::TlsSettings;
use crate::protocol::url::{authority, host_and_port, is_secure};

/// Why a server cannot be spoken to over TLS.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// No certificates to check the server's with.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The host of the URL, or the name of the settings, is neither a host name nor an address.
    #[error("{0:?} is not a host name that a certificate can be for")]
    Name(String),
    /// This build's record layer does not work.
    #[error(transparent)]
    SelfTest(#[from] throng_tls::SelfTestError),
}

/// How to shake hands with one server.
#[derive(Debug)]
pub(crate) struct TlsTarget {
    connector: Connector,
    name: ServerName<'static>,
    resumes: bool,
}

impl TlsTarget {
    /// The server of a URL; `None` if the URL is one without TLS.
    pub(crate) fn of(
        url: &str,
        settings: &TlsSettings,
    ) -> Result<Option<Arc<TlsTarget>>, TlsError> {
        if !is_secure(url) {
            return Ok(None);
        }
        let host = host_and_port(authority(url).unwrap_or_default()).0;
        let name = server_name(settings.sni.as_deref().unwrap_or(host))?;
        let trust = match (&settings.authorities, settings.is_insecure) {
            (_, true) => Trust::Anyone,
            (Some(file), false) => Trust::Authorities(Arc::clone(&file.content)),
            (None, false) => Trust::load(None)?,
        };
        let provider = Arc::new(provider());
        self_test(&provider)?;
        let mut config = trust.client_config(provider, LeastVersion::Tls12.versions())?;
        // Nobody wants the tickets, unless clients resume: then each keeps its own.
        config.resumption = Resumption::disabled();
        let resumes = settings.resumes;
        let connector = if resumes { Connector::resuming(config) } else { Connector::new(config) };
        Ok(Some(Arc::new(TlsTarget { connector, name, resumes })))
    }
}

/// The name that a certificate has to be for.
pub(crate) fn server_name(text: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(text.to_owned()).map_err(|_| TlsError::Name(text.to_owned()))
}
