//! The segments in which messages of a log lie.

use std::cell::Cell;
use std::sync::Arc;

use super::segment::Segment;

/// The segments of a log.
#[derive(Debug, Default)]
pub(super) struct SealedIn(Vec<InSegment>);

#[derive(Debug)]
struct InSegment {
    segment: Arc<Segment>,
    /// How many of the log's messages are in it.
    messages: Cell<u32>,
}

impl SealedIn {
    fn place(&self, number: u32) -> Option<&InSegment> {
        self.0.iter().find(|it| it.segment.number() == number)
    }

    /// The segment with this number, in which a message of the log is.
    pub(super) fn find(sealed: Option<&SealedIn>, number: u32) -> &Segment {
        let place = sealed.and_then(|sealed| sealed.place(number));
        &place.expect("a log keeps the segments of its messages").segment
    }

    /// Counts one message less in a segment. Returns whether it was the last.
    pub(super) fn leave(&self, number: u32) -> bool {
        let Some(place) = self.place(number) else { return false };
        place.messages.update(|messages| messages - 1);
        place.messages.get() == 0
    }

    /// Counts `count` messages more in a segment.
    pub(super) fn enter(&mut self, segment: &Arc<Segment>, count: u32) {
        match self.place(segment.number()) {
            Some(place) => place.messages.update(|messages| messages + count),
            None => {
                let (segment, messages) = (Arc::clone(segment), Cell::new(count));
                self.0.push(InSegment { segment, messages });
            }
        }
    }

    /// How many messages are in segments up to the one with this number.
    pub(super) fn count_up_to(&self, last: u32) -> u32 {
        let of_those = self.0.iter().filter(|place| place.segment.number() <= last);
        of_those.map(|place| place.messages.get()).sum()
    }

    /// Lets go of the segments without messages. Returns whether any is left.
    pub(super) fn forget_empty(&mut self) -> bool {
        self.0.retain(|place| place.messages.get() > 0);
        !self.0.is_empty()
    }
}
