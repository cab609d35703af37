//! Questions between nodes, as JSON. A node that does not know a question of a later version does
//! not answer, and the asking node reports a missing answer.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use throng_core::{
    ChannelName, ConnectionName, Delivered, FoundConnection, FoundLag, FoundTransport, Kind,
    ListPart, ListPlace, ListQuery, ListedChannel, Presence, ScanAction, ScanClose, ScanTarget,
    Scanned,
};

use super::bookmark_messages::LeftElsewhere;
use super::member_messages::{ChangeElsewhere, WantElsewhere};
use crate::journal::headers_of;

/// A question of one node to all others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Question {
    /// The subscribers of a channel.
    Presence {
        of: LogName,
        /// The largest number of users to name.
        users: usize,
        /// True if no earlier answer will do. Earlier versions do not know the difference.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        anew: bool,
    },
    /// How many follow a channel?
    Subscribers(LogName),
    /// The delivery of a message whose publisher wants a receipt and is on the asking node. The
    /// answer comes once it is complete, or this time is over.
    Receipt { of: LogName, id: String, wait_ms: u64 },
    /// How is the node, and what does it know of the others?
    Node,
    /// Pass all connections.
    Scan { target: Target, action: RemoteAction },
    /// A part of a page of the list of channels or users.
    List(ListQuestion),
    /// The use of limits by clients of the asking node, in base64. The answer only says that it was
    /// heard.
    Use { node: String, report: String },
    /// What has changed of the members of the asking node, from change number `first` on. Nobody
    /// answers.
    MembersTold { node: String, first: u64, changes: Vec<ChangeElsewhere> },
    /// The members that a node has itself, from behind a key on. If it is for one node, the others
    /// do not answer.
    Members { only: Option<String>, of: Vec<WantElsewhere> },
    /// Bookmarks that were left with the asking node. Nobody answers.
    BookmarksLeft { node: String, left: Vec<LeftElsewhere> },
    /// Where a user goes on in a channel. The node `from` gives its bookmark away.
    Bookmark {
        of: LogName,
        user: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<String>,
    },
    /// A user leaves all channels without a grace, and what waits to be told to applications from
    /// before a time is forgotten. The answer only says that it was heard.
    PartWith {
        user: String,
        /// In milliseconds since 1970. Earlier versions say nothing of it.
        #[serde(default)]
        before_ms: u64,
    },
}

/// [`ListQuery`] between nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ListQuestion {
    /// Otherwise channels.
    users: bool,
    /// The text of a position.
    after: Option<String>,
    pattern: Option<Box<str>>,
    limit: usize,
}

/// Entries of a part that a node sends, at most: more than anybody may ask for.
const LIST_MAX: usize = 1_000;

impl ListQuestion {
    pub(super) fn of(query: &ListQuery) -> ListQuestion {
        ListQuestion {
            users: query.kind == Kind::User,
            after: query.after.as_ref().map(ToString::to_string),
            pattern: query.pattern.clone(),
            limit: query.limit,
        }
    }

    /// The query; `None` if it is after a position of a form unknown here.
    pub(super) fn query(self) -> Option<ListQuery> {
        let after = self.after.map(|text| text.parse()).transpose().ok()?;
        let kind = if self.users { Kind::User } else { Kind::Channel };
        let limit = self.limit.clamp(1, LIST_MAX);
        Some(ListQuery { kind, after, pattern: self.pattern, limit })
    }
}

/// The answer to [`Question::List`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ListAnswer {
    entries: Vec<ListedElsewhere>,
    reached: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ListedElsewhere {
    name: Box<str>,
    subscribers: u64,
    id: String,
    messages: usize,
}

impl From<&ListPart> for ListAnswer {
    fn from(part: &ListPart) -> ListAnswer {
        let entry = |listed: &ListedChannel| ListedElsewhere {
            name: listed.name.name().into(),
            subscribers: listed.subscribers,
            id: listed.head.to_string(),
            messages: listed.messages,
        };
        ListAnswer {
            entries: part.channels.iter().map(entry).collect(),
            reached: part.reached.as_ref().map(ToString::to_string),
        }
    }
}

