//! The newest messages of a followed channel, in memory: those that have come since the node
//! follows it. A client that lacks only these need not be read for.

use std::collections::VecDeque;
use std::sync::Arc;

use throng_core::{Content, Retention};

/// The newest messages of a channel.
#[derive(Debug)]
pub(super) struct ChannelTail {
    floor: u64,
    messages: VecDeque<Arc<Content>>,
    bytes: usize,
}

impl ChannelTail {
    /// A tail that begins after this offset.
    pub(super) fn new(floor: u64) -> ChannelTail {
        ChannelTail { floor, messages: VecDeque::new(), bytes: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds the newest message, and drops what the retention does not cover.
    pub(super) fn append(&mut self, content: &Arc<Content>, retention: &Retention) {
        self.bytes += content.weight_bytes();
        self.messages.push_back(Arc::clone(content));
        let now_ms = content.time_ms;
        while let Some(first) = self.messages.front()
            && (self.messages.len() > retention.max_messages
                || self.bytes > retention.max_bytes
                || first.time_ms.saturating_add(retention.max_age_ms) <= now_ms)
        {
            self.bytes -= first.weight_bytes();
            self.floor = first.id.offset;
            self.messages.pop_front();
        }
    }

    /// Erases messages. One keeps its place, so that no hole shows; of all up to one, the tail then
    /// begins after it.
    pub(super) fn erase(&mut self, first: u64, last: u64) {
        if first < last {
            self.floor = self.floor.max(last);
            while let Some(content) = self.messages.front()
                && content.id.offset <= last
            {
                self.bytes -= content.weight_bytes();
                self.messages.pop_front();
            }
        } else if let Some(content) =
            self.messages.iter_mut().find(|content| content.id.offset == last)
        {
            self.bytes -= content.weight_bytes();
            *content = Arc::new(content.without_body());
            self.bytes += content.weight_bytes();
        }
    }

    /// All messages of the channel after this offset are here.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// The messages, oldest first.
    pub(super) fn messages(&self) -> std::collections::vec_deque::Iter<'_, Arc<Content>> {
        self.messages.iter()
    }
}

#[cfg(test)]
mod tests {
    use throng_core::{Body, ChannelName, Epoch, MessageId};

    use super::*;

    fn content(offset: u64, time_ms: u64) -> Arc<Content> {
        Arc::new(Content::new(
            MessageId { epoch: Epoch::numbered(1), offset },
            offset - 10,
            time_ms,
            ChannelName::channel("a"),
            Body::Text("x".into()),
        ))
    }

    #[test]
    fn a_tail_has_what_came_since_its_floor() {
        let retention = Retention { max_messages: 2, max_bytes: 1 << 20, max_age_ms: 100 };
        let mut tail = ChannelTail::new(15);
        for (offset, time_ms, floor, expected) in [
            (20, 0, 15, vec![20]),
            (30, 0, 15, vec![20, 30]),
            (40, 0, 20, vec![30, 40]),
            (50, 100, 40, vec![50]),
        ] {
            tail.append(&content(offset, time_ms), &retention);
            let offsets: Vec<_> = tail.messages().map(|message| message.id.offset).collect();
            assert_eq!((tail.floor(), offsets), (floor, expected));
        }
        assert_eq!((tail.len(), tail.bytes()), (1, content(50, 0).weight_bytes()));
    }
}
