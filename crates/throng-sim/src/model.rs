//! The expected logs and subscriptions, kept independently of the engine.
//!
//! The model keeps all messages, and computes from the rules which of them the engine still has. It
//! learns of publications, subscriptions and pages from the engine's record, and checks each of the
//! engine's answers. Clients check against it what the server sends.

use std::collections::HashMap;

use throng_core::message::OVERHEAD_BYTES;
use throng_core::{
    Body, ChannelName, EntryCount, HistoryQuery, IDEMPOTENCY_MS, JournalId, Message, MessageId,
    Publication, Published, StartAt, VolatilePublication,
};

use crate::facts::FactLog;
use crate::topics::Topic;
use crate::{Check, ensure};

/// Entries that a log has for each of its messages at most, with those that have expired.
pub(crate) const ENTRIES_PER_MESSAGE: usize = 4;

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) offset: u64,
    /// Its number among all messages of the world, from one.
    number: u64,
    pub(crate) time_ms: u64,
    pub(crate) body: Body,
    /// Its content type; `None` for the usual one of its kind.
    pub(crate) content_type: Option<Box<str>>,
    /// The connection that does not get it.
    pub(crate) excluded: Option<u64>,
    pub(crate) expires_ms: Option<u64>,
    weight_bytes: usize,
    /// The part of `weight_bytes` that is left once it has expired.
    expired_bytes: usize,
}

impl Entry {
    pub(crate) fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|expires_ms| expires_ms <= now_ms)
    }

    fn weight_bytes(&self, now_ms: u64) -> usize {
        if self.is_expired(now_ms) { self.expired_bytes } else { self.weight_bytes }
    }
}

/// A connection that messages are written to, at a moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader {
    /// The connection's name, by which publications exclude it.
    pub(crate) name: Option<u64>,
    pub(crate) now_ms: u64,
}

impl Reader {
    /// True if its subscription passes over a message.
    pub(crate) fn passes_over(self, entry: &Entry) -> bool {
        (entry.excluded.is_some() && entry.excluded == self.name) || entry.is_expired(self.now_ms)
    }
}

/// A channel's log, with all messages since the beginning.
#[derive(Debug, Default)]
struct Log {
    /// In the order of offsets.
    entries: Vec<Entry>,
    subscribers: u64,
    /// The number of the oldest messages that were dropped because all logs together exceeded their
    /// limit.
    evicted: usize,
    /// The number of the oldest messages that the rule did not retain when a newer one came. They
    /// are gone, also when others expire and leave room.
    outdated: usize,
    /// True if a subscription ever began before the newest message.
    has_backlogs: bool,
    /// Offset and time of the message with each idempotency key.
    keys: HashMap<Box<str>, (u64, u64)>,
}

/// The ids that messages of a channel have.
#[derive(Debug)]
pub(crate) struct Ids {
    /// The epoch, as ids have it.
    pub(crate) epoch: String,
    /// True if each offset is its predecessor's plus one.
    pub(crate) are_consecutive: bool,
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) topics: Vec<Topic>,
    /// The number of the first topics that are lists; those behind them change, and the last of
    /// them are the members of channels.
    pub(crate) lists: usize,
    /// The logs of changing channels, by the index of their topic.
    pub(crate) facts: Vec<FactLog>,
    /// The number of erasures so far.
    pub(crate) erasures: usize,
    /// The ids of each channel.
    ids: Vec<Ids>,
    /// The number of messages dropped because all logs together exceeded their limit.
    pub(crate) evicted: u64,
    /// The bytes that all logs together may keep.
    max_logs_bytes: usize,
    /// By the index of their channel.
    logs: Vec<Log>,
    /// All volatile messages, by their numbers.
    pub(crate) volatile: Vec<Volatile>,
}

/// The weight of a publication against limits, in bytes.
pub(crate) fn weight_bytes(publication: &Publication) -> usize {
    let texts = [
        publication.body.bytes().len(),
        publication.channel.key().len(),
        publication.content_type.as_deref().map_or(0, str::len),
    ];
    texts.iter().sum::<usize>() + OVERHEAD_BYTES
}

