//! Certificates for authorities that validate a name by `tls-alpn-01` (RFC 8737).

use std::collections::HashMap;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::error::CertificateError;

/// The protocol that such an authority asks for.
const ALPN: &[u8] = b"acme-tls/1";

/// The certificate for one name.
#[derive(Debug)]
pub struct Validation {
    pub name: String,
    pub certificate: CertificateDer<'static>,
    pub key: PrivateKeyDer<'static>,
}

/// The configuration for such handshakes; `None` without answers. It asks for no certificates of
/// clients, whatever others are asked for.
pub(crate) fn config(
    provider: &Arc<CryptoProvider>,
    answers: Vec<Validation>,
) -> Result<Option<ServerConfig>, CertificateError> {
    if answers.is_empty() {
        return Ok(None);
    }
    let failed =
        |error: rustls::Error| CertificateError(format!("a name cannot be validated: {error}"));
    let mut keys = HashMap::new();
    for Validation { name, certificate, key } in answers {
        let key = provider.key_provider.load_private_key(key).map_err(failed)?;
        // Not compared with its key: the certificate has an extension that rustls does not know.
        keys.insert(name, Arc::new(CertifiedKey::new(vec![certificate], key)));
    }
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()
        .map_err(failed)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Answers(keys)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Some(config))
}

#[derive(Debug)]
struct Answers(HashMap<String, Arc<CertifiedKey>>);

impl ResolvesServerCert for Answers {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.get(&hello.server_name()?.to_ascii_lowercase()).cloned()
    }
}
