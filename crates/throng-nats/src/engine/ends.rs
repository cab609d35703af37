//! Channels that have ended, as nodes find out that were cut off meanwhile.
//!
//! The end of a channel is a message, which comes to those who follow it like any other. It is gone
//! from the stream if its age was too great, or the history was erased, before a node was back. So
//! where messages may be lost, the record is read, and subscribers that wait in vain are told to
//! connect again.

use std::convert::Infallible;
use std::sync::Arc;

use throng_core::{
    ChannelId, ChannelName, Reading, ScanAction, ScanClose, ScanTarget, StartAt, Ticket,
};

use super::collect::Collect;
use super::inbound::CLOSE_CODE;
use super::link::count;
use super::pending::ReadFor;
use super::shared::NodeShared;

impl NodeShared {
    /// Messages of a followed channel are gone from the stream.
    pub(super) fn has_gap(self: &Arc<NodeShared>, channel: ChannelId) {
        count(&self.link.counts.gaps);
        let channel = self.followed().has_gap(channel);
        channel.into_iter().for_each(|channel| self.check_end(&channel));
    }

    /// Other nodes may have erased messages while nothing was heard of them.
    pub(super) fn was_unheard(self: &Arc<NodeShared>) {
        self.followed().erase(None);
        self.check_ends();
    }

    /// Checks the channels that may end and have subscribers here.
    fn check_ends(self: &Arc<NodeShared>) {
        if !self.memory.rules().may_any_end() {
            return;
        }
        let mut channels = Vec::new();
        let Ok(()) = self.followed().each(|channel, _| -> Result<(), Infallible> {
            if self.memory.rules().may_end(channel) {
                channels.push(channel.clone());
            }
            Ok(())
        });
        channels.iter().for_each(|channel| self.check_end(channel));
    }

    /// Checks a channel of which messages may be lost.
    fn check_end(self: &Arc<NodeShared>, channel: &ChannelName) {
        let is_waited_for = || self.memory.followed_head(channel).is_some();
        if !self.memory.rules().may_end(channel) || !is_waited_for() {
            return;
        }
        let reading = (Reading::Start(StartAt::Live), (self.now_ms)());
        let followed = self.followed();
        let entry = followed.get(channel).filter(|entry| entry.is_live);
        let begun = entry.and_then(|entry| self.begin(entry, channel, reading));
        drop(followed);
        if let Some((collect, false)) = begun {
            self.read(collect, ReadFor::Check);
        }
    }

    /// A channel was checked. If it has ended, and its subscribers have not heard of it, they
    /// connect again.
    pub(super) fn is_checked(&self, collect: &Collect) {
        let channel = &collect.source().channel;
        if collect.has_lost_end() && self.memory.followed_head(channel).is_some() {
            let close = ScanClose {
                code: CLOSE_CODE,
                reason: "the channel may have ended; connect again".into(),
                may_return: true,
            };
            let target = ScanTarget::Channel(channel.clone());
            self.scan(target, ScanAction::Close(close), Ticket::new(drop));
        }
    }
}
