//! Makes of what was read of the stream what was asked for: the start of a subscription, or a page.
//!
//! The stream keeps one message more than a channel's history, and longer. So what the channel's
//! rule does not cover is cut here, and whoever lacks something that was cut is told of it.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;

use throng_core::parts::{Limits, Page, Part, Start};
use throng_core::{
    ChannelName, Content, Epoch, Extras, HistoryQuery, MessageId, Reading, Retention, Stamp,
    StartAt,
};

use super::linked::StateCollect;
use crate::api::message::StoredMessage;
use crate::journal;

/// Size limit of one page, so that it stays small beside a server's memory.
const PAGE_BYTES_MAX: usize = 4 << 20;

/// A message of the stream, as the node's subscribers get it.
pub(super) fn content(
    channel: ChannelName,
    epoch: Epoch,
    stored: StoredMessage,
    previous: u64,
    time_ms: u64,
) -> Content {
    let offset = stored.sequence;
    let expires = |expires_in_ms| NonZeroU64::new(time_ms.saturating_add(expires_in_ms));
    Content {
        id: MessageId { epoch, offset },
        // All channels of the stream share its sequences: one order of all messages.
        stamp: Stamp(offset),
        previous,
        time_ms,
        channel,
        body: stored.body,
        content_type: stored.content_type,
        extras: Extras::new(stored.excluded, stored.attributes),
        expires_ms: stored.expires_in_ms.and_then(expires),
    }
}

/// The channel that is read, and what is known of it.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) channel: ChannelName,
    pub(super) epoch: Epoch,
    pub(super) retention: Retention,
    /// All messages up to here were delivered, if the node follows the channel; 0 otherwise.
    pub(super) head: u64,
    /// The stream had reached this when the reading began: the position in a channel without
    /// messages.
    pub(super) reached: u64,
    /// A message that is known to be there; 0 without one.
    pub(super) newest: u64,
    /// How far a subscriber may lag behind, and the limits of the channel's state.
    pub(super) lag: Limits,
}

/// The next step after a part was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Read what comes after this sequence.
    Read(u64),
    /// Read the state, as [`journal::ReadState`] says.
    ReadState {
        at_least: u64,
        wants_bounds: bool,
    },
    Finish,
}

/// The messages of a channel read so far.
#[derive(Debug)]
pub(super) struct Collect {
    pub(super) source: Source,
    pub(super) reading: Reading,
    /// The position that is read from; `None` if it is not one of the stream.
    pub(super) position: Option<u64>,
    pub(super) messages: VecDeque<Arc<Content>>,
    pub(super) bytes: usize,
    /// The last message that was read.
    pub(super) last: Option<u64>,
    /// True if messages after the position are missing.
    pub(super) has_gap: bool,
    /// `None` if the channel keeps no state.
    pub(super) state: Option<Box<StateCollect>>,
    /// The last message when the channel had ended; `None` if it had not, as far as was read.
    pub(super) ended_at: Option<u64>,
    /// The last message that a channel takes only before its end, or that is its end.
    last_ordinary: Option<(u64, bool)>,
    pub(super) now_ms: u64,
}

/// The sequence that a reading begins after; `None` if its position is of another epoch, or if it
/// has none.
fn position(reading: Reading, epoch: Epoch) -> Option<u64> {
    let (of, offset) = match reading {
        Reading::Start(StartAt::After(id)) | Reading::Page(HistoryQuery::After(id), _) => {
            (id.epoch, id.offset)
        }
        // A stamp is a sequence, too.
        Reading::Start(StartAt::Since(mark)) | Reading::Page(HistoryQuery::Since(mark), _) => {
            (mark.epoch, mark.stamp.0)
        }
        _ => return None,
    };
    (of == epoch).then_some(offset)
}

impl Collect {
    /// Begins at the time `now_ms`.
    pub(super) fn new(source: Source, reading: Reading, now_ms: u64) -> Collect {
        let keeps_state = source.lag.state.max_keys > 0;
        Collect {
            position: position(reading, source.epoch),
            state: keeps_state.then(|| Box::new(StateCollect::new())),
            source,
            reading,
            messages: VecDeque::new(),
            bytes: 0,
            last: None,
            has_gap: false,
            ended_at: None,
            last_ordinary: None,
            now_ms,
        }
    }

    /// The sequence after which reading begins, and what is known to be there.
    pub(super) fn begin(&self) -> (u64, u64) {
        let from = match self.reading {
            // Of messages nothing is wanted, but whether the channel has ended.
            Reading::Start(StartAt::Live) => self.source.head,
            Reading::Start(StartAt::State) if self.state.is_none() => self.source.head,
            _ => 0,
        };
        (self.position.unwrap_or(from), self.source.newest)
    }

