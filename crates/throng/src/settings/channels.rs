//! `[[channels]]`: settings for the channels that match a pattern.

use serde::{Deserialize, Serialize};
use throng_core::name::Kind;
use throng_core::rules::RULES_MAX;
use throng_core::{Retention, Rule, Rules};
use throng_units::{Count, Size, Time};

use super::Settings;
use super::toml_value;
use super::values::LagPolicyChoice;

/// Defines the keys of a table, and [`ChannelTable`].
macro_rules! channel_table {
    ($( $(#[$doc:meta])* $key:literal $field:ident: $type:ty, )*) => {
        /// The keys of a table, for "did you mean …?".
        pub const KEYS: &[&str] = &["match", "users", $($key),*];

        /// One `[[channels]]` table. A key that is not there has the value of the global setting.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct ChannelTable {
            /// The channels that the table applies to; `*` matches any text.
            #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
            pub channels: Option<String>,
            /// The users whose inboxes the table applies to, in place of `channels`.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub users: Option<String>,
            $(
                $(#[$doc])*
                #[serde(
                    rename = $key,
                    deserialize_with = "toml_value::read",
                    serialize_with = "toml_value::write_some",
                    skip_serializing_if = "Option::is_none"
                )]
                pub $field: Option<$type>,
            )*
        }
    };
}

channel_table! {
    /// See `history-messages`.
    "messages" messages: Count,
    /// See `history-bytes`.
    "bytes" bytes: Size,
    /// See `history-age`.
    "age" age: Time,
    /// See `max-lag-messages`.
    "max-lag-messages" max_lag_messages: Count,
    /// See `max-lag-bytes`.
    "max-lag-bytes" max_lag_bytes: Size,
    /// See `lag-policy`.
    "lag-policy" lag_policy: LagPolicyChoice,
}

impl ChannelTable {
    /// What is wrong with the table's pattern, if anything: the predicate of a sentence.
    pub fn fault(&self) -> Option<&'static str> {
        match (&self.channels, &self.users) {
            (Some(_), Some(_)) => {
                Some("has both `match` and `users`; write one table for each of them")
            }
            (None, None) => Some("has no pattern; add `match = \"chat:*\"` or `users = \"*\"`"),
            (Some(pattern), None) | (None, Some(pattern)) if pattern.is_empty() => {
                Some("has an empty pattern, which matches nothing; `*` matches every name")
            }
            _ => None,
        }
    }

    fn rule(&self, fallback: &Rule) -> Rule {
        let (kind, pattern) = match (&self.channels, &self.users) {
            (_, Some(pattern)) => (Kind::User, pattern.clone()),
            (channels, None) => (Kind::Channel, channels.clone().unwrap_or_default()),
        };
        let kept = fallback.retention;
        Rule {
            kind: Some(kind),
            pattern,
            retention: Retention {
                messages_max: self.messages.map_or(kept.messages_max, |count| count.0),
                bytes_max: self.bytes.map_or(kept.bytes_max, |size| size.0),
                age_ms_max: self.age.map_or(kept.age_ms_max, milliseconds),
            },
            max_lag_messages: self.max_lag_messages.map_or(fallback.max_lag_messages, |c| c.0),
            max_lag_bytes: self.max_lag_bytes.map_or(fallback.max_lag_bytes, |size| size.0),
            lag_policy: self.lag_policy.map_or(fallback.lag_policy, |policy| policy.0),
        }
    }
}

/// The maximum number of tables: the number of rules that the engine accepts.
pub const TABLES_MAX: usize = RULES_MAX;

fn milliseconds(time: Time) -> u64 {
    u64::try_from(time.0.as_millis()).unwrap_or(u64::MAX)
}

/// The rules for the engine and the workers: one for each table, and one for all other channels.
pub fn rules(settings: &Settings) -> Rules {
    let fallback = Rule {
        kind: None,
        pattern: "*".into(),
        retention: Retention {
            messages_max: settings.history.messages.0,
            bytes_max: settings.history.bytes.0,
            age_ms_max: milliseconds(settings.history.age),
        },
        max_lag_messages: settings.lag.max_messages.0,
        max_lag_bytes: settings.lag.max_bytes.0,
        lag_policy: settings.lag.policy.0,
    };
    let specific = settings.channels.iter().map(|table| table.rule(&fallback)).collect();
    Rules::new(specific, fallback)
}

#[cfg(test)]
mod tests {
    use throng_core::{ChannelName, LagPolicy};

    use super::*;
    use crate::settings::file;

    #[test]
    fn the_first_matching_table_applies_and_other_values_are_global() {
        let text = "
            [history]
            messages = 7
            [[channels]]
            match = 'chat:*'
            age = '24h'
            lag-policy = 'skip'
            [[channels]]
            users = '*'
            messages = 500
        ";
        let settings = file::read("throng.toml", text).unwrap().resolve();
        let rules = rules(&settings);
        let of = |name| rules.get(rules.find(&name));
        let chat = of(ChannelName::channel("chat:a"));
        assert_eq!(chat.retention.age_ms_max, 86_400_000);
        assert_eq!((chat.retention.messages_max, chat.lag_policy), (7, LagPolicy::Skip));
        assert_eq!(of(ChannelName::user("chat:a")).retention.messages_max, 500);
        let other = of(ChannelName::channel("news"));
        assert_eq!((other.retention.messages_max, other.lag_policy), (7, LagPolicy::Close));
    }

    #[test]
    fn table_values_have_the_same_grammar_as_flags() {
        let read = |text: &str| toml::from_str::<ChannelTable>(text).unwrap();
        let plain = read("messages = 1000\nbytes = 1048576\nage = 90\nlag-policy = 'skip'");
        for text in [
            "messages = '1k'\nbytes = '1MB'\nage = '1.5m'\nlag-policy = 'SKIP'",
            "messages = '1,000'\nbytes = '1 MiB'\nage = '90'\nlag-policy = 'Skip'",
        ] {
            assert_eq!(read(text), plain, "{text}");
        }
    }

    #[test]
    fn the_table_accepts_every_key() {
        let sample = |key| match key {
            "match" | "users" => "'*'",
            "age" => "'1h'",
            "lag-policy" => "'skip'",
            _ => "1",
        };
        for key in KEYS {
            let line = format!("{key} = {}", sample(key));
            let read = toml::from_str::<ChannelTable>(&line);
            assert!(read.is_ok_and(|table| table != ChannelTable::default()), "{line}");
        }
    }
}
