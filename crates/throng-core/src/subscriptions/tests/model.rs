//! An engine with notifications on its way, connections that block, and what each must have got.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::*;
use crate::frozen::{Decoder, Encoder, RecordKind, VERSION};
use crate::message::Body;
use crate::subscriptions::cursor::REACH;
use crate::{ChannelName, Epoch, Followed, LagPolicy, MessageId, StartAt};

/// A program for the model, step by step.
pub(super) type Steps = Vec<[u8; 4]>;

const CONNECTIONS: u32 = 7;
const CHANNELS: u8 = 3;

const EPOCH: Epoch = Epoch::numbered(1);

pub(super) fn weight_bytes() -> usize {
    message(1, 0).weight_bytes()
}

fn id(offset: u64) -> MessageId {
    MessageId { epoch: EPOCH, offset }
}

/// The engine's answer to a subscriber that starts with the next message.
pub(in super::super) fn followed(channel: ChannelId, local: LocalId, head: u64) -> Followed {
    Followed {
        is_sparse: false,
        is_ended: false,
        channel,
        local,
        rule: Rules::default().find(&ChannelName::channel("c")),
        head: id(head),
        cursor: id(head),
        is_recovered: None,
        are_offsets_consecutive: true,
        backlog: Vec::new(),
    }
}

pub(in super::super) fn message(offset: u64, previous: u64) -> Arc<Message> {
    let body = Body::Text("body".into());
    // Ages as offsets do, so that it shows which are the oldest.
    Arc::new(Message::new(id(offset), previous, offset, ChannelName::channel("c"), body))
}

/// How a log's offsets grow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Offsets {
    CountingFrom(u64),
    SkippingFrom(u64),
    /// By up to more than 32 bits tell.
    Leaping,
    /// By one, but some notifications are lost.
    WithHoles,
}

impl Offsets {
    fn are_consecutive(self) -> bool {
        matches!(self, Offsets::CountingFrom(_) | Offsets::WithHoles)
    }
}

#[derive(Debug, Default)]
struct Topic {
    /// From its first use until it is forgotten.
    channel: Option<ChannelId>,
    /// Where the worker keeps it, and for how many.
    followed: Option<(LocalId, u32)>,
    head: u64,
    /// Every message; the last few of them count as retained.
    log: Vec<Arc<Message>>,
}

#[derive(Debug, Clone, Copy)]
struct Subscriber {
    id: SubscriptionId,
    /// The offset after which the next message must come.
    last: u64,
    /// True if it has been blocked since it last lacked nothing.
    was_blocked: bool,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) table: SubscriptionTable,
    pub(super) delivered: usize,
    offsets: Offsets,
    rule: crate::rules::Rule,
    topics: Vec<Topic>,
    /// Channels of the engine without a subscription, to be reused.
    vacant: Vec<ChannelId>,
    forgotten_head: u64,
    notifications: VecDeque<(LocalId, ChannelId, Arc<Message>)>,
    /// How many more messages each connection takes before it blocks.
    room: Vec<Option<usize>>,
    subscribers: BTreeMap<(u32, u8), Subscriber>,
    published: u64,
    /// Messages that earlier tables dropped for want of capacity.
    dropped_before: u64,
}

impl World {
    pub(super) fn new(rules: Arc<Rules>, offsets: Offsets) -> World {
        let forgotten_head = match offsets {
            Offsets::CountingFrom(from) | Offsets::SkippingFrom(from) => from,
            Offsets::Leaping | Offsets::WithHoles => 0,
        };
        let rule = rules.get(rules.find(&ChannelName::channel("c"))).clone();
        World {
            table: SubscriptionTable::new(rules),
            delivered: 0,
            offsets,
            rule,
            topics: (0..CHANNELS).map(|_| Topic::default()).collect(),
            vacant: (0..u32::from(CHANNELS)).map(ChannelId).collect(),
            forgotten_head,
            notifications: VecDeque::new(),
            room: vec![None; CONNECTIONS as usize],
            subscribers: BTreeMap::new(),
            published: 0,
            dropped_before: 0,
        }
    }