    /// True if the channel has ended, and was not opened again before the last message that was
    /// read.
    pub(super) fn has_ended(&self) -> bool {
        let is_later = |at| self.last_ordinary.filter(|(sequence, _)| *sequence > at);
        self.ended_at.is_some_and(|at| is_later(at).is_none_or(|(_, is_end)| is_end))
    }

    /// True if the channel has ended, and no message that was read says it.
    pub(super) fn has_lost_end(&self) -> bool {
        self.has_ended() && !self.last_ordinary.is_some_and(|(_, is_end)| is_end)
    }

    /// The position that is read from; `None` if it is not one of the stream.
    pub(super) fn position(&self) -> Option<u64> {
        self.position
    }

    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    /// Takes a part that was read. `time_ms` converts times of the servers.
    pub(super) fn take(&mut self, read: journal::Reading, time_ms: impl Fn(u64) -> u64) -> Next {
        if self.state.is_some() && self.reading != Reading::Start(StartAt::Live) {
            return self.take_linked(read, time_ms);
        }
        let is_first = self.last.is_none();
        if !read.is_whole && self.position.is_some() {
            self.has_gap = true;
            if is_first && read.messages.is_empty() {
                // A position that the stream has not reached, or nothing is left after it.
                self.position = None;
                return Next::Read(0);
            }
        }
        if !read.is_whole && !is_first {
            // The earlier messages are no longer next to these.
            self.clear();
        }
        for stored in read.messages {
            self.take_stored(stored, &time_ms);
        }
        if read.left == 0 {
            self.ended_at = read.ended_at;
        }
        match self.last {
            Some(last) if read.left > 0 => Next::Read(last),
            _ => Next::Finish,
        }
    }

    /// Takes the next message.
    pub(super) fn take_stored(&mut self, stored: StoredMessage, time_ms: impl Fn(u64) -> u64) {
        let whole = if self.has_gap { None } else { self.position };
        // An offset that no message has, if the one before is not known.
        let previous = self.last.or(whole).unwrap_or(stored.sequence - 1);
        self.last = Some(stored.sequence);
        let newest_ms = self.messages.back().map_or(0, |last| last.time_ms);
        let at_ms = time_ms(stored.wall_ms).max(newest_ms);
        let Source { channel, epoch, .. } = &self.source;
        let content = content(channel.clone(), *epoch, stored, previous, at_ms);
        // After its end a channel takes no others.
        if content.erasure().is_none() && !content.removes_key() {
            self.last_ordinary = Some((content.id.offset, content.is_end()));
        }
        self.push(Arc::new(content));
    }

