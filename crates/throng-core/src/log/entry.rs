//! One message of a log: on the heap, or in a segment.

use std::sync::{Arc, Weak};

use super::sealed::SealedIn;
use super::segment::Sealed;
use crate::attributes::Attributes;
use crate::message::{Content, Message};
use crate::stamp::Stamp;

/// A message in a log.
#[derive(Debug)]
pub(super) enum Entry {
    Here {
        content: Arc<Content>,
        /// The message while it is on its way to a subscriber, with its encodings.
        message: Weak<Message>,
    },
    /// It is in one of the log's segments, which has this number, at this place.
    Sealed { segment: u32, at: u32 },
}

const _: () = assert!(size_of::<Entry>() == 2 * size_of::<usize>(), "each message has one");

impl Entry {
    /// The view of it that a log reads. `sealed` are the segments of its log.
    pub(super) fn view<'a>(&'a self, sealed: Option<&'a SealedIn>) -> View<'a> {
        match self {
            Entry::Here { content, .. } => View::Here(content),
            Entry::Sealed { segment, at } => {
                View::Sealed(SealedIn::find(sealed, *segment).get(*at))
            }
        }
    }

    /// Where it is.
    pub(super) fn place(&self) -> Place<'_> {
        match self {
            Entry::Here { content, .. } => Place::Here(content),
            Entry::Sealed { segment, at } => Place::Sealed { segment: *segment, at: *at },
        }
    }

    /// The message on the heap.
    pub(super) fn content(&self, sealed: Option<&SealedIn>) -> Arc<Content> {
        match self {
            Entry::Here { content, .. } => Arc::clone(content),
            Entry::Sealed { segment, at } => {
                Arc::new(SealedIn::find(sealed, *segment).content(*at))
            }
        }
    }

    /// Counts it as gone from its segment, if it is in one. Returns whether the log needs that
    /// segment no more.
    pub(super) fn leave(&self, sealed: Option<&SealedIn>) -> bool {
        match self {
            Entry::Here { .. } => false,
            Entry::Sealed { segment, .. } => sealed.is_some_and(|sealed| sealed.leave(*segment)),
        }
    }
}

/// A message in a log, for a reader that may take it.
#[derive(Debug)]
pub(crate) struct Kept<'l> {
    entry: &'l mut Entry,
    sealed: Option<&'l SealedIn>,
}

impl<'l> Kept<'l> {
    pub(super) fn new(entry: &'l mut Entry, sealed: Option<&'l SealedIn>) -> Kept<'l> {
        Kept { entry, sealed }
    }

    /// The message for one more subscriber: the one that is on its way to others, if any. One that
    /// was sealed is on the heap from now on.
    pub(crate) fn message(self) -> Arc<Message> {
        if let Entry::Sealed { .. } = self.entry {
            let content = self.entry.content(self.sealed);
            self.entry.leave(self.sealed);
            *self.entry = Entry::Here { content, message: Weak::new() };
        }
        let Entry::Here { content, message: on_its_way } = self.entry else {
            unreachable!("it is on the heap now")
        };
        on_its_way.upgrade().unwrap_or_else(|| {
            let message = Arc::new(Message::from(Arc::clone(content)));
            *on_its_way = Arc::downgrade(&message);
            message
        })
    }
}

/// Where a message of a log is.
#[derive(Debug)]
pub(crate) enum Place<'a> {
    Here(&'a Arc<Content>),
    /// In the segment with this number.
    Sealed {
        segment: u32,
        at: u32,
    },
}

/// The parts of a message that a log reads.
#[derive(Debug)]
pub(crate) enum View<'a> {
    Here(&'a Arc<Content>),
    Sealed(Sealed<'a>),
}

impl View<'_> {
    pub(crate) fn offset(&self) -> u64 {
        match self {
            View::Here(content) => content.id.offset,
            View::Sealed(message) => message.head.offset,
        }
    }

    pub(crate) fn previous(&self) -> u64 {
        match self {
            View::Here(content) => content.previous,
            View::Sealed(message) => message.head.previous,
        }
    }

    pub(crate) fn time_ms(&self) -> u64 {
        match self {
            View::Here(content) => content.time_ms,
            View::Sealed(message) => message.head.time_ms,
        }
    }

    pub(crate) fn stamp(&self) -> Stamp {
        match self {
            View::Here(content) => content.stamp,
            View::Sealed(message) => message.head.stamp,
        }
    }

    pub(crate) fn weight_bytes(&self) -> usize {
        match self {
            View::Here(content) => content.weight_bytes(),
            View::Sealed(message) => message.weight_bytes,
        }
    }

    /// The attributes of the message; `None` if it is sealed. A message with a key never is.
    pub(crate) fn attributes(&self) -> Option<&Attributes> {
        match self {
            View::Here(content) => content.extras.attributes(),
            View::Sealed(_) => None,
        }
    }

    /// The key that the message sets or removes.
    pub(crate) fn key(&self) -> Option<&str> {
        self.attributes()?.key()
    }

    /// True if it is what is left of an expired message, or a notice.
    pub(crate) fn is_blank(&self) -> bool {
        match self {
            View::Here(content) => content.is_blank(),
            // Those are not sealed.
            View::Sealed(_) => false,
        }
    }

    /// True if it is the notice that its channel ends.
    pub(crate) fn is_end(&self) -> bool {
        match self {
            View::Here(content) => content.is_end(),
            // Those are not sealed.
            View::Sealed(_) => false,
        }
    }

    /// True if it is what is left of an expired message.
    pub(crate) fn is_expired(&self) -> bool {
        match self {
            View::Here(content) => content.is_without_body(),
            // Those are not sealed.
            View::Sealed(_) => false,
        }
    }
}
