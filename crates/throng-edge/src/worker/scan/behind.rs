//! The list of connections that are behind. It passes only those, ranks them by what they hold, and
//! describes the ones that hold most.

use std::cmp::Reverse;

use throng_core::{FoundLag, Lag, clock};

use super::running::{Rank, RunningScan};
use crate::connection::ConnectionId;
use crate::counters::Parked;
use crate::net::Net;
use crate::sockets::TICKS_PER_S;
use crate::worker::Worker;

/// Messages that cost as much to pass as a connection. They are beside each other in memory.
const MESSAGES_PER_PLACE: u64 = 16;

/// The cost of describing a connection: its address and its names take a system call and locks.
const PLACES_PER_DESCRIPTION: u32 = 64;

impl<N: Net> Worker<N> {
    /// Passes connections that are behind until the slice's `places` are used up. Returns whether
    /// all were passed and listed.
    pub(in crate::worker) fn advance_behind(
        &mut self,
        running: &mut RunningScan,
        places: &mut u32,
    ) -> bool {
        while *places > 0 {
            let next = self.connections().next_behind(running.last_place());
            let Some((id, _)) = next else { return self.describe_ranked(running, places) };
            running.pass(id);
            *places = places.saturating_sub(self.rank(running, id));
        }
        false
    }

    /// Counts and ranks a connection if it is parked. Returns what that has cost, in places.
    fn rank(&self, running: &mut RunningScan, id: ConnectionId) -> u32 {
        if !self.is_listed_behind(id) {
            return 1;
        }
        let name = self.connections().name(id);
        let (lag, subscriptions) = self.lag(id);
        let left = self.left(id);
        running.count();
        running.rank(Rank {
            held_bytes: lag.bytes + (left.here + left.in_kernel) as u64,
            name: Reverse(name),
        });
        let cost = 1 + subscriptions as u64 + lag.messages / MESSAGES_PER_PLACE;
        u32::try_from(cost).unwrap_or(u32::MAX)
    }

    /// Lists those that hold most, as far as the slice goes.
    fn describe_ranked(&mut self, running: &mut RunningScan, places: &mut u32) -> bool {
        while *places > 0 {
            let Some(name) = running.next_ranked() else { return true };
            *places = places.saturating_sub(PLACES_PER_DESCRIPTION);
            // It may have caught up meanwhile, or gone.
            if let Some(id) = self.connections().find_name(name)
                && let Some(lag) = self.found_lag(id)
            {
                running.list(|| {
                    let mut found = self.describe(id, &self[id]);
                    found.lag = Some(Box::new(lag));
                    found
                });
            }
        }
        false
    }

    /// True if a connection that is behind belongs to a subscriber. The canary has no reader but
    /// the server.
    fn is_listed_behind(&self, id: ConnectionId) -> bool {
        let parked = self[id].parked();
        parked.is_some_and(|parked| parked != Parked::Canary)
    }

    /// The lag of a connection in all of its channels, and the number of channels.
    fn lag(&self, id: ConnectionId) -> (Lag, usize) {
        self.subscriptions(id).fold((Lag::default(), 0), |(sum, count), subscription| {
            let lag = self.subscriptions.lag(subscription);
            let (messages, bytes) = (sum.messages + lag.messages, sum.bytes + lag.bytes);
            (Lag { messages, bytes }, count + 1)
        })
    }

    /// How far a connection is behind; `None` if it is not.
    fn found_lag(&self, id: ConnectionId) -> Option<FoundLag> {
        let since = self.connections().behind_since(id).filter(|_| self.is_listed_behind(id))?;
        let (lag, subscriptions) = self.lag(id);
        let left = self.left(id);
        let ticks = self.clock().tick().saturating_sub(since);
        let since_ms = u64::from(ticks) * 1000 / u64::from(TICKS_PER_S);
        let session = self.connections().session(id);
        let user = session.and_then(|session| self.connections().user_of_session(session));
        let inbox = self.user_of(id);
        let names = self.subscriptions(id).take(FoundLag::CHANNELS_MAX);
        let channels = names.filter_map(|subscription| {
            let (channel, _) = self.subscriptions.channel(subscription)?;
            self.engine.name(channel)
        });
        Some(FoundLag {
            since_ms: clock::wall_ms(self.clock().unix_ms().saturating_sub(since_ms)),
            messages: lag.messages,
            bytes: lag.bytes + left.here as u64,
            kernel_bytes: left.in_kernel as u64,
            user: user.or(inbox.as_ref().map(|inbox| inbox.name())).map(Into::into),
            channels: channels.collect(),
            subscriptions,
        })
    }
}
