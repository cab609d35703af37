//! Rules: retention and lag limits, by channel pattern.

use std::time::Duration;

use crate::glob::glob;
use crate::name::{ChannelName, Kind};

/// How much of a channel's log is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// The maximum number of messages, as an [`EntryCount`] is judged; 0 keeps none.
    pub max_messages: usize,
    /// The maximum number of bytes, as `Content::weight_bytes` counts them.
    pub max_bytes: usize,
    /// The maximum age of a message.
    pub max_age_ms: u64,
}

impl Retention {
    /// True if no message is ever kept.
    pub fn is_none(&self) -> bool {
        self.max_messages == 0 || self.max_bytes == 0 || self.max_age_ms == 0
    }
}

/// How much of a channel's state is kept: the newest message of each key, for as long as it has a
/// value, whatever the [`Retention`] of other messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLimits {
    /// The maximum number of keys; 0 keeps none.
    pub max_keys: usize,
    /// The maximum size of their messages in bytes, as `Content::weight_bytes` counts them.
    pub max_bytes: usize,
    /// True if removed keys are remembered for a minute and not for an hour: of a list that changes
    /// all the time, and that a client gets anew in little time.
    pub forgets_soon: bool,
}

/// The fate of a subscriber that has fallen too far behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LagPolicy {
    /// Its connection is closed with a code that says so. The client can reconnect and resume.
    Close,
    /// The client gets a gap message, and goes on with the messages that are still there.
    Skip,
    /// A subscriber that could not be written to gets the newest message alone, and the number of
    /// those that it has skipped for it. It never lags too far behind.
    Latest,
}

/// The publisher that messages show to everybody who reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sender {
    #[default]
    Nobody,
    /// The user of the publisher's token.
    User,
    /// The name of that user, which the token has for people.
    Name,
}

/// The members of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MembersRule {
    /// True if each connection is a member, false if each user is one.
    pub are_connections: bool,
    /// For how long a user stays after the last connection has ended, in milliseconds.
    pub grace_ms: u64,
}

/// How the next subscription of a user goes on where one has died with its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumeRule {
    /// True if it begins behind what the client has confirmed, false if behind what was written.
    pub is_at_least_once: bool,
    /// For how long the place is kept, in milliseconds.
    pub for_ms: u64,
}

/// A journal of a server, by its place among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalId(pub u8);

/// The settings of the channels that match one pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Channels or users; `None` matches both. Internal logs have a rule of their own.
    pub kind: Option<Kind>,
    /// A name in which `*` stands for any text.
    pub pattern: String,
    /// How much of the log is kept.
    pub retention: Retention,
    /// How much of the state is kept.
    pub state: StateLimits,
    /// The maximum number of messages that a subscriber may lag behind.
    pub max_lag_messages: usize,
    /// The maximum size of the messages that a subscriber may lag behind, in bytes.
    pub max_lag_bytes: usize,
    /// Applies to subscribers beyond either limit.
    pub lag_policy: LagPolicy,
    /// For how long a subscriber may be behind without having caught up once; `None` for as long as
    /// it keeps to the limits.
    pub slow_timeout: Option<Duration>,
    /// The least time between two deliveries of a channel, in milliseconds: what comes within it
    /// goes out together. 0: everything goes out at once.
    pub pace_ms: u32,
    /// The age in milliseconds beyond which subscribers should get nothing, where the lag policy is
    /// [`LagPolicy::Latest`]: it bounds what waits unread below the server. 0: it is not bounded.
    pub max_staleness_ms: u32,
    /// True if subscribers may get presence events.
    pub presence_events: bool,
    /// The members of which the server keeps a list; `None` for no list.
    pub members: Option<MembersRule>,
    /// True if users have read markers in the channels. In their inboxes they always have.
    pub read_markers: bool,
    /// How users go on after a connection has died, where their dialect has no way of its own;
    /// `None`: they begin anew.
    pub resume: Option<ResumeRule>,
    /// The publisher that messages show.
    pub sender: Sender,
    /// The journal that keeps the log, so that it survives the process; `None`: it is in memory.
    pub journal: Option<JournalId>,
    /// True if channels may end whose journal has to compare each message with their end, at a
    /// price. Those of other journals may without it.
    pub may_end: bool,
    /// True if channels have to be created before anybody publishes or subscribes to them.
    pub must_exist: bool,
}

