//! Looks for the users of a channel, a part of its subscriptions in each slice.

use std::collections::BTreeSet;
use std::sync::Arc;

use throng_core::{ChannelId, LocalId, PresenceQuery, SubscriptionId};

use crate::connection::ConnectionId;
use crate::net::Net;
use crate::worker::Worker;

/// Subscriptions looked at in one slice, for all questions together: about a tenth of the time that
/// a slice of a fan-out takes.
const LOOKS_PER_SLICE: u32 = 512;

/// Subscriptions looked at for one answer. Further users are not found, and the answer says so.
const LOOKS_PER_ANSWER: u32 = 4096;

/// What a question costs beside that, in such looks.
const LOOKS_PER_QUESTION: u32 = 8;

/// A question, and how far the worker has come with it.
#[derive(Debug)]
pub(in crate::worker) struct PresenceScan {
    local: LocalId,
    channel: ChannelId,
    query: Arc<PresenceQuery>,
    /// The subscription to look at next; the first one at the beginning.
    at: Option<SubscriptionId>,
    /// How many were looked at since the first one.
    seen: u32,
    looks_left: u32,
    users: BTreeSet<Arc<str>>,
}

impl PresenceScan {
    pub(in crate::worker) fn new(
        local: LocalId,
        channel: ChannelId,
        query: Arc<PresenceQuery>,
    ) -> PresenceScan {
        let users = BTreeSet::new();
        PresenceScan {
            local,
            channel,
            query,
            at: None,
            seen: 0,
            looks_left: LOOKS_PER_ANSWER,
            users,
        }
    }

    /// Whether there is no use in looking further.
    fn is_cut(&self) -> bool {
        self.looks_left == 0 || self.users.len() > self.query.users_max()
    }
}

impl<N: Net> Worker<N> {
    /// Goes on with the questions for one slice, in turn.
    pub(in crate::worker) fn continue_presence_scans(&mut self) {
        let mut looks = LOOKS_PER_SLICE;
        while looks > 0
            && let Some(mut scan) = self.presence_scans.pop_front()
        {
            looks = looks.saturating_sub(LOOKS_PER_QUESTION);
            let is_whole = self.go_on(&mut scan, &mut looks);
            if is_whole || scan.is_cut() {
                scan.query.answer(std::mem::take(&mut scan.users), !is_whole);
            } else {
                self.presence_scans.push_back(scan);
            }
        }
    }

    /// Looks at subscriptions until `looks` are used up. Returns whether it has seen all.
    fn go_on(&mut self, scan: &mut PresenceScan, looks: &mut u32) -> bool {
        let mut inboxes = Vec::new();
        let mut is_whole = false;
        while *looks > 0 && scan.looks_left > 0 && !is_whole {
            let Some(member) = self.subscriptions.member(scan.local, scan.channel, scan.at) else {
                is_whole = true;
                break;
            };
            scan.seen = if member.is_first { 1 } else { scan.seen + 1 };
            let mut used = 0;
            inboxes.extend(self.subscriptions(ConnectionId::new(member.connection)).find_map(
                |subscription| {
                    used += 1;
                    let (channel, is_user) = self.subscriptions.channel(subscription)?;
                    is_user.then_some(channel)
                },
            ));
            *looks = looks.saturating_sub(used);
            scan.looks_left = scan.looks_left.saturating_sub(used);
            scan.at = member.next;
            // Fewer than there are: one that has just come had the number of the next one, which
            // has gone. Then it begins again.
            is_whole = member.next.is_none() && scan.seen >= member.count;
        }
        // Many connections of one user have one inbox, whose name is asked for once.
        inboxes.sort_unstable_by_key(|inbox| inbox.0);
        inboxes.dedup();
        self.engine.names(&mut inboxes, &mut |name| {
            if !scan.users.contains(name.name()) {
                scan.users.insert(name.name().into());
            }
        });
        is_whole
    }
}
