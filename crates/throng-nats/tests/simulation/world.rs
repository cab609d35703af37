//! Nodes, a model of the servers, and everything that goes wrong between them.

mod ends;
mod keys;
mod logs;
mod naming;
mod nodes;
mod publishing;
mod reading;
mod reports;
mod states;
mod succession;
mod table;
mod weather;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use throng_core::{AskerId, ChannelId, ChannelName, Retention};
use throng_nats::api::StreamSettings;
use throng_nats::api::table::{TableKind, TableSettings};
use throng_nats::journal::{
    HeldState, JournalAction, JournalEvent, LogFacts, StateFacts, StreamJournal,
};
use throng_nats::protocol::decoder::ServerMessage;
use throng_nats::protocol::headers::Headers;

use crate::broker::{Broker, Effects, Sent};
use crate::oracle::{Oracle, Position};
use crate::random::Random;
use ends::Ends;
use keys::AskedState;
use logs::AskedLog;
use naming::KnownNames;
use nodes::Known;
use publishing::Published;
use reading::AskedReading;
use states::States;
use table::JournalTable;
use weather::Weather;

const CHANNELS: usize = 5;
const STREAM: &str = "throng-default";

fn channel(index: usize) -> ChannelName {
    ChannelName::channel(&format!("room.{index}"))
}

fn table(name: &str, kind: TableKind) -> TableSettings {
    let (bytes_max, entry_bytes_max) = (1 << 20, 1 << 10);
    TableSettings { name: name.into(), kind, max_age_ms: 60_000, bytes_max, entry_bytes_max }
}

fn subject(index: usize) -> String {
    format!("throng.in.default.c.room%2E{index}")
}

struct Node {
    journal: StreamJournal,
    is_connected: bool,
    to_broker: VecDeque<JournalAction>,
    answers: VecDeque<Sent>,
    live: VecDeque<(u64, Sent)>,
    subscriptions: BTreeMap<u64, String>,
    epoch: Option<u64>,
    era: usize,
    is_open: bool,
    /// True if it says that the stream stores nothing.
    is_stalled: bool,
    /// True if messages were lost, and no new connection has followed yet.
    has_lost: bool,
    followed: BTreeMap<usize, Option<Position>>,
    publications: BTreeMap<u64, Published>,
    reads: BTreeMap<u64, AskedReading>,
    state_reads: BTreeMap<u64, AskedState>,
    /// By token: channel, and what was asked for.
    logs: BTreeMap<u64, (usize, AskedLog)>,
    /// Logs as they were seen last.
    facts: HashMap<usize, LogFacts>,
    /// By token: how many other nodes were known when they were asked.
    asks: BTreeMap<u64, usize>,
    names: KnownNames,
    table: JournalTable,
    states: States,
    /// Questions of others that it has heard, by what they ask.
    heard: BTreeSet<u64>,
    /// How many other nodes it knows.
    others: usize,
    standing: Known,
    /// Bodies of a client to a channel in the order of their publication, without a key.
    order: HashMap<(usize, AskerId), Vec<String>>,
    /// The epoch and what it knew when it was held, while it is.
    held: Option<(Option<u64>, HeldState)>,
    /// Questions of others that wait until the process is the node; `None` if it is.
    early: Option<Vec<(String, Vec<u8>)>>,
}

/// How many of the interesting things happened.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    pub(crate) stored: usize,
    pub(crate) messages: usize,
    pub(crate) gaps: usize,
    pub(crate) unknown: usize,
    pub(crate) away: usize,
    pub(crate) read: usize,
    pub(crate) epochs: usize,
    pub(crate) asked: usize,
    pub(crate) partly: usize,
    pub(crate) changed: usize,
    pub(crate) stalled: usize,
    pub(crate) conflicts: usize,
    pub(crate) replaced: usize,
    pub(crate) gone_on: usize,
    pub(crate) changed_logs: usize,
    pub(crate) erased: usize,
    pub(crate) erased_reads: usize,
    pub(crate) named: usize,
    pub(crate) ended: usize,
    pub(crate) ended_reads: usize,
    pub(crate) key_conflicts: usize,
    pub(crate) without_key: usize,
    pub(crate) full_states: usize,
    pub(crate) states: usize,
    pub(crate) recovered: usize,
    pub(crate) recovered_by_keys: usize,
    pub(crate) unrecovered: usize,
}

