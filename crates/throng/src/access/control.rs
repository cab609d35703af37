//! Access control, shared by both planes, made from the settings.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use anyhow::{Context as _, Result, anyhow};
use arc_swap::ArcSwap;
use throng_access::authenticator::Authenticator;
use throng_access::keys::{Key, KeySet, KeySources, PublishedKeys, RefreshSettings, SourceId};
use throng_access::policy::{Access, AllowAll, ReadOnlyClients, TrustAdmin};
use throng_access::revocation::{
    FileStorage, PassedFile, RevocationLog, Revocations, SharedRevocations, SharedTable,
};
use throng_access::session::Tagger;
use throng_access::{AccessControl, AccessRules, Authority, CertificateUsers, Clients, Policy};
use throng_core::ChannelLimits;
use throng_outbound::{Callouts, KeySetTask, Trust};

use super::AccessSettings;
use crate::outbound;
use crate::settings::{Settings, SettingsError};

/// Access control of a server, and its keys that can be read again.
pub(crate) struct ServerAccess {
    pub(crate) control: Arc<AccessControl>,
    /// The rules that its policy asks, if there are keys.
    pub(crate) rules: Arc<ArcSwap<AccessRules>>,
    /// The keys of `[[token-keys]]`; `None` if there are none, and no URL of keys either.
    pub(crate) token_keys: Option<ConfiguredKeys>,
    /// Fetches the key sets at URLs; `None` if there are none.
    pub(crate) key_sets: Option<KeySetTask>,
    /// How revocations are kept; `None` if there is nothing to revoke.
    pub(crate) revocations: Option<RevocationSettings>,
    /// The limits of channels of applications, once these are counted; `None` if there are none.
    pub(crate) channel_limits: Option<Arc<ChannelLimits>>,
}

impl ServerAccess {
    /// Access control of a server with these settings. `callouts` decide about what the rules
    /// allow, within the same limits of `clients`.
    ///
    /// # Errors
    ///
    /// A key set has a URL that is none.
    pub(crate) fn new(
        access: AccessSettings,
        settings: &Settings,
        clients: Arc<Clients>,
        callouts: &mut Callouts,
        (trust, tagger): (&Trust, Tagger),
    ) -> Result<ServerAccess> {
        let passed = callouts.passed();
        let rules = Arc::new(ArcSwap::from_pointee(access.rules.clone()));
        let policy = callouts.policy(policy(&access, &rules, settings));
        if !settings.has_keys() {
            let control = AccessControl { clients, passed, tagger, ..AccessControl::open(policy) };
            let control = Arc::new(control);
            return Ok(ServerAccess {
                control,
                rules,
                token_keys: None,
                key_sets: None,
                revocations: None,
                channel_limits: None,
            });
        }
        let revocations = Arc::new(Revocations::default());
        let kept = RevocationSettings {
            path: settings.revocations_path(),
            revocations: Arc::clone(&revocations),
            policy: access.policy.clone(),
            most: settings.max_revocations.0,
        };
        let (mut token_keys, mut key_sets) = (None, None);
        if settings.has_token_keys() {
            let mut task = KeySetTask::new(trust.clone());
            let keys =
                ConfiguredKeys::new(&access, Arc::clone(&revocations), settings, &clients, &task)?;
            for url in outbound::key_set_urls(settings)? {
                task.add(&keys.authenticator, url, RefreshSettings::default());
            }
            key_sets = (!settings.token_key_urls.0.is_empty()).then_some(task);
            token_keys = Some(keys);
        }
        let connect = callouts.connect(&revocations, access.policy.max_age_s);
        let certificates =
            settings.tls_client_user.0.map(|_| CertificateUsers::new(Arc::clone(&revocations)));
        let control = AccessControl {
            connect,
            certificates,
            passed,
            tokens: token_keys.as_ref().map(|keys| Arc::clone(&keys.authenticator)),
            server_keys: Arc::new(access.server_keys).into(),
            apps: Arc::new(access.apps.named_by(&tagger)).into(),
            tagger,
            token_cookie: settings.token_cookie.0.as_deref().map(Into::into),
            clients,
            ..AccessControl::open(policy)
        };
        let control = Arc::new(control);
        let (revocations, channel_limits) = (Some(kept), None);
        Ok(ServerAccess { control, rules, token_keys, key_sets, revocations, channel_limits })
    }
}

