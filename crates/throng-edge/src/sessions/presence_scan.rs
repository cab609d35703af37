//! A worker's part of a presence query: the users among a channel's subscribers.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use throng_core::{
    ChannelId, ConnectionId, ConnectionName, LocalId, Member, MemoryEngine, PresenceQuery,
    SubscriptionId, SubscriptionTable,
};

/// Connections that one scan visits, however many channels each follows: else those with many that
/// came early would hide the users who came after them. Further users are not found, and the answer
/// says so.
const VISITED_MAX: u32 = 4096;

/// Subscriptions of one connection that are examined to find its inbox, which is mostly the first.
/// Beyond it the connection counts as one without a user, and the answer says that users may be
/// missing.
pub(crate) const EXAMINED_PER_CONNECTION: usize = 1024;

/// The inbox of a connection that a scan examines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inbox {
    /// The channel of the connection's user; `None` if it belongs to no user.
    pub(crate) channel: Option<ChannelId>,
    /// Subscriptions examined to find it.
    pub(crate) examined: u32,
}

/// A query, and how far the worker has come with it.
#[derive(Debug)]
pub(crate) struct PresenceScan {
    local: LocalId,
    channel: ChannelId,
    query: Arc<PresenceQuery>,
    /// The channel's subscription that comes next; the first one at the beginning.
    next: Option<SubscriptionId>,
    /// The connections that were visited. Between two slices the next subscription may end, and one
    /// that joins, which is the last in the list, may get its id. So `next` does not say who was.
    visited: HashSet<ConnectionName>,
    /// Connections that may still be visited.
    visitable: u32,
    /// True if a connection's inbox may have been missed.
    has_missed: bool,
    users: BTreeSet<Arc<str>>,
}

impl PresenceScan {
    /// A scan of a channel's subscriptions in this worker, from the first one.
    pub(crate) fn new(
        local: LocalId,
        channel: ChannelId,
        query: Arc<PresenceQuery>,
    ) -> PresenceScan {
        PresenceScan {
            local,
            channel,
            query,
            next: None,
            visited: HashSet::new(),
            visitable: VISITED_MAX,
            has_missed: false,
            users: BTreeSet::new(),
        }
    }

    /// Examines subscriptions until the `allowance` of the slice is used up. Answers the query if
    /// it has visited all, or as many as one scan may; otherwise returns the scan, which goes on in
    /// a later slice.
    pub(crate) fn advance(
        mut self,
        subscriptions: &SubscriptionTable,
        engine: &MemoryEngine,
        inbox_of: impl Fn(ConnectionId) -> Inbox,
        name_of: impl Fn(ConnectionId) -> ConnectionName,
        allowance: &mut u32,
    ) -> Option<PresenceScan> {
        let is_complete = self.visit(subscriptions, engine, inbox_of, name_of, allowance);
        let is_cut = self.visitable == 0 || self.users.len() > self.query.max_users();
        if !is_complete && !is_cut {
            return Some(self);
        }
        self.query.answer(self.users, !is_complete || self.has_missed);
        None
    }

    /// A subscription whose connection was not visited; `None` if there is none, or the channel is
    /// not followed here any more.
    fn find_next(
        &self,
        subscriptions: &SubscriptionTable,
        name_of: impl Fn(ConnectionId) -> ConnectionName,
    ) -> Option<Member> {
        let is_left = |id| !self.visited.contains(&name_of(id));
        subscriptions.find_member(self.local, self.channel, self.next, is_left)
    }

