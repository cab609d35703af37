//! Verifies a token as a server with the same settings does, without a server. The key sets at URLs
//! are fetched once, under the rules of the server.

use std::io;
use std::path::Path;
use std::sync::Arc;

use throng_access::keys::{Key, KeySet, SetError};
use throng_access::revocation::{OpenError, RevocationLog, RevocationStorage, Revocations};
use throng_access::token::{Identity, Policy, verify};
use throng_access::{GrantsPool, TokenError};

use super::AccessSettings;
use crate::outbound::{self, FetchedSet};
use crate::settings::Settings;

/// Keys, demands and revocations of a server, as they are now.
#[derive(Debug)]
pub(crate) struct OfflineVerifier {
    keys: KeySet,
    policy: Policy,
    revocations: Arc<Revocations>,
    /// True if there are keys at a URL that could not be fetched.
    lacks_keys: bool,
    /// Fetches that succeeded and failed: one sentence each.
    pub(crate) notes: Vec<String>,
}

/// Why the file of revocations cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OfflineError {
    #[error("cannot read the revocations-file {0}: {1}")]
    Read(String, io::Error),
    #[error("the revocations-file {0}: {1}")]
    Open(String, OpenError),
    #[error("[[token-keys]]: {0}")]
    Keys(#[from] SetError),
    #[error("{0}")]
    Fetch(String),
}

impl OfflineVerifier {
    /// A verifier with the settings of a server. Fetches the key sets at URLs.
    pub(crate) fn new(
        access: &AccessSettings,
        settings: &Settings,
        now_s: u64,
    ) -> Result<OfflineVerifier, OfflineError> {
        let fetched = if settings.token_key_urls.0.is_empty() {
            Vec::new()
        } else {
            let fetched = outbound::fetch_key_sets(settings);
            fetched.map_err(|error| OfflineError::Fetch(format!("{error:#}")))?
        };
        let Merged { keys, lacks_keys, notes } = merge(&access.token_keys, fetched)?;
        let policy = access.policy.clone();
        let revocations = Arc::new(Revocations::default());
        if let Some(path) = settings.revocations_path() {
            read_revocations(&path, &revocations, &policy, now_s)?;
        }
        Ok(OfflineVerifier { keys, policy, revocations, lacks_keys, notes })
    }

    /// The claims of a token, or why the server refuses it: one sentence without a part of the
    /// token.
    pub(crate) fn verify(&self, token: &str, now_s: u64) -> Result<Identity, String> {
        if self.keys.is_empty() && !self.lacks_keys {
            return Err(
                "no key of these settings verifies tokens; add [[token-keys]], or name the \
                        file with --config"
                    .into(),
            );
        }
        let identity = verify(token, &self.keys, &self.policy, &GrantsPool::default(), now_s);
        match identity {
            Ok(identity) if self.revocations.is_revoked(&identity) => {
                Err(TokenError::Revoked.to_string())
            }
            Ok(identity) => Ok(identity),
            Err(error) if self.lacks_keys && is_about_keys(error) => Err(format!(
                "{error}; a running server may have keys from token-key-urls that could not be \
                 fetched now"
            )),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The keys of the configuration and of the sets at URLs.
struct Merged {
    keys: KeySet,
    lacks_keys: bool,
    notes: Vec<String>,
}

/// Adds each fetched set to the keys that are there, unless it does not fit to them.
fn merge(configured: &[Arc<Key>], fetched: Vec<FetchedSet>) -> Result<Merged, SetError> {
    let (mut all, mut lacks_keys, mut notes) = (configured.to_vec(), false, Vec::new());
    let mut keys = KeySet::new(all.clone())?;
    for (url, result) in fetched {
        let added = result.map_err(|error| error.to_string()).and_then(|(new, left_out)| {
            let (count, together) = (new.len(), [all.clone(), new].concat());
            keys = KeySet::new(together.clone()).map_err(|error| error.to_string())?;
            all = together;
            Ok((count, left_out))
        });
        notes.push(match added {
            Ok((count, left_out)) => {
                let s = if count == 1 { "" } else { "s" };
                let others = if left_out == 0 { "" } else { "; others cannot verify tokens" };
                format!("the key set {url} was fetched: {count} key{s}{others}")
            }
            Err(reason) => {
                lacks_keys = true;
                format!("the key set {url} cannot be used now: {reason}")
            }
        });
    }
    Ok(Merged { keys, lacks_keys, notes })
}

/// True if other keys could change the result.
fn is_about_keys(error: TokenError) -> bool {
    matches!(error, TokenError::UnknownKey | TokenError::Algorithm | TokenError::Signature)
}

fn read_revocations(
    path: &Path,
    revocations: &Arc<Revocations>,
    policy: &Policy,
    now_s: u64,
) -> Result<(), OfflineError> {
    let shown = path.display().to_string();
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        // The server makes it when it starts.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(OfflineError::Read(shown, error)),
    };
    let set = Arc::clone(revocations);
    match RevocationLog::open(Snapshot(bytes), set, policy, usize::MAX, now_s) {
        Ok(_) => Ok(()),
        Err(error) => Err(OfflineError::Open(shown, error)),
    }
}

/// The bytes of a file that a running server may have open. Nothing is written to it.
#[derive(Debug)]
struct Snapshot(Vec<u8>);

impl RevocationStorage for Snapshot {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        Ok(std::mem::take(&mut self.0))
    }

    fn append(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn truncate(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn replace(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}