    /// Takes messages that are in memory, if they come after the position.
    pub(super) fn take_known<'a>(&mut self, messages: impl Iterator<Item = &'a Arc<Content>>) {
        let position = self.position.unwrap_or(0);
        for content in messages.filter(|content| content.id.offset > position) {
            self.last = Some(content.id.offset);
            self.push(Arc::clone(content));
        }
        if let (Some(state), Some(_)) = (&mut self.state, self.position) {
            state.is_recovered = Some(!self.has_gap);
        }
    }

    fn clear(&mut self) {
        self.messages.clear();
        (self.bytes, self.last, self.has_gap) = (0, None, true);
    }

    /// Adds a message, and drops those that the rule does not cover.
    fn push(&mut self, content: Arc<Content>) {
        // The place of a value shows that earlier ones are superseded.
        let is_gone =
            content.is_expired(self.now_ms) && (self.state.is_none() || content.key().is_none());
        let content = if is_gone { Arc::new(content.without_body()) } else { content };
        self.bytes += content.weight_bytes();
        self.messages.push_back(content);
        let Retention { max_messages, max_bytes, max_age_ms } = self.source.retention;
        while let Some(first) = self.messages.front()
            && (self.messages.len() > max_messages
                || self.bytes > max_bytes
                || first.time_ms.saturating_add(max_age_ms) <= self.now_ms)
        {
            self.bytes -= first.weight_bytes();
            if let Some(state) = &mut self.state {
                state.cut(first);
            }
            self.messages.pop_front();
            self.has_gap = true;
        }
    }

    pub(super) fn finish(self, limits: Limits) -> Part {
        if self.state.is_some() {
            return self.finish_state(limits);
        }
        match self.reading {
            Reading::Start(start) => Part::Start(self.start(start, limits)),
            Reading::Page(HistoryQuery::FirstOfLast(count), _) => {
                Part::Page(self.first_of_last(count, limits))
            }
            Reading::Page(query, limit) => Part::Page(self.page(query, limit)),
        }
    }

    pub(super) fn head(&self) -> u64 {
        // A position beyond all that this node has seen is one of the stream, unless it has a gap.
        let position = if self.has_gap { None } else { self.position };
        let known = self.source.head.max(self.last.unwrap_or(0)).max(position.unwrap_or(0));
        if known == 0 { self.source.reached } else { known }
    }

    pub(super) fn id(&self, offset: u64) -> MessageId {
        MessageId { epoch: self.source.epoch, offset }
    }

    fn start(mut self, start: StartAt, limits: Limits) -> Start {
        let (head, is_ended) = (self.head(), self.has_ended());
        let is_over = |count: usize, bytes: usize| count > limits.messages || bytes > limits.bytes;
        let recovered = match start {
            StartAt::Live | StartAt::Last(_) | StartAt::From(_) | StartAt::State => None,
            StartAt::After(_) | StartAt::Since(_) => Some(
                self.position.is_some()
                    && !self.has_gap
                    && !is_over(self.messages.len(), self.bytes),
            ),
        };
        if let (Some(true), Some(position)) = (recovered, self.position) {
            let cursor = if self.messages.is_empty() { head } else { position };
            let (head, messages) = (self.id(head), self.messages.into());
            return Start {
                head,
                cursor,
                is_recovered: recovered,
                is_sparse: false,
                is_ended,
                messages,
            };
        }
        // Notices are none of the last messages, and come with them.
        let has_notices = matches!(start, StartAt::From(_));
        let is_counted = |content: &Content| {
            !content.is_expired(self.now_ms) && (has_notices || !content.is_notice())
        };
        let wanted = match start {
            StartAt::Live | StartAt::State => 0,
            StartAt::Last(count) => count,
            StartAt::After(_) | StartAt::Since(_) => limits.messages,
            StartAt::From(time_ms) => {
                let is_wanted =
                    |message: &&Arc<Content>| message.time_ms >= time_ms && is_counted(message);
                self.messages.iter().filter(is_wanted).count()
            }
        };
        let (mut count, mut bytes, mut from) = (0, 0, self.messages.len());
        for (at, content) in self.messages.iter().enumerate().rev() {
            bytes += content.weight_bytes();
            let is_beyond = is_over(self.messages.len() - at, bytes) && from < self.messages.len();
            if count == wanted || is_beyond {
                break;
            }
            count += usize::from(is_counted(content));
            from = at;
        }
        let messages: Vec<_> = self.messages.split_off(from).into();
        let cursor = messages.first().map_or(head, |first| first.previous);
        Start {
            head: self.id(head),
            cursor,
            is_recovered: recovered,
            is_sparse: false,
            is_ended,
            messages,
        }
    }

    /// Where a subscription that starts with this many of the last messages would start.
    fn first_of_last(self, count: usize, limits: Limits) -> Page {
        first_of(self.start(StartAt::Last(count), limits))
    }

    pub(super) fn page(self, query: HistoryQuery, limit: usize) -> Page {
        let (head, is_ended) = (self.id(self.head()), self.has_ended());
        let is_shown =
            |message: &&Arc<Content>| !message.is_expired(self.now_ms) && !message.is_end();
        let mut readable = self.messages.iter().filter(is_shown);
        let mut bytes = 0;
        let mut fits = |message: &&Arc<Content>| {
            bytes += message.weight_bytes();
            bytes <= PAGE_BYTES_MAX || bytes == message.weight_bytes()
        };
        let before = match query {
            HistoryQuery::After(_) | HistoryQuery::Since(_) | HistoryQuery::From(_) => {
                let (is_recovered, from_ms) = match query {
                    HistoryQuery::From(time_ms) => (None, time_ms),
                    _ => (Some(self.position.is_some() && !self.has_gap), 0),
                };
                let mut rest =
                    readable.by_ref().filter(|message| message.time_ms >= from_ms).peekable();
                let mut messages = Vec::new();
                while messages.len() < limit
                    && let Some(message) = rest.next_if(|message| fits(message))
                {
                    messages.push(Arc::clone(message));
                }
                let has_more = rest.next().is_some();
                return Page { head, messages, has_more, is_ended, is_recovered };
            }
            HistoryQuery::Before(id) if id.epoch == self.source.epoch => id.offset,
            // Offsets of different epochs do not compare: such a page begins at the newest message.
            HistoryQuery::Newest | HistoryQuery::Before(_) | HistoryQuery::FirstOfLast(_) => {
                u64::MAX
            }
        };
        let mut rest = readable.filter(|message| message.id.offset < before).rev().peekable();
        let mut messages = Vec::new();
        while messages.len() < limit
            && let Some(message) = rest.next_if(|message| fits(message))
        {
            messages.push(Arc::clone(message));
        }
        let has_more = rest.next().is_some();
        messages.reverse();
        Page { head, messages, has_more, is_ended, is_recovered: None }
    }
}