    /// Returns whether all subscriptions have been visited.
    fn visit(
        &mut self,
        subscriptions: &SubscriptionTable,
        engine: &MemoryEngine,
        inbox_of: impl Fn(ConnectionId) -> Inbox,
        name_of: impl Fn(ConnectionId) -> ConnectionName,
        allowance: &mut u32,
    ) -> bool {
        let mut inboxes = Vec::new();
        // Another channel may have the ids by now, if this one is not followed here any more.
        let mut is_complete = !engine.is_named(self.channel, self.query.channel());
        while *allowance > 0 && self.visitable > 0 && !is_complete {
            let Some(member) = self.find_next(subscriptions, &name_of) else {
                is_complete = true;
                break;
            };
            self.visited.insert(name_of(member.connection));
            let inbox = inbox_of(member.connection);
            inboxes.extend(inbox.channel);
            *allowance = allowance.saturating_sub(inbox.examined);
            self.visitable -= 1;
            self.has_missed |=
                inbox.channel.is_none() && inbox.examined as usize >= EXAMINED_PER_CONNECTION;
            self.next = member.next;
            is_complete = self.next.is_none() && self.find_next(subscriptions, &name_of).is_none();
        }
        // Many connections of one user share an inbox, whose name is asked for once.
        inboxes.sort_unstable_by_key(|inbox| inbox.0);
        inboxes.dedup();
        engine.names(&mut inboxes, &mut |name| {
            if !self.users.contains(name.name()) {
                self.users.insert(name.name().into());
            }
        });
        is_complete
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use throng_core::{
        ChannelName, Epoch, Follow, Later, MemoryEngine, Notification, Presence, Rules, StartAt,
        Ticket, WorkerId, WorkerQueue,
    };

    use super::*;

    /// A channel with one subscription of each of `users` connections, in order, and a query about
    /// it. Each connection belongs to a user of its own.
    struct Room {
        engine: MemoryEngine,
        table: SubscriptionTable,
        inboxes: Vec<ChannelId>,
        scan: PresenceScan,
        answer: mpsc::Receiver<Presence>,
    }

    fn room(users: u32, max_users: usize) -> Room {
        let queue = Arc::new(WorkerQueue::new(|| {}));
        let rules = Arc::new(Rules::default());
        let queues = vec![Arc::clone(&queue)];
        let engine = MemoryEngine::new(Epoch::numbered(1), Arc::clone(&rules), queues, 1 << 30);
        let mut table = SubscriptionTable::new(rules);
        let channel = ChannelName::channel("c");
        let mut follow = |name: &ChannelName, connection, is_user| {
            let local_if_new = table.next_local();
            let follow =
                Follow { channel: name, worker: WorkerId(0), local_if_new, start: StartAt::Live };
            let followed = engine.follow(1, follow);
            let subscription = table.join(connection, &followed, is_user, None);
            table.channel(subscription).unwrap().0
        };
        let mut inboxes = Vec::new();
        for connection in (0..users).map(ConnectionId::new) {
            follow(&channel, connection, false);
            let name = ChannelName::new(
                throng_core::Kind::User,
                &format!("user-{:04}", connection.index()),
            );
            inboxes.push(follow(&name, connection, true));
        }
        let (sender, answer) = mpsc::channel();
        let mut issue = || {
            let sender = sender.clone();
            Ticket::new(move |presence: Option<Presence>| drop(sender.send(presence.unwrap())))
        };
        let _ = engine.presence(1, &channel, max_users, Later::new(&mut issue)).unwrap();
        let mut posted = Vec::new();
        queue.take(&mut posted);
        let Some(Notification::Presence { local, channel, query }) = posted.pop() else {
            panic!("the engine asks the worker that follows the channel");
        };
        Room { engine, table, inboxes, scan: PresenceScan::new(local, channel, query), answer }
    }

    /// Examines `examined` subscriptions for each connection, and `per_slice` in each slice.
    /// Returns the answer and the number of slices.
    fn finish(room: Room, examined: u32, per_slice: u32) -> (Presence, usize) {
        let Room { engine, table, inboxes, scan, answer } = room;
        let inbox_of = |connection: ConnectionId| Inbox {
            channel: Some(inboxes[connection.index() as usize]),
            examined,
        };
        let (mut scan, mut slices) = (Some(scan), 0);
        while let Some(unfinished) = scan {
            slices += 1;
            let name_of = |id: ConnectionId| ConnectionName::new(WorkerId(0), 1, id.index());
            scan = unfinished.advance(&table, &engine, inbox_of, name_of, &mut { per_slice });
        }
        (answer.try_recv().expect("a finished scan answers"), slices)
    }

    #[test]
    fn a_scan_finds_every_user_over_several_slices() {
        let (presence, slices) = finish(room(10, 100), 1, 3);
        let expected: Vec<_> = (0..10).map(|number| format!("user-{number:04}")).collect();
        assert_eq!(
            presence.users.iter().map(|user| user.to_string()).collect::<Vec<_>>(),
            expected
        );
        assert!(!presence.is_cut);
        assert_eq!(slices, 4);
    }

    #[test]
    fn a_scan_ends_once_it_has_more_users_than_the_answer_names() {
        let (presence, slices) = finish(room(10, 2), 1, 1);
        assert!(presence.is_cut && presence.users.len() == 2);
        assert_eq!(slices, 3);
    }

    #[test]
    fn a_scan_that_may_visit_no_more_says_that_users_are_missing() {
        let (presence, _) = finish(room(VISITED_MAX + 3, usize::MAX), 1, u32::MAX);
        assert!(presence.is_cut);
        assert_eq!(presence.users.len(), VISITED_MAX as usize);
    }

    #[test]
    fn connections_with_many_channels_hide_nobody() {
        let (presence, _) = finish(room(100, 1000), 500, 512);
        assert_eq!((presence.users.len(), presence.is_cut), (100, false));
    }

    #[test]
    fn a_partly_examined_connection_is_a_missing_user() {
        let Room { engine, table, scan, answer, .. } = room(2, 10);
        let inbox_of = |_| Inbox { channel: None, examined: EXAMINED_PER_CONNECTION as u32 };
        let name_of = |id: ConnectionId| ConnectionName::new(WorkerId(0), 1, id.index());
        assert!(scan.advance(&table, &engine, inbox_of, name_of, &mut { u32::MAX }).is_none());
        assert!(answer.try_recv().expect("a finished scan answers").is_cut);
    }
}
