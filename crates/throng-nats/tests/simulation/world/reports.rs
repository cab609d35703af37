//! What nodes report, and what has to be true of it.

use throng_core::ChannelId;
use throng_nats::api::message::StoredMessage;
use throng_nats::journal::JournalReport;

use super::{STREAM, World, keys, subject};
use crate::oracle::Position;

impl World {
    pub(super) fn reported(&mut self, node: usize, report: JournalReport) {
        match report {
            JournalReport::Opened { epoch, .. } => self.opened(node, epoch),
            JournalReport::Away => self.nodes[node].is_open = false,
            JournalReport::Stalled(is_stalled) => {
                let was = std::mem::replace(&mut self.nodes[node].is_stalled, is_stalled);
                assert_ne!(was, is_stalled, "said twice");
                self.tally.stalled += usize::from(is_stalled);
            }
            JournalReport::Refused { reason, .. } => {
                // Where the schedule starves a node, its answers wait longer than it has patience.
                let of = &self.nodes[node];
                let is_starved = !(of.answers.is_empty() && of.to_broker.is_empty());
                assert!(is_starved && reason.starts_with("no server answers"), "{reason}");
            }
            JournalReport::Followed { channel, head } => self.is_followed(node, channel, head),
            JournalReport::Message { channel, message } => self.told(node, channel, &message),
            JournalReport::Gap { channel } => self.told_gap(node, channel.0 as usize),
            report @ (JournalReport::Changed { .. }
            | JournalReport::Entries(..)
            | JournalReport::Current { .. }
            | JournalReport::TableLost(_)
            | JournalReport::TableRefused { .. }) => self.table_reported(node, report),
            JournalReport::Published { token, outcome } => self.published(node, token, outcome),
            JournalReport::Log { token, outcome } => self.log_answered(node, token, outcome),
            JournalReport::Nodes(others) => self.nodes[node].others = others,
            JournalReport::Named { token, logs, naming } => self.named(node, token, logs, naming),
            // No server of the model limits subscriptions, no node sends volatile messages, and
            // none counts messages.
            JournalReport::Volatile(_)
            | JournalReport::Counted { .. }
            | JournalReport::VolatileLost
            | JournalReport::Keys(_)
            | JournalReport::Whole(_)
            | JournalReport::Looked { .. }
            | JournalReport::Matched(..)
            | JournalReport::Mortal(_)
            | JournalReport::OldValue { .. }
            | JournalReport::Erased(_)
            | JournalReport::ErasedUnheard
            | JournalReport::Polled { .. }
            | JournalReport::Settled { .. } => {}
            report @ (JournalReport::Heard { .. }
            | JournalReport::Gone { .. }
            | JournalReport::Standing(_)) => {
                self.nodes[node].standing.reported(report);
            }
            JournalReport::Held(held) => self.nodes[node].is_held(held),
            JournalReport::Asked(asked) => self.asked(node, asked),
            JournalReport::Question { reply, question } => self.question(node, reply, question),
            JournalReport::Read { token, reading } => self.was_read(node, token, reading),
            JournalReport::StateRead { token, state } => self.state_was_read(node, token, state),
            JournalReport::Unheard => panic!("the model has no limit of subscriptions"),
        }
    }

    fn is_followed(&mut self, node: usize, channel: ChannelId, head: u64) {
        let of = &mut self.nodes[node];
        let position = of.followed.get_mut(&(channel.0 as usize)).expect("it is followed");
        match position {
            Some(position) => {
                let had = position.sequence.max(position.floor);
                assert!(position.has_gap || had >= head);
            }
            None => {
                // What has expired is behind it, even if its head does not say so.
                let floor = self.broker.first(STREAM).saturating_sub(1);
                *position = Some(Position { sequence: head, floor, has_gap: false });
            }
        }
    }

    fn told(&mut self, node: usize, channel: ChannelId, message: &StoredMessage) {
        self.tally.messages += 1;
        let index = channel.0 as usize;
        let of = &mut self.nodes[node];
        assert!(of.is_open, "a message before the epoch is known");
        assert!(of.held.is_none(), "a message while it is held");
        let position = of.followed.get_mut(&index).expect("it is followed");
        let position = position.as_mut().expect("its head is known");
        let body = keys::body(message.sequence, message.body.bytes());
        let found = (message.sequence, &*body);
        self.oracle.reported(of.era, &subject(index), position, found);
    }

    fn opened(&mut self, node: usize, epoch: u64) {
        let era = self.oracle.era();
        let of = &mut self.nodes[node];
        let are_known = of.table.is_known && of.states.is_known;
        assert!(are_known, "the stream is open before the tables are known");
        of.is_open = true;
        if of.epoch != Some(epoch) {
            of.followed.values_mut().for_each(|position| *position = None);
            of.facts.clear();
            self.tally.epochs += 1;
        } else {
            assert_eq!(of.era, era, "the stream is another one, and its epoch is not");
        }
        (of.epoch, of.era) = (Some(epoch), era);
    }
}