impl ListAnswer {
    /// The part; `None` if it ends in a form unknown here. An entry that cannot be read is left
    /// out.
    pub(super) fn part(self, kind: Kind) -> Option<ListPart> {
        let reached = self.reached.map(|text| text.parse()).transpose().ok()?;
        let listed = |entry: ListedElsewhere| {
            let head = entry.id.parse().ok()?;
            Some(ListedChannel {
                place: ListPlace(0),
                name: ChannelName::new(kind, &entry.name),
                subscribers: entry.subscribers,
                head,
                messages: entry.messages,
            })
        };
        let channels = self.entries.into_iter().filter_map(listed).collect();
        Some(ListPart { channels, reached })
    }
}

/// The question of a program that is no node itself to all nodes, on the subject of questions:
/// their state. `id` names the asker, as a node's does. Each node answers with a [`ClusterView`] as
/// JSON.
///
/// [`ClusterView`]: super::ClusterView
pub fn question_of_nodes(id: &str) -> (Vec<u8>, Vec<u8>) {
    // Always JSON: it has neither maps nor numbers.
    (headers_of(id), serde_json::to_vec(&Question::Node).unwrap_or_default())
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LogName {
    Channel(String),
    User(String),
}

impl LogName {
    /// `None` for a log of the node's own.
    pub(super) fn of(name: &ChannelName) -> Option<LogName> {
        match name.kind() {
            Kind::Channel => Some(LogName::Channel(name.name().into())),
            Kind::User => Some(LogName::User(name.name().into())),
            Kind::Internal => None,
        }
    }

    pub(super) fn name(&self) -> ChannelName {
        match self {
            LogName::Channel(name) => ChannelName::channel(name),
            LogName::User(name) => ChannelName::user(name),
        }
    }
}

/// Which connections are meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Target {
    /// Those of a user. Each node has tags of its own for it.
    User(String),
    Channel(String),
    /// Those with these names.
    Connections(Vec<String>),
    /// Those that are behind.
    Behind,
}

impl Target {
    /// `None` for what concerns the node alone.
    pub(super) fn of(target: &ScanTarget) -> Option<Target> {
        match target {
            ScanTarget::User { inbox, .. } => Some(Target::User(inbox.name().into())),
            ScanTarget::Channel(channel) => Some(Target::Channel(channel.name().into())),
            ScanTarget::Connections(names) => {
                Some(Target::Connections(names.iter().map(ToString::to_string).collect()))
            }
            ScanTarget::Behind => Some(Target::Behind),
            ScanTarget::Sessions(_) | ScanTarget::All => None,
        }
    }
}

/// The action on the connections found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RemoteAction {
    /// They are listed, at most this many.
    List(usize),
    /// They are closed.
    Close { code: u16, reason: Box<str>, may_return: bool },
}

impl RemoteAction {
    /// `None` for what concerns the node alone.
    pub(super) fn of(action: &ScanAction) -> Option<RemoteAction> {
        match action {
            ScanAction::List { limit } => Some(RemoteAction::List(*limit)),
            ScanAction::Close(ScanClose { code, reason, may_return }) => {
                Some(RemoteAction::Close {
                    code: *code,
                    reason: reason.clone(),
                    may_return: *may_return,
                })
            }
            ScanAction::Revoke
            | ScanAction::CloseForMemory
            | ScanAction::Recheck
            | ScanAction::TellLate(_) => None,
        }
    }

    pub(super) fn scan_action(self) -> ScanAction {
        match self {
            RemoteAction::List(limit) => ScanAction::List { limit },
            RemoteAction::Close { code, reason, may_return } => {
                ScanAction::Close(ScanClose { code, reason, may_return })
            }
        }
    }
}