impl Default for Rule {
    fn default() -> Rule {
        Rule {
            kind: None,
            pattern: "*".into(),
            retention: Retention {
                max_messages: 100,
                max_bytes: 1 << 20,
                max_age_ms: 60 * 60 * 1000,
            },
            state: StateLimits { max_keys: 10_000, max_bytes: 16 << 20, forgets_soon: false },
            max_lag_messages: 1000,
            max_lag_bytes: 1 << 20,
            lag_policy: LagPolicy::Close,
            slow_timeout: None,
            pace_ms: 0,
            max_staleness_ms: 0,
            presence_events: false,
            members: None,
            read_markers: false,
            resume: None,
            sender: Sender::Nobody,
            journal: None,
            may_end: false,
            must_exist: false,
        }
    }
}

/// The least value of [`Rule::max_staleness_ms`] but 0: a client far away needs that time to
/// acknowledge anything.
pub const STALENESS_MS_MIN: u32 = 100;

/// The largest one.
pub const STALENESS_MS_MAX: u32 = 60_000;

/// Index of a rule within [`Rules`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleId(u8);

impl RuleId {
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The maximum number of patterns. A channel keeps its rule in one byte, and four rules have no
/// pattern.
pub const RULES_MAX: usize = 252;

/// The rules for internal logs.
const INTERNAL_RULES: usize = 3;

/// The maximum number of members of a channel: what a server with many cores can list in seconds.
const MEMBERS_MAX: usize = 200_000;

/// The maximum size of what all members of a channel show of themselves, with their names.
const MEMBERS_BYTES_MAX: usize = 256 << 20;

/// The lag limit of a viewer of the status page, in samples, that is in seconds. A viewer that is
/// closed reconnects, and gets what it lacks from the control plane.
const INTERNAL_LAG_MAX: usize = 30;

/// The lag limit of members, in changes: twice as many as the pace may hold back.
const MEMBERS_LAG_MAX: usize = 1000;

/// The lag limit of presence events, in events. A subscriber that lacks more skips them.
const PRESENCE_LAG_MAX: usize = 4;

/// All rules. The first one that matches a channel applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// The rules with patterns in order, then the fallback, then those for internal logs: for most,
    /// for members, for presence events.
    list: Vec<Rule>,
    /// True if some messages show their publishers.
    shows_senders: bool,
    /// True if some channel has members.
    has_members: bool,
    /// Channels whose names begin with one of these have members by user, whatever their rules say.
    presence: Vec<String>,
    /// True if some channel may end at a price.
    may_end: bool,
    /// True if some channel has [`Rule::resume`].
    resumes: bool,
    /// True if some channel has to be created.
    must_exist: bool,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules::new(Vec::new(), Rule::default())
    }
}