/// The same of a volatile publication.
pub(crate) fn volatile_bytes(publication: &VolatilePublication) -> usize {
    let (body, key) = (publication.body.bytes().len(), publication.channel.key().len());
    body + key + publication.content_type.as_deref().map_or(0, str::len) + OVERHEAD_BYTES
}

/// A volatile message, with the world as it was when it was published.
#[derive(Debug)]
pub(crate) struct Volatile {
    pub(crate) topic: usize,
    /// Its body; of the notice that a marker has moved, its JSON.
    pub(crate) text: String,
    pub(crate) time_ms: u64,
    /// The offset of the newest message of the channel.
    pub(crate) head: u64,
    /// The connection that does not get it.
    pub(crate) excluded: Option<u64>,
}

/// All texts of volatile messages begin with this, and no other body does.
pub(crate) const VOLATILE: &str = "~v";

/// The expected start of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Begin {
    pub(crate) topic: usize,
    /// The subscription gets the messages after this offset.
    pub(crate) cursor: u64,
    /// For a subscription that resumes: whether it gets all messages after the id that it named.
    pub(crate) is_recovered: Option<bool>,
}

/// How a subscription to a changing channel began, as the engine has it.
#[derive(Debug, Clone)]
pub(crate) struct Beginning {
    pub(crate) topic: usize,
    /// It gets the messages after this offset.
    pub(crate) cursor: u64,
    pub(crate) is_recovered: Option<bool>,
    /// The offset of the newest message then.
    pub(crate) head: u64,
    /// The offsets of the messages before the head that it gets.
    pub(crate) backlog: Vec<u64>,
}

/// A page of history that the engine must return.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) offsets: Vec<u64>,
    /// True if the next page has messages.
    pub(crate) has_more: bool,
    /// With [`HistoryQuery::After`]: whether the log has all messages after that id.
    pub(crate) is_recovered: Option<bool>,
}

impl Log {
    /// The offset of the newest message; 0 without messages.
    fn head(&self) -> u64 {
        self.before(self.entries.len())
    }

    /// The offset of the message before the one at `index`.
    fn before(&self, index: usize) -> u64 {
        index.checked_sub(1).map_or(0, |index| self.entries[index].offset)
    }

    /// The index of the first message after an offset.
    fn index_after(&self, offset: u64) -> usize {
        self.entries.partition_point(|entry| entry.offset <= offset)
    }
}

impl Model {
    /// Empty logs, which together may keep `max_logs_bytes`.
    pub(crate) fn new(topics: Vec<Topic>, ids: Vec<Ids>, max_logs_bytes: usize) -> Model {
        let logs = topics.iter().map(|_| Log::default()).collect();
        Model {
            lists: topics.iter().filter(|topic| !topic.is_changing).count(),
            facts: topics.iter().map(|_| FactLog::default()).collect(),
            erasures: 0,
            topics,
            ids,
            evicted: 0,
            max_logs_bytes,
            logs,
            volatile: Vec::new(),
        }
    }

    /// Learns of the next message of a changing channel.
    pub(crate) fn learn(&mut self, topic: usize, message: &Message) -> Check {
        let known = self.facts[topic].head();
        ensure!(message.previous == known, "{} follows {known}", message.id);
        if self.topics[topic].is_of_members() {
            self.facts[topic].check_change(message)?;
        }
        let epoch = &self.ids[topic].epoch;
        let id_of = |offset| format!("{epoch}-{offset}");
        self.facts[topic].learn(message, &id_of, &mut self.erasures);
        Ok(())
    }

    /// The bytes of all messages that there ever were.
    pub(crate) fn bytes_ever(&self) -> usize {
        let of_lists = self.logs.iter().flat_map(|log| &log.entries).map(|it| it.weight_bytes);
        of_lists.sum::<usize>() + self.facts.iter().map(|log| log.weight_bytes).sum::<usize>()
    }

