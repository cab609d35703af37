//! The list of connections that are behind. It passes only those, ranks them by what they hold, and
//! describes the ones that hold most.

use std::cmp::Reverse;

use super::running::{Rank, RunningScan};
use crate::connection::ConnectionId;
use crate::net::Net;
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
}