impl Rules {
    /// The rules of `specific` in order, then `fallback` for all other channels. Rules of
    /// `specific` beyond [`RULES_MAX`] are left out.
    pub fn new(mut specific: Vec<Rule>, fallback: Rule) -> Rules {
        specific.truncate(RULES_MAX);
        specific.push(Rule { kind: None, pattern: "*".into(), ..fallback });
        let internal = Rule {
            kind: Some(Kind::Internal),
            retention: Retention { max_messages: 0, max_bytes: 0, max_age_ms: 0 },
            state: StateLimits { max_keys: 0, max_bytes: 0, forgets_soon: true },
            max_lag_messages: INTERNAL_LAG_MAX,
            ..Rule::default()
        };
        specific.push(internal.clone());
        specific.push(Rule {
            state: StateLimits {
                max_keys: MEMBERS_MAX,
                max_bytes: MEMBERS_BYTES_MAX,
                forgets_soon: true,
            },
            // Those that are slow pass over what is superseded. One that lacks more even so comes
            // back, and gets the list.
            lag_policy: LagPolicy::Close,
            max_lag_messages: MEMBERS_LAG_MAX,
            ..internal.clone()
        });
        specific.push(Rule {
            max_lag_messages: PRESENCE_LAG_MAX,
            // Each event has the whole state.
            lag_policy: LagPolicy::Skip,
            ..internal
        });
        let shows_senders = specific.iter().any(|rule| rule.sender != Sender::Nobody);
        let has_members = specific.iter().any(|rule| rule.members.is_some());
        let may_end = specific.iter().any(|rule| rule.may_end);
        let resumes = specific.iter().any(|rule| rule.resume.is_some());
        let must_exist = specific.iter().any(|rule| rule.must_exist);
        Rules {
            list: specific,
            shows_senders,
            has_members,
            presence: Vec::new(),
            may_end,
            resumes,
            must_exist,
        }
    }

    /// The same rules, with members by user of all channels whose names begin with one of these,
    /// without a grace where their rules say none.
    #[must_use]
    pub fn with_members_of(mut self, prefixes: Vec<String>) -> Rules {
        self.has_members |= !prefixes.is_empty();
        self.presence = prefixes;
        self
    }

    /// The same rules, with a pace at which changes of members are told, in milliseconds: see
    /// [`Rule::pace_ms`].
    #[must_use]
    pub fn telling_members_at(mut self, pace_ms: u32) -> Rules {
        let members = self.list.len() - 2;
        self.list[members].pace_ms = pace_ms;
        self
    }

    /// The rule for a channel or user. An operator's rules do not apply to internal logs, which
    /// keep nothing.
    pub fn find(&self, name: &ChannelName) -> RuleId {
        let internal = self.list.len() - INTERNAL_RULES;
        if name.kind() == Kind::Internal {
            let at = if name.is_members() { 1 } else { 2 * usize::from(name.is_presence_events()) };
            return RuleId((internal + at) as u8);
        }
        let matches = |rule: &Rule| {
            rule.kind.is_none_or(|kind| kind == name.kind()) && glob(&rule.pattern, name.name())
        };
        let at = self.list.iter().position(matches).unwrap_or(internal - 1);
        RuleId(at as u8)
    }

    /// True if subscribers of a channel may get presence events.
    pub fn have_presence_events(&self, name: &ChannelName) -> bool {
        self.get(self.find(name)).presence_events
    }

    pub(crate) fn are_presence_events(&self, id: RuleId) -> bool {
        id.index() + 1 == self.list.len()
    }

    /// True if this is the rule of internal logs that are no others of these.
    pub(crate) fn are_internal(&self, id: RuleId) -> bool {
        id.index() + INTERNAL_RULES == self.list.len()
    }

    pub(crate) fn are_members(&self, id: RuleId) -> bool {
        id.index() + 2 == self.list.len()
    }

    /// The members of a channel; `None` if the server keeps no list of them.
    pub fn members(&self, name: &ChannelName) -> Option<MembersRule> {
        if !self.has_members || name.kind() != Kind::Channel {
            return None;
        }
        let members = self.get(self.find(name)).members;
        if !self.presence.iter().any(|prefix| name.name().starts_with(&**prefix)) {
            return members;
        }
        let by_user = members.filter(|rule| !rule.are_connections);
        by_user.or(Some(MembersRule { are_connections: false, grace_ms: 0 }))
    }

    /// True if the server keeps a list of the members of any channel.
    pub fn have_any_members(&self) -> bool {
        self.has_members
    }

    /// True if any channel in a journal may have members.
    pub(crate) fn have_members_in(&self, journal: JournalId) -> bool {
        let may_have = |rule: &Rule| rule.members.is_some() || !self.presence.is_empty();
        self.list.iter().any(|rule| may_have(rule) && rule.journal == Some(journal))
    }