    /// True if some logs are in memory, and some in each of two journals.
    pub(crate) fn has_all_kinds(&self) -> bool {
        let has = |journal| self.topics.iter().any(|topic| topic.rule.journal == journal);
        [None, Some(JournalId(0)), Some(JournalId(1))].into_iter().all(has)
    }

    /// True if each offset of a channel is its predecessor's plus one.
    pub(crate) fn are_consecutive(&self, topic: usize) -> bool {
        self.ids[topic].are_consecutive
    }

    /// The index of the channel with this name.
    pub(crate) fn topic(&self, name: &ChannelName) -> Check<usize> {
        let is_same = |topic: &Topic| topic.kind == name.kind() && topic.name == name.name();
        self.topics.iter().position(is_same).ok_or_else(|| format!("there is no channel {name:?}"))
    }

    /// The offset of the newest message; 0 without messages.
    pub(crate) fn head(&self, topic: usize) -> u64 {
        self.logs[topic].head()
    }

    /// The newest offset among the first `number` messages of the world.
    pub(crate) fn head_at(&self, topic: usize, number: u64) -> u64 {
        let log = &self.logs[topic];
        log.before(log.entries.partition_point(|entry| entry.number <= number))
    }

    /// The number of messages since the beginning.
    pub(crate) fn len(&self, topic: usize) -> usize {
        self.logs[topic].entries.len()
    }

    /// The offset of the channel's `count`th message, from one; 0 for 0. If there are fewer
    /// messages, an offset beyond the head.
    pub(crate) fn nth_offset(&self, topic: usize, count: usize) -> u64 {
        let log = &self.logs[topic];
        log.before(count.min(log.entries.len())) + count.saturating_sub(log.entries.len()) as u64
    }

    pub(crate) fn entry(&self, topic: usize, offset: u64) -> Option<&Entry> {
        let entries = &self.logs[topic].entries;
        let at = entries.binary_search_by_key(&offset, |entry| entry.offset).ok()?;
        Some(&entries[at])
    }

    /// The offset of the message before the one with this offset.
    pub(crate) fn previous(&self, topic: usize, offset: u64) -> u64 {
        let log = &self.logs[topic];
        log.before(log.entries.partition_point(|entry| entry.offset < offset))
    }

    /// True if no message has this offset, which is at most the head.
    pub(crate) fn is_between_messages(&self, topic: usize, offset: u64) -> bool {
        offset > 0 && offset <= self.head(topic) && self.entry(topic, offset).is_none()
    }

    /// The messages after `from` up to `to`.
    pub(crate) fn between(&self, topic: usize, from: u64, to: u64) -> &[Entry] {
        let log = &self.logs[topic];
        &log.entries[log.index_after(from)..log.index_after(to).max(log.index_after(from))]
    }

    /// The offset of the newest message that the engine no longer keeps.
    fn floor(&self, topic: usize, now_ms: u64) -> u64 {
        self.logs[topic].before(self.first_kept(topic, now_ms))
    }

    /// The index of the oldest message that the engine keeps.
    fn first_kept(&self, topic: usize, now_ms: u64) -> usize {
        self.first_retained(topic, now_ms).max(self.logs[topic].evicted)
    }

    /// The index of the oldest message that the channel's rule retains.
    fn first_retained(&self, topic: usize, now_ms: u64) -> usize {
        let retention = &self.topics[topic].rule.retention;
        let entries = &self.logs[topic].entries;
        let (mut count, mut bytes, mut counted) = (0, 0, EntryCount::default());
        if !retention.is_none() {
            for entry in entries.iter().rev() {
                bytes += entry.weight_bytes(now_ms);
                // What has expired takes no room from other messages.
                counted.add(entry.is_expired(now_ms));
                let is_old = entry.time_ms + retention.max_age_ms <= now_ms;
                let are_many = counted.exceeds(retention.max_messages);
                if is_old || are_many || bytes > retention.max_bytes {
                    break;
                }
                count += 1;
            }
        }
        (entries.len() - count).max(self.logs[topic].outdated)
    }

