//! Readings of channels after positions.

use throng_nats::journal::{JournalEvent, Reading};

use super::ends::{SeenEnd, may_end};
use super::{CHANNELS, STREAM, World, channel, keys, subject};

/// A reading of a channel after a position.
#[derive(Debug)]
pub(super) struct AskedReading {
    index: usize,
    after: u64,
    era: usize,
    /// A history after the position was erased before.
    is_lost: bool,
    /// The stream had reached the position before.
    is_reached: bool,
    /// Whether the channel had ended before.
    seen: SeenEnd,
}

impl World {
    pub(super) fn told_gap(&mut self, node: usize, index: usize) {
        self.tally.gaps += 1;
        let of = &mut self.nodes[node];
        let position = of.followed.get_mut(&index).expect("it is followed");
        let position = position.as_mut().expect("its head is known");
        let first = self.broker.first(STREAM);
        let kept = self.broker.kept(STREAM, &subject(index));
        // Nor whether one was dropped before others were erased.
        let erased = self.oracle.erased_of(of.era, &subject(index));
        let is_full = kept.len() + erased >= self.stream.retention.max_messages;
        // Nor whether one was erased with a history that is written down and not gone yet.
        let is_full = is_full || self.histories.contains(&index);
        self.oracle.gap(of.era, &subject(index), position, first, &kept, is_full);
    }

    pub(super) fn read(&mut self, node: usize) {
        self.next_token += 1;
        let (token, index) = (self.next_token, self.random.below(CHANNELS));
        let position = self.nodes[node].followed.get(&index).copied().flatten();
        let after = match position {
            Some(position) if self.random.percent(50) => position.sequence,
            _ => self.random.below(60) as u64,
        };
        let era = self.nodes[node].era;
        let is_lost = self.oracle.has_lost(era, &subject(index), after);
        let is_reached = after <= self.broker.reached(STREAM);
        let seen = self.seen_end(index);
        let reading = AskedReading { index, after, era, is_lost, is_reached, seen };
        self.nodes[node].reads.insert(token, reading);
        self.oracle.reads(token, era, &subject(index));
        let (channel, wants_end) = (channel(index), may_end(index));
        let read = JournalEvent::Read { token, channel, after, at_least: after, wants_end };
        self.step(node, read);
    }

    pub(super) fn was_read(&mut self, node: usize, token: u64, reading: Option<Reading>) {
        if self.nodes[node].state_reads.contains_key(&token) {
            return self.log_was_read(node, token, reading);
        }
        let of = &mut self.nodes[node];
        let asked = of.reads.remove(&token).expect("it was asked once");
        let AskedReading { index, after, era, is_lost, is_reached, seen } = asked;
        let hidden = self.oracle.hidden(token);
        let Some(reading) = reading else { return };
        self.tally.read += 1;
        match reading.ended_at {
            Some(_) => {
                self.tally.ended_reads += 1;
                assert!(self.was_ended(index, seen), "{index} has not ended");
            }
            None => {
                let is_known = may_end(index) && reading.left == 0;
                assert!(!is_known || self.was_open(index, seen), "{index} has ended");
            }
        }
        let messages = reading.messages.into_iter();
        let found: Vec<_> = messages
            .map(|message| {
                let body = keys::body(message.sequence, message.body.bytes());
                (message.sequence, body)
            })
            .collect();
        assert!(!(is_lost && reading.is_whole), "a history after {after} was erased");
        let is_shown = found.iter().find(|(sequence, _)| hidden.contains(sequence));
        assert_eq!(is_shown, None, "it was erased before");
        let up_to = reading.ended_at.unwrap_or(0);
        let read = (after, up_to, reading.is_whole);
        let skipped = self.oracle.read(era, &subject(index), read, &found);
        self.tally.erased_reads += usize::from(skipped);
        // Nothing can have been dropped.
        let stored = self.oracle.stored_after(era, &subject(index), after);
        let counted = stored + self.oracle.marked_after(era, &subject(index), after);
        let is_there = is_reached
            && self.broker.first(STREAM) <= after + 1
            && counted <= self.stream.retention.max_messages
            && !self.histories.contains(&index);
        if is_there && era == self.oracle.era() {
            assert!(reading.is_whole, "{index} after {after}: {found:?}");
        }
    }
}
