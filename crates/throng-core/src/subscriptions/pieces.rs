//! Pieces: the next messages of subscriptions of which many catch up with the same.

use std::sync::Arc;

use super::runs::{Append, Form, Kind, Piece, Run};
use super::subscription::{CATCHING_UP, SubscriptionId};
use super::{SubscriptionTable, Waiting};
use crate::message::Message;

impl SubscriptionTable {
    /// The next messages that a subscription lacks, in one piece, if many catch up with the same.
    /// No client is excluded from any of them. `append` appends the encoding of a message.
    pub fn piece(
        &mut self,
        id: SubscriptionId,
        form: Form,
        append: Append<'_>,
    ) -> Option<Piece<'_>> {
        let subscription = self.live(id)?;
        let local = subscription.local;
        if !subscription.connection.has(CATCHING_UP) || !self.shares_encodings(local) {
            return None;
        }
        let (cursor, end) = (self.cursor(id)?, self.state_end(id));
        // A run from there would lack what was dropped, and others may bring that back.
        if cursor < self.channels[local.index()].buffer.as_ref()?.floor() {
            return None;
        }
        let kind = Kind { form, is_state: end.is_some() };
        let Waiting::Messages(lacking) = self.waiting(id) else { return None };
        let found = self.channels[local.index()].buffer.as_ref()?.runs.find(kind, cursor);
        let at = match found {
            Ok(at) => at,
            Err(next) => {
                let run = Run::new((kind, cursor), lacking, next, append)?;
                let buffer = self.channels[local.index()].buffer.as_mut()?;
                // Its bytes have them all.
                buffer.drop_encodings_between(cursor, run.last());
                buffer.runs.add(run)
            }
        };
        let run = &self.channels[local.index()].buffer.as_ref()?.runs.get(at)?;
        let is_beyond = end.is_some_and(|end| run.last() > end);
        (!is_beyond).then(|| run.rest(cursor))
    }

    /// The message of a run at an offset that a subscription lacks.
    pub fn lacking_at(&self, id: SubscriptionId, offset: u64) -> Option<Arc<Message>> {
        let buffer = self.channels[self.local(id)?.index()].buffer.as_ref()?;
        let found = buffer.after(offset - 1).next().filter(|found| found.id.offset == offset);
        debug_assert!(found.is_some(), "it is in the replay buffer");
        found.cloned()
    }
}

#[cfg(test)]
mod tests {
    use throng_wire::Labels;
    use throng_wire::labels::StateKey;

    use super::super::tests::model;
    use super::*;
    use crate::attributes::{Attributes, Erasure, Extras};
    use crate::id::{ChannelId, ConnectionId};

    const FORM: Form = (3, false);

    fn append(message: &Message, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(format!("{},", message.id.offset).as_bytes());
    }

    /// A channel with so many messages, with which so many subscriptions begin.
    fn table(messages: u64, readers: u32) -> (SubscriptionTable, Vec<SubscriptionId>) {
        let mut table = SubscriptionTable::new(Arc::default());
        let (channel, local) = (ChannelId(0), table.next_local());
        let brief = |offset| {
            let message = model::message(offset, offset - 1);
            if offset != 8 {
                return message;
            }
            let mut content = Arc::into_inner(message).expect("nobody has it").content();
            let own = Arc::get_mut(&mut content).expect("nobody has it");
            own.expires_ms = std::num::NonZero::new(9_000);
            Arc::new(Message::from(content))
        };
        let backlog: Vec<_> = (1..=messages).map(brief).collect();
        let join = |connection| {
            let mut followed = model::followed(channel, local, messages);
            followed.cursor.offset = 0;
            followed.backlog = backlog.clone();
            let id = table.join(ConnectionId::new(connection), &followed, false, None);
            table.block(id);
            id
        };
        let readers = (0..readers).map(join).collect();
        (table, readers)
    }

    fn piece(table: &mut SubscriptionTable, id: SubscriptionId) -> Option<String> {
        let piece = table.piece(id, FORM, &mut append)?;
        let lengths: usize = piece.messages().map(|(length, _)| length).sum();
        assert_eq!(piece.bytes().len(), lengths);
        Some(String::from_utf8(piece.bytes().to_vec()).unwrap())
    }

