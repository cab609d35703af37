//! The channels of a world, each with a rule that provokes certain events.

use throng_core::{ChannelName, Kind, LagPolicy, MembersRule, Retention, Rule, Rules};

#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) name: &'static str,
    /// Whether it is a channel or a user; internal if it is the log of the channel's members.
    pub(crate) kind: Kind,
    pub(crate) rule: Rule,
    /// True if the world's witness follows it, so that the engine never forgets it.
    pub(crate) is_pinned: bool,
    /// True if it has facts in place of the model's log: see [`crate::facts`].
    pub(crate) is_changing: bool,
    /// True if it is created and goes.
    pub(crate) is_made: bool,
}

impl Topic {
    /// The name that the engine uses.
    pub(crate) fn channel_name(&self) -> ChannelName {
        if self.kind == Kind::Internal {
            return ChannelName::members(self.name);
        }
        ChannelName::new(self.kind, self.name)
    }

    /// True if it is the log of a channel's members.
    pub(crate) fn is_of_members(&self) -> bool {
        self.kind == Kind::Internal
    }

    /// True if a slow subscriber gets the newest message alone, and never a gap.
    pub(crate) fn is_latest(&self) -> bool {
        self.rule.lag_policy == LagPolicy::Latest
    }

    /// True if subscribers acknowledge its messages, in compact frames of `throng.v1`.
    pub(crate) fn asks(&self) -> bool {
        self.rule.max_staleness_ms > 0
    }

    /// True if a subscriber beyond the lag limit is closed.
    pub(crate) fn closes(&self) -> bool {
        self.rule.lag_policy == LagPolicy::Close
    }

    /// True if a subscriber beyond the lag limit skips messages, with a gap.
    pub(crate) fn skips(&self) -> bool {
        self.rule.lag_policy == LagPolicy::Skip
    }
}

const HOUR_MS: u64 = 3_600_000;

/// The channel that the engine may forget. There is only one: forgotten channels raise each other's
/// first offset if they share a shard, and shards differ between runs.
pub(crate) const BRIEF: usize = 6;

/// The channel whose messages are acknowledged.
pub(crate) const BOUNDED: usize = 12;

/// The channel whose members are users, and the one where each connection is a member.
pub(crate) const ROOMS: [usize; 2] = [SQUARE, 10];

/// The time for which a user stays a member whose last connection has ended.
const GRACE_MS: u64 = 1_500;

/// The pace at which changes of members are told, in worlds that have one.
const MEMBERS_PACE_MS: u32 = 50;

/// Changes of members that a subscriber may lack.
const MEMBERS_LAG_MAX: usize = 1000;

/// The keys that a changing channel may have.
pub(crate) const KEYS_MAX: usize = 5;

/// The channel that most clients of a crowd follow.
pub(crate) const SQUARE: usize = 0;

/// All channels. `is_kept` says whether [`BRIEF`] retains messages.
pub(crate) fn all(is_kept: bool) -> Vec<Topic> {
    use LagPolicy::{Close, Latest, Skip};
    let channel = |name, kept, lag, policy| topic(Kind::Channel, name, kept, lag, policy);
    let user = |name, kept, lag, policy| topic(Kind::User, name, kept, lag, policy);
    let mut topics = vec![
        channel("square", 100, 1000, Close),
        channel("skipping/here", 3, 4, Skip),
        channel("closing", 5, 5, Close),
        channel("none kept", 0, 6, Skip),
        channel("schön&gut", 12, 8, Close),
        channel("bytes", 50, 50, Skip),
        channel("brief", 4, 6, Close),
        user("ann", 10, 6, Skip),
        user("bo?", 10, 100, Close),
        channel("latest", 8, 2, Latest),
        channel("paced", 30, 40, Close),
        channel("paced latest", 8, 9, Latest),
        channel("never stale", 8, 5, Latest),
    ];
    topics[10].rule.pace_ms = 150;
    topics[11].rule.pace_ms = 90;
    topics[BOUNDED].rule.max_staleness_ms = 6_000;
    topics[4].rule.retention.max_age_ms = 3000;
    topics[5].rule.retention.max_bytes = 2500;
    topics[5].rule.max_lag_bytes = 3000;
    topics[BRIEF].is_pinned = false;
    topics[BRIEF].rule.retention.max_age_ms = if is_kept { 1500 } else { 0 };
    topics
}

/// The channels whose messages have keys, are erased or replaced. Some are created and go, and one
/// of these has to be.
pub(crate) fn changing() -> [Topic; 4] {
    let channel = |name, kept, lag| topic(Kind::Channel, name, kept, lag, LagPolicy::Skip);
    let mut topics = [
        channel("state", 3, 30),
        channel("mixed", 6, 17),
        channel("made", 6, 30),
        channel("made or not", 4, 17),
    ];
    topics[2].rule.must_exist = true;
    topics[2..].iter_mut().for_each(|topic| topic.is_made = true);
    for topic in &mut topics {
        (topic.is_changing, topic.rule.state.max_keys) = (true, KEYS_MAX);
    }
    topics
}

/// Gives some channels members. Returns the logs of these.
pub(crate) fn members(topics: &mut [Topic]) -> Vec<Topic> {
    let mut logs = Vec::new();
    for (at, grace_ms) in ROOMS.into_iter().zip([GRACE_MS, 0]) {
        let are_connections = at != SQUARE;
        topics[at].rule.members = Some(MembersRule { are_connections, grace_ms });
        let name = topics[at].name;
        let log = topic(Kind::Internal, name, 0, MEMBERS_LAG_MAX, LagPolicy::Close);
        logs.push(Topic { is_changing: true, ..log });
    }
    logs
}

/// Makes messages expire only when simulated time leaps.
pub(crate) fn keep_for_an_hour(topics: &mut [Topic]) {
    for topic in topics.iter_mut().filter(|topic| !topic.rule.retention.is_none()) {
        topic.rule.retention.max_age_ms = HOUR_MS;
    }
}

fn topic(
    kind: Kind,
    name: &'static str,
    max_messages: usize,
    max_lag_messages: usize,
    lag_policy: LagPolicy,
) -> Topic {
    let rule = Rule {
        kind: Some(kind),
        pattern: name.to_owned(),
        retention: Retention { max_messages, max_bytes: 1 << 20, max_age_ms: HOUR_MS },
        max_lag_messages,
        max_lag_bytes: 1 << 20,
        lag_policy,
        ..Rule::default()
    };
    Topic { name, kind, rule, is_pinned: true, is_changing: false, is_made: false }
}

/// The rules of all channels. Changes of members are told at once, or with a pace.
pub(crate) fn rules(topics: &[Topic], are_members_paced: bool) -> Rules {
    // Logs of members have a rule of their own.
    let own = topics.iter().filter(|topic| topic.kind != Kind::Internal);
    let rules = Rules::new(own.map(|topic| topic.rule.clone()).collect(), Rule::default());
    rules.telling_members_at(if are_members_paced { MEMBERS_PACE_MS } else { 0 })
}