    /// Sets how many messages all replay buffers together may hold for blocked subscriptions.
    pub(super) fn holding(mut self, max_messages: usize) -> World {
        self.table.set_max_blocked_bytes(max_messages * weight_bytes());
        self
    }

    pub(super) fn run(mut self, steps: &Steps) {
        for &step in steps {
            self.step(step);
            self.check();
        }
        self.finish();
    }

    fn step(&mut self, [what, which, whom, how]: [u8; 4]) {
        let topic = which % CHANNELS;
        let connection = u32::from(whom) % CONNECTIONS;
        match what % 20 {
            0..=3 => (0..=how % 4).for_each(|_| self.publish(topic)),
            4..=5 => {
                let start = match how % 4 {
                    0 => StartAt::Live,
                    1 | 2 => StartAt::Last(usize::from(how / 4 % 8)),
                    _ => self.some_old_id(topic, how / 4),
                };
                self.subscribe(connection, topic, start);
            }
            6 | 7 => self.unsubscribe(connection, topic),
            8 | 9 => self.take_notifications(usize::from(how % 16)),
            10..=12 => self.fan_out(u32::from(how % 6), usize::from(whom % 8), false),
            16 | 17 => self.fan_out(u32::from(how % 6), usize::from(whom % 8), true),
            18 => self.release(connection),
            13 => self.block(connection, usize::from(how % 4)),
            14 => self.unblock(connection, how % 3 != 0),
            15 => self.freeze_and_thaw(),
            _ => self.forget(topic),
        }
    }

    fn some_old_id(&self, topic: u8, back: u8) -> StartAt {
        let log = &self.topics[usize::from(topic)].log;
        match log.len().checked_sub(usize::from(back) % 8) {
            Some(at) if at > 0 => StartAt::After(log[at - 1].id),
            _ => StartAt::Live,
        }
    }

    pub(super) fn publish(&mut self, topic: u8) {
        self.published += 1;
        let nth = self.published;
        let skip = match self.offsets {
            Offsets::CountingFrom(_) | Offsets::WithHoles => 1,
            Offsets::SkippingFrom(_) => nth * 7 % 5 + 1,
            Offsets::Leaping => {
                let leaps = [0, 0, REACH - 1, 0, REACH, 2 * REACH, 0, 4 * REACH - 1, 4 * REACH];
                1 + leaps[nth as usize % leaps.len()]
            }
        };
        let channel = self.channel(topic);
        let topic = &mut self.topics[usize::from(topic)];
        let new = message(topic.head + skip, topic.head);
        topic.head = new.id.offset;
        topic.log.push(Arc::clone(&new));
        let is_lost = self.offsets == Offsets::WithHoles && nth.is_multiple_of(11);
        if let Some((local, _)) = topic.followed
            && !is_lost
        {
            self.notifications.push_back((local, channel, new));
        }
    }

    pub(super) fn subscribe(&mut self, connection: u32, topic_at: u8, start: StartAt) {
        if self.subscribers.contains_key(&(connection, topic_at)) {
            return;
        }
        let channel = self.channel(topic_at);
        let topic = &mut self.topics[usize::from(topic_at)];
        let retained = topic.log.len().saturating_sub(self.rule.retention.max_messages);
        let retained = &topic.log[retained..];
        let floor = retained.first().map_or(topic.head, |first| first.previous);
        let cursor = match start {
            StartAt::Live => topic.head,
            StartAt::Last(0) => topic.head,
            StartAt::Last(count) => {
                retained.iter().rev().nth(count - 1).map_or(floor, |message| message.previous)
            }
            StartAt::After(id) => id.offset.max(floor),
            // For the table it is one of the others.
            StartAt::Since(_) | StartAt::From(_) | StartAt::State => {
                unreachable!("no step of this world is one")
            }
        };
        let next_local = self.table.next_local();
        let (local, count) = topic.followed.get_or_insert((next_local, 0));
        *count += 1;
        let followed = Followed {
            is_sparse: false,
            is_ended: false,
            channel,
            local: *local,
            rule: self.table.rules.find(&ChannelName::channel("c")),
            head: id(topic.head),
            cursor: id(cursor),
            is_recovered: None,
            are_offsets_consecutive: self.offsets.are_consecutive(),
            backlog: retained
                .iter()
                .filter(|message| message.id.offset > cursor)
                .cloned()
                .collect(),
        };
        let id = self.table.join(ConnectionId::new(connection), &followed, false, None);
        self.subscribers
            .insert((connection, topic_at), Subscriber { id, last: cursor, was_blocked: false });
        self.serve(connection, topic_at);
        if self.subscribers.contains_key(&(connection, topic_at)) {
            self.table.trim_channel_of(id);
        }
        self.check();
    }

