//! What must be true: every channel's log as the contract has it, kept apart from the engine's.
//!
//! The model keeps every message for ever and works out from the rules what may still be asked for.
//! It learns of publications, subscriptions and pages from the engine's record, checks each answer,
//! and is asked by clients whether what they were told is what they were promised.

use std::collections::HashMap;

use throng_core::engine::IDEMPOTENCY_MS;
use throng_core::message::OVERHEAD_BYTES;
use throng_core::{Body, ChannelName, HistoryQuery, MessageId, Publication, Published, StartAt};

use crate::topics::Topic;
use crate::{Check, ensure};

/// A message as it was accepted.
#[derive(Debug)]
pub struct Entry {
    /// Its number among all messages of the world.
    pub number: u64,
    /// When it was published.
    pub time_ms: u64,
    /// The published body.
    pub body: Body,
    /// Its content type, unless it is the usual one.
    pub content_type: Option<Box<str>>,
    /// The connection that does not get it.
    pub excluded: Option<u64>,
    /// What it counts for.
    weight_bytes: usize,
}

/// A channel's log: the message with offset `n` is `entries[n - 1]`.
#[derive(Debug, Default)]
struct Log {
    entries: Vec<Entry>,
    subscribers: u64,
    /// The offset of the newest message that had to go because all logs together kept too much.
    evicted: u64,
    /// Whether a subscription ever began before the newest message.
    has_backlogs: bool,
    keys: HashMap<Box<str>, (u64, u64)>,
}

/// The logs of all channels.
#[derive(Debug)]
pub struct Model {
    /// The world's channels.
    pub topics: Vec<Topic>,
    /// The epoch, as it is written in ids.
    pub epoch: String,
    /// Messages that had to go because all logs together kept too much.
    pub evicted: u64,
    /// All logs together may keep so many bytes.
    logs_bytes_max: usize,
    logs: Vec<Log>,
}

/// What a publication counts for, in bytes.
pub fn weight_bytes(publication: &Publication) -> usize {
    let texts = [
        publication.body.bytes().len(),
        publication.channel.key().len(),
        publication.content_type.as_deref().map_or(0, str::len),
    ];
    texts.iter().sum::<usize>() + OVERHEAD_BYTES
}

/// Where a subscription starts, according to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// The index of the channel.
    pub topic: usize,
    /// After which offset.
    pub cursor: u64,
    /// What was promised to one who resumes.
    pub is_recovered: Option<bool>,
}

impl Model {
    /// Empty logs, which together may keep so many bytes.
    pub fn new(topics: Vec<Topic>, epoch: String, logs_bytes_max: usize) -> Model {
        let logs = topics.iter().map(|_| Log::default()).collect();
        Model { topics, epoch, evicted: 0, logs_bytes_max, logs }
    }

    /// The channel that the engine calls so.
    pub fn topic(&self, name: &ChannelName) -> Result<usize, String> {
        let is_it = |topic: &Topic| topic.kind == name.kind() && topic.name == name.name();
        self.topics.iter().position(is_it).ok_or_else(|| format!("{name:?} is no channel of ours"))
    }

    /// The newest message's offset.
    pub fn head(&self, topic: usize) -> u64 {
        self.logs[topic].entries.len() as u64
    }

    /// The newest offset among the first `number` messages of the world.
    pub fn head_at(&self, topic: usize, number: u64) -> u64 {
        self.logs[topic].entries.partition_point(|entry| entry.number <= number) as u64
    }

    /// The message with an offset.
    pub fn entry(&self, topic: usize, offset: u64) -> Option<&Entry> {
        self.logs[topic].entries.get(usize::try_from(offset.checked_sub(1)?).ok()?)
    }

    /// The offset of the newest message that is no longer kept.
    pub fn floor(&self, topic: usize, now_ms: u64) -> u64 {
        self.retained(topic, now_ms).max(self.logs[topic].evicted)
    }

    /// The offset of the newest message that retention no longer covers.
    fn retained(&self, topic: usize, now_ms: u64) -> u64 {
        let retention = &self.topics[topic].rule.retention;
        let entries = &self.logs[topic].entries;
        let (mut count, mut bytes) = (0, 0);
        if !retention.is_none() {
            for entry in entries.iter().rev() {
                bytes += entry.weight_bytes;
                let is_old = entry.time_ms + retention.age_ms_max <= now_ms;
                if is_old || count == retention.messages_max || bytes > retention.bytes_max {
                    break;
                }
                count += 1;
            }
        }
        (entries.len() - count) as u64
    }