/// The policy. Without server keys, the admin listener has no other protection than its address,
/// and trusts every client.
fn policy(
    access: &AccessSettings,
    rules: &Arc<ArcSwap<AccessRules>>,
    settings: &Settings,
) -> Arc<dyn Access> {
    let rules = Arc::clone(rules);
    match (settings.has_keys(), settings.clients_publish.0) {
        (false, true) => Arc::new(AllowAll),
        (false, false) => Arc::new(ReadOnlyClients(AllowAll)),
        (true, _) if access.server_keys.is_empty() => readable(TrustAdmin(rules), settings),
        (true, _) => readable(rules, settings),
    }
}

fn readable(policy: impl Access + 'static, settings: &Settings) -> Arc<dyn Access> {
    if settings.clients_publish.0 { Arc::new(policy) } else { Arc::new(ReadOnlyClients(policy)) }
}

/// How a server with keys keeps revocations.
#[derive(Clone)]
pub(crate) struct RevocationSettings {
    /// The file; `None` if the settings name none.
    path: Option<PathBuf>,
    revocations: Arc<Revocations>,
    policy: Policy,
    most: usize,
}

impl RevocationSettings {
    /// Those of a node, which are in a table.
    pub(crate) fn shared(self, table: SharedTable) -> SharedRevocations {
        SharedRevocations::new(self.revocations, &self.policy, self.most, table)
    }

    /// Opens the file for `access`, if the settings name one. It is `passed` if another process has
    /// it, which may go on with it: then nothing is written before the first revocation.
    ///
    /// # Errors
    ///
    /// The file cannot be used.
    pub(crate) fn open(self, passed: Option<PassedFile>, access: &AccessControl) -> Result<()> {
        let Some(path) = self.path else { return Ok(()) };
        let shown = path.display();
        let about = || format!("the revocations-file {shown}");
        let cannot = || format!("cannot open {}", about());
        let passed = passed.map(|passed| FileStorage::take_over(&path, passed));
        let passed = passed.transpose().with_context(cannot)?.flatten();
        // The machine's clock may not have been set: nothing is forgotten.
        let (set, most, now_s) = (self.revocations, self.most, 0);
        let log = match passed {
            Some(file) => RevocationLog::take_over(file, set, &self.policy, most, now_s),
            None => {
                let file = FileStorage::open(&path).map_err(|error| match error.kind() {
                    ErrorKind::WouldBlock => {
                        anyhow!("another server uses {}; give each its own", about())
                    }
                    _ => anyhow!("{}: {error}", cannot()),
                })?;
                RevocationLog::open(file, set, &self.policy, most, now_s)
            }
        };
        let log = log.with_context(about)?;
        *access.revocations.lock().unwrap_or_else(PoisonError::into_inner) = Some(log);
        Ok(())
    }
}

/// The keys of `[[token-keys]]` in a running server.
pub(crate) struct ConfiguredKeys {
    authenticator: Arc<Authenticator>,
    source: SourceId,
}

impl ConfiguredKeys {
    fn new(
        access: &AccessSettings,
        revocations: Arc<Revocations>,
        settings: &Settings,
        clients: &Arc<Clients>,
        key_sets: &KeySetTask,
    ) -> Result<ConfiguredKeys> {
        let published = PublishedKeys::new(KeySet::default());
        let mut sources = KeySources::new(Arc::clone(&published));
        let source = sources.add();
        sources.replace(source, access.token_keys.clone())?;
        let policy = access.policy.clone();
        let authority =
            Authority::new(published, policy, revocations, settings.max_cached_tokens.0);
        let (clients, wake) = (Arc::clone(clients), key_sets.waker());
        let authenticator = Arc::new(Authenticator::new(authority, sources, clients, wake));
        Ok(ConfiguredKeys { authenticator, source })
    }

    /// Verifies tokens with these keys.
    pub(crate) fn authenticator(&self) -> Arc<Authenticator> {
        Arc::clone(&self.authenticator)
    }

    /// Demands this of tokens. Returns whether it is something else than before.
    pub(crate) fn demand(&self, policy: &Policy) -> bool {
        let authority = self.authenticator.authority();
        let is_new = authority.policy() != *policy;
        if is_new {
            authority.demand(policy.clone());
        }
        is_new
    }

    /// Replaces the keys. Returns whether they are others than before.
    ///
    /// # Errors
    ///
    /// One sentence; then all keys stay as they were.
    pub(crate) fn replace(&self, keys: Vec<Arc<Key>>) -> Result<bool, SettingsError> {
        self.authenticator
            .replace(self.source, keys)
            .map_err(|error| SettingsError(format!("[[token-keys]]: {error}")))
    }
}