    /// The number of subscriptions of a channel, on all workers.
    pub(crate) fn subscribers(&self, topic: usize) -> u64 {
        self.logs[topic].subscribers
    }

    /// The id with an offset in the channel's epoch.
    pub(crate) fn id(&self, topic: usize, offset: u64) -> String {
        format!("{}-{offset}", self.ids[topic].epoch)
    }

    /// The offset of an id in the channel's epoch.
    pub(crate) fn offset(&self, topic: usize, id: &str) -> Check<u64> {
        let epoch = &self.ids[topic].epoch;
        let offset = id.strip_prefix(epoch).and_then(|rest| rest.strip_prefix('-'));
        offset
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(|| format!("`{id}` is not an id of epoch {epoch}"))
    }

    /// The messages after `cursor` that a connection may get next: all up to the first that it has
    /// to get. It may still get one that has expired since it was written.
    pub(crate) fn candidates(
        &self,
        topic: usize,
        cursor: u64,
        reader: Reader,
    ) -> impl Iterator<Item = &Entry> {
        let log = &self.logs[topic];
        let later = &log.entries[log.index_after(cursor)..];
        let next = later.iter().position(|entry| !reader.passes_over(entry));
        let end = next.map_or(later.len(), |at| at + 1);
        later[..end]
            .iter()
            .filter(move |entry| entry.excluded.is_none() || entry.excluded != reader.name)
    }

    /// The first message after `cursor` that a connection has to get.
    pub(crate) fn next_for(&self, topic: usize, cursor: u64, reader: Reader) -> Option<&Entry> {
        let log = &self.logs[topic];
        log.entries[log.index_after(cursor)..].iter().find(|entry| !reader.passes_over(entry))
    }

    /// True if a subscription passes over all messages after `cursor` up to `to`.
    pub(crate) fn passes_over(&self, topic: usize, cursor: u64, to: u64, reader: Reader) -> bool {
        let next = self.next_for(topic, cursor, reader);
        cursor <= to && next.is_none_or(|entry| entry.offset > to)
    }

    /// True if a subscription at `cursor` exceeds the lag limit when the head is `head`.
    pub(crate) fn exceeds_lag(&self, topic: usize, cursor: u64, head: u64) -> bool {
        let rule = &self.topics[topic].rule;
        let pending = self.between(topic, cursor, head);
        let bytes: usize = pending.iter().map(|entry| entry.weight_bytes).sum();
        pending.len() > rule.max_lag_messages || bytes > rule.max_lag_bytes
    }

    /// Checks the engine's answer to a publication that it did not refuse, and adds the message
    /// unless its key is known. Returns the index of the channel.
    pub(crate) fn published(
        &mut self,
        now_ms: u64,
        number: u64,
        publication: &Publication,
        answer: &Published,
    ) -> Check<usize> {
        let topic = self.topic(&publication.channel)?;
        let key = publication.idempotency_key.as_ref().map(|key| key.scoped());
        let known = key.and_then(|key| self.logs[topic].keys.get(key)).copied();
        let known = known.filter(|(_, time_ms)| time_ms + IDEMPOTENCY_MS > now_ms);
        let head = self.head(topic);
        let offset = self.offset(topic, &answer.id.to_string())?;
        if let Some((first, _)) = known {
            ensure!(answer.is_duplicate, "the key {key:?} was not recognized");
            ensure!(offset == first, "the key {key:?} is that of {first}, answered {offset}");
            return Ok(topic);
        }
        ensure!(!answer.is_duplicate, "the key {key:?} is new, but called a duplicate");
        let counts_up = self.are_consecutive(topic);
        let is_next = if counts_up { offset == head + 1 } else { offset > head };
        ensure!(is_next, "offset {offset} after {head}");
        let log = &mut self.logs[topic];
        let subscribers = answer.subscribers;
        ensure!(
            subscribers == log.subscribers,
            "the answer has {subscribers} subscribers, there are {}",
            log.subscribers
        );
        if let Some(key) = key {
            log.keys.insert(key.into(), (offset, now_ms));
        }
        log.entries.push(Entry {
            offset,
            weight_bytes: weight_bytes(publication),
            expired_bytes: publication.channel.key().len() + OVERHEAD_BYTES,
            number,
            time_ms: now_ms,
            body: publication.body.clone(),
            content_type: publication.content_type.clone(),
            excluded: publication.excluded.map(throng_core::ConnectionName::number),
            expires_ms: publication.expires_in_ms.map(|expires_in_ms| now_ms + expires_in_ms),
        });
        self.logs[topic].outdated = self.first_retained(topic, now_ms);
        self.evict(now_ms);
        Ok(topic)
    }

