//! `[[apps]]`: applications whose clients speak the Pusher protocol.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use throng_settings::toml_value;
use throng_units::{Count, Size};

use super::lists::Origins;
use super::secret::Secret;

/// The keys of a table, for "did you mean …?".
pub(crate) const APPS: &[&str] = &[
    "id",
    "key",
    "secret",
    "secret-file",
    "token-secret",
    "token-secret-file",
    "prefix",
    "allowed-origins",
    "max-connections",
    "connect-rate",
    "max-subscriptions",
    "max-members",
    "max-channels",
    "publish-rate",
    "publish-byte-rate",
    "read-byte-rate",
    "history",
    "subscription-counts",
    "watchlists",
    "webhook",
    "webhook-events",
    "keys",
];

/// One `[[apps]]` table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct AppTable {
    /// The number in the paths of its HTTP API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// Its newest key, with which the server itself signs.
    #[serde(flatten)]
    pub(crate) own: AppKeyTable,
    /// The beginning of the names of its channels and users on this server, with a slash at its
    /// end. Without, the id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefix: Option<String>,
    /// The origins of pages that may use it; without, those of all.
    #[serde(
        deserialize_with = "toml_value::read",
        serialize_with = "toml_value::write_some",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) allowed_origins: Option<Origins>,
    /// The most connections of its clients.
    #[serde(
        deserialize_with = "toml_value::read",
        serialize_with = "toml_value::write_some",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) max_connections: Option<Count>,
    /// The most new connections of its clients per second.
    #[serde(
        deserialize_with = "toml_value::read",
        serialize_with = "toml_value::write_some",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) connect_rate: Option<Count>,
    /// The most subscriptions of its clients.
    #[serde(
        deserialize_with = "toml_value::read",
        serialize_with = "toml_value::write_some",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) max_subscriptions: Option<Count>,
    /// The most members of a presence channel.
    #[serde(
        deserialize_with = "toml_value::read",
        serialize_with = "toml_value::write_some",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) max_members: Option<Count>,
    /// The most channels that have subscribers.
    #[serde(
        deserialize_with = "toml_value::read",
        serialize_with = "toml_value::write_some",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) max_channels: Option<Count>,
    /// The most messages per second, of its requests and its clients.
    #[serde(
        deserialize_with = "toml_value::read",
        serialize_with = "toml_value::write_some",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) publish_rate: Option<Count>,
    /// The most bytes of messages per second, of its requests and its clients.
    #[serde(
        deserialize_with = "toml_value::read",
        serialize_with = "toml_value::write_some",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) publish_byte_rate: Option<Size>,
    /// The most bytes that are read per second, by its requests and its clients.
    #[serde(
        deserialize_with = "toml_value::read",
        serialize_with = "toml_value::write_some",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) read_byte_rate: Option<Size>,
    /// Whether its clients may ask for earlier events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) history: Option<bool>,
    /// Whether its clients are told how many follow a channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) subscription_counts: Option<bool>,
    /// Whether its users are told which of those whom they watch are online.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) watchlists: Option<bool>,
    /// Where it is told what happens on its channels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) webhook: Option<String>,
    /// What it is told of; without, of all but numbers of subscribers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) webhook_events: Option<Vec<String>>,
    /// Further keys: older ones, until nobody uses them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) keys: Vec<AppKeyTable>,
    /// File, table and number, for errors.
    #[serde(skip)]
    pub(crate) at: String,
}

/// A key of an application.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct AppKeyTable {
    /// The public key, which its clients show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// The secret, with which the application signs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<Secret>,
    /// A file with the secret. A line feed at its end does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret_file: Option<PathBuf>,
    /// The secret of its tokens, which name the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_secret: Option<Secret>,
    /// A file with that secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_secret_file: Option<PathBuf>,
    /// Whether it may be used; without, it may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) enabled: Option<bool>,
}

impl AppKeyTable {
    /// Whether it has a secret of tokens, and may be used.
    pub(crate) fn signs_tokens(&self) -> bool {
        let has_secret = self.token_secret.is_some() || self.token_secret_file.is_some();
        has_secret && self.enabled != Some(false)
    }
}

impl AppTable {
    /// Notes that it is table number `nth` of the file `name`.
    pub(crate) fn place(&mut self, name: &Path, nth: usize) {
        self.at = format!("{}, [[apps]] number {nth}", name.display());
        let directory = name.parent().unwrap_or(Path::new(""));
        for key in self.keys.iter_mut().chain([&mut self.own]) {
            for path in [&mut key.secret_file, &mut key.token_secret_file].into_iter().flatten() {
                *path = directory.join(&*path);
            }
        }
    }

    /// Whether its clients may have tokens that it signs.
    pub(crate) fn signs_tokens(&self) -> bool {
        self.all_keys().any(AppKeyTable::signs_tokens)
    }

    /// All of its keys: the newest, and the further ones.
    pub(crate) fn all_keys(&self) -> impl Iterator<Item = &AppKeyTable> {
        std::iter::once(&self.own).chain(&self.keys)
    }

    /// Whether it is the same application as another, whatever else differs.
    pub(crate) fn is_same_app(&self, other: &AppTable) -> bool {
        (&self.id, self.prefix()) == (&other.id, other.prefix())
    }

    /// The beginning of its names on this server.
    pub(crate) fn prefix(&self) -> String {
        let id = || format!("{}/", self.id.as_deref().unwrap_or_default());
        self.prefix.clone().unwrap_or_else(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_accepts_every_key() {
        let sample = |key| match key {
            "allowed-origins" => "['https://shop.example']",
            "max-connections" | "max-subscriptions" | "max-members" | "max-channels" => "1",
            "connect-rate" | "publish-rate" | "publish-byte-rate" | "read-byte-rate" => "1",
            "history" | "subscription-counts" | "watchlists" => "true",
            "webhook-events" => "['client_event']",
            "keys" => "[{ key = 'a', secret = 'b', token-secret-file = 'c', enabled = false }]",
            _ => "'a'",
        };
        for key in APPS {
            let line = format!("{key} = {}", sample(key));
            let read = toml::from_str::<AppTable>(&line);
            assert!(read.is_ok_and(|table| table != AppTable::default()), "{line}");
        }
    }
}
