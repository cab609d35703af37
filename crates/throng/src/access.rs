//! Access control from the settings: keys, rules, and what is demanded of tokens.
//!
//! Nothing here starts or binds anything. `throng check` runs the same code as `throng serve`.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | `key_file` | reads files with keys, and notes which of them others can read |
//! | `token_keys` | `[[token-keys]]` as keys |
//! | `apps` | `[[apps]]` as applications |
//! | `server_keys` | `[[server-keys]]` as keys |
//! | `control` | what both planes share, in a running server |
//! | `offline` | verifies a token without a server |
//! | `rules` | `[access]` and `[[channels]]` as rules |

mod apps;
mod control;
pub(crate) mod key_file;
mod offline;
mod rules;
mod server_keys;
mod token_keys;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use throng_access::keys::{Key, KeySet};
use throng_access::{AccessRules, Apps, Policy, ServerKeys};

use crate::settings::{self, Settings, SettingsError};

pub(crate) use apps::token_secret;
pub(crate) use control::ServerAccess;
pub(crate) use offline::OfflineVerifier;
pub(crate) use rules::pattern;
pub(crate) use server_keys::{NAME_BYTES_MAX, is_key_name};
pub(crate) use token_keys::{read_secret, without_line_end};

/// Everything that the settings say about access, checked.
#[derive(Debug)]
pub(crate) struct AccessSettings {
    pub(crate) token_keys: Vec<Arc<Key>>,
    pub(crate) server_keys: ServerKeys,
    pub(crate) apps: Apps,
    pub(crate) rules: AccessRules,
    pub(crate) policy: Policy,
    /// Faults that do not keep the server from starting: one sentence each.
    pub(crate) warnings: Vec<String>,
}

impl AccessSettings {
    /// Reads the files of keys that the settings name.
    ///
    /// # Errors
    ///
    /// One sentence that names the file, the table and what to do. It contains no secret.
    pub(crate) fn load(settings: &Settings) -> Result<AccessSettings, SettingsError> {
        let mut warnings = Vec::new();
        let mut token_keys = token_keys::read(&settings.token_keys, &mut warnings)?;
        token_keys.extend(apps::token_keys(&settings.apps, &mut warnings)?);
        KeySet::new(token_keys.clone())
            .map_err(|error| SettingsError(format!("[[token-keys]]: {error}")))?;
        let server_keys = server_keys::read(&settings.server_keys)?;
        let apps = apps::read(&settings.apps, &mut warnings)?;
        let rules = rules::access_rules(settings)?;
        warnings.extend(settings::address_warning(settings).map(str::to_owned));
        warnings.extend(settings::covered_tables(&settings.channels));
        Ok(AccessSettings {
            token_keys,
            server_keys,
            apps,
            rules,
            policy: token_policy(settings),
            warnings,
        })
    }
}

/// The machine's clock, in seconds since 1970.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Demands on tokens.
pub(crate) fn token_policy(settings: &Settings) -> Policy {
    let texts = |values: &[String]| values.iter().map(|value| value.as_str().into()).collect();
    // Both are checked to fit.
    let seconds = |time: throng_units::Time| u32::try_from(time.0.as_secs()).unwrap_or(u32::MAX);
    Policy {
        audiences: texts(&settings.token_audience.0),
        issuers: texts(&settings.token_issuer.0),
        leeway_s: seconds(settings.token_leeway),
        max_age_s: seconds(settings.max_token_age),
    }
}