    /// The number of messages in all logs, and their bytes.
    pub(crate) fn kept(&self, now_ms: u64) -> (u64, usize) {
        let (mut messages, mut bytes) = (0, 0);
        for (topic, log) in self.logs.iter().enumerate() {
            for entry in &log.entries[self.first_kept(topic, now_ms)..] {
                messages += 1;
                bytes += entry.weight_bytes(now_ms);
            }
        }
        (messages, bytes)
    }

    /// Drops the oldest messages of all logs while these exceed their limit.
    fn evict(&mut self, now_ms: u64) {
        let (_, mut bytes) = self.kept(now_ms);
        while bytes > self.max_logs_bytes {
            let oldest = (0..self.logs.len()).filter_map(|topic| {
                let first = self.first_kept(topic, now_ms);
                let entry = self.logs[topic].entries.get(first)?;
                Some((entry.time_ms, topic, first, entry.weight_bytes))
            });
            let Some((_, topic, first, weight_bytes)) = oldest.min() else { return };
            self.logs[topic].evicted = first + 1;
            self.evicted += 1;
            bytes -= weight_bytes;
        }
    }

    /// True if a subscription that resumes after `offset` lacks messages only because of the limit
    /// of all logs together.
    pub(crate) fn lacks_evicted(&self, topic: usize, offset: u64, now_ms: u64) -> bool {
        let retained = self.logs[topic].before(self.first_retained(topic, now_ms));
        (retained..self.floor(topic, now_ms)).contains(&offset)
    }

    /// The most bytes that a worker's replay buffers may have kept when it dropped the message with
    /// this offset, or the first one after it. They drop the oldest messages first, by
    /// their time, so that they kept nothing older, except for backlogs.
    pub(crate) fn max_buffered_bytes(&self, topic: usize, offset: u64) -> usize {
        let log = &self.logs[topic];
        let dropped = log.entries.get(log.index_after(offset.saturating_sub(1)));
        let Some(dropped) = dropped else { return 0 };
        let of_topic = |(topic, log): (&Topic, &Log)| {
            let from = log.entries.partition_point(|entry| entry.time_ms < dropped.time_ms);
            let rule = &topic.rule;
            let older = if log.has_backlogs {
                ENTRIES_PER_MESSAGE * rule.max_lag_messages.max(rule.retention.max_messages)
            } else {
                0
            };
            let entries = &log.entries[from.saturating_sub(older)..];
            entries.iter().map(|entry| entry.weight_bytes).sum::<usize>()
        };
        let of_lists: usize = self.topics.iter().zip(&self.logs).map(of_topic).sum();
        // Their backlogs have messages of any age.
        of_lists + self.facts.iter().map(|log| log.weight_bytes).sum::<usize>()
    }

    /// Adds a subscription. Returns its expected start.
    pub(crate) fn followed(
        &mut self,
        now_ms: u64,
        channel: &ChannelName,
        start: StartAt,
    ) -> Check<Begin> {
        let topic = self.topic(channel)?;
        let (head, floor) = (self.head(topic), self.floor(topic, now_ms));
        let log = &mut self.logs[topic];
        log.subscribers += 1;
        let (cursor, is_recovered) = match start {
            StartAt::Live => (head, None),
            StartAt::Last(count) => {
                let readable = log.entries.iter().enumerate().rev();
                let mut readable = readable.filter(|(_, entry)| !entry.is_expired(now_ms));
                let first = match count.checked_sub(1) {
                    None => log.entries.len(),
                    Some(before) => readable.nth(before).map_or(0, |(at, _)| at),
                };
                (log.before(first).max(floor), None)
            }
            StartAt::After(id) => self.resume(topic, floor, id),
            // No client of this world has such a position, or asks for a time.
            StartAt::Since(_) | StartAt::From(_) | StartAt::State => {
                return Err("a start of no client".into());
            }
        };
        self.logs[topic].has_backlogs |= cursor < head;
        Ok(Begin { topic, cursor, is_recovered })
    }