    /// Subscriptions of a channel, in all.
    pub fn subscribers(&self, topic: usize) -> u64 {
        self.logs[topic].subscribers
    }

    /// An id of this world.
    pub fn id(&self, offset: u64) -> String {
        format!("{}-{offset}", self.epoch)
    }

    /// The offset that an id of this world names.
    pub fn offset(&self, id: &str) -> Result<u64, String> {
        let offset = id.strip_prefix(&self.epoch).and_then(|rest| rest.strip_prefix('-'));
        offset
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(|| format!("`{id}` is not an id of epoch {}", self.epoch))
    }

    /// The next message after `cursor` that is for the connection `name`, and its offset.
    pub fn next_for(&self, topic: usize, cursor: u64, name: Option<u64>) -> Option<(u64, &Entry)> {
        let mut offset = cursor;
        loop {
            offset += 1;
            let entry = self.entry(topic, offset)?;
            if entry.excluded.is_none() || entry.excluded != name {
                return Some((offset, entry));
            }
        }
    }

    /// Whether everything after `cursor` up to `to` is not for the connection `name`.
    pub fn is_only_excepted(&self, topic: usize, cursor: u64, to: u64, name: Option<u64>) -> bool {
        cursor <= to && self.next_for(topic, cursor, name).is_none_or(|(offset, _)| offset > to)
    }

    /// Whether one who stands at `cursor` when the head is `head` has fallen so far behind that the
    /// policy may speak.
    pub fn may_be_behind(&self, topic: usize, cursor: u64, head: u64) -> bool {
        let rule = &self.topics[topic].rule;
        let waiting = (cursor + 1..=head).filter_map(|offset| self.entry(topic, offset));
        let (mut count, mut bytes) = (0, 0);
        for entry in waiting {
            count += 1;
            bytes += entry.weight_bytes;
        }
        count > rule.max_lag_messages || bytes > rule.max_lag_bytes
    }

    /// A message was accepted, or a repeated key recognised.
    pub fn published(
        &mut self,
        now_ms: u64,
        number: u64,
        publication: &Publication,
        answer: &Published,
    ) -> Check<usize> {
        let topic = self.topic(&publication.channel)?;
        let key = publication.idempotency_key.as_deref();
        let known = key.and_then(|key| self.logs[topic].keys.get(key)).copied();
        let known = known.filter(|(_, time_ms)| time_ms + IDEMPOTENCY_MS > now_ms);
        let head = self.head(topic);
        let offset = self.offset(&answer.id.to_string())?;
        if let Some((first, _)) = known {
            ensure!(answer.is_duplicate, "the key {key:?} was not recognised");
            ensure!(offset == first, "the key {key:?} stands for {first}, answered {offset}");
            return Ok(topic);
        }
        ensure!(!answer.is_duplicate, "the key {key:?} is new, and was called a duplicate");
        ensure!(offset == head + 1, "offset {offset} came after {head}");
        let log = &mut self.logs[topic];
        let subscribers = answer.subscribers;
        ensure!(
            subscribers == log.subscribers,
            "{subscribers} subscribers were told of, and there are {}",
            log.subscribers
        );
        if let Some(key) = key {
            log.keys.insert(key.into(), (offset, now_ms));
        }
        log.entries.push(Entry {
            weight_bytes: weight_bytes(publication),
            number,
            time_ms: now_ms,
            body: publication.body.clone(),
            content_type: publication.content_type.clone(),
            excluded: publication.excluded.map(|name| name.0),
        });
        self.make_room(now_ms);
        Ok(topic)
    }

    /// Messages of all logs together, and their bytes.
    pub fn kept(&self, now_ms: u64) -> (u64, usize) {
        let (mut messages, mut bytes) = (0, 0);
        for (topic, log) in self.logs.iter().enumerate() {
            for entry in &log.entries[self.floor(topic, now_ms) as usize..] {
                messages += 1;
                bytes += entry.weight_bytes;
            }
        }
        (messages, bytes)
    }

