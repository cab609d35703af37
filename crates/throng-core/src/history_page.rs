//! A page of history as envelopes, within a limit of bytes. Both planes answer with it.

use std::sync::Arc;

use crate::engine::History;
use crate::message::Message;
use crate::reading::HistoryQuery;

/// Approximate size of an envelope without the message's body.
const ENVELOPE_BYTES: usize = 128;

impl History {
    /// Encodes the messages for which `max_bytes` suffices, and notes in `has_more` if some are
    /// left out. The oldest comes first, or the newest. `query` is the one that this history
    /// answers: a page after an id or from a time on begins with its oldest message, any other page
    /// ends with its newest.
    ///
    /// The message at that end is always encoded: a page that is empty for want of space would
    /// never let a client go on. A byte of a body takes up to six in JSON, so that limits on
    /// messages and logs do not bound a page.
    pub fn encode(
        &mut self,
        query: HistoryQuery,
        max_bytes: usize,
        is_newest_first: bool,
    ) -> Vec<Vec<u8>> {
        let (mut envelopes, is_reversed) = match query {
            HistoryQuery::After(_) | HistoryQuery::Since(_) | HistoryQuery::From(_) => {
                (encode(self.messages.iter(), max_bytes), false)
            }
            HistoryQuery::Newest | HistoryQuery::Before(_) | HistoryQuery::FirstOfLast(_) => {
                (encode(self.messages.iter().rev(), max_bytes), true)
            }
        };
        if is_reversed != is_newest_first {
            envelopes.reverse();
        }
        self.has_more |= envelopes.len() < self.messages.len();
        envelopes
    }
}

fn encode<'a>(messages: impl Iterator<Item = &'a Arc<Message>>, max_bytes: usize) -> Vec<Vec<u8>> {
    let mut bytes = 0;
    let encoded = messages.map(|message| {
        let mut envelope = Vec::with_capacity(message.body.bytes().len() + ENVELOPE_BYTES);
        message.write_envelope(&mut envelope);
        envelope
    });
    let fits = |envelope: &Vec<u8>| {
        let is_first = bytes == 0;
        bytes += envelope.len();
        is_first || bytes <= max_bytes
    };
    encoded.take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Epoch, MessageId};
    use crate::message::Body;
    use crate::name::ChannelName;

    fn id(offset: u64) -> MessageId {
        MessageId { epoch: Epoch::numbered(1), offset }
    }

    fn history(offsets: std::ops::RangeInclusive<u64>) -> History {
        let messages = offsets.map(|offset| {
            let (name, body) = (ChannelName::channel("a"), Body::Text("x".into()));
            Arc::new(Message::new(id(offset), offset - 1, 0, name, body))
        });
        let (has_more, is_ended, is_recovered) = (false, false, None);
        History { head: id(9), messages: messages.collect(), has_more, is_ended, is_recovered }
    }

    fn offsets(envelopes: &[Vec<u8>]) -> Vec<String> {
        let epoch = Epoch::numbered(1).to_string();
        let text = envelopes.iter().map(|envelope| String::from_utf8_lossy(envelope));
        let after = |text: std::borrow::Cow<'_, str>| {
            text.split(&format!("{epoch}-")).nth(1).map(|rest| rest[..1].to_owned())
        };
        text.filter_map(after).collect()
    }

    #[test]
    fn a_page_keeps_the_end_that_the_query_asks_for() {
        let two = 2 * history(1..=1).encode(HistoryQuery::Newest, 0, false)[0].len();
        for (query, kept) in [
            (HistoryQuery::Newest, ["4", "5"]),
            (HistoryQuery::Before(id(6)), ["4", "5"]),
            (HistoryQuery::After(id(0)), ["1", "2"]),
        ] {
            let mut history = history(1..=5);
            assert_eq!(offsets(&history.encode(query, two, false)), kept);
            assert!(history.has_more);
            let newest_first = [kept[1], kept[0]];
            assert_eq!(offsets(&history.encode(query, two, true)), newest_first);
        }
    }

    #[test]
    fn a_page_is_whole_if_it_fits_and_never_empty() {
        let mut whole = history(1..=5);
        assert_eq!(whole.encode(HistoryQuery::Newest, 10_000, false).len(), 5);
        assert!(!whole.has_more);
        assert_eq!(history(1..=5).encode(HistoryQuery::Newest, 0, false).len(), 1);
        assert!(history(1..=1).encode(HistoryQuery::After(id(0)), 0, false).len() == 1);
    }
}
