//! The writer's work, one log after the other, and its outcome.

use std::slice;
use std::sync::Arc;

use throng_core::change::{ChangeError, Erase, LogChange, RecordChange, RecordVersion};
use throng_core::{ChannelName, Content, MessageId, Publication, PublishError, Retention};

/// A change of one log, which keeps the retention beside it.
pub enum Entry {
    Publication(Publication, Retention),
    Change(LogChange, Retention),
    Erase(ChannelName, Erase, Retention),
    /// What is due in a state. Without a retention the channel is not durable now.
    Due(DueKey, Option<Retention>),
}

impl From<PublishError> for Appended {
    fn from(refused: PublishError) -> Appended {
        Appended::Refused(refused.into())
    }
}

impl From<(Publication, Retention)> for Entry {
    fn from((publication, retention): (Publication, Retention)) -> Entry {
        Entry::Publication(publication, retention)
    }
}

impl Entry {
    pub(super) fn channel(&self) -> &ChannelName {
        match self {
            Entry::Publication(publication, _) => &publication.channel,
            Entry::Change(change, _) => &change.channel,
            Entry::Erase(channel, ..) => channel,
            Entry::Due(due, _) => &due.channel,
        }
    }

    /// The messages to append.
    pub(crate) fn publications(&self) -> &[Publication] {
        match self {
            Entry::Publication(publication, _) => slice::from_ref(publication),
            Entry::Change(change, _) => &change.messages,
            Entry::Erase(..) | Entry::Due(..) => &[],
        }
    }

    /// The weight against limits of numbers: one for each message, and one at least.
    pub(crate) fn count(&self) -> usize {
        self.publications().len().max(1)
    }

    /// Bytes of the bodies and the record.
    pub(crate) fn bytes(&self) -> usize {
        let bodies = self.publications().iter().map(|message| message.body.bytes().len());
        let record = match self {
            Entry::Change(LogChange { record: RecordChange::Write(record), .. }, _) => {
                record.block().len()
            }
            _ => 0,
        };
        bodies.sum::<usize>() + record
    }
}

/// What is due in a state.
#[derive(Debug, Clone)]
pub struct DueKey {
    pub(super) channel: ChannelName,
    pub(super) key: Box<str>,
    /// The message that it is about, if that is the newest of its key still.
    pub(super) offset: u64,
    pub(super) action: DueAction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DueAction {
    /// Its time has come, by its place among those that are due.
    At(u64),
    /// It is one of too many tombstones.
    Surplus,
    /// It is nearly out of reach.
    Renew,
}

/// The outcome of an entry.
#[derive(Debug, Clone)]
pub enum Appended {
    /// It is the newest message of its channel.
    New(Arc<Content>),
    /// Its idempotency key was known: this is the message that was published with it.
    Known(MessageId),
    /// The change was made: its messages, and the version of the record afterwards.
    Changed(Vec<Arc<Content>>, RecordVersion),
    /// The change or the publication was not made.
    Refused(ChangeError),
    /// This many messages that could be read were erased; `None` if they were not counted. The
    /// tombstone of the key whose value was among them, if it was one message.
    Erased(Option<u64>, Option<Arc<Content>>),
    /// Nothing was done, because its channel or key cannot be read.
    Unreadable,
}

impl Appended {
    /// The messages that were appended.
    pub(crate) fn contents(&self) -> &[Arc<Content>] {
        match self {
            Appended::New(content) => slice::from_ref(content),
            Appended::Changed(contents, _) => contents,
            Appended::Erased(_, tombstone) => tombstone.as_slice(),
            _ => &[],
        }
    }

    pub(super) fn contents_mut(&mut self) -> &mut [Arc<Content>] {
        match self {
            Appended::New(content) => slice::from_mut(content),
            Appended::Changed(contents, _) => contents,
            Appended::Erased(_, tombstone) => tombstone.as_mut_slice(),
            _ => &mut [],
        }
    }
}
