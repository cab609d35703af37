//! Pending actions and expected answers.

use std::sync::Arc;

use hashbrown::HashMap;

use super::report::{JournalReport, TableId};

/// The subscription that answers come to.
pub(super) const INBOX_SID: u64 = 1;
/// The subscription that hints of other nodes come to.
pub(super) const HINT_SID: u64 = 2;
/// The subscription on which other nodes say that they are there.
pub(super) const NODES_SID: u64 = 3;
/// The subscription that questions of other nodes come to.
pub(super) const ASK_SID: u64 = 4;
/// The subscription for new entries of the first table; the other tables follow.
pub(super) const TABLE_SID: u64 = 5;

/// Begins the subjects of requests about consumers.
pub(super) const CONSUMERS: &str = "$JS.API.CONSUMER.";

/// An action that a journal requests, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JournalAction {
    Subscribe {
        subject: String,
        sid: u64,
    },
    Unsubscribe {
        sid: u64,
    },
    Publish {
        subject: String,
        reply: Option<String>,
        /// The block of headers; may be empty.
        headers: Arc<[u8]>,
        payload: Arc<[u8]>,
    },
    /// Tell the owner of the journal.
    Report(JournalReport),
}

/// A sent question, which says who gets the answer.
#[derive(Debug, Clone)]
pub(super) enum Question {
    /// About the stream itself.
    Watch,
    /// The publication with this number, to the channel with this suffix.
    Ack(Arc<str>, u64),
    /// The record that publications to the channel with this suffix depend on.
    Gate(Arc<str>),
    /// Whether a channel that is read has ended.
    End,
    /// About the log of the channel with this suffix.
    Log(Arc<str>),
    /// A channel with a state, of this suffix.
    State(Arc<str>),
    /// A state that is read.
    Scan,
    /// What was erased of a channel that is read.
    Erasures,
    /// The oldest records.
    Records,
    /// The last messages of many channels.
    Heads,
    /// A batch of messages.
    Batch,
    /// The stream's first and last sequence.
    Bounds,
    /// The names of channels.
    Names,
    /// How many messages a channel has.
    Counts,
    /// Something that all other nodes were asked.
    Nodes,
    Table(TableId),
    Change(TableId),
    Entry(TableId),
}

/// Pending actions and expected answers.
pub(super) struct Outbox {
    pub(super) actions: Vec<JournalAction>,
    stream: String,
    inbox: String,
    questions: HashMap<u64, Question, foldhash::fast::RandomState>,
    next_token: u64,
    is_connected: bool,
    /// The largest message that the server accepts, with its headers. It ends the connection of a
    /// client that sends a larger one.
    pub(super) payload_bytes_max: usize,
}

impl Outbox {
    pub(super) fn new(stream: String, nonce: &str) -> Outbox {
        Outbox {
            actions: Vec::new(),
            stream,
            inbox: format!("_INBOX.{nonce}."),
            questions: HashMap::default(),
            next_token: 1,
            is_connected: false,
            payload_bytes_max: 0,
        }
    }

    pub(super) fn connected(&mut self, payload_bytes_max: usize) {
        (self.is_connected, self.payload_bytes_max) = (true, payload_bytes_max);
        let subject = format!("{}*", self.inbox);
        self.actions.push(JournalAction::Subscribe { subject, sid: INBOX_SID });
    }

    /// No answer to an earlier question comes any more.
    pub(super) fn disconnected(&mut self) {
        self.is_connected = false;
        self.questions.clear();
    }

    pub(super) fn is_connected(&self) -> bool {
        self.is_connected
    }

    pub(super) fn subscribe_hint(&mut self, subject: &str) {
        self.actions.push(JournalAction::Subscribe { subject: subject.to_owned(), sid: HINT_SID });
    }

    pub(super) fn subscribe_nodes(&mut self, [presence, ask]: [&str; 2]) {
        for (subject, sid) in [(presence, NODES_SID), (ask, ASK_SID)] {
            self.actions.push(JournalAction::Subscribe { subject: subject.to_owned(), sid });
        }
    }

    pub(super) fn report(&mut self, report: JournalReport) {
        self.actions.push(JournalAction::Report(report));
    }

    /// Publishes without an answer.
    pub(super) fn publish(&mut self, subject: &str, payload: Vec<u8>) {
        self.publish_with(subject, Vec::new(), &payload);
    }

    /// The same with headers.
    pub(super) fn publish_with(&mut self, subject: &str, headers: Vec<u8>, payload: &[u8]) {
        self.actions.push(JournalAction::Publish {
            subject: subject.to_owned(),
            reply: None,
            headers: headers.into(),
            payload: payload.into(),
        });
    }

    /// Reads the stream. Returns the token under which the answers come.
    pub(super) fn read(&mut self, question: Question, request: Vec<u8>) -> u64 {
        let subject = format!("$JS.API.DIRECT.GET.{}", self.stream);
        let token = self.token();
        self.ask_again(token, question, subject, ([].into(), request.into()));
        token
    }

    /// Asks the leader for something, as JetStream names it, of this stream.
    pub(super) fn ask_leader(&mut self, question: Question, what: &str, request: Vec<u8>) -> u64 {
        let subject = format!("$JS.API.STREAM.{what}.{}", self.stream);
        let token = self.token();
        self.ask_again(token, question, subject, ([].into(), request.into()));
        token
    }

    /// Asks for the state of the stream.
    pub(super) fn ask_state(&mut self, question: Question) -> u64 {
        self.ask_leader(question, "INFO", Vec::new())
    }

    /// Asks for something, as JetStream names it, of a consumer of the stream.
    pub(super) fn ask_consumer(
        &mut self,
        (what, consumer): (&str, &str),
        question: Question,
        request: Vec<u8>,
    ) -> u64 {
        let subject = format!("{CONSUMERS}{what}.{}.{consumer}", self.stream);
        let token = self.token();
        self.ask_again(token, question, subject, ([].into(), request.into()));
        token
    }

    /// A token that is not in use.
    pub(super) fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// Asks under a token: an answer to any earlier question under it is as good.
    pub(super) fn ask_again(
        &mut self,
        token: u64,
        question: Question,
        subject: String,
        (headers, payload): (Arc<[u8]>, Arc<[u8]>),
    ) {
        self.questions.insert(token, question);
        let reply = Some(format!("{}{token}", self.inbox));
        self.actions.push(JournalAction::Publish { subject, reply, headers, payload });
    }

    /// The question that an answer to this subject belongs to.
    pub(super) fn question(&self, subject: &str) -> Option<(u64, Question)> {
        let token = subject.strip_prefix(&self.inbox)?.parse().ok()?;
        self.questions.get(&token).cloned().map(|question| (token, question))
    }

    pub(super) fn answered(&mut self, token: u64) {
        self.questions.remove(&token);
    }
}
