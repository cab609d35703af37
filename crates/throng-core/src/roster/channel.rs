//! A channel that this worker follows, and its mirror of the log.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Roster, SubscriptionId, Waiting, distance};
use crate::message::Message;
use crate::rules::{BehindPolicy, RuleId};
use crate::slab::Slab;
use crate::{ChannelId, LocalId};

#[derive(Debug)]
pub(super) struct LocalChannel {
    /// The newest message's offset, as far as this worker has heard.
    pub(super) head: u64,
    /// Nothing while everyone has everything.
    pub(super) active: Option<Box<Active>>,
    pub(super) channel: ChannelId,
    pub(super) first: Option<SubscriptionId>,
    /// Subscriptions in the ring.
    pub(super) count: u32,
    /// Those whose connection takes no more for now.
    pub(super) stalled: u32,
    pub(super) rule: RuleId,
    pub(super) is_user: bool,
}

const _: () = assert!(Slab::<LocalChannel>::ENTRY_BYTES <= 40);

impl LocalChannel {
    pub(super) fn new(channel: ChannelId, rule: RuleId, is_user: bool, head: u64) -> LocalChannel {
        LocalChannel {
            head,
            active: None,
            channel,
            first: None,
            count: 0,
            stalled: 0,
            rule,
            is_user,
        }
    }
}

/// What a channel has while somebody lacks something.
#[derive(Debug, Default)]
pub(super) struct Active {
    /// Consecutive messages up to the channel's head.
    mirror: VecDeque<Arc<Message>>,
    bytes: usize,
    /// The sweep's next visit.
    pub(super) position: Option<SubscriptionId>,
    /// Visits until everyone has been visited since the last append.
    pub(super) left: u32,
    /// The channel's head when the sweep last passed the ring's first subscription.
    pub(super) lap_head: u64,
    /// Everyone has been offered the messages up to here.
    swept: u64,
    /// Bytes of the messages after `swept`.
    unswept_bytes: usize,
    pub(super) is_sweeping: bool,
}

impl Active {
    /// The sweep is about to pass the ring's first subscription again. Returns the bytes that count
    /// as offered to everyone now.
    pub(super) fn end_lap(&mut self) -> usize {
        self.offered(self.lap_head)
    }

    /// Everyone has been offered the messages up to `offset`. Returns their bytes, as far as they
    /// were not counted before.
    pub(super) fn offered(&mut self, offset: u64) -> usize {
        let mut bytes = 0;
        if offset > self.swept {
            let from = self.index_after(self.swept as u32);
            let news = self.mirror.range(from..).take_while(|message| message.id.offset <= offset);
            bytes = news.map(|message| message.weight_bytes()).sum();
            self.swept = offset;
        }
        let bytes = bytes.min(self.unswept_bytes);
        self.unswept_bytes -= bytes;
        bytes
    }

    /// The index of the first message after `cursor`.
    fn index_after(&self, cursor: u32) -> usize {
        let Some(first) = self.mirror.front() else { return 0 };
        let ahead = distance(first.id.offset, cursor);
        if ahead > 0 {
            return 0;
        }
        let guess = ahead.unsigned_abs() as usize + 1;
        // Offsets mostly count up by one; where they skip, search.
        match self.mirror.get(guess - 1) {
            Some(message) if distance(message.id.offset, cursor) == 0 => guess,
            _ => self.mirror.partition_point(|it| distance(it.id.offset, cursor) <= 0),
        }
    }

    pub(super) fn waiting(&self, cursor: u32, head: u64, policy: BehindPolicy) -> Waiting<'_> {
        let from = self.index_after(cursor);
        match self.mirror.get(from) {
            Some(message) if distance(message.previous, cursor) <= 0 => {
                Waiting::Messages(self.mirror.range(from..))
            }
            next => {
                let resume_at = next.map_or(head, |message| message.previous);
                let missed = u64::from(distance(resume_at, cursor).unsigned_abs());
                Waiting::Gap { missed, resume_at, policy }
            }
        }
    }
}

impl Roster {
    /// Appends a message to the channel's mirror and makes sure that a sweep offers it to everyone.
    pub(super) fn push_back(&mut self, local: LocalId, message: &Arc<Message>) {
        let bytes = message.weight_bytes();
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        let active = channel.active.get_or_insert_with(|| {
            Box::new(Active { swept: channel.head, lap_head: channel.head, ..Active::default() })
        });
        channel.head = message.id.offset;
        active.mirror.push_back(Arc::clone(message));
        active.bytes += bytes;
        active.unswept_bytes += bytes;
        active.left = channel.count;
        self.unswept_bytes += bytes;
        if !active.is_sweeping {
            active.is_sweeping = true;
            self.sweeping.push_back(local);
        }
    }

    /// Takes a backlog, oldest first, into the mirror: what is older than the mirror before it, what is
    /// newer behind it.
    pub(super) fn merge(&mut self, local: LocalId, backlog: &[Arc<Message>]) {
        let Some(newest) = backlog.last().map(|newest| newest.id.offset) else { return };
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        let active = channel.active.get_or_insert_with(|| {
            Box::new(Active { swept: channel.head, lap_head: channel.head, ..Active::default() })
        });
        let oldest = active.mirror.front().map_or(channel.head + 1, |first| first.id.offset);
        let older = backlog.partition_point(|message| message.id.offset < oldest);
        for message in backlog[..older].iter().rev() {
            active.bytes += message.weight_bytes();
            active.mirror.push_front(Arc::clone(message));
        }
        if newest <= channel.head {
            return;
        }
        let known = channel.head;
        for message in backlog.iter().filter(|message| message.id.offset > known) {
            self.push_back(local, message);
        }
    }

    /// Keeps the mirror within what a subscriber may be behind.
    pub(super) fn trim(&mut self, local: LocalId) {
        let Some(channel) = self.channels.get(local.index()) else { return };
        let (messages_max, bytes_max) = self.rule(channel.rule);
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        let Some(active) = &mut channel.active else { return };
        while active.mirror.len() > messages_max || active.bytes > bytes_max {
            match active.mirror.front() {
                Some(first) if first.id.offset <= active.swept => {
                    active.bytes -= first.weight_bytes();
                    active.mirror.pop_front();
                }
                _ => break,
            }
        }
    }

    /// Drops the mirror if nobody lacks anything.
    pub fn settle(&mut self, local: LocalId) {
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        let is_needed = |active: &Active| active.is_sweeping || channel.stalled > 0;
        if channel.active.as_deref().is_some_and(|active| !is_needed(active)) {
            channel.active = None;
        }
    }

    /// Ends the channel's sweep without finishing it; its turn, when it comes, finds nothing to do.
    pub(super) fn stop(&mut self, local: LocalId) {
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        let Some(active) = channel.active.take() else { return };
        self.unswept_bytes -= active.unswept_bytes;
    }
}
