//! Verifies a token as a server with the same settings does, without a server.

use std::io;
use std::path::Path;
use std::sync::Arc;

use throng_access::keys::{KeySet, SetError};
use throng_access::revocation::{OpenError, RevocationLog, Revocations, Storage};
use throng_access::token::{Identity, Policy, verify};
use throng_access::{GrantsPool, TokenError};

use super::AccessSettings;
use crate::settings::Settings;

/// Keys, demands and revocations of a server, as they are now.
#[derive(Debug)]
pub(crate) struct OfflineVerifier {
    keys: KeySet,
    policy: Policy,
    revocations: Arc<Revocations>,
    /// Whether there are keys at URLs, which are not read.
    has_urls: bool,
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
}

impl OfflineVerifier {
    /// A verifier with the settings of a server.
    pub(crate) fn new(
        access: &AccessSettings,
        settings: &Settings,
        now_s: u64,
    ) -> Result<OfflineVerifier, OfflineError> {
        let keys = KeySet::new(access.token_keys.clone())?;
        let policy = access.policy.clone();
        let revocations = Arc::new(Revocations::default());
        if let Some(path) = &settings.revocations_file.0 {
            read_revocations(path, &revocations, &policy, now_s)?;
        }
        let has_urls = !settings.token_key_urls.0.is_empty();
        Ok(OfflineVerifier { keys, policy, revocations, has_urls })
    }

    /// What a token says, or why the server refuses it: one sentence without a part of the token.
    pub(crate) fn verify(&self, token: &str, now_s: u64) -> Result<Identity, String> {
        if self.keys.is_empty() && !self.has_urls {
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
            Err(error) if self.has_urls && is_about_keys(error) => Err(format!(
                "{error}; the keys at token-key-urls, which this command does not read, may differ"
            )),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Whether other keys could change the result.
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

impl Storage for Snapshot {
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