    /// The backlog of a subscription that begins at `cursor`.
    pub(crate) fn backlog(
        &self,
        now_ms: u64,
        topic: usize,
        start: StartAt,
        cursor: u64,
    ) -> &[Entry] {
        let (head, floor) = (self.head(topic), self.floor(topic, now_ms));
        let is_newest = self.topics[topic].is_latest() && matches!(start, StartAt::After(_));
        let from = if is_newest { floor.max(self.previous(topic, head)) } else { cursor };
        self.between(topic, from.max(cursor), head)
    }

    /// Where a client that resumes after `id` starts, and whether it is recovered.
    fn after(&self, topic: usize, floor: u64, id: MessageId) -> (u64, Option<bool>) {
        let is_known = self.offset(topic, &id.to_string()).is_ok() && id.offset <= self.head(topic);
        let is_recovered = is_known && id.offset >= floor;
        (if is_recovered { id.offset } else { floor }, Some(is_recovered))
    }

    /// As [`Model::after`], for a subscription: one that gets the newest message alone has
    /// recovered if that is here.
    fn resume(&self, topic: usize, floor: u64, id: MessageId) -> (u64, Option<bool>) {
        let after = self.after(topic, floor, id);
        let head = self.head(topic);
        let is_known = self.offset(topic, &id.to_string()).is_ok() && id.offset <= head;
        let is_latest = self.topics[topic].is_latest();
        let is_newest_alone = is_latest && is_known && after.1 == Some(false);
        if is_newest_alone { (id.offset, Some(floor < head)) } else { after }
    }

    /// Adds a subscription to a changing channel.
    pub(crate) fn followed_changing(&mut self, topic: usize) {
        self.logs[topic].subscribers += 1;
    }

    pub(crate) fn unfollowed(&mut self, channel: &ChannelName) -> Check {
        let topic = self.topic(channel)?;
        let subscribers = &mut self.logs[topic].subscribers;
        ensure!(*subscribers > 0, "{channel:?} is unfollowed more often than followed");
        *subscribers -= 1;
        Ok(())
    }

    pub(crate) fn page(
        &self,
        now_ms: u64,
        topic: usize,
        query: HistoryQuery,
        limit: usize,
    ) -> Page {
        let log = &self.logs[topic];
        let first_kept = self.first_kept(topic, now_ms);
        let offsets = |entries: &[&Entry]| entries.iter().map(|entry| entry.offset).collect();
        let readable = |entries| -> Vec<&Entry> {
            let entries: &[Entry] = entries;
            entries.iter().filter(|entry| !entry.is_expired(now_ms)).collect()
        };
        if let HistoryQuery::After(id) = query {
            let (cursor, is_recovered) = self.after(topic, log.before(first_kept), id);
            let later = readable(&log.entries[log.index_after(cursor)..]);
            let page = &later[..later.len().min(limit)];
            let has_more = later.len() > limit;
            return Page { offsets: offsets(page), has_more, is_recovered };
        }
        let end = match query {
            HistoryQuery::Before(id) if self.offset(topic, &id.to_string()).is_ok() => id.offset,
            _ => u64::MAX,
        };
        let end = log.index_after(end.saturating_sub(1)).max(first_kept);
        let earlier = readable(&log.entries[first_kept..end]);
        let skipped = earlier.len().saturating_sub(limit);
        Page { offsets: offsets(&earlier[skipped..]), has_more: skipped > 0, is_recovered: None }
    }
}
