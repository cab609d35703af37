//! `[[server-keys]]` as keys.

use throng_access::pattern::Pattern;
use throng_access::server_key::{KeyHash, PREFIX, ServerKeyError};
use throng_access::{Scope, ServerKey, ServerKeys};
use throng_core::name::Kind;

use super::rules::pattern;
use crate::settings::{ServerKeyTable, SettingsError};

/// The longest name, in bytes. It is a label of metrics.
pub(crate) const NAME_BYTES_MAX: usize = 64;

pub(crate) fn read(tables: &[ServerKeyTable]) -> Result<ServerKeys, SettingsError> {
    let keys = tables.iter().map(read_one).collect::<Result<Vec<_>, _>>()?;
    ServerKeys::new(keys).map_err(|error| SettingsError(format!("[[server-keys]]: {error}")))
}

fn read_one(table: &ServerKeyTable) -> Result<ServerKey, SettingsError> {
    let fault = |predicate: &str| SettingsError(format!("{} {predicate}", table.at));
    let name = table.name.as_deref().ok_or_else(|| {
        fault("has no name; add one, such as name = \"app\", by which the log calls the key")
    })?;
    if !is_key_name(name) {
        return Err(fault(&format!(
            "has a name that is not 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_`, `.` or `/`"
        )));
    }
    let hash = table
        .hash
        .as_deref()
        .ok_or_else(|| fault("has no hash; `throng key` makes a key and prints its hash"))?;
    let hash = KeyHash::parse(hash).map_err(|error| {
        if hash.starts_with(PREFIX) {
            fault(
                "has the key itself as its hash, so anyone who can read the file can use it; make \
                 another one with `throng key`, and write the hash that it prints",
            )
        } else {
            debug_assert_eq!(error, ServerKeyError::BadHash);
            fault(&format!("has a malformed hash: {error}, as `throng key` prints it"))
        }
    })?;
    let scopes = scopes(table)?;
    let patterns = patterns(table)?;
    Ok(ServerKey::new(name, hash, scopes, patterns))
}

pub(crate) fn is_key_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain)
}

fn scopes(table: &ServerKeyTable) -> Result<Vec<Scope>, SettingsError> {
    let words = table.scopes.as_deref().unwrap_or_default();
    let known = || Scope::ALL.map(Scope::word).join(", ");
    if words.is_empty() {
        let at = &table.at;
        return Err(SettingsError(format!(
            "{at} has no scopes; add its permissions, such as scopes = [\"publish\"]: {}",
            known()
        )));
    }
    let scope = |word: &String| {
        Scope::from_word(word).ok_or_else(|| {
            let at = &table.at;
            SettingsError(format!("{at} has the unknown scope {word:?}; use some of {}", known()))
        })
    };
    words.iter().map(scope).collect()
}

/// The patterns of a table; `None` if it has none, so that the key is for all channels and users.
fn patterns(table: &ServerKeyTable) -> Result<Option<Vec<Pattern>>, SettingsError> {
    if table.channels.is_none() && table.users.is_none() {
        return Ok(None);
    }
    let lists = [(Kind::Channel, &table.channels), (Kind::User, &table.users)];
    let texts = lists
        .into_iter()
        .flat_map(|(kind, list)| list.iter().flatten().map(move |text| (kind, text.as_str())));
    let patterns = texts.map(|(kind, text)| pattern(&table.at, kind, text));
    patterns.collect::<Result<_, _>>().map(Some)
}
