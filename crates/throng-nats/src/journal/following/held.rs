//! Channels whose messages are not reported for now, and those that another process has followed.

use throng_core::{ChannelId, ChannelName};

use super::Following;
use super::channels::{JournalChannel, SlotState};
use crate::journal::outbox::Outbox;
use crate::subject::{self, Subjects};

impl Following {
    /// No message is reported before [`Following::go_on`].
    pub(in crate::journal) fn hold(&mut self) {
        self.is_held = true;
    }

    pub(in crate::journal) fn is_held(&self) -> bool {
        self.is_held
    }

    /// The lowest head of the channels that are known to lack messages, or are polled and may;
    /// `None` if there are none.
    pub(in crate::journal) fn lowest_lacking(&self) -> Option<u64> {
        let lacks = |channel: &&JournalChannel| match channel.state {
            SlotState::Free | SlotState::Joining => false,
            SlotState::Live => channel.is_polled,
            SlotState::Behind => channel.is_polled || channel.target > channel.head,
        };
        self.channels.iter().filter(lacks).map(|channel| channel.head).min()
    }

    /// Messages are reported again: what came meanwhile is read.
    pub(in crate::journal) fn go_on(&mut self, now_ms: u64) {
        self.is_held = false;
        for channel in self.channels.iter_mut() {
            // Messages not read meanwhile are not lost.
            channel.target_since_ms = now_ms as u32;
        }
    }

    /// Follows channels of which all messages up to their heads were reported by another process.
    /// They are compared with the stream once that says how far it is.
    pub(in crate::journal) fn resume(
        &mut self,
        now_ms: u64,
        subjects: &Subjects,
        channels: Vec<(ChannelId, ChannelName, u64)>,
        outbox: &mut Outbox,
    ) {
        for (key, name, head) in channels {
            if !subject::has_suffix(&name) {
                continue;
            }
            let slot = self.channels.insert(&name, key, head);
            let channel = &mut self.channels[slot];
            channel.turn(SlotState::Behind, &mut self.behind);
            channel.behind_since_ms = now_ms as u32;
            if outbox.is_connected() {
                self.join(slot, subjects, outbox);
            }
        }
    }
}
