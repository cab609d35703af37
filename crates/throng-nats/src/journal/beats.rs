//! Small messages that show how far the age limit of a stream has come.
//!
//! A stream drops its oldest messages. So a position is known to be followed by all that came after
//! it as long as the stream's first message is no later than the one after the position. If
//! messages are erased, it may be later although none was dropped. Beats are not erased: the first
//! message is then at most one beat later than it would be.

use super::outbox::Outbox;
use crate::api::StreamSettings;
use crate::api::message;
use crate::protocol::headers::HeaderWriter;
use crate::subject::Subjects;

/// Each node sends so many within the age limit: much less than the share by which a stream keeps
/// messages longer than their channel's history.
const BEATS_PER_AGE: u64 = 32;

/// The shortest time between two beats of a node.
const BEAT_MS_MIN: u64 = 1_000;

pub(super) struct Beats {
    stream: String,
    every_ms: u64,
    due_ms: u64,
    number: u64,
    /// True if messages of the stream can be erased.
    pub(super) is_on: bool,
}

impl Beats {
    pub(super) fn new(settings: &StreamSettings) -> Beats {
        Beats {
            stream: settings.name(),
            every_ms: (settings.max_age_ms() / BEATS_PER_AGE).max(BEAT_MS_MIN),
            due_ms: 0,
            number: 0,
            is_on: false,
        }
    }

    /// Sends a beat if it is time, and returns whether it is. The next makes up for a lost one.
    pub(super) fn tick(&mut self, now_ms: u64, subjects: &Subjects, outbox: &mut Outbox) -> bool {
        if !self.is_on || now_ms < self.due_ms {
            return false;
        }
        self.due_ms = now_ms + self.every_ms;
        self.number += 1;
        let headers = HeaderWriter::default().field(message::EXPECTED_STREAM, &self.stream);
        outbox.publish_with(&subjects.beat(self.number), headers.finish(), b"");
        true
    }
}
