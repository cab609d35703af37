//! A change of what the server keeps for a user, and how far the worker has come with it.

use std::collections::HashSet;
use std::ops::Range;

use throng_core::{ConnectionId, ConnectionName, KeptNotice, SubscriptionId, SubscriptionTable};

/// A change that connections are being told of. Dropped, it counts as done.
///
/// It is done when all connections of the inbox were told. Between two slices connections come and
/// go, and ids of subscriptions are reused, so a place in the inbox's list does not say who was
/// told. Names do.
#[derive(Debug)]
pub(crate) struct RunningKeptChange {
    notice: Box<KeptNotice>,
    told: HashSet<ConnectionName>,
    place: Place,
}

/// How far a change has come.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Place {
    /// The inbox's subscription of the connection that is being told; `None` before the first one.
    at: Option<SubscriptionId>,
    /// The connection that is being told.
    telling: Option<ConnectionName>,
    /// The next channel to tell it of.
    next_name: usize,
}

impl RunningKeptChange {
    pub(crate) fn new(notice: Box<KeptNotice>) -> RunningKeptChange {
        RunningKeptChange { notice, told: HashSet::new(), place: Place::default() }
    }

    pub(crate) fn notice(&self) -> &KeptNotice {
        &self.notice
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Takes the last call of [`RunningKeptChange::next`] back: the next one returns the same.
    pub(crate) fn go_back_to(&mut self, place: Place) {
        self.place = place;
    }

    /// The connection to tell next, and the channels to tell it of: at most `count`, but at least
    /// one. `None` if all were told. `name_of` names a connection.
    pub(crate) fn next(
        &mut self,
        subscriptions: &SubscriptionTable,
        name_of: impl Fn(ConnectionId) -> ConnectionName,
        count: usize,
    ) -> Option<(ConnectionId, Range<usize>)> {
        let names = self.notice.names.len();
        // Only now: the caller may have gone back.
        if self.place.next_name >= names {
            self.told.extend(self.place.telling);
        }
        let is_left = |id| !self.told.contains(&name_of(id));
        let KeptNotice { local, channel, .. } = *self.notice;
        let member = subscriptions.find_member(local, channel, self.place.at, is_left)?;
        let telling = Some(name_of(member.connection));
        let goes_on = telling == self.place.telling;
        let from = if goes_on { self.place.next_name } else { 0 };
        let next_name = names.min(from + count.max(1));
        self.place = Place { at: Some(member.id), telling, next_name };
        Some((member.connection, from..next_name))
    }
}
