//! `[[channels]]`: what holds for some channels only.

use serde::{Deserialize, Serialize};
use throng_core::name::Kind;
use throng_core::rules::RULES_MAX;
use throng_core::{Retention, Rule, Rules};

use super::Settings;
use super::duration::Time;
use super::written::{Count, Policy, Size};

/// The keys of a table, for "did you mean …?".
pub const KEYS: [&str; 8] = [
    "match",
    "users",
    "messages",
    "bytes",
    "age",
    "behind-messages",
    "behind-bytes",
    "behind-policy",
];

/// One table of the file. What it leaves out is as for all other channels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct ChannelTable {
    /// Which channels, `*` standing for any text.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub channels: Option<String>,
    /// Or which users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub users: Option<String>,
    /// Messages kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages: Option<Count>,
    /// Bytes kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Size>,
    /// For how long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age: Option<Time>,
    /// A subscriber may be behind by this many messages …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind_messages: Option<Count>,
    /// … or bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind_bytes: Option<Size>,
    /// What happens then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind_policy: Option<Policy>,
}

impl ChannelTable {
    /// What is wrong with it, if anything; the rest of a sentence.
    pub fn fault(&self) -> Option<&'static str> {
        match (&self.channels, &self.users) {
            (Some(_), Some(_)) => {
                Some("has both `match` and `users`; write one table for each of them")
            }
            (None, None) => {
                Some("does not say for whom; add `match = \"chat:*\"` or `users = \"*\"`")
            }
            (Some(pattern), None) | (None, Some(pattern)) if pattern.is_empty() => {
                Some("matches nothing, its pattern is empty; `*` matches every name")
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
                age_ms_max: self.age.map_or(kept.age_ms_max, Time::as_ms),
            },
            max_lag_messages: self.behind_messages.map_or(fallback.max_lag_messages, |c| c.0),
            max_lag_bytes: self.behind_bytes.map_or(fallback.max_lag_bytes, |size| size.0),
            lag_policy: self.behind_policy.map_or(fallback.lag_policy, |policy| policy.0),
        }
    }
}

/// More tables than the engine takes are refused by the check.
pub const TABLES_MAX: usize = RULES_MAX;

/// The rules that the engine and the workers go by.
pub fn rules(settings: &Settings) -> Rules {
    let fallback = Rule {
        kind: None,
        pattern: "*".into(),
        retention: Retention {
            messages_max: settings.history.messages.0,
            bytes_max: settings.history.bytes.0,
            age_ms_max: settings.history.age.as_ms(),
        },
        max_lag_messages: settings.behind.messages.0,
        max_lag_bytes: settings.behind.bytes.0,
        lag_policy: settings.behind.policy.0,
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
    fn the_first_table_that_matches_counts_and_the_rest_is_as_for_all() {
        let text = "
            [history]
            messages = 7
            [[channels]]
            match = 'chat:*'
            age = '24h'
            behind-policy = 'skip'
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
    fn values_are_written_as_everywhere() {
        let read = |text: &str| toml::from_str::<ChannelTable>(text).unwrap();
        let plain = read("messages = 1000\nbytes = 1048576\nage = 90\nbehind-policy = 'skip'");
        for text in [
            "messages = '1k'\nbytes = '1MB'\nage = '1.5m'\nbehind-policy = 'SKIP'",
            "messages = '1,000'\nbytes = '1 MiB'\nage = '90'\nbehind-policy = 'Skip'",
        ] {
            assert_eq!(read(text), plain, "{text}");
        }
    }

    #[test]
    fn every_key_is_known_to_the_table() {
        let sample = |key| match key {
            "match" | "users" => "'*'",
            "age" => "'1h'",
            "behind-policy" => "'skip'",
            _ => "1",
        };
        for key in KEYS {
            let line = format!("{key} = {}", sample(key));
            let read = toml::from_str::<ChannelTable>(&line);
            assert!(read.is_ok_and(|table| table != ChannelTable::default()), "{line}");
        }
    }
}