    pub(super) fn unsubscribe(&mut self, connection: u32, topic_at: u8) {
        let Some(gone) = self.subscribers.remove(&(connection, topic_at)) else { return };
        let left = self.table.leave(gone.id).expect("it was there");
        let topic = &mut self.topics[usize::from(topic_at)];
        assert_eq!(Some(left.channel), topic.channel);
        let (_, count) = topic.followed.as_mut().expect("it was followed");
        *count -= 1;
        if *count == 0 {
            topic.followed = None;
        }
    }

    /// Lets the connection take this many more messages before it blocks.
    pub(super) fn block(&mut self, connection: u32, room: usize) {
        self.room[connection as usize] = Some(room);
    }

    /// How many messages are gone that a subscription lacks.
    pub(super) fn missed(&self, connection: u32, topic: u8) -> u64 {
        match self.table.waiting(self.subscribers[&(connection, topic)].id) {
            Waiting::Gap { missed, .. } => missed.expect("offsets are consecutive"),
            _ => 0,
        }
    }

    /// Makes the engine forget a channel without followers.
    fn forget(&mut self, topic: u8) {
        let topic = &mut self.topics[usize::from(topic)];
        if topic.followed.is_none() {
            self.forgotten_head = self.forgotten_head.max(topic.head);
            self.vacant.extend(topic.channel.take());
        }
    }

    /// Writes the table down, and goes on with one that is made from the bytes.
    fn freeze_and_thaw(&mut self) {
        // As long as the name that messages are made with, which counts for their size.
        let name = |channel: ChannelId| ChannelName::channel(&channel.0.to_string());
        let mut records = Vec::new();
        self.table.freeze_channels(|channel| Some(name(channel)), &mut |record| {
            records.push(record);
        });
        let mut table = SubscriptionTable::new(Arc::clone(&self.table.rules));
        table.set_max_blocked_bytes(self.table.max_blocked_bytes);
        let known = |wanted: &ChannelName| {
            let mut followed = self.topics.iter().filter_map(|topic| {
                Some((topic.channel?, topic.followed.map(|(local, _)| local)?))
            });
            followed.find(|(channel, _)| name(*channel) == *wanted)
        };
        let mut open: Option<OpenChannel> = None;
        for record in &records {
            let (kind, decoder) = Decoder::new(record).expect("a record");
            match (kind, &mut open) {
                (RecordKind::Message, Some(open)) => {
                    table.thaw_message(open, decoder).expect("its message");
                }
                _ => {
                    assert!(open.as_ref().is_none_or(|open| open.is_whole()));
                    let next = OpenChannel::decode(decoder, VERSION, known).expect("a channel");
                    table.thaw_channel(&next).expect("its place is vacant");
                    open = Some(next);
                }
            }
        }
        for (&(connection, _), subscriber) in &mut self.subscribers {
            let takes_more = !self.table.is_blocked(subscriber.id);
            let frozen = self.table.take_frozen(subscriber.id).expect("it is there");
            let mut encoder = Encoder::new(RecordKind::Connection);
            frozen.encode(&mut encoder);
            let record = encoder.finish();
            let (_, mut decoder) = Decoder::new(&record).expect("a record");
            assert_eq!(FrozenSubscription::decode(&mut decoder), Ok(frozen.clone()));
            assert!(table.can_thaw(&frozen));
            subscriber.id =
                table.thaw_subscription(ConnectionId::new(connection), &frozen, None, takes_more);
        }
        assert!(self.table.subscriptions.is_empty(), "they end as they are frozen");
        let mut count = 0;
        table.finish_thaw(&mut |_, subscribers| count += subscribers as usize);
        assert_eq!(count, self.subscribers.len());
        self.dropped_before += self.table.dropped();
        self.table = table;
    }