    /// The oldest messages of the server go while all logs together keep too much.
    fn make_room(&mut self, now_ms: u64) {
        let (_, mut bytes) = self.kept(now_ms);
        while bytes > self.logs_bytes_max {
            let floors = (0..self.logs.len()).map(|topic| (topic, self.floor(topic, now_ms)));
            let oldest = floors.filter_map(|(topic, floor)| {
                let entry = self.entry(topic, floor + 1)?;
                Some((entry.time_ms, topic, floor + 1, entry.weight_bytes))
            });
            let Some((_, topic, offset, weight_bytes)) = oldest.min() else { return };
            self.logs[topic].evicted = offset;
            self.evicted += 1;
            bytes -= weight_bytes;
        }
    }

    /// Whether one who stands at `offset` would be whole, were there room for all logs.
    pub fn lacks_evicted(&self, topic: usize, offset: u64, now_ms: u64) -> bool {
        (self.retained(topic, now_ms)..self.floor(topic, now_ms)).contains(&offset)
    }

    /// The most that a worker may have held for those who do not read when it dropped this message,
    /// in bytes. Of what it holds the oldest go first: but for backlogs, it held nothing older.
    pub fn held_bytes_max(&self, topic: usize, offset: u64) -> usize {
        let Some(number) = self.entry(topic, offset).map(|entry| entry.number) else { return 0 };
        let of_topic = |(topic, log): (&Topic, &Log)| {
            let from = log.entries.partition_point(|entry| entry.number < number);
            let rule = &topic.rule;
            let older = match log.has_backlogs {
                true => rule.max_lag_messages.max(rule.retention.messages_max),
                false => 0,
            };
            let entries = &log.entries[from.saturating_sub(older)..];
            entries.iter().map(|entry| entry.weight_bytes).sum::<usize>()
        };
        self.topics.iter().zip(&self.logs).map(of_topic).sum()
    }

    /// A subscription has begun: where it must start.
    pub fn followed(&mut self, now_ms: u64, channel: &ChannelName, start: StartAt) -> Check<Begin> {
        let topic = self.topic(channel)?;
        self.logs[topic].subscribers += 1;
        let (head, floor) = (self.head(topic), self.floor(topic, now_ms));
        let (cursor, is_recovered) = match start {
            StartAt::Live => (head, None),
            StartAt::Last(count) => (head.saturating_sub(count as u64).max(floor), None),
            StartAt::After(id) => self.after(topic, floor, id),
        };
        self.logs[topic].has_backlogs |= cursor < head;
        Ok(Begin { topic, cursor, is_recovered })
    }

    fn after(&self, topic: usize, floor: u64, id: MessageId) -> (u64, Option<bool>) {
        let is_ours = self.offset(&id.to_string()).is_ok() && id.offset <= self.head(topic);
        if is_ours && id.offset >= floor { (id.offset, Some(true)) } else { (floor, Some(false)) }
    }

    /// A subscription has ended.
    pub fn unfollowed(&mut self, channel: &ChannelName) -> Check {
        let topic = self.topic(channel)?;
        let subscribers = &mut self.logs[topic].subscribers;
        ensure!(*subscribers > 0, "one more has left {channel:?} than had come");
        *subscribers -= 1;
        Ok(())
    }

    /// The page of history that must be answered: its offsets, whether there are more, and whether
    /// it is whole.
    pub fn page(
        &self,
        now_ms: u64,
        topic: usize,
        query: HistoryQuery,
        limit: usize,
    ) -> (Vec<u64>, bool, Option<bool>) {
        let (head, floor) = (self.head(topic), self.floor(topic, now_ms));
        match query {
            HistoryQuery::After(id) => {
                let (from, is_recovered) = self.after(topic, floor, id);
                let all: Vec<u64> = (from + 1..=head).collect();
                (all[..all.len().min(limit)].to_vec(), all.len() > limit, is_recovered)
            }
            HistoryQuery::Newest | HistoryQuery::Before(_) => {
                let end = match query {
                    HistoryQuery::Before(id) if self.offset(&id.to_string()).is_ok() => id.offset,
                    _ => u64::MAX,
                };
                let all: Vec<u64> = (floor + 1..=head).filter(|&offset| offset < end).collect();
                let skipped = all.len().saturating_sub(limit);
                (all[skipped..].to_vec(), skipped > 0, None)
            }
        }
    }
}
