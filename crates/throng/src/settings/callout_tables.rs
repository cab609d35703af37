//! `[[callouts]]`: endpoints of the application that decide or are notified.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use throng_outbound::Asks;
use throng_units::{Count, Size, Time};

use super::secret::{NOT_TEXT, Secret};
use throng_settings::toml_value;

/// The keys of a table, for "did you mean …?".
pub(crate) const CALLOUTS: &[&str] = &[
    "url",
    "secrets",
    "secrets-file",
    "secrets-variable",
    "decides",
    "notifies",
    "match",
    "users",
    "headers",
    "address",
    "tokens",
    "timeout",
    "max-in-flight",
    "max-queued",
    "max-cached",
    "max-content",
];

/// One `[[callouts]]` table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct CalloutTable {
    /// Where its requests go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    /// Each signs every request: one, or two while the application changes from one to the other.
    #[serde(deserialize_with = "secrets", skip_serializing_if = "Vec::is_empty")]
    pub(crate) secrets: Vec<Secret>,
    /// A file with the secrets, one on each line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secrets_file: Option<PathBuf>,
    /// The name of a variable with the secrets, separated by spaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secrets_variable: Option<String>,
    /// What the application decides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) decides: Vec<String>,
    /// What the application is notified of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) notifies: Vec<String>,
    /// The channels that it is about; `*` matches any text. With neither this nor `users`, all
    /// channels and users.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub(crate) channels: Option<String>,
    /// The users whose inboxes it is about, in place of `channels`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) users: Option<String>,
    /// The headers of requests that the endpoint gets, where it decides about them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) headers: Vec<String>,
    /// Whether it gets the client's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<bool>,
    /// Whether it decides about clients that show a token, too, if it decides `connect`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tokens: Option<bool>,
    /// The deadline of a request.
    #[serde(
        deserialize_with = "toml_value::read",
        serialize_with = "toml_value::write_some",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) timeout: Option<Time>,
    /// The most questions that are asked at a time.
    #[serde(
        deserialize_with = "toml_value::read",
        serialize_with = "toml_value::write_some",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) max_in_flight: Option<Count>,
    /// The most questions that wait for their turn, and the most events that wait for delivery.
    #[serde(
        deserialize_with = "toml_value::read",
        serialize_with = "toml_value::write_some",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) max_queued: Option<Count>,
    /// The most answers that are remembered.
    #[serde(
        deserialize_with = "toml_value::read",
        serialize_with = "toml_value::write_some",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) max_cached: Option<Count>,
    /// The largest content of a message that a question about its publication has.
    #[serde(
        deserialize_with = "toml_value::read",
        serialize_with = "toml_value::write_some",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) max_content: Option<Size>,
    /// File, table and number, for errors.
    #[serde(skip)]
    pub(crate) at: String,
}

impl CalloutTable {
    /// Notes that it is table number `nth` of the file `name`.
    pub(crate) fn place(&mut self, name: &Path, nth: usize) {
        self.at = format!("{}, [[callouts]] number {nth}", name.display());
        let directory = name.parent().unwrap_or(Path::new(""));
        self.secrets_file = self.secrets_file.as_ref().map(|path| directory.join(path));
    }

    /// Whether the application says who clients are that show no credential.
    pub(crate) fn decides_connect(&self) -> bool {
        self.decides.iter().any(|word| word == Asks::Connect.word())
    }
}

/// Reads secrets. serde would quote what is no list, and with it perhaps a secret.
fn secrets<'de, D: Deserializer<'de>>(source: D) -> Result<Vec<Secret>, D::Error> {
    source.deserialize_any(Secrets)
}

struct Secrets;

impl<'de> Visitor<'de> for Secrets {
    type Value = Vec<Secret>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of texts in quotation marks")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<Secret>, E> {
        Ok(vec![Secret(text.to_owned())])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Secret>, A::Error> {
        let next = || list.next_element().transpose();
        std::iter::from_fn(next).collect()
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Vec<Secret>, E> {
        Err(E::custom(NOT_TEXT))
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Vec<Secret>, E> {
        Err(E::custom(NOT_TEXT))
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Vec<Secret>, E> {
        Err(E::custom(NOT_TEXT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_accepts_every_key() {
        let sample = |key| match key {
            "secrets" | "decides" | "notifies" | "headers" => "['a']",
            "address" | "tokens" => "true",
            "timeout" => "'1s'",
            "max-in-flight" | "max-queued" | "max-cached" | "max-content" => "1",
            _ => "'a'",
        };
        for key in CALLOUTS {
            let line = format!("{key} = {}", sample(key));
            let read = toml::from_str::<CalloutTable>(&line);
            assert!(read.is_ok_and(|table| table != CalloutTable::default()), "{line}");
        }
    }

    #[test]
    fn secrets_are_a_list_or_one_and_no_error_quotes_them() {
        let read = |text: &str| toml::from_str::<CalloutTable>(text);
        assert_eq!(read("secrets = 'hunter2'").unwrap().secrets.len(), 1);
        assert_eq!(read("secrets = ['hunter2', 'b']").unwrap().secrets.len(), 2);
        for bad in ["271828", "2718.28", "true", "[271828]", "{ a = 271828 }", "2718-02-08"] {
            let error = read(&format!("secrets = {bad}")).unwrap_err();
            assert!(!error.message().contains("27"), "{error}");
        }
    }
}
