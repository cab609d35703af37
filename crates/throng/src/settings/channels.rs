//! `[[channels]]`: settings for the channels that match a pattern.

use std::path::Path;

use serde::{Deserialize, Serialize};
use throng_core::glob::glob;
use throng_core::rules::RULES_MAX;
use throng_units::{Count, Size, Switch, Time};

use super::values::{
    JournalChoice, LagPolicyChoice, MembersChoice, ResumeChoice, SenderChoice, WhoChoice,
};
use throng_settings::toml_value;

/// Defines the keys of a table, and [`ChannelTable`].
macro_rules! channel_table {
    ($( $(#[$doc:meta])* $key:literal $field:ident: $type:ty, )*) => {
        /// The keys of a table, for "did you mean …?".
        pub(super) const KEYS: &[&str] = &["match", "users", $($key),*];

        /// One `[[channels]]` table. A key that is not there has the value of the global setting.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
        #[serde(deny_unknown_fields, default)]
        pub(crate) struct ChannelTable {
            /// The channels that the table applies to; `*` matches any text.
            #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
            pub(crate) channels: Option<String>,
            /// The users whose inboxes the table applies to, in place of `channels`.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub(crate) users: Option<String>,
            $(
                $(#[$doc])*
                #[serde(
                    rename = $key,
                    deserialize_with = "toml_value::read",
                    serialize_with = "toml_value::write_some",
                    skip_serializing_if = "Option::is_none"
                )]
                pub(crate) $field: Option<$type>,
            )*
        }
    };
}

channel_table! {
    /// Number of messages kept, in place of `history-messages`.
    "messages" messages: Count,
    /// Size of the messages kept, in place of `history-bytes`.
    "bytes" bytes: Size,
    /// Time for which messages are kept, in place of `history-age`.
    "age" age: Time,
    /// Number of keys whose newest messages are kept, in place of `history-keys`.
    "keys" keys: Count,
    /// Size of those messages, in place of `history-key-bytes`.
    "key-bytes" key_bytes: Size,
    /// Messages that a subscriber may lag behind, in place of `max-lag-messages`.
    "max-lag-messages" max_lag_messages: Count,
    /// Size of the messages that it may lag behind, in place of `max-lag-bytes`.
    "max-lag-bytes" max_lag_bytes: Size,
    /// What happens beyond either limit, in place of `lag-policy`.
    "lag-policy" lag_policy: LagPolicyChoice,
    /// Time in which a subscriber has to catch up, in place of `slow-timeout`.
    "slow-timeout" slow_timeout: Time,
    /// The least time between two deliveries.
    "pace" pace: Time,
    /// The age beyond which subscribers should get nothing, with the lag policy `latest`.
    "max-staleness" max_staleness: Time,
    /// Whether clients are told who joins and leaves, in place of `presence-events`.
    "presence-events" presence_events: Switch,
    /// The members of which there is a list, in place of `presence-members`.
    "members" members: MembersChoice,
    /// How long a member stays after the last connection, in place of `presence-grace`.
    "members-grace" members_grace: Time,
    /// Whether users have read markers in the channels.
    "read-markers" read_markers: Switch,
    /// How users go on after a connection has died.
    "resume" resume: ResumeChoice,
    /// For how long they can, if that is not `RESUME_MS`.
    "resume-for" resume_for: Time,
    /// The publisher that messages show.
    "from" sender: SenderChoice,
    /// Whether channels of several nodes may end.
    "may-end" may_end: Switch,
    /// Whether channels have to be created before they are used.
    "must-exist" must_exist: Switch,
    /// Where the messages are kept.
    "journal" journal: JournalChoice,
    /// Whether the messages are kept in the data directory: an earlier word for that journal.
    "durable" durable: Switch,
    /// Whether each of several nodes has channels of its own.
    "local" local: Switch,
    /// Who may follow the channels, in place of `access-subscribe`.
    "subscribe" subscribe: WhoChoice,
    /// Who may publish to them, in place of `access-publish`.
    "publish" publish: WhoChoice,
    /// Who may read the messages that are kept, in place of `access-history`.
    "history" history: WhoChoice,
    /// Who may see who follows them, in place of `access-presence`.
    "presence" presence: WhoChoice,
    /// Who may erase their messages, in place of `access-erase`.
    "erase" erase: WhoChoice,
    /// Who may replace messages of others in them, in place of `access-edit`.
    "edit" edit: WhoChoice,
    /// Who may set and remove keys of their states, in place of `access-state`.
    "state" state: WhoChoice,
    /// Who may end them and open them again, in place of `access-end`.
    "end" end: WhoChoice,
    /// Who may choose what they show of themselves to other members, in place of `access-update`.
    "update" update: WhoChoice,
    /// Who may create them, in place of `access-create`.
    "create" create: WhoChoice,
}

impl ChannelTable {
    /// Nothing to do: the table names no file, and its errors are numbered where they are found.
    pub(crate) fn place(&mut self, _: &Path, _: usize) {}

    /// Whether the table says who may do something.
    pub(crate) fn has_access(&self) -> bool {
        let reads = [&self.subscribe, &self.history, &self.presence];
        let writes = [&self.publish, &self.erase, &self.edit, &self.state, &self.end, &self.update];
        reads.into_iter().chain(writes).chain([&self.create]).any(Option::is_some)
    }

    /// The table without what it says about access.
    pub(crate) fn without_access(&self) -> ChannelTable {
        ChannelTable {
            subscribe: None,
            publish: None,
            history: None,
            presence: None,
            erase: None,
            edit: None,
            state: None,
            end: None,
            update: None,
            create: None,
            ..self.clone()
        }
    }

    /// Whether the table says nothing about the channels that it matches.
    pub(crate) fn is_bare(&self) -> bool {
        let ChannelTable { channels, users, .. } = self.clone();
        *self == ChannelTable { channels, users, ..ChannelTable::default() }
    }

    /// What is wrong with the table's pattern, if anything: the predicate of a sentence.
    pub(crate) fn fault(&self) -> Option<&'static str> {
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
}

/// A sentence for each table that never applies, because one before it has all of its channels.
pub(crate) fn covered_tables(tables: &[ChannelTable]) -> Vec<String> {
    // A text that no pattern has, in place of any text.
    let widest = |table: &ChannelTable| {
        let [channels, users] =
            [&table.channels, &table.users].map(|it| Some(it.as_ref()?.replace('*', "\0")));
        (channels, users)
    };
    let matches = |pattern: &Option<String>, text: &Option<String>| {
        pattern.as_ref().zip(text.as_ref()).is_some_and(|(pattern, text)| glob(pattern, text))
    };
    let shown = |nth: usize| {
        let pattern = tables[nth].channels.as_ref().or(tables[nth].users.as_ref());
        format!("number {} ({:?})", nth + 1, pattern.map_or("", |it| it))
    };
    let covered = |nth: usize| {
        let (channels, users) = widest(&tables[nth]);
        let covers = |before: &ChannelTable| {
            matches(&before.channels, &channels) || matches(&before.users, &users)
        };
        let before = tables[..nth].iter().position(covers)?;
        Some(format!(
            "[[channels]] {} never applies: {} matches all that it matches, and the first table \
             that matches applies; put the narrower one first",
            shown(nth),
            shown(before)
        ))
    };
    (1..tables.len()).filter_map(covered).collect()
}

/// The maximum number of tables: the number of rules that the engine accepts.
pub(super) const TABLES_MAX: usize = RULES_MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_behind_a_wider_one_never_applies() {
        let covered = |list: &[&str]| {
            let table = |pattern: &&str| match pattern.strip_prefix("user ") {
                Some(user) => ChannelTable { users: Some(user.into()), ..ChannelTable::default() },
                None => {
                    ChannelTable { channels: Some((*pattern).into()), ..ChannelTable::default() }
                }
            };
            let tables: Vec<_> = list.iter().map(table).collect();
            covered_tables(&tables)
        };
        for list in [
            &["shop/private-*", "shop/*"][..],
            &["a*", "user a*"],
            &["a*b", "a*"],
            &["a", "b", "ab"],
            &["*-x", "shop/*"],
        ] {
            assert_eq!(covered(list), [""; 0], "{list:?}");
        }
        for list in
            [["shop/*", "shop/private-*"], ["a", "a"], ["a*c", "a*b*c"], ["user *", "user ann"]]
        {
            assert_eq!(covered(&list).len(), 1, "{list:?}");
        }
        assert_eq!(
            covered(&["x", "shop/*", "shop/private-*"]),
            ["[[channels]] number 3 (\"shop/private-*\") never applies: number 2 (\"shop/*\") \
              matches all that it matches, and the first table that matches applies; put the \
              narrower one first"]
        );
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
            "age" | "slow-timeout" => "'1h'",
            "pace" => "'100ms'",
            "max-staleness" => "'1s'",
            "lag-policy" => "'skip'",
            "presence-events" | "may-end" | "must-exist" | "read-markers" => "true",
            "journal" => "'disk'",
            "from" => "'name'",
            "resume" => "'at-least-once'",
            "resume-for" => "'1m'",
            "members" => "'user'",
            "durable" | "local" => "true",
            "subscribe" | "publish" | "history" | "presence" | "erase" | "edit" | "state"
            | "end" | "update" | "create" => "'user'",
            _ => "1",
        };
        for key in KEYS {
            let line = format!("{key} = {}", sample(key));
            let read = toml::from_str::<ChannelTable>(&line);
            assert!(read.is_ok_and(|table| table != ChannelTable::default()), "{line}");
        }
    }
}