/// The first message of a start, as a page.
pub(super) fn first_of(start: Start) -> Page {
    let Start { head, mut messages, .. } = start;
    messages.truncate(1);
    Page { head, messages, has_more: false, is_ended: false, is_recovered: None }
}

#[cfg(test)]
mod tests {
    use throng_core::{Attributes, Body, Erasure, LogChange, StateLimits};

    use super::*;

    const EPOCH: Epoch = Epoch::numbered(1);
    const LIMITS: Limits = Limits {
        messages: 100,
        bytes: 1 << 20,
        state: StateLimits { max_keys: 0, max_bytes: 0, forgets_soon: false },
    };

    fn stored(sequence: u64) -> StoredMessage {
        StoredMessage {
            sequence,
            wall_ms: 1_000,
            body: Body::Text("x".into()),
            content_type: None,
            excluded: None,
            attributes: None,
            expires_in_ms: None,
            receipt: None,
            link: None,
        }
    }

    fn read(sequences: &[u64], left: u64, is_whole: bool) -> journal::Reading {
        let messages = sequences.iter().map(|sequence| stored(*sequence)).collect();
        journal::Reading { messages, left, is_whole, ended_at: None }
    }

    fn collect(reading: Reading, max_messages: usize, head: u64) -> Collect {
        let source = Source {
            channel: ChannelName::channel("a"),
            epoch: EPOCH,
            retention: Retention { max_messages, max_bytes: 1 << 20, max_age_ms: 1_000 },
            head,
            reached: 90,
            newest: 0,
            lag: LIMITS,
        };
        Collect::new(source, reading, 1_500)
    }

    fn after(epoch: Epoch, offset: u64) -> Reading {
        Reading::Start(StartAt::After(MessageId { epoch, offset }))
    }

    /// Where it starts and what it gets: the head, the cursor, whether it is recovered, offsets.
    fn start(collect: Collect) -> (u64, u64, Option<bool>, Vec<u64>) {
        let Part::Start(start) = collect.finish(LIMITS) else { panic!("it is a start") };
        let mut last = start.cursor;
        for message in &start.messages {
            assert_eq!(message.previous, last, "no hole shows");
            last = message.id.offset;
        }
        let offsets = start.messages.iter().map(|message| message.id.offset).collect();
        (start.head.offset, start.cursor, start.is_recovered, offsets)
    }

    /// A message of the channel with this attribute, if any.
    fn with(sequence: u64, attributes: Option<Attributes>) -> StoredMessage {
        StoredMessage { attributes, ..stored(sequence) }
    }

    #[test]
    fn a_channel_has_ended_unless_more_came_after_it_was_asked() {
        let end = || Attributes::of(&[(throng_core::Attribute::End as u16, b"")]).ok();
        let notice = LogChange::notice(ChannelName::channel("a"), Erasure::of(10));
        let erased = notice.messages[0].attributes.clone();
        for (ended_at, messages, expected) in [
            (None, vec![with(10, None)], false),
            // It was opened again, without a message since.
            (None, vec![with(10, None), with(20, end())], false),
            (Some(20), vec![with(10, None), with(20, end())], true),
            // Its messages are gone.
            (Some(0), vec![], true),
            (Some(20), vec![with(20, end()), with(30, erased)], true),
            (Some(20), vec![with(20, end()), with(30, None)], false),
            (Some(20), vec![with(20, end()), with(30, None), with(40, end())], true),
        ] {
            let live = Reading::Start(StartAt::Live);
            for reading in [after(EPOCH, 5), live, Reading::Page(HistoryQuery::Newest, 9)] {
                let mut collect = collect(reading, 9, 5);
                let messages = messages.clone();
                let read = journal::Reading { messages, left: 0, is_whole: true, ended_at };
                collect.take(read, |ms| ms);
                let is_ended = match collect.finish(LIMITS) {
                    Part::Start(start) => start.is_ended,
                    Part::Page(page) => page.is_ended,
                };
                assert_eq!(is_ended, expected, "{ended_at:?} {reading:?}");
            }
        }
    }

