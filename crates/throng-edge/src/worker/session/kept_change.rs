//! A change of what the server keeps for a user, and how far the worker has come with it.

use std::ops::Range;

use throng_core::{ConnectionId, KeptNotice, SubscriptionId, SubscriptionTable};

/// A change that connections are being told of. Dropped, it counts as done.
#[derive(Debug)]
pub(in crate::worker) struct RunningKeptChange {
    notice: Box<KeptNotice>,
    place: Place,
}

/// How far a change has come.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::worker) struct Place {
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
        RunningKeptChange { notice, place: Place::default() }
    }

    /// The change itself.
    pub(in crate::worker) fn notice(&self) -> &KeptNotice {
        &self.notice
    }

    /// How far it has come.
    pub(in crate::worker) fn place(&self) -> Place {
        self.place
    }

    /// Tells again from there on, which does no harm.
    pub(in crate::worker) fn go_back_to(&mut self, place: Place) {
        self.place = place;
    }

    /// The connection to tell next, and the channels to tell it of: at most `count`, but at least
    /// one. `None` if all were told.
    pub(in crate::worker) fn next(
        &mut self,
        subscriptions: &SubscriptionTable,
        count: usize,
    ) -> Option<(ConnectionId, Range<usize>)> {
        if self.place.is_complete {
            return None;
        }
        // The user has no connections here any more.
        let member = subscriptions.member(self.notice.local, self.notice.channel, self.place.at)?;
        if member.is_first && self.place.at.is_some() {
            // The one that was next has ended. Telling others twice does no harm.
            self.begin_again();
        }
        let names = self.notice.names.len();
        let from = self.place.next_name;
        self.place.next_name = names.min(from + count.max(1));
        let range = from..self.place.next_name;
        if self.place.next_name == names {
            self.place.told += 1;
            self.place.next_name = 0;
            self.place.at = member.next;
            if member.next.is_none() {
                self.place.is_complete = self.place.told >= member.count;
                // Otherwise it was reached through an id that was used again.
                if !self.place.is_complete {
                    self.begin_again();
                }
            }
        }
        Some((member.connection, range))
    }

    fn begin_again(&mut self) {
        self.place = Place::default();
    }
}