/// The answer to [`Question::Presence`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PresenceAnswer {
    pub(super) connections: usize,
    pub(super) users: Vec<Box<str>>,
    pub(super) more: bool,
}

impl From<&Presence> for PresenceAnswer {
    fn from(presence: &Presence) -> PresenceAnswer {
        PresenceAnswer {
            connections: presence.connections,
            users: presence.users.iter().map(|user| (**user).into()).collect(),
            more: presence.is_cut,
        }
    }
}

/// The answer to [`Question::Receipt`]: the fields of [`Delivered`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ReceiptAnswer {
    matched: u64,
    written: u64,
    behind: u64,
    lagging: u64,
    skipped: u64,
    closed: u64,
    expired: u64,
    unknown: u64,
}

impl From<&Delivered> for ReceiptAnswer {
    fn from(delivered: &Delivered) -> ReceiptAnswer {
        let Delivered { matched, written, behind, lagging, skipped, closed, expired, unknown } =
            *delivered;
        ReceiptAnswer { matched, written, behind, lagging, skipped, closed, expired, unknown }
    }
}

impl From<ReceiptAnswer> for Delivered {
    fn from(answer: ReceiptAnswer) -> Delivered {
        let ReceiptAnswer { matched, written, behind, lagging, skipped, closed, expired, unknown } =
            answer;
        Delivered { matched, written, behind, lagging, skipped, closed, expired, unknown }
    }
}

/// The answer to [`Question::Scan`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ScanAnswer {
    pub(super) count: u64,
    pub(super) connections: Vec<FoundElsewhere>,
}

/// A listed connection.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FoundElsewhere {
    name: String,
    transport: String,
    since_ms: Option<u64>,
    peer: Option<SocketAddr>,
    proxied: Option<IpAddr>,
    /// In the list of those that are behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lag: Option<Box<LagElsewhere>>,
}

/// How far a connection is behind: the fields of [`FoundLag`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LagElsewhere {
    since_ms: u64,
    messages: u64,
    bytes: u64,
    kernel_bytes: u64,
    user: Option<Box<str>>,
    channels: Vec<LogName>,
    subscriptions: usize,
}

impl From<&FoundLag> for LagElsewhere {
    fn from(lag: &FoundLag) -> LagElsewhere {
        LagElsewhere {
            since_ms: lag.since_ms,
            messages: lag.messages,
            bytes: lag.bytes,
            kernel_bytes: lag.kernel_bytes,
            user: lag.user.clone(),
            channels: lag.channels.iter().filter_map(LogName::of).collect(),
            subscriptions: lag.subscriptions,
        }
    }
}

impl LagElsewhere {
    fn lag(self) -> FoundLag {
        let mut channels: Vec<_> = self.channels.iter().map(LogName::name).collect();
        channels.truncate(FoundLag::CHANNELS_MAX);
        FoundLag {
            since_ms: self.since_ms,
            messages: self.messages,
            bytes: self.bytes,
            kernel_bytes: self.kernel_bytes,
            user: self.user,
            channels,
            subscriptions: self.subscriptions,
        }
    }
}

const TRANSPORTS: [FoundTransport; 4] = [
    FoundTransport::WebSocket,
    FoundTransport::Sse,
    FoundTransport::Stream,
    FoundTransport::LongPoll,
];

impl From<&Scanned> for ScanAnswer {
    fn from(scanned: &Scanned) -> ScanAnswer {
        let found = |one: &FoundConnection| FoundElsewhere {
            name: one.name.to_string(),
            transport: one.transport.word().into(),
            since_ms: one.since_ms,
            peer: one.peer,
            proxied: one.proxied,
            lag: one.lag.as_deref().map(|lag| Box::new(lag.into())),
        };
        ScanAnswer {
            count: scanned.count,
            connections: scanned.connections.iter().map(found).collect(),
        }
    }
}

