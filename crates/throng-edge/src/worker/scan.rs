//! Scans of all connections: lists a user's or those that are behind, closes those that the
//! application or a revocation names, and ends what new rules do not allow.
//!
//! A slice passes a bounded number of places, so that a scan of a million connections delays no
//! fan-out by more than a slice.

mod behind;
pub(super) mod running;

use std::sync::Arc;

use throng_core::{ChannelId, ConnectionName, ConnectionScan, ScanAction, ScanTarget};

use super::Worker;
use crate::connection::{Connection, ConnectionId};
use crate::net::Net;
use crate::sessions::Sessions;
use running::RunningScan;

/// Places that one slice passes: at some 20 ns for each, less than a tenth of a millisecond; of
/// connections with many channels, less than a millisecond.
const PLACES_PER_SLICE: u32 = 4096;

/// Connections that one slice closes, which takes a few system calls each, or asks the policy
/// about.
const CLOSED_PER_SLICE: u32 = 64;

/// Subscriptions that the policy is asked about in the time that it takes to close a connection.
const SUBSCRIPTIONS_PER_CLOSE: usize = 64;

impl<N: Net> Worker<N> {
    pub(super) fn begin_scan(&mut self, scan: Arc<ConnectionScan>) {
        let is_new = match scan.action {
            ScanAction::TellLate(is_late) => self.becomes_late(is_late),
            _ => true,
        };
        let running = RunningScan::new(scan, self.connections().newest_generation());
        if is_new { self.scans.push_back(running) } else { running.finish() }
    }

    /// Goes on with the scans for one slice, in turn.
    pub(super) fn continue_scans(&mut self) {
        let (mut places, mut closes) = (PLACES_PER_SLICE, CLOSED_PER_SLICE);
        while places > 0
            && closes > 0
            && let Some(mut running) = self.scans.pop_front()
        {
            // The cost of a short scan beside its places.
            places = places.saturating_sub(16);
            if self.advance_scan(&mut running, &mut places, &mut closes) {
                running.finish();
            } else {
                self.scans.push_front(running);
            }
        }
    }

    /// Passes places until the slice's are used up. Returns whether all were passed.
    fn advance_scan(
        &mut self,
        running: &mut RunningScan,
        places: &mut u32,
        closes: &mut u32,
    ) -> bool {
        let scan = Arc::clone(running.scan());
        // Found anew for each slice: the last follower may have gone between two.
        let channel = match &scan.target {
            ScanTarget::Behind if matches!(scan.action, ScanAction::List { .. }) => {
                return self.advance_behind(running, places);
            }
            ScanTarget::Connections(names) => return self.advance_named(running, names, closes),
            ScanTarget::Sessions(_) | ScanTarget::Behind | ScanTarget::All => None,
            ScanTarget::User { inbox: name, .. } | ScanTarget::Channel(name) => {
                self.channel_here(name)
            }
        };
        while *places > 0 && *closes > 0 {
            *places -= 1;
            let Some(id) = running.next_place(self.connections().extent()) else { return true };
            // Not every place of the table is taken.
            let Some(connection) = self.connections().get(id) else { continue };
            // A later connection may have the place by now. The scan is not about it.
            let is_old = running.is_about(connection.generation.number());
            if !is_old || !self.is_wanted(id, connection, &scan.target, channel) {
                continue;
            }
            self.turn(|sessions| act_on_found(sessions, id, running, closes));
        }
        false
    }

    /// Finds connections by their names, which say their places, until the slice's `closes` are
    /// used up. Returns whether all names were looked at.
    fn advance_named(
        &mut self,
        running: &mut RunningScan,
        names: &[ConnectionName],
        closes: &mut u32,
    ) -> bool {
        while *closes > 0 {
            let Some(name) = running.next_of(names) else { return true };
            let found = self.connections().find_name(name);
            if let Some(id) = found.filter(|&id| self[id].is_parked()) {
                self.turn(|sessions| act_on_found(sessions, id, running, closes));
            }
        }
        false
    }

    /// True if a scan of `target` is about the connection; `channel` is the one that it names, if
    /// this worker follows it. One that still waits for what its request needs is verified again
    /// when it goes on.
    fn is_wanted(
        &self,
        id: ConnectionId,
        connection: &Connection<N::Socket>,
        target: &ScanTarget,
        channel: Option<ChannelId>,
    ) -> bool {
        if !connection.is_parked() {
            return false;
        }
        let session = self.connections().side().session(connection);
        let follows = || channel.is_some_and(|channel| self.subscription_to(id, channel).is_some());
        match target {
            ScanTarget::Sessions(tags) => {
                session.is_some_and(|session| tags.iter().any(|tags| session.may_match(tags)))
            }
            ScanTarget::User { tags, .. } => match session {
                Some(session) => session.may_match(tags),
                // Without keys nobody has a session, and only the inbox tells the user.
                None => !self.has_keys() && follows(),
            },
            // Neither is looked for among all.
            ScanTarget::Connections(_) | ScanTarget::Behind => false,
            ScanTarget::Channel(_) => follows(),
            ScanTarget::All => true,
        }
    }
}

/// Does to a connection what the scan is for.
fn act_on_found<N: Net>(
    sessions: &mut Sessions<N>,
    id: ConnectionId,
    running: &mut RunningScan,
    closes: &mut u32,
) {
    running.count();
    let scan = Arc::clone(running.scan());
    match &scan.action {
        ScanAction::List { .. } => {
            return running.list(|| sessions.describe(id, &sessions[id]));
        }
        ScanAction::Revoke => sessions.close_revoked(id),
        ScanAction::Close(close) => sessions.close_for_application(id, close),
        ScanAction::CloseForMemory => sessions.close_for_memory(id),
        ScanAction::TellLate(_) => sessions.tell_late(id),
        ScanAction::Recheck => {
            let passed = sessions.recheck_access(id) / SUBSCRIPTIONS_PER_CLOSE;
            *closes = closes.saturating_sub(u32::try_from(passed).unwrap_or(u32::MAX));
        }
    }
    *closes = closes.saturating_sub(1);
}
