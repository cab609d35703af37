//! The settings of channels as rules, for the channels and the workers.

use std::time::Duration;

use throng_core::name::Kind;
use throng_core::{
    LagPolicy, MembersRule, ResumeRule, Retention, Rule, Rules, Sender, StateLimits,
};
use throng_units::{Count, Time};

use super::channels::ChannelTable;
use super::table::Settings;
use super::values::LogPlace;

/// For how long users can go on after a connection has died, unless a table says otherwise.
const RESUME_MS: u64 = 30_000;

/// The rules for the channels and the workers: one for each table, and one for all other channels.
pub(crate) fn rules(settings: &Settings) -> Rules {
    let fallback = Rule {
        kind: None,
        pattern: "*".into(),
        retention: Retention {
            max_messages: settings.history.messages.0,
            max_bytes: settings.history.bytes.0,
            max_age_ms: milliseconds(settings.history.age),
        },
        state: StateLimits {
            max_keys: max_keys(settings, settings.default_journal(), None),
            max_bytes: settings.history.key_bytes.0,
            forgets_soon: false,
        },
        max_lag_messages: settings.lag.max_messages.0,
        max_lag_bytes: settings.lag.max_bytes.0,
        lag_policy: settings.lag.policy.0,
        slow_timeout: limited(settings.lag.slow_timeout),
        pace_ms: 0,
        max_staleness_ms: 0,
        presence_events: settings.presence.events.0,
        members: members(settings, None),
        read_markers: false,
        resume: None,
        sender: Sender::Nobody,
        journal: settings.journal_id(settings.default_journal()),
        may_end: false,
        must_exist: false,
    };
    let rules = settings.channels.iter().map(|table| rule(settings, table, &fallback));
    let presence = settings.apps.iter().map(|app| format!("{}presence-", app.prefix()));
    let members_pace_ms = milliseconds(settings.presence.pace) as u32;
    Rules::new(rules.collect(), fallback)
        .with_members_of(presence.collect())
        .telling_members_at(members_pace_ms)
}

/// The rule of one table. A key that is not there has the value of `fallback`.
fn rule(settings: &Settings, table: &ChannelTable, fallback: &Rule) -> Rule {
    let (kind, pattern) = match (&table.channels, &table.users) {
        (_, Some(pattern)) => (Kind::User, pattern.clone()),
        (channels, None) => (Kind::Channel, channels.clone().unwrap_or_default()),
    };
    let kept = fallback.retention;
    // One that gets the newest message alone is never too slow, unless its table says so.
    let is_latest = table.lag_policy.is_some_and(|policy| policy.0 == LagPolicy::Latest);
    let slow_timeout = fallback.slow_timeout.filter(|_| !is_latest);
    let must_exist = table.must_exist.is_some_and(|switch| switch.0);
    Rule {
        kind: Some(kind),
        pattern,
        retention: Retention {
            max_messages: table.messages.map_or(kept.max_messages, |count| count.0),
            max_bytes: table.bytes.map_or(kept.max_bytes, |size| size.0),
            max_age_ms: table.age.map_or(kept.max_age_ms, milliseconds),
        },
        state: StateLimits {
            max_keys: max_keys(settings, settings.journal_of(table), Some(table)),
            max_bytes: table.key_bytes.map_or(fallback.state.max_bytes, |size| size.0),
            forgets_soon: false,
        },
        max_lag_messages: table.max_lag_messages.map_or(fallback.max_lag_messages, |c| c.0),
        max_lag_bytes: table.max_lag_bytes.map_or(fallback.max_lag_bytes, |size| size.0),
        lag_policy: table.lag_policy.map_or(fallback.lag_policy, |policy| policy.0),
        slow_timeout: table.slow_timeout.map_or(slow_timeout, limited),
        max_staleness_ms: table.max_staleness.map_or(0, |age| milliseconds(age) as u32),
        pace_ms: table.pace.map_or(0, |pace| milliseconds(pace) as u32),
        presence_events: table.presence_events.map_or(fallback.presence_events, |switch| switch.0),
        members: members(settings, Some(table)),
        read_markers: table.read_markers.is_some_and(|switch| switch.0),
        resume: resume(table),
        sender: table.sender.map_or(fallback.sender, |sender| sender.0),
        journal: settings.journal_id(settings.journal_of(table)),
        // Each message has to be compared with the creation, as with an end.
        may_end: must_exist || table.may_end.is_some_and(|switch| switch.0),
        must_exist,
    }
}

/// How users go on in the channels of a table.
fn resume(table: &ChannelTable) -> Option<ResumeRule> {
    let is_at_least_once = table.resume?.0?;
    let for_ms = table.resume_for.map_or(RESUME_MS, milliseconds);
    Some(ResumeRule { is_at_least_once, for_ms })
}

/// The keys that a state may have. Over NATS it costs each publication something, so a table has to
/// ask for it.
fn max_keys(settings: &Settings, journal: LogPlace, table: Option<&ChannelTable>) -> usize {
    let asked = table.and_then(|table| table.keys);
    let usual = if journal == LogPlace::Nats { Count(0) } else { settings.history.keys };
    asked.unwrap_or(usual).0
}

/// The members of channels that match a table, or none.
fn members(settings: &Settings, table: Option<&ChannelTable>) -> Option<MembersRule> {
    let own = table.and_then(|table| table.members).unwrap_or(settings.presence.members);
    let grace = table.and_then(|table| table.members_grace).unwrap_or(settings.presence.grace);
    own.0.map(|are_connections| MembersRule {
        are_connections,
        // A connection does not come back.
        grace_ms: if are_connections { 0 } else { milliseconds(grace) },
    })
}

