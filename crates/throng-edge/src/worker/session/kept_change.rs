//! A change of what the server keeps for a user, and how far the worker has come with it.

use std::ops::Range;

use throng_core::{ConnectionId, KeptNotice, SubscriptionId, SubscriptionTable};

/// A change that connections are being told of. Dropped, it counts as done.
#[derive(Debug)]
pub(in crate::worker) struct RunningKeptChange {
    notice: Box<KeptNotice>,
    /// The subscription of the inbox whose connection comes next; `None` for the first one.
    at: Option<SubscriptionId>,
    /// The connections that were told, from the first one on.
    told: u32,
    /// The next channel to tell the connection of.
    next_name: usize,
    is_complete: bool,
}

impl RunningKeptChange {
    pub(in crate::worker) fn new(notice: Box<KeptNotice>) -> RunningKeptChange {
        RunningKeptChange { notice, at: None, told: 0, next_name: 0, is_complete: false }
    }

    /// The change itself.
    pub(in crate::worker) fn notice(&self) -> &KeptNotice {
        &self.notice
    }

    /// The connection to tell next, and the channels to tell it of: at most `count`, but at least
    /// one. `None` if all were told.
    pub(in crate::worker) fn next(
        &mut self,
        subscriptions: &SubscriptionTable,
        count: usize,
    ) -> Option<(ConnectionId, Range<usize>)> {
        if self.is_complete {
            return None;
        }
        // The user has no connections here any more.
        let member = subscriptions.member(self.notice.local, self.notice.channel, self.at)?;
        if member.is_first && self.at.is_some() {
            // The one that was next has ended. Telling others twice does no harm.
            self.begin_again();
        }
        let names = self.notice.names.len();
        let from = self.next_name;
        self.next_name = names.min(from + count.max(1));
        let range = from..self.next_name;
        if self.next_name == names {
            self.told += 1;
            self.next_name = 0;
            self.at = member.next;
            if member.next.is_none() {
                self.is_complete = self.told >= member.count;
                // Otherwise it was reached through an id that was used again.
                if !self.is_complete {
                    self.begin_again();
                }
            }
        }
        Some((member.connection, range))
    }

    fn begin_again(&mut self) {
        (self.at, self.told, self.next_name) = (None, 0, 0);
    }
}
