//! Answers presence queries, a part of a channel's subscriptions in each slice.

use super::presence_scan::{EXAMINED_PER_CONNECTION, Inbox};
use crate::connection::ConnectionId;
use crate::net::Net;
use crate::sessions::Sessions;

/// Subscriptions that one slice examines, for all queries together: about a tenth of the time that
/// a slice of a fan-out takes.
const EXAMINED_PER_SLICE: u32 = 512;

/// The cost of a query beside that, as a number of subscriptions.
const EXAMINED_PER_QUERY: u32 = 8;

impl<N: Net> Sessions<N> {
    /// Goes on with the presence scans for one slice, in turn.
    pub(crate) fn continue_presence_scans(&mut self) {
        let mut allowance = EXAMINED_PER_SLICE;
        while allowance > 0
            && let Some(scan) = self.presence_scans.pop_front()
        {
            allowance = allowance.saturating_sub(EXAMINED_PER_QUERY);
            let inbox_of = |id| self.inbox_of(id);
            let engine = &*self.engine;
            let name_of = |id| self.connections().name(id);
            let unfinished =
                scan.advance(self.cursors(), engine, inbox_of, name_of, &mut allowance);
            if let Some(scan) = unfinished {
                self.presence_scans.push_back(scan);
            }
        }
    }

    fn inbox_of(&self, id: ConnectionId) -> Inbox {
        let mut examined = 0;
        let mut examinable = self.subscriptions(id).take(EXAMINED_PER_CONNECTION);
        let channel = examinable.find_map(|subscription| {
            examined += 1;
            let (channel, is_user) = self.cursors().channel(subscription)?;
            is_user.then_some(channel)
        });
        Inbox { channel, examined }
    }
}