    /// How users go on in a channel after a connection has died.
    pub fn resume(&self, name: &ChannelName) -> Option<ResumeRule> {
        if self.resumes { self.get(self.find(name)).resume } else { None }
    }

    /// True if users go on in any channel after a connection has died.
    pub fn have_any_resume(&self) -> bool {
        self.resumes
    }

    /// True if any rule says [`Rule::may_end`].
    pub fn may_any_end(&self) -> bool {
        self.may_end
    }

    /// True if the rule of a channel says [`Rule::may_end`].
    pub fn may_end(&self, name: &ChannelName) -> bool {
        self.may_end && self.get(self.find(name)).may_end
    }

    /// True if any channel has to be created.
    pub(crate) fn must_any_exist(&self) -> bool {
        self.must_exist
    }

    /// True if a channel has to be created before anybody publishes or subscribes to it.
    pub fn must_exist(&self, name: &ChannelName) -> bool {
        self.must_exist && self.get(self.find(name)).must_exist
    }

    /// The publisher that messages of a channel show.
    pub fn sender(&self, name: &ChannelName) -> Sender {
        if self.shows_senders { self.get(self.find(name)).sender } else { Sender::Nobody }
    }

    /// True if messages of some channel show their publishers.
    pub fn show_senders(&self) -> bool {
        self.shows_senders
    }

    /// True if messages of some channel show the names of their publishers.
    pub fn show_names(&self) -> bool {
        self.list.iter().any(|rule| rule.sender == Sender::Name)
    }

    /// True if any channel has presence events.
    pub fn have_any_presence_events(&self) -> bool {
        self.list.iter().any(|rule| rule.presence_events)
    }

    /// True if any channel in a journal has presence events.
    pub(crate) fn have_presence_events_in(&self, journal: JournalId) -> bool {
        self.list.iter().any(|rule| rule.presence_events && rule.journal == Some(journal))
    }

    /// Which channels a journal keeps, and how much of each: a text that is another one if any of
    /// that is.
    pub fn kept_by(&self, journal: JournalId) -> String {
        let line = |rule: &Rule| {
            let retention = (rule.journal == Some(journal)).then_some(rule.retention);
            format!("{:?} {:?} {retention:?}\n", rule.kind, rule.pattern)
        };
        self.list.iter().map(line).collect()
    }

    /// A hash of the journals that the rules name. Rules that give any channel another journal have
    /// another one, in every build.
    pub(crate) fn journals(&self) -> u64 {
        // An operator's rules. Those of internal logs name no journal.
        let own = &self.list[..self.list.len() - INTERNAL_RULES];
        let fallback = own.last().and_then(|fallback| fallback.journal);
        // What comes behind the last rule with another journal makes no difference.
        let end = own.iter().rposition(|rule| rule.journal != fallback).map_or(0, |last| last + 1);
        let mut hash = sha1_smol::Sha1::new();
        let number = |journal: Option<JournalId>| journal.map_or(0, |JournalId(id)| id + 1);
        for Rule { kind, pattern, journal, .. } in &own[..end] {
            let kind = match kind {
                None => 0,
                Some(Kind::Channel) => 1,
                Some(Kind::User) => 2,
                Some(Kind::Internal) => 3,
            };
            hash.update(&[kind, number(*journal)]);
            hash.update(&(pattern.len() as u64).to_le_bytes());
            hash.update(pattern.as_bytes());
        }
        hash.update(&[number(fallback)]);
        let digest = hash.digest().bytes();
        u64::from_le_bytes(std::array::from_fn(|at| digest[at]))
    }

    /// The retention of each rule whose logs a journal keeps, or the memory.
    pub fn retentions(&self, journal: Option<JournalId>) -> impl Iterator<Item = Retention> {
        let own = self.list.iter().filter(move |rule| rule.journal == journal);
        own.map(|rule| rule.retention)
    }

