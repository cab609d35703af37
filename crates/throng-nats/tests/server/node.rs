//! A journal on a connection, and all that it has reported.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use throng_core::{
    AskerId, Body, ChannelId, ChannelName, Publication, Retention, StateLimits, clock,
};
use throng_nats::api::StreamSettings;
use throng_nats::client::{
    self, Login, NatsClientSettings, NatsTls, Notice, ServerAddress, Source,
};
use throng_nats::journal::{
    ErasedMessages, JournalEvent, JournalReport, JournalSettings, LogCount, LogOutcome, LogRequest,
    NamedLog, Naming, Outcome, PublishRequest, Reading, StreamJournal,
};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::nats_server::{NatsServer, PATIENCE};

/// The settings of the tests' stream.
pub(crate) fn stream() -> StreamSettings {
    StreamSettings {
        prefix: "throng".into(),
        class: "default".into(),
        replicas: 1,
        is_in_memory: false,
        retention: Retention { max_messages: 1_000, max_bytes: 1 << 20, max_age_ms: 3_600_000 },
        bytes_max: 256 << 20,
        message_bytes_max: 1 << 17,
        duplicate_window_ms: 300_000,
    }
}

pub(crate) fn publication(channel: &str, body: &str, key: Option<&str>) -> Publication {
    Publication {
        idempotency_key: key.map(Into::into),
        ..Publication::new(ChannelName::channel(channel), Body::Text(body.into()))
    }
}

/// A node of the cluster.
pub(crate) struct Node {
    pub(crate) events: UnboundedSender<JournalEvent<'static>>,
    notices: UnboundedReceiver<Notice>,
    next_token: u64,
    /// True if its channels may end.
    pub(crate) may_end: bool,
    pub(crate) epoch: Option<u64>,
    /// Heads of followed channels, as often as they were reported.
    pub(crate) heads: HashMap<ChannelId, Vec<u64>>,
    pub(crate) messages: HashMap<ChannelId, Vec<(u64, String)>>,
    pub(crate) outcomes: HashMap<u64, Outcome>,
    pub(crate) readings: HashMap<u64, Option<Reading>>,
    pub(crate) logs: HashMap<u64, LogOutcome>,
    /// The channels in the stream, by the token of the question, once they were told.
    pub(crate) named: HashMap<u64, Vec<NamedLog>>,
    pub(crate) counted: HashMap<u64, Vec<LogCount>>,
    /// Channels and their messages that were erased: the first one and the last one.
    pub(crate) erased: Vec<(String, u64, u64)>,
    pub(crate) gaps: usize,
    pub(crate) aways: usize,
    pub(crate) refusals: Vec<String>,
    pub(crate) troubles: Vec<String>,
}

/// For servers that are asked for none.
pub(crate) fn no_tls() -> NatsTls {
    let config = Source::new(|| Err("no test of this kind has TLS".to_owned()));
    NatsTls { config, is_demanded: false, is_first: false }
}

static NODES: AtomicU64 = AtomicU64::new(0);

impl Node {
    pub(crate) fn start(server: &NatsServer, stream: StreamSettings, login: Login) -> Node {
        Node::start_at(std::slice::from_ref(&server.address), stream, login)
    }

    /// A node that connects to the first of these servers, and to the others after it.
    pub(crate) fn start_at(addresses: &[String], stream: StreamSettings, login: Login) -> Node {
        let (events, receiver) = mpsc::unbounded_channel();
        let (sender, notices) = mpsc::unbounded_channel();
        let number = NODES.fetch_add(1, Ordering::Relaxed);
        let settings = JournalSettings {
            stream,
            nonce: format!("test{}x{number}", std::process::id()),
            successor_of: None,
            publish_ms: 30_000,
            tables: Vec::new(),
        };
        let client = NatsClientSettings {
            servers: addresses.iter().flat_map(|one| ServerAddress::parse(one)).collect(),
            login: login.into(),
            tls: no_tls(),
            name: "throng test".into(),
            now_ms: clock::now_ms,
        };
        let notify = move |notice| {
            // The node may be gone.
            let _ = sender.send(notice);
        };
        tokio::spawn(client::run(client, StreamJournal::new(settings), receiver, notify));
        Node {
            events,
            notices,
            next_token: 0,
            may_end: false,
            epoch: None,
            heads: HashMap::new(),
            messages: HashMap::new(),
            outcomes: HashMap::new(),
            readings: HashMap::new(),
            logs: HashMap::new(),
            named: HashMap::new(),
            counted: HashMap::new(),
            erased: Vec::new(),
            gaps: 0,
            aways: 0,
            refusals: Vec::new(),
            troubles: Vec::new(),
        }
    }