/// A time that is no limit if it is zero.
fn limited(time: Time) -> Option<Duration> {
    Some(time.0).filter(|time| !time.is_zero())
}

fn milliseconds(time: Time) -> u64 {
    u64::try_from(time.0.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use throng_core::ChannelName;

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
        assert_eq!(chat.retention.max_age_ms, 86_400_000);
        assert_eq!((chat.retention.max_messages, chat.lag_policy), (7, LagPolicy::Skip));
        assert_eq!(of(ChannelName::user("chat:a")).retention.max_messages, 500);
        let other = of(ChannelName::channel("news"));
        assert_eq!((other.retention.max_messages, other.lag_policy), (7, LagPolicy::Close));
    }

    #[test]
    fn presence_channels_of_an_application_have_members() {
        let text = "
            [history]
            messages = 7
            [[apps]]
            id = '1'
            [[channels]]
            match = '1/presence-big-*'
            messages = 1
            [[channels]]
            match = '1/*'
            messages = 2
            [[channels]]
            match = '1/presence-late-*'
            messages = 3
            [[channels]]
            match = 'shop/*-x-*'
            messages = 4
            [[channels]]
            match = 'shop/presence-slow-*'
            members = 'user'
            members-grace = '9s'
            [[channels]]
            match = 'shop/presence-tabs-*'
            members = 'connection'
            [[apps]]
            id = '2'
            prefix = 'shop/'
        ";
        let settings = file::read("throng.toml", text).unwrap().resolve();
        let rules = rules(&settings);
        for (name, messages, grace_ms) in [
            ("1/presence-big-a", 1, Some(0)),
            ("1/presence-a", 2, Some(0)),
            ("1/presence-late-a", 2, Some(0)),
            ("1/private-a", 2, None),
            ("shop/presence-a", 7, Some(0)),
            ("shop/presence-x-a", 4, Some(0)),
            ("shop/private-x-a", 4, None),
            ("shop/presence-slow-a", 7, Some(9_000)),
            ("shop/presence-tabs-a", 7, Some(0)),
            ("shop/news", 7, None),
            ("2/presence-a", 7, None),
            ("presence-a", 7, None),
        ] {
            let name = ChannelName::channel(name);
            let members = rules.members(&name);
            assert!(members.is_none_or(|rule| !rule.are_connections), "{name:?}");
            let members = members.map(|rule| rule.grace_ms);
            assert_eq!(rules.get(rules.find(&name)).retention.max_messages, messages, "{name:?}");
            assert_eq!(members, grace_ms, "{name:?}");
        }
    }

    #[test]
    fn users_go_on_where_a_table_says_so() {
        let text = "
            [[apps]]
            id = '1'
            [[channels]]
            match = '1/news-*'
            resume = 'none'
            [[channels]]
            match = '1/*'
            resume = 'at-least-once'
            [[channels]]
            users = '1/*'
            resume = 'at-most-once'
            resume-for = '2m'
        ";
        let settings = file::read("throng.toml", text).unwrap().resolve();
        let rules = rules(&settings);
        let of = |name| rules.resume(&name).map(|rule| (rule.is_at_least_once, rule.for_ms));
        for (name, rule) in [
            ("1/news-a", None),
            ("1/private-a", Some((true, 30_000))),
            ("1/presence-a", Some((true, 30_000))),
            ("2/private-a", None),
        ] {
            assert_eq!(of(ChannelName::channel(name)), rule, "{name}");
        }
        assert_eq!(of(ChannelName::user("1/ann")), Some((false, 120_000)));
    }

    #[test]
    fn each_rule_names_its_journal() {
        let tables = "
            [[channels]]
            match = 'a'
            journal = 'disk'
            local = true
            [[channels]]
            match = 'b'
            durable = true
            local = true
            [[channels]]
            match = 'c'
            journal = 'memory'
            local = true
            [[channels]]
            match = 'd'
        ";
        for (head, expected) in [
            ("data = '/d'", [Some(0), Some(0), None, None, None]),
            ("data = '/d'\nengine = 'nats'", [Some(0), Some(0), None, Some(1), Some(1)]),
            ("engine = 'nats'", [None, None, None, Some(0), Some(0)]),
        ] {
            let text = format!("{head}{tables}");
            let rules = rules(&file::read("throng.toml", &text).unwrap().resolve());
            let journal = |name| rules.get(rules.find(&ChannelName::channel(name))).journal;
            let found = ["a", "b", "c", "d", "e"].map(|name| journal(name).map(|id| id.0));
            assert_eq!(found, expected, "{head}");
        }
    }

    #[test]
    fn a_latest_channel_has_a_slow_timeout_only_of_its_own() {
        let text = "
            [lag]
            slow-timeout = '5s'
            [[channels]]
            match = 'a'
            lag-policy = 'latest'
            [[channels]]
            match = 'b'
            lag-policy = 'latest'
            slow-timeout = '9s'
        ";
        let rules = rules(&file::read("throng.toml", text).unwrap().resolve());
        let timeout = |name| rules.get(rules.find(&ChannelName::channel(name))).slow_timeout;
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!([timeout("a"), timeout("b"), timeout("c")], [None, seconds(9), seconds(5)]);
    }
}