    /// The same rules for logs in memory. Subscribers of those logs are no clients.
    #[cfg(any(test, feature = "conformance"))]
    pub(crate) fn without_journal(&self) -> Rules {
        let in_memory =
            |rule: &Rule| Rule { journal: None, lag_policy: LagPolicy::Close, ..rule.clone() };
        let list = self.list.iter().map(in_memory).collect();
        Rules { list, ..self.clone() }
    }

    /// The same rules, of which the first journal keeps the logs of all channels and users.
    #[cfg(any(test, feature = "conformance"))]
    pub fn with_journal(mut self) -> Rules {
        let own = self.list.len() - INTERNAL_RULES;
        self.list[..own].iter_mut().for_each(|rule| rule.journal = Some(JournalId(0)));
        self
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// The rule with this id.
    pub fn get(&self, id: RuleId) -> &Rule {
        &self.list[id.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_matching_rule_applies() {
        let rule = |kind, pattern: &str| Rule { kind, pattern: pattern.into(), ..Rule::default() };
        let rules = Rules::new(
            vec![rule(Some(Kind::User), "*"), rule(Some(Kind::Channel), "a*"), rule(None, "ab")],
            Rule::default(),
        );
        assert_eq!(rules.find(&ChannelName::user("ab")), RuleId(0));
        assert_eq!(rules.find(&ChannelName::channel("ab")), RuleId(1));
        assert_eq!(rules.find(&ChannelName::channel("b")), RuleId(3));
    }

    #[test]
    fn a_rule_says_which_publisher_messages_show() {
        let rule =
            |pattern: &str, sender| Rule { pattern: pattern.into(), sender, ..Rule::default() };
        let rules =
            Rules::new(vec![rule("a", Sender::User), rule("b", Sender::Name)], Rule::default());
        let of = |name| rules.sender(&ChannelName::channel(name));
        assert_eq!(["a", "b", "c"].map(of), [Sender::User, Sender::Name, Sender::Nobody]);
        assert!(rules.show_senders() && rules.show_names());
        let rules = Rules::new(vec![rule("a", Sender::User)], Rule::default());
        assert!(rules.show_senders() && !rules.show_names());
        assert!(!Rules::default().show_senders());
    }

    #[test]
    fn rules_with_the_same_journals_have_the_same_hash() {
        let rule =
            |pattern: &str, journal| Rule { pattern: pattern.into(), journal, ..Rule::default() };
        let journals = |rules: &[(&str, Option<u8>)]| {
            let rules = rules.iter().map(|(pattern, id)| rule(pattern, id.map(JournalId)));
            Rules::new(rules.collect(), Rule::default()).journals()
        };
        let disk = journals(&[("a*", Some(0))]);
        assert_eq!(disk, journals(&[("a*", Some(0)), ("b", None)]));
        assert_eq!(journals(&[]), journals(&[("b", None)]));
        let others: &[&[(&str, Option<u8>)]] = &[
            &[],
            &[("a*", Some(1))],
            &[("a", Some(0))],
            &[("b", None), ("a*", Some(0))],
            &[("a*", Some(0)), ("b", Some(0))],
        ];
        for other in others {
            assert_ne!(disk, journals(other), "{other:?}");
        }
        let all = Rules::new(vec![rule("a*", Some(JournalId(0)))], rule("*", Some(JournalId(0))));
        assert_ne!(disk, all.journals());
        assert_eq!(Rules::default().with_journal().journals(), all.journals());
    }

    #[test]
    fn patterns_do_not_apply_to_internal_logs() {
        let all = Rule { pattern: "*".into(), ..Rule::default() };
        let rules = Rules::new(vec![all; 300], Rule::default());
        let rule = rules.get(rules.find(&ChannelName::status()));
        assert!(rule.retention.is_none(), "{rule:?}");
        assert_eq!(rules.find(&ChannelName::channel("status")), RuleId(0));
    }
}