    /// The channel of a topic, which starts after all that were forgotten if it is new.
    fn channel(&mut self, topic: u8) -> ChannelId {
        let topic = &mut self.topics[usize::from(topic)];
        *topic.channel.get_or_insert_with(|| {
            (topic.head, topic.log) = (self.forgotten_head, Vec::new());
            self.vacant.pop().expect("there are as many as topics")
        })
    }

    pub(super) fn take_notifications(&mut self, count: usize) {
        for _ in 0..count {
            let Some((local, channel, message)) = self.notifications.pop_front() else { return };
            self.table.append(local, channel, &message);
            self.check();
        }
    }

    /// One slice of sweeping.
    pub(super) fn fan_out(&mut self, mut visits: u32, batches: usize, holds: bool) {
        let mut batch = Vec::new();
        for _ in 0..batches {
            self.table.next_batch(&mut visits, &mut batch);
            if batch.is_empty() {
                return;
            }
            let topics: Vec<u8> = batch
                .iter()
                .map(|&(id, connection)| {
                    assert!(!self.table.is_blocked(id));
                    let known = self.subscribers.iter().find(|(_, subscriber)| subscriber.id == id);
                    let (&(owner, topic), _) = known.expect("only what is subscribed is named");
                    assert_eq!(owner, connection.index());
                    topic
                })
                .collect();
            assert!(topics.iter().all(|topic| *topic == topics[0]), "of one channel");
            let owners: BTreeSet<u32> =
                batch.iter().map(|&(_, connection)| connection.index()).collect();
            assert_eq!(owners.len(), batch.len(), "of different connections");
            for ((id, connection), topic) in batch.drain(..).zip(topics) {
                if holds {
                    self.table.hold(id);
                } else {
                    self.serve(connection.index(), topic);
                }
            }
            self.check();
        }
    }

    /// Writes what the subscription lacks until the connection blocks.
    fn serve(&mut self, connection: u32, topic: u8) {
        let subscriber = &self.subscribers[&(connection, topic)];
        let Subscriber { id, mut last, was_blocked } = *subscriber;
        if self.is_whole() {
            assert_eq!(self.table.cursor(id), Some(last));
            assert_eq!(self.table.position(id), Some(MessageId { epoch: EPOCH, offset: last }));
        }
        let room = &mut self.room[connection as usize];
        let written = match self.table.waiting(id) {
            Waiting::Nothing => return,
            Waiting::StateEnd(_) => unreachable!("none begins with a state"),
            Waiting::Gap { missed, resume_at, policy } => {
                assert_eq!(policy, self.rule.lag_policy);
                assert!(was_blocked || !self.is_whole(), "it kept up");
                assert_eq!(resume_at.epoch, EPOCH);
                let resume_at = resume_at.offset;
                self.check_gap(topic, last, missed, resume_at);
                if policy == LagPolicy::Close {
                    return self.unsubscribe(connection, topic);
                }
                resume_at
            }
            Waiting::Messages(messages) => {
                let log = &self.topics[usize::from(topic)].log;
                let due = log.partition_point(|message| message.id.offset <= last);
                assert!((1..=log.len() - due).contains(&messages.clone().count()));
                for (message, expected) in messages.zip(&log[due..]) {
                    if *room == Some(0) {
                        break;
                    }
                    *room = room.map(|room| room - 1);
                    assert_eq!(message.id, expected.id, "the next one, once");
                    last = message.id.offset;
                    self.delivered += 1;
                }
                last
            }
        };
        let subscriber = self.subscribers.get_mut(&(connection, topic)).unwrap();
        if written > subscriber.last {
            subscriber.last = written;
            self.table.advance(id, written);
        }
        if matches!(self.table.waiting(id), Waiting::Nothing) {
            subscriber.was_blocked = false;
        } else if self.room[connection as usize] == Some(0) {
            subscriber.was_blocked = true;
            self.table.block(id);
        } else {
            self.serve(connection, topic);
        }
    }