    #[test]
    fn those_that_catch_up_share_pieces_from_wherever_they_are() {
        let (mut table, readers) = table(9, 5);
        table.advance(readers[0], 4);
        assert_eq!(piece(&mut table, readers[0]).as_deref(), Some("5,6,7,"));
        assert_eq!(piece(&mut table, readers[1]).as_deref(), Some("1,2,3,4,"), "up to the other");
        table.advance(readers[1], 2);
        assert_eq!(piece(&mut table, readers[1]).as_deref(), Some("3,4,"));
        table.advance(readers[1], 6);
        assert_eq!(piece(&mut table, readers[1]).as_deref(), Some("7,"));
        let found = table.lacking_at(readers[1], 7).map(|message| message.id.offset);
        assert_eq!(found, Some(7));
        // One that is not for everyone goes alone.
        table.advance(readers[1], 7);
        assert_eq!(piece(&mut table, readers[1]), None);
        table.advance(readers[1], 8);
        assert_eq!(piece(&mut table, readers[1]).as_deref(), Some("9,"));
        table.advance(readers[1], 9);
        assert_eq!(piece(&mut table, readers[1]), None, "it has all");
    }

    #[test]
    fn few_have_no_pieces() {
        let (mut table, readers) = table(9, 3);
        assert_eq!(piece(&mut table, readers[0]), None);
    }

    #[test]
    fn what_is_erased_is_in_no_piece() {
        let (mut table, readers) = table(7, 5);
        assert_eq!(piece(&mut table, readers[0]).as_deref(), Some("1,2,3,4,5,6,7,"));
        let local = table.local(readers[0]).unwrap();
        let buffer = table.channels[local.index()].buffer.as_mut().unwrap();
        buffer.erase(Erasure { first: 3, last: 3 });
        assert_eq!(piece(&mut table, readers[1]).as_deref(), Some("1,2,"));
        table.advance(readers[1], 3);
        assert_eq!(piece(&mut table, readers[1]).as_deref(), Some("4,5,6,7,"));
    }

    #[test]
    fn a_state_of_which_some_was_dropped_is_in_no_piece() {
        let mut table = SubscriptionTable::new(Arc::default());
        let (channel, local) = (ChannelId(0), table.next_local());
        let keyed = |offset: u64| {
            let labels = Labels {
                key: Some(StateKey { name: offset.to_string().into(), is_removed: false }),
                ..Labels::default()
            };
            let mut content =
                Arc::into_inner(model::message(offset, offset - 1)).unwrap().content();
            let own = Arc::get_mut(&mut content).unwrap();
            own.extras = Extras::new(None, Attributes::of_publication(&labels, None));
            Arc::new(Message::from(content))
        };
        let backlog: Vec<_> = (1..=9).map(keyed).collect();
        let join = |table: &mut SubscriptionTable, connection| {
            let mut followed = model::followed(channel, local, 9);
            followed.cursor.offset = 0;
            followed.backlog = backlog.clone();
            let id = table.join(ConnectionId::new(connection), &followed, false, None);
            table.begin_state(id, followed.head);
            table.block(id);
            id
        };
        let readers = [0, 1, 2, 3].map(|connection| join(&mut table, connection));
        table.advance(readers[0], 2);
        table.trim_channel_of(readers[0]);
        table.set_max_blocked_bytes(1);
        table.evict_oldest(4);
        assert_eq!(piece(&mut table, readers[0]), None);
        let new = join(&mut table, 4);
        assert_eq!(piece(&mut table, new).as_deref(), Some("1,2,3,4,5,6,7,8,9,"));
    }

    #[test]
    fn they_go_after_a_moment() {
        let (mut table, readers) = table(3, 5);
        let has_runs = |table: &SubscriptionTable| {
            let local = table.local(readers[0]).unwrap();
            let buffer = table.channels[local.index()].buffer.as_ref().unwrap();
            buffer.runs.get(0).is_some()
        };
        table.set_now(7_000);
        assert!(piece(&mut table, readers[0]).is_some() && has_runs(&table));
        table.set_now(8_000);
        assert!(!has_runs(&table));
    }
}