    #[test]
    fn parts_are_put_together() {
        let mut whole = collect(after(EPOCH, 10), 9, 30);
        assert_eq!(whole.begin(), (10, 0));
        assert_eq!(whole.take(read(&[20, 30], 1, true), |ms| ms), Next::Read(30));
        assert_eq!(whole.take(read(&[40], 0, true), |ms| ms), Next::Finish);
        assert_eq!(start(whole), (40, 10, Some(true), vec![20, 30, 40]));
        // Between two parts messages were dropped.
        let mut torn = collect(after(EPOCH, 10), 9, 30);
        torn.take(read(&[20, 30], 2, true), |ms| ms);
        assert_eq!(torn.take(read(&[50], 0, false), |ms| ms), Next::Finish);
        assert_eq!(start(torn), (50, 49, Some(false), vec![50]));
    }

    #[test]
    fn a_position_that_is_not_of_the_stream_gets_all_that_is_kept() {
        let mut foreign = collect(after(Epoch::numbered(2), 10), 2, 30);
        assert_eq!(foreign.begin().0, 0);
        foreign.take(read(&[10, 20, 30], 0, true), |ms| ms);
        assert_eq!(start(foreign), (30, 10, Some(false), vec![20, 30]));
        let mut ahead = collect(after(EPOCH, 99), 2, 30);
        assert_eq!(ahead.begin().0, 99);
        assert_eq!(ahead.take(read(&[], 0, false), |ms| ms), Next::Read(0));
        ahead.take(read(&[20, 30], 0, false), |ms| ms);
        assert_eq!(start(ahead), (30, 19, Some(false), vec![20, 30]));
    }

    #[test]
    fn what_the_rule_does_not_cover_is_missing() {
        let mut many = collect(after(EPOCH, 10), 2, 40);
        many.take(read(&[20, 30, 40], 0, true), |ms| ms);
        assert_eq!(start(many), (40, 20, Some(false), vec![30, 40]));
        let mut old = collect(Reading::Start(StartAt::Last(9)), 9, 30);
        old.take(read(&[20, 30], 0, true), |_| 500);
        assert_eq!(start(old), (30, 30, None, vec![]));
    }

    #[test]
    fn a_position_without_a_message_is_as_good() {
        // A client of another node was told a position that this one has not reached here.
        let mut ahead = collect(after(EPOCH, 50), 9, 30);
        ahead.take(read(&[], 0, true), |ms| ms);
        assert_eq!(start(ahead), (50, 50, Some(true), vec![]));
        // This node was told a later one when it began to follow.
        let mut behind = collect(after(EPOCH, 50), 9, 70);
        behind.take(read(&[], 0, true), |ms| ms);
        assert_eq!(start(behind), (70, 70, Some(true), vec![]));
    }

    #[test]
    fn a_page_of_an_empty_channel_has_a_position_of_the_stream() {
        let mut empty = collect(Reading::Page(HistoryQuery::Newest, 9), 9, 0);
        empty.take(read(&[], 0, true), |ms| ms);
        let Part::Page(page) = empty.finish(LIMITS) else { panic!("it is a page") };
        assert_eq!((page.head.offset, page.messages.len(), page.has_more), (90, 0, false));
    }

    #[test]
    fn a_page_from_a_time_is_cut_from_all_that_is_read() {
        let page = |from_ms, limit| {
            let mut collect = collect(Reading::Page(HistoryQuery::From(from_ms), limit), 9, 0);
            assert_eq!(collect.begin(), (0, 0));
            collect.take(read(&[10], 3, true), |_| 600);
            collect.take(read(&[20, 30], 1, true), |_| 700);
            // The clock of the server that stored it is behind.
            collect.take(read(&[40], 0, true), |_| 650);
            let Part::Page(page) = collect.finish(LIMITS) else { panic!("it is a page") };
            assert_eq!((page.head.offset, page.is_recovered), (40, None));
            let offsets: Vec<_> = page.messages.iter().map(|message| message.id.offset).collect();
            (offsets, page.has_more)
        };
        assert_eq!(page(0, 9), (vec![10, 20, 30, 40], false));
        assert_eq!(page(600, 1), (vec![10], true));
        assert_eq!(page(601, 2), (vec![20, 30], true));
        assert_eq!(page(700, 3), (vec![20, 30, 40], false));
        assert_eq!(page(701, 9), (vec![], false));
    }
}
