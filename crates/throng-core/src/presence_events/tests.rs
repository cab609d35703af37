//! Looks at channels, and what follows from what they find.

use std::num::NonZeroU32;

use super::*;
use crate::engine::Follow;
use crate::id::{Epoch, LocalId, WorkerId};
use crate::reading::StartAt;
use crate::rules::{Rule, Rules};
use crate::worker_queue::{Notification, WorkerQueue};

/// An engine with one worker, which follows a channel and its presence events.
fn watched(channel: &ChannelName) -> (MemoryEngine, Arc<WorkerQueue>) {
    let queue = Arc::new(WorkerQueue::new(|| {}));
    let rule = Rule { presence_events: true, ..Rule::default() };
    let rules = Arc::new(Rules::new(Vec::new(), rule));
    let engine = MemoryEngine::new(Epoch::numbered(1), rules, vec![Arc::clone(&queue)], 1 << 20);
    let log = ChannelName::presence_events(channel.name());
    for (at, channel) in (0..).zip([channel, &log]) {
        let follow = Follow {
            channel,
            worker: WorkerId(0),
            local_if_new: LocalId(NonZeroU32::MIN.saturating_add(at)),
            start: StartAt::Live,
        };
        engine.follow(1, follow);
    }
    engine.presence_cache().watched.watch(channel);
    (engine, queue)
}

/// Answers the queries in a queue, and returns how many there were.
fn answer(queue: &WorkerQueue) -> usize {
    let mut posted = Vec::new();
    queue.take(&mut posted);
    let queries = posted.iter().filter_map(|notification| match notification {
        Notification::Presence { query, .. } => Some(query),
        _ => None,
    });
    queries.map(|query| query.answer(Vec::new(), false)).count()
}

#[test]
fn nobody_is_asked_about_a_channel_in_which_nothing_happens() {
    let room = ChannelName::channel("room");
    let (engine, queue) = watched(&room);
    let mut events = PresenceEvents::new(PresenceEventSettings { grace_ms: 1000, max_named: 100 });
    let mut asked = 0;
    let engine = Channels::from(engine);
    for step in 0..3000 {
        events.step(1000 + step * 100, &engine);
        asked += answer(&queue);
    }
    assert_eq!((asked, events.channels()), (1, 1));
    engine.presence_cache().watched.mark(room.key());
    events.step(400_000, &engine);
    assert_eq!(answer(&queue), 1);
}

/// A look that began and ended at a time.
fn look(channel: &mut Channel, now_ms: u64, found: Presence) {
    channel.looked_ms = now_ms;
    channel.take(now_ms, GRACE_MS, found);
    if channel.is_untold {
        // Subscribers would be told here.
        channel.told_ms = now_ms;
    }
}

const GRACE_MS: u64 = 60_000;

fn found(users: &[&str], is_partial: bool) -> Presence {
    let users: Vec<Arc<str>> = users.iter().map(|user| Arc::from(*user)).collect();
    Presence { connections: users.len(), users, is_cut: false, is_partial }
}

/// The users and connections that subscribers know of, and whether they know that others may be
/// there; then what is to be told of them.
fn known(channel: &mut Channel) -> (String, usize, bool, String) {
    let users: Vec<&str> = channel.users.iter().flatten().map(|(user, _)| &**user).collect();
    let joined = channel.joined.iter().map(|user| format!("+{user}"));
    let left = channel.left.keys().map(|user| format!("-{user}"));
    let told: Vec<_> = joined.chain(left).collect();
    let known = (users.join(" "), channel.connections, channel.is_partial, told.join(" "));
    (channel.is_untold, channel.joined, channel.left) = Default::default();
    known
}

#[test]
fn nobody_leaves_while_others_do_not_answer() {
    let mut channel = Channel::default();
    look(&mut channel, 1_000, found(&["ann", "bob", "cy"], false));
    assert_eq!(known(&mut channel), ("ann bob cy".into(), 3, false, String::new()));
    // The other process may only be late.
    look(&mut channel, 2_000, found(&["ann"], true));
    assert!(!channel.is_untold);
    look(&mut channel, 2_500, found(&["ann", "dee"], true));
    assert_eq!(known(&mut channel), ("ann bob cy dee".into(), 3, false, "+dee".into()));
    look(&mut channel, 3_000, found(&["ann", "dee"], true));
    assert_eq!(known(&mut channel), ("ann bob cy dee".into(), 3, true, String::new()));
    look(&mut channel, 500_000, found(&["ann"], true));
    assert!(!channel.is_untold);
    // It answers again: bob is back, and the others are away from now on.
    look(&mut channel, 600_000, found(&["ann", "bob"], false));
    assert_eq!(known(&mut channel), ("ann bob cy dee".into(), 3, false, String::new()));
    look(&mut channel, 600_000 + GRACE_MS, found(&["ann", "bob"], false));
    assert_eq!(known(&mut channel), ("ann bob".into(), 2, false, "-cy -dee".into()));
}

#[test]
fn users_of_a_process_that_is_gone_leave_without_a_grace() {
    let mut channel = Channel::default();
    look(&mut channel, 1_000, found(&["ann", "bob", "cy"], false));
    look(&mut channel, 2_000, found(&["ann", "bob"], false));
    known(&mut channel);
    // Cy has left before, elsewhere.
    channel.silent_since_ms = Some(3_000);
    look(&mut channel, 10_000, found(&["ann"], true));
    assert_eq!(known(&mut channel).0, "ann bob cy");
    look(&mut channel, 10_500, found(&["ann"], false));
    let (users, .., told) = known(&mut channel);
    assert_eq!((&*users, &*told), ("ann cy", "-bob"));
    look(&mut channel, 11_000, found(&[], false));
    assert_eq!(known(&mut channel).0, "ann cy", "it is known by now, and there is a grace again");
    look(&mut channel, 2_000 + GRACE_MS, found(&["ann"], false));
    let (users, .., told) = known(&mut channel);
    assert_eq!((&*users, &*told), ("ann", "-cy"));
}

#[test]
fn a_crowd_is_one_while_others_do_not_answer() {
    let mut channel = Channel::default();
    let crowd = || Presence { connections: 500, is_cut: true, ..Presence::default() };
    look(&mut channel, 1_000, crowd());
    look(&mut channel, 2_000, found(&["ann"], true));
    look(&mut channel, 4_000, found(&["ann"], true));
    assert_eq!(
        (channel.users.is_none(), channel.connections, channel.is_partial),
        (true, 500, true)
    );
    look(&mut channel, 5_000, found(&["ann"], false));
    assert_eq!(known(&mut channel).0, "ann");
    // Who comes first is told at once.
    let mut channel = Channel::default();
    look(&mut channel, 1_000, found(&["ann"], true));
    assert_eq!(known(&mut channel), ("ann".into(), 1, true, String::new()));
}