    /// True if notifications are never lost and offsets stay within what a cursor tells.
    fn is_whole(&self) -> bool {
        !matches!(self.offsets, Offsets::Leaping | Offsets::WithHoles)
    }

    /// A gap must be as large as said, and the messages really beyond the limits.
    fn check_gap(&self, topic: u8, last: u64, missed: Option<u64>, resume_at: u64) {
        assert_eq!(missed.is_some(), self.offsets.are_consecutive());
        assert!(missed != Some(0));
        if matches!(self.offsets, Offsets::Leaping) {
            return;
        }
        assert!(missed.is_none_or(|missed| missed == resume_at - last));
        if matches!(self.offsets, Offsets::WithHoles) {
            return;
        }
        let log = &self.topics[usize::from(topic)].log;
        let kept = log.iter().filter(|message| message.id.offset > resume_at).count();
        let (max_messages, max_bytes) = (self.rule.max_lag_messages, self.rule.max_lag_bytes);
        let is_beyond = kept + 1 > max_messages || (kept + 1) * weight_bytes() > max_bytes;
        let was_short_of_room = self.table.dropped() + self.dropped_before > 0;
        assert!(is_beyond || was_short_of_room, "there was room for {kept} and one more");
        assert!(log.iter().any(|message| message.id.offset == resume_at));
    }

    /// The connection takes more again.
    fn unblock(&mut self, connection: u32, is_flushed: bool) {
        self.room[connection as usize] = None;
        for topic in 0..CHANNELS {
            let Some(subscriber) = self.subscribers.get(&(connection, topic)) else { continue };
            let id = subscriber.id;
            if !self.table.is_blocked(id) {
                continue;
            }
            if is_flushed {
                self.serve(connection, topic);
            }
            if self.subscribers.contains_key(&(connection, topic)) {
                self.table.unblock(id);
            }
            self.check();
        }
    }

    /// Serves the connection's subscriptions that are held.
    fn release(&mut self, connection: u32) {
        for topic in 0..CHANNELS {
            let Some(subscriber) = self.subscribers.get(&(connection, topic)) else { continue };
            let id = subscriber.id;
            if self.table.held_connection(id) != Some(ConnectionId::new(connection)) {
                continue;
            }
            self.serve(connection, topic);
            if self.subscribers.contains_key(&(connection, topic)) {
                self.table.release(id);
            }
            self.check();
        }
    }

    /// Everything is delivered, and nothing is left behind.
    pub(super) fn finish(&mut self) {
        (0..CONNECTIONS).for_each(|connection| self.release(connection));
        (0..CONNECTIONS).for_each(|connection| self.unblock(connection, true));
        self.take_notifications(usize::MAX);
        let mut rounds = 0;
        while self.table.is_fanning_out() {
            self.fan_out(5, usize::MAX, false);
            rounds += 1;
            assert!(rounds < 100_000, "the sweep does not end");
        }
        for ((_, topic), subscriber) in &self.subscribers {
            let log = &self.topics[usize::from(*topic)].log;
            let behind = log.iter().filter(|message| message.id.offset > subscriber.last).count();
            let lost_at_most = if self.offsets == Offsets::WithHoles { 100 } else { 0 };
            assert!(behind <= lost_at_most, "a subscriber was left behind");
        }
        assert!(self.table.channels.iter().all(|(_, channel)| channel.buffer.is_none()));
        assert_eq!((self.table.pending_bytes(), self.table.blocked_bytes()), (0, 0));
        assert_eq!(self.table.len(), self.subscribers.len());
        self.check();
    }

    fn check(&self) {
        self.table.check_invariants();
    }
}
