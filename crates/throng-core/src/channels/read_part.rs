//! A part of a log that a journal has read, as the start of a subscription or a page of history.

use std::sync::Arc;

use crate::engine::History;
use crate::id::MessageId;
use crate::journal::{Journal, JournalIds};
use crate::memory::Backlog;
use crate::message::Message;
use crate::name::ChannelName;
use crate::parts::{HeldPart, Limits, OpenPart, Page, Part};
use crate::reading::Reading;
use crate::rules::Rule;

/// A part of a log that a journal has read.
pub(super) enum ReadPart {
    Fetched(Arc<OpenPart>),
    Now(Option<HeldPart>),
}

impl ReadPart {
    pub(super) fn of(
        journal: &dyn Journal,
        now_ms: u64,
        channel: &ChannelName,
        rule: &Rule,
        reading: Reading,
    ) -> ReadPart {
        let fetched = journal.parts().find(channel, reading).filter(|open| !open.lacks_keys());
        fetched.map(ReadPart::Fetched).unwrap_or_else(|| {
            ReadPart::Now(journal.read_now(now_ms, channel, reading, Limits::of_lag(rule)))
        })
    }

    fn open(&self) -> Option<&OpenPart> {
        match self {
            ReadPart::Fetched(open) => Some(open),
            ReadPart::Now(held) => held.as_ref().map(|held| &**held.open()),
        }
    }

    /// The backlog of a subscription that starts with this part. Call it under the lock of the
    /// channel's shard.
    pub(super) fn backlog(&self, JournalIds { epoch, are_consecutive }: JournalIds) -> Backlog {
        match self.open().map(|open| (open, open.part())) {
            // Not of an epoch that has ended meanwhile.
            Some((open, Some(Part::Start(start)))) if start.head.epoch == epoch => {
                open.backlog(start, are_consecutive)
            }
            // It cannot be read: messages that come show the hole before them.
            _ => Backlog {
                head: MessageId { epoch, offset: 0 },
                cursor: 0,
                are_offsets_consecutive: are_consecutive,
                is_recovered: Some(false),
                is_sparse: false,
                is_ended: false,
                messages: Vec::new(),
            },
        }
    }

    /// The part as a page of history.
    pub(super) fn history(&self, JournalIds { epoch, .. }: JournalIds) -> History {
        let Some(Part::Page(page)) = self.open().and_then(OpenPart::part) else {
            let head = MessageId { epoch, offset: 0 };
            let (messages, has_more, is_ended) = (Vec::new(), false, false);
            let is_recovered = Some(false);
            return History { head, messages, has_more, is_ended, is_recovered };
        };
        let &Page { head, ref messages, has_more, is_ended, is_recovered } = page;
        let message = |content: &Arc<_>| Arc::new(Message::from(Arc::clone(content)));
        let messages = messages.iter().map(message).collect();
        History { head, messages, has_more, is_ended, is_recovered }
    }
}