    /// Takes what is reported until `is_there` is true.
    pub(crate) async fn until(&mut self, what: &str, mut is_there: impl FnMut(&Node) -> bool) {
        let waiting = async {
            while !is_there(self) {
                let notice = self.notices.recv().await.expect("the client runs");
                self.take(notice);
            }
        };
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            panic!("waited in vain: {what}; {:?} {:?}", self.troubles, self.refusals);
        }
    }

    fn take(&mut self, notice: Notice) {
        match notice {
            Notice::Trouble { error, .. } => self.troubles.push(error),
            Notice::Old { version, .. } => panic!("nats-server {version} is too old for the tests"),
            Notice::Report(JournalReport::Opened { epoch, .. }) => self.epoch = Some(epoch),
            Notice::Report(JournalReport::Away) => self.aways += 1,
            Notice::Report(JournalReport::Refused { reason, .. }) => self.refusals.push(reason),
            Notice::Report(JournalReport::Followed { channel, head }) => {
                self.heads.entry(channel).or_default().push(head);
            }
            Notice::Report(JournalReport::Message { channel, message }) => {
                let body = String::from_utf8_lossy(message.body.bytes()).into_owned();
                self.messages.entry(channel).or_default().push((message.sequence, body));
            }
            Notice::Report(JournalReport::Gap { .. }) => self.gaps += 1,
            Notice::Report(JournalReport::Published { token, outcome }) => {
                assert!(self.outcomes.insert(token, outcome).is_none(), "answered twice");
            }
            Notice::Report(JournalReport::Read { token, reading }) => {
                self.readings.insert(token, reading);
            }
            Notice::Report(JournalReport::Named { token, logs, naming }) => {
                assert!(matches!(naming, Naming::End { .. }), "{naming:?}");
                self.named.insert(token, logs);
            }
            Notice::Report(JournalReport::Counted { token, counts }) => {
                self.counted.insert(token, counts.expect("they are counted"));
            }
            Notice::Report(JournalReport::Log { token, outcome }) => {
                assert!(self.logs.insert(token, outcome).is_none(), "answered twice");
            }
            Notice::Report(JournalReport::Erased(ErasedMessages { channel, first, last })) => {
                self.erased.push((channel.name().to_owned(), first, last));
            }
            // The end-to-end tests ask.
            Notice::Report(_)
            | Notice::Turn
            | Notice::Rest
            | Notice::Lag { .. }
            | Notice::CaughtUp
            | Notice::Limit(_) => {}
        }
    }

    pub(crate) async fn open(&mut self) {
        self.until("the stream is open", |node| node.epoch.is_some()).await;
    }

    pub(crate) async fn send(&self, event: JournalEvent<'static>) {
        self.events.send(event).expect("the client runs");
    }

    pub(crate) async fn follow(&mut self, channels: &[&str]) {
        let wanted = channels.iter().enumerate();
        let wanted = wanted
            .map(|(index, name)| (ChannelId(index as u32), ChannelName::channel(name)))
            .collect();
        self.send(JournalEvent::Follow(wanted)).await;
        let count = channels.len();
        self.until("all channels are followed", |node| node.heads.len() == count).await;
    }

    /// Publishes, and returns the token.
    pub(crate) async fn publish(&mut self, publication: Publication) -> u64 {
        self.next_token += 1;
        let (token, asker) = (self.next_token, AskerId::of_connection(0));
        let request =
            PublishRequest { token, publication, asker, may_end: self.may_end, state: None };
        self.send(JournalEvent::Publish(request)).await;
        token
    }

    /// Has the journal change or read a log, and returns the token.
    pub(crate) async fn ask_log(&mut self, channel: &str, request: LogRequest) -> u64 {
        self.ask_log_with(channel, request, None).await
    }

    /// The same about a channel with these limits of its state.
    pub(crate) async fn ask_log_with(
        &mut self,
        channel: &str,
        request: LogRequest,
        state: Option<StateLimits>,
    ) -> u64 {
        self.next_token += 1;
        let (token, channel) = (self.next_token, ChannelName::channel(channel));
        self.send(JournalEvent::Log { token, channel, request, state }).await;
        token
    }

    pub(crate) async fn log_outcome(&mut self, token: u64) -> LogOutcome {
        self.until("it is answered", |node| node.logs.contains_key(&token)).await;
        self.logs[&token].clone()
    }

    pub(crate) async fn published(&mut self, publication: Publication) -> Outcome {
        let token = self.publish(publication).await;
        self.until("it is published", |node| node.outcomes.contains_key(&token)).await;
        self.outcomes[&token].clone()
    }

    /// Publishes until it is stored, and returns its sequence.
    pub(crate) async fn stored(&mut self, channel: &str, body: &str) -> u64 {
        match self.published(publication(channel, body, None)).await {
            Outcome::Stored { sequence, is_duplicate: false } => sequence,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn read(&mut self, channel: &str, after: u64) -> Reading {
        self.next_token += 1;
        let token = self.next_token;
        let channel = ChannelName::channel(channel);
        let wants_end = self.may_end;
        let read = JournalEvent::Read { token, channel, after, at_least: after, wants_end };
        self.send(read).await;
        self.until("it is read", |node| node.readings.contains_key(&token)).await;
        self.readings.remove(&token).flatten().expect("the stream is open")
    }
}