impl ScanAnswer {
    /// The result of the scan. A connection with a description of no version known here would be
    /// left out; it is counted.
    pub(super) fn scanned(self) -> Scanned {
        let connection = |found: FoundElsewhere| {
            let transport = TRANSPORTS.into_iter().find(|one| one.word() == found.transport)?;
            Some(FoundConnection {
                name: found.name.parse::<ConnectionName>().ok()?,
                transport,
                since_ms: found.since_ms,
                peer: found.peer,
                proxied: found.proxied,
                lag: found.lag.map(|lag| Box::new(lag.lag())),
            })
        };
        let connections = self.connections.into_iter().filter_map(connection).collect();
        Scanned { count: self.count, connections }
    }
}

#[cfg(test)]
mod tests {
    use throng_core::ListPosition;

    use super::super::cluster::{ClusterView, NodeFacts, OtherNode};
    use super::*;
    use crate::kept::reads;

    fn again<T: Serialize + for<'a> Deserialize<'a>>(one: &T) -> T {
        serde_json::from_slice(&serde_json::to_vec(one).unwrap()).unwrap()
    }

    fn presence_of_ann() -> Question {
        Question::Presence { of: LogName::User("ann".into()), users: 3, anew: false }
    }

    #[test]
    fn questions_are_read_as_they_are_written() {
        let presence = presence_of_ann();
        let text = serde_json::to_string(&presence).unwrap();
        assert_eq!(text, r#"{"presence":{"of":{"user":"ann"},"users":3}}"#);
        let action = ScanAction::Close(ScanClose {
            code: 4100,
            reason: "why \"so\"".into(),
            may_return: true,
        });
        let target =
            ScanTarget::Connections(vec![ConnectionName::numbered(7), ConnectionName::numbered(8)]);
        let scan = Question::Scan {
            target: Target::of(&target).unwrap(),
            action: RemoteAction::of(&action).unwrap(),
        };
        assert_eq!(question_of_nodes("me").1, br#""node""#);
        for question in
            [presence, scan, Question::Node, Question::Subscribers(LogName::Channel("a/b".into()))]
        {
            assert_eq!(again(&question), question);
        }
        assert_eq!(RemoteAction::of(&action).unwrap().scan_action(), action);
        assert!(Target::of(&ScanTarget::All).is_none());
        assert!(RemoteAction::of(&ScanAction::Recheck).is_none());
    }

    #[test]
    fn kept_questions_and_answers_are_read() {
        let close = RemoteAction::Close { code: 4100, reason: "why".into(), may_return: true };
        reads(
            "questions",
            &[
                presence_of_ann(),
                Question::Subscribers(LogName::Channel("a/b".into())),
                Question::Node,
                Question::Scan {
                    target: Target::User("ann".into()),
                    action: RemoteAction::List(9),
                },
                Question::Scan { target: Target::Channel("a".into()), action: close.clone() },
                Question::Scan { target: Target::Connections(vec!["7".into()]), action: close },
            ],
        );
        let users = vec!["ann".into(), "bob".into()];
        reads("presence", &[PresenceAnswer { connections: 7, users, more: true }]);
        let found = |transport: FoundTransport| FoundElsewhere {
            name: "0000000000000007".into(),
            transport: transport.word().into(),
            since_ms: Some(5),
            peer: "192.0.2.7:50412".parse().ok(),
            proxied: "2001:db8::1".parse().ok(),
            lag: None,
        };
        let connections = TRANSPORTS.map(found).into();
        reads("scans", &[ScanAnswer { count: 9, connections }]);
        let scan = Question::Scan { target: Target::Behind, action: RemoteAction::List(9) };
        reads("behind", &[scan]);
        let lag = LagElsewhere::from(&lag());
        let behind = FoundElsewhere { lag: Some(lag.into()), ..found(FoundTransport::Sse) };
        reads("scans-behind", &[ScanAnswer { count: 9, connections: vec![behind] }]);
    }

    fn lag() -> FoundLag {
        FoundLag {
            since_ms: 1,
            messages: 2,
            bytes: 3,
            kernel_bytes: 4,
            user: Some("ann".into()),
            channels: vec![ChannelName::channel("a"), ChannelName::user("ann")],
            subscriptions: 5,
        }
    }

    #[test]
    fn kept_reports_of_use_are_read() {
        reads("use", &[Question::Use { node: "a".into(), report: "AQID".into() }]);
    }

    #[test]
    fn kept_lists_are_read() {
        let query = ListQuery {
            kind: Kind::User,
            after: Some(ListPosition::of("ann")),
            pattern: Some("a*".into()),
            limit: 100,
        };
        let question = ListQuestion::of(&query);
        reads("list-questions", &[Question::List(question.clone())]);
        assert_eq!(question.query(), Some(query));
        let listed = ListedChannel {
            place: ListPlace(0),
            name: ChannelName::user("ann"),
            subscribers: 3,
            head: "k3v9x2-7".parse().expect("an id"),
            messages: 2,
        };
        let part = ListPart { channels: vec![listed], reached: Some(ListPosition::of("ann")) };
        reads("lists", &[ListAnswer::from(&part)]);
        assert_eq!(ListAnswer::from(&part).part(Kind::User), Some(part));
        let most = ListQuestion { limit: usize::MAX, ..ListQuestion::default() };
        assert_eq!(most.query().map(|query| query.limit), Some(LIST_MAX));
    }

    #[test]
    fn kept_questions_about_receipts_are_read() {
        let of = LogName::Channel("a".into());
        reads("receipts", &[Question::Receipt { of, id: "k3v9x2-7".into(), wait_ms: 500 }]);
        let delivered = Delivered {
            matched: 9,
            written: 1,
            behind: 3,
            lagging: 1,
            skipped: 2,
            closed: 1,
            expired: 1,
            unknown: 2,
        };
        reads("delivered", &[ReceiptAnswer::from(&delivered)]);
        assert_eq!(Delivered::from(ReceiptAnswer::from(&delivered)), delivered);
    }

    #[test]
    fn kept_descriptions_of_nodes_are_read() {
        let facts = NodeFacts {
            name: "a:1".into(),
            version: "0.1.0".into(),
            up_ms: 1,
            connections: 2,
            status: "ready".into(),
            reasons: vec!["nats".into()],
            followed: 3,
            behind: 4,
            lag_ms: 5,
            under_way: 6,
            revocations_age_ms: Some(7),
            is_open: true,
            since_ms: 8,
            epoch: "8vn2ybqk".into(),
            leader: "n1".into(),
        };
        let other = OtherNode { id: "b".into(), silent_ms: 9, facts: Some(facts.clone()) };
        reads("nodes", &[ClusterView { id: "a".into(), facts, others: vec![other] }]);
    }

    #[test]
    fn unknown_questions_of_later_versions_get_no_answer() {
        let more = r#"{"presence":{"of":{"user":"ann"},"users":3,"more":[1]}}"#;
        let presence = presence_of_ann();
        assert_eq!(serde_json::from_str::<Question>(more).unwrap(), presence);
        let answer = r#"{"connections":7,"users":["ann"],"more":true,"later":{}}"#;
        assert_eq!(serde_json::from_str::<PresenceAnswer>(answer).unwrap().connections, 7);
        assert!(serde_json::from_str::<Question>(r#"{"later":1}"#).is_err());
    }

    #[test]
    fn a_scan_is_read_as_it_was_made() {
        let connection = |number, transport| FoundConnection {
            name: ConnectionName::numbered(number),
            transport,
            since_ms: Some(5),
            peer: "192.0.2.7:50412".parse().ok(),
            proxied: "2001:db8::1".parse().ok(),
            lag: (number == 1).then(|| Box::new(lag())),
        };
        let connections =
            TRANSPORTS.into_iter().zip(1..).map(|(one, number)| connection(number, one)).collect();
        let scanned = Scanned { count: 9, connections };
        assert_eq!(again(&ScanAnswer::from(&scanned)).scanned(), scanned);
    }
}