pub(crate) struct World {
    random: Random,
    now_ms: u64,
    broker: Broker,
    has_replicas: bool,
    weather: Weather,
    nodes: Vec<Node>,
    /// Publications on connections that are gone, which a frozen server has yet to read.
    late: Vec<JournalAction>,
    seed: u64,
    stream: StreamSettings,
    oracle: Oracle,
    next_token: u64,
    /// The bodies of all changes of logs, and their channels.
    changes: Vec<(usize, Vec<String>)>,
    /// Records that were replaced under the condition that they are there: channel and version.
    replaced: BTreeSet<(usize, u64)>,
    /// Channels whose history was to be erased, which may have been written down without.
    histories: BTreeSet<usize>,
    ends: Ends,
    /// A page of keys that was asked for, by its token, once it was read.
    page: Option<(u64, Option<StateFacts>)>,
    pub(crate) tally: Tally,
}

impl World {
    pub(crate) fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let has_replicas = random.percent(50);
        let stream = StreamSettings {
            prefix: "throng".into(),
            class: "default".into(),
            replicas: if has_replicas { 3 } else { 1 },
            is_in_memory: false,
            retention: Retention {
                max_messages: 3 + random.below(30),
                max_bytes: 1 << 20,
                max_age_ms: 60_000,
            },
            bytes_max: 1 << 30,
            message_bytes_max: 1 << 17,
            // No world lasts as long.
            duplicate_window_ms: 86_400_000,
        };
        World {
            nodes: (0..2 + random.below(2)).map(|index| Node::new(&stream, seed, index)).collect(),
            stream,
            random,
            now_ms: 1_000_000,
            broker: Broker::default(),
            has_replicas,
            weather: Weather::of(seed),
            late: Vec::new(),
            seed,
            oracle: Oracle::new(),
            next_token: 0,
            changes: Vec::new(),
            replaced: BTreeSet::new(),
            histories: BTreeSet::new(),
            ends: Ends::default(),
            page: None,
            tally: Tally::default(),
        }
    }

    pub(crate) fn run(mut self, steps: usize) -> Tally {
        for _ in 0..steps {
            self.random_step();
        }
        self.heal();
        self.finish();
        self.tally
    }

    fn random_step(&mut self) {
        let node = self.random.below(self.nodes.len());
        let steps = self.weather.steps();
        let mut rest = self.random.below(steps.iter().map(|step| step.ratio).sum());
        let step = steps.iter().find(|step| {
            let is_it = rest < step.ratio;
            rest = rest.saturating_sub(step.ratio);
            is_it
        });
        (step.expect("the ratios have a sum").run)(self, node);
    }

    fn tick(&mut self, node: usize) {
        self.now_ms += 20;
        self.step(node, JournalEvent::Tick);
    }

    fn refuse(&mut self) {
        self.broker.refusals = self.random.below(6);
    }

    /// The leader loses its majority, or has it again.
    fn stall(&mut self) {
        self.broker.is_stalled = self.has_replicas && !self.broker.is_stalled;
    }

    fn lag(&mut self) {
        self.broker.lag = if self.has_replicas { self.random.below(4) as u64 } else { 0 };
    }

    fn step(&mut self, node: usize, event: JournalEvent<'_>) {
        self.broker.now_ms = self.now_ms;
        let mut actions = Vec::new();
        self.nodes[node].journal.step(self.now_ms, event, &mut actions);
        for action in actions {
            match action {
                JournalAction::Report(report) => self.reported(node, report),
                other => {
                    assert!(self.nodes[node].is_connected, "sent without a connection: {other:?}");
                    self.nodes[node].to_broker.push_back(other);
                }
            }
        }
    }

    fn connect(&mut self, node: usize) {
        if !self.nodes[node].is_connected {
            self.nodes[node].is_connected = true;
            // What was lost without a sign is found now, if it has not expired meanwhile.
            self.nodes[node].has_lost = false;
            self.step(node, JournalEvent::Connected { payload_bytes_max: 1 << 20 });
        }
    }

    fn disconnect(&mut self, node: usize) {
        if self.nodes[node].is_connected {
            self.cut(node);
            self.nodes[node].is_connected = false;
            self.step(node, JournalEvent::Disconnected);
        }
    }

    /// A connection to another server takes the place of the one before.
    fn go_elsewhere(&mut self, node: usize) {
        if self.nodes[node].is_connected {
            self.cut(node);
            self.nodes[node].has_lost = false;
            self.step(node, JournalEvent::Moved { payload_bytes_max: 1 << 20 });
        }
    }

    /// Ends a connection, with all that is under way on it.
    fn cut(&mut self, node: usize) {
        let of = &mut self.nodes[node];
        // The server may have the first of them, and read them some time later.
        let kept = self.random.below(of.to_broker.len() + 1);
        let is_copy = |action: &JournalAction| match action {
            JournalAction::Publish { subject, .. } => {
                let erases = [".MSG.DELETE.", ".PURGE."].iter().any(|what| subject.contains(what));
                erases || !subject.starts_with('$')
            }
            _ => false,
        };
        self.late.extend(of.to_broker.drain(..kept).filter(is_copy));
        of.to_broker.clear();
        of.answers.clear();
        of.live.clear();
        of.subscriptions.clear();
    }

    /// A server that was frozen reads what a connection left behind.
    fn late_copy(&mut self) {
        if self.late.is_empty() {
            return;
        }
        let JournalAction::Publish { subject, headers, payload, .. } = self.late.remove(0) else {
            return;
        };
        let effects = self.broker.publish(&subject, None, &headers, &payload);
        self.spread(None, effects);
    }

    fn carry_up(&mut self, node: usize) {
        let of = &mut self.nodes[node];
        let Some(action) = of.to_broker.pop_front() else { return };
        match action {
            JournalAction::Subscribe { subject, sid } => {
                assert!(of.subscriptions.insert(sid, subject).is_none(), "{sid} is in use");
            }
            JournalAction::Unsubscribe { sid } => drop(of.subscriptions.remove(&sid)),
            JournalAction::Publish { subject, reply, headers, payload } => {
                let effects = self.broker.publish(&subject, reply.as_deref(), &headers, &payload);
                self.spread(Some(node), effects);
            }
            JournalAction::Report(_) => unreachable!("reports are not sent"),
        }
    }

    fn spread(&mut self, publisher: Option<usize>, effects: Effects) {
        if let Some(erased) = effects.erased {
            self.oracle.erased(&erased);
        }
        for (sequence, stored) in effects.stored {
            let body = keys::body(sequence, &stored.payload);
            self.oracle.stored(&stored.subject, sequence, body);
            if let Some(key) = stored.key() {
                self.oracle.has_key(&stored.subject, sequence, key);
            }
            self.tally.stored += 1;
        }
        effects.states.iter().for_each(|name| self.check_state(name));
        self.note_ends();
        if let Some(node) = publisher {
            self.nodes[node].answers.extend(effects.answers);
        }
        for sent in effects.others {
            for (index, node) in self.nodes.iter_mut().enumerate() {
                let is_to = |to: &str| match to.strip_suffix('*') {
                    Some(inbox) => sent.subject.starts_with(inbox),
                    None => sent.subject == to,
                };
                let subscribed = node.subscriptions.iter().find(|(_, to)| is_to(to));
                // Clients do not hear themselves, but the stream is another client.
                let is_own = publisher == Some(index) && !sent.subject.contains(".live.");
                let Some((sid, _)) = subscribed.filter(|_| !is_own) else { continue };
                if sent.subject.starts_with("_INBOX.") {
                    node.answers.push_back(sent.clone());
                } else {
                    node.live.push_back((*sid, sent.clone()));
                }
            }
        }
    }

    fn carry_down(&mut self, node: usize) {
        let of = &mut self.nodes[node];
        let from_live = !of.live.is_empty() && (of.answers.is_empty() || self.random.percent(50));
        let taken = if from_live {
            of.live.pop_front()
        } else {
            of.answers.pop_front().map(|sent| (1, sent))
        };
        let Some((sid, sent)) = taken else { return };
        let times = if self.random.percent(3) { 2 } else { 1 };
        for _ in 0..times {
            let delivery = ServerMessage {
                subject: &sent.subject,
                sid,
                reply: sent.reply.as_deref(),
                headers: Headers::new(&sent.headers),
                payload: &sent.payload,
            };
            self.step(node, JournalEvent::Received(delivery));
        }
    }

    /// Loses some of what was republished. The loss of a channel's last message is told only by a
    /// new connection or leader, as with real servers.
    fn lose_live(&mut self, node: usize) {
        let random = &mut self.random;
        self.nodes[node].live.retain(|_| random.percent(50));
        self.nodes[node].has_lost = true;
    }

    /// The oldest messages expire. That takes minutes, in which whatever is under way arrives, and
    /// replicas catch up.
    fn expire(&mut self) {
        if self.nodes.iter().any(|node| node.has_lost) {
            return;
        }
        self.settle(100);
        self.broker.expire(STREAM, 2 + self.random.below(10));
        self.note_ends();
    }

    fn swap_live(&mut self, node: usize) {
        let live = &mut self.nodes[node].live;
        if live.len() > 1 {
            let at = self.random.below(live.len() - 1);
            live.swap(at, at + 1);
        }
    }

    fn elect(&mut self) {
        if !self.has_replicas {
            return;
        }
        self.broker.elect();
        for node in 0..self.nodes.len() {
            self.lose_live(node);
            let random = &mut self.random;
            self.nodes[node].answers.retain(|_| random.percent(70));
            // The leader of before drops some without a word, and its successor stores the next.
            let is_kept = |action: &JournalAction| match action {
                JournalAction::Publish { subject, .. } => !subject.starts_with("throng.in."),
                _ => true,
            };
            self.nodes[node].to_broker.retain(|action| is_kept(action) || random.percent(70));
        }
    }

    /// Servers that had all in memory start again.
    fn forget(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.disconnect(node));
        // The conditions of a batch are sequences, which are small here: it would be an accident
        // that all of them are those of another stream.
        let is_batch = |action: &JournalAction| match action {
            JournalAction::Publish { headers, .. } => {
                Headers::new(headers).get("Nats-Batch-Id").is_some()
            }
            _ => false,
        };
        self.late.retain(|action| !is_batch(action));
        self.broker.forget();
        self.note_ends();
        self.oracle.eras.push(Default::default());
        self.replaced.clear();
    }

    fn follow(&mut self, node: usize) {
        let mut wanted = Vec::new();
        for index in 0..CHANNELS {
            if self.random.percent(30) {
                self.nodes[node].followed.entry(index).or_insert(None);
                wanted.push((ChannelId(index as u32), channel(index)));
            }
        }
        self.step(node, JournalEvent::Follow(wanted));
    }

    fn unfollow(&mut self, node: usize) {
        let index = self.random.below(CHANNELS);
        self.nodes[node].followed.remove(&index);
        self.step(node, JournalEvent::Unfollow(channel(index)));
    }

    /// Nothing goes wrong any more, and time passes until all is quiet.
    fn heal(&mut self) {
        self.broker.is_stalled = false;
        while !self.late.is_empty() {
            self.late_copy();
        }
        for node in 0..self.nodes.len() {
            self.step(node, JournalEvent::Describe(format!("{{{node}}}").into()));
            // What was lost without a sign is found on a new connection.
            self.disconnect(node);
            self.connect(node);
        }
        while !self.late.is_empty() {
            self.late_copy();
        }
        self.settle(400);
    }

    /// Time passes, and all arrives.
    fn settle(&mut self, ticks: usize) {
        self.broker.lag = 0;
        for _ in 0..ticks {
            self.now_ms += 50;
            for node in 0..self.nodes.len() {
                self.step(node, JournalEvent::Tick);
            }
            for node in 0..self.nodes.len() {
                while !self.nodes[node].to_broker.is_empty() {
                    self.carry_up(node);
                }
            }
            for node in 0..self.nodes.len() {
                while !self.nodes[node].answers.is_empty() || !self.nodes[node].live.is_empty() {
                    self.carry_down(node);
                }
            }
        }
    }

    fn finish(&self) {
        self.oracle.finish();
        self.finish_changes();
        let last = self.broker.last(STREAM);
        let epoch = self.nodes[0].epoch;
        for node in &self.nodes {
            assert!(node.is_open && node.epoch == epoch, "all nodes have one epoch");
            assert!(!node.is_stalled, "messages are stored again");
            assert!(node.publications.is_empty(), "{:?}", node.publications);
            assert!(node.reads.is_empty(), "{:?}", node.reads);
            assert!(node.state_reads.is_empty(), "{:?}", node.state_reads);
            assert!(node.asks.is_empty(), "{:?}", node.asks);
            node.names.finish();
            assert!(node.logs.is_empty(), "{:?}", node.logs.keys());
            node.table.finish(&self.broker);
            node.states.finish(&self.broker);
            assert_eq!(node.others, self.nodes.len() - 1, "each knows all others");
            node.standing.finish(node.others);
            assert_eq!(node.journal.outstanding(), 0);
            assert_eq!(node.journal.followed(), node.followed.len());
            for (index, position) in &node.followed {
                let position = position.expect("its head is known").sequence;
                let newest = last.get(&subject(*index)).copied().unwrap_or(0);
                assert!(position >= newest, "channel {index} is at {position}, not at {newest}");
            }
            for bodies in node.order.values() {
                let places = bodies.iter().filter_map(|body| self.oracle.acknowledged.get(body));
                let places: Vec<_> = places.map(|(era, _, sequence)| (*era, *sequence)).collect();
                assert!(places.is_sorted(), "stored in another order: {places:?}");
            }
        }
    }
}
