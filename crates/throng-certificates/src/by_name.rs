//! Which certificate a client is shown.

use std::collections::HashMap;
use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::pair::Pair;

/// The certificates of a server. A client that names no server, or one that no certificate is for,
/// gets the first.
#[derive(Debug)]
pub(crate) struct ByName {
    keys: Vec<Arc<CertifiedKey>>,
    /// Indices in `keys`, by DNS name; for wildcards without their `*`.
    names: HashMap<String, Vec<usize>>,
}

impl ByName {
    pub(crate) fn new(pairs: &[Pair]) -> ByName {
        let mut names: HashMap<String, Vec<usize>> = HashMap::new();
        for (nth, pair) in pairs.iter().enumerate() {
            for name in &pair.facts.dns_names {
                let name = name.strip_prefix('*').unwrap_or(name);
                names.entry(name.to_owned()).or_default().push(nth);
            }
        }
        ByName { keys: pairs.iter().map(|pair| Arc::clone(&pair.key)).collect(), names }
    }

    /// The certificate for this server name. Of several for the same name, the first whose key the
    /// client can verify.
    fn choose(
        &self,
        server_name: Option<&str>,
        schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        let suits = |key: &&Arc<CertifiedKey>| key.key.choose_scheme(schemes).is_some();
        let name = server_name.map(str::to_ascii_lowercase).unwrap_or_default();
        // A wildcard stands for one label, the first.
        let wildcard = name.find('.').and_then(|dot| self.names.get(&name[dot..]));
        let of_name = self.names.get(&name).or(wildcard).map(Vec::as_slice).unwrap_or_default();
        let mut found = of_name.iter().map(|nth| &self.keys[*nth]);
        let suitable = found.clone().find(suits).or_else(|| found.next());
        suitable.or_else(|| self.keys.iter().find(suits)).or(self.keys.first()).cloned()
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.choose(hello.server_name(), hello.signature_schemes())
    }
}
