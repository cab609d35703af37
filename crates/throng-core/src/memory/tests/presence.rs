//! Presence answers, and the number of notifications that queries cause.

use std::sync::mpsc::{Receiver, TryRecvError};

use super::*;
use crate::later::Later;
use crate::presence::{OPEN_MAX, Presence, PresenceBusy, PresenceQuery, SHARED_FOLLOWERS_MIN};

const WORKERS: usize = 2;

fn fixture() -> Fixture {
    Fixture::new(retention(0), WORKERS, usize::MAX)
}

fn name() -> ChannelName {
    ChannelName::channel("room")
}

fn follow(fixture: &Fixture, followers: usize) {
    for nth in 0..followers {
        fixture.follow(0, &name(), (nth % WORKERS) as u16, StartAt::Live);
    }
}

/// The receiver of one answer.
struct Asked(Receiver<Option<Presence>>);

impl Asked {
    fn try_recv(&self) -> Result<Presence, TryRecvError> {
        self.0.try_recv().map(|answer| answer.expect("no query is dropped"))
    }
}

fn ask(fixture: &Fixture, now_ms: u64, max_users: usize) -> Asked {
    Asked(crate::later::ask(|later| {
        let asked = fixture.engine.presence(now_ms, &name(), max_users, later);
        asked.expect("few queries are open")
    }))
}

/// The queries that have reached the workers.
fn queries(fixture: &Fixture) -> Vec<Arc<PresenceQuery>> {
    let mut notifications = Vec::new();
    for queue in &fixture.queues {
        queue.take(&mut notifications);
    }
    let query = |notification| match notification {
        Notification::Presence { query, .. } => Some(query),
        _ => None,
    };
    notifications.into_iter().filter_map(query).collect()
}

fn users(presence: &Presence) -> Vec<&str> {
    presence.users.iter().map(AsRef::as_ref).collect()
}

#[test]
fn each_worker_gets_a_query_and_the_client_one_answer() {
    let fixture = fixture();
    assert_eq!(ask(&fixture, 0, 5).try_recv(), Ok(Presence::default()), "the channel is empty");
    follow(&fixture, 3);
    for (max_users, expected, is_cut) in [(5, vec!["ann", "bo"], false), (1, vec!["ann"], true)] {
        let answered = ask(&fixture, 0, max_users);
        let queried = queries(&fixture);
        assert_eq!(queried.len(), WORKERS);
        for (query, found) in queried.into_iter().zip([vec!["bo"], vec!["ann", "bo"]]) {
            assert!(answered.try_recv().is_err(), "not all have answered");
            query.answer(found.into_iter().map(Arc::from), false);
        }
        let presence = answered.try_recv().expect("both have answered");
        assert_eq!((presence.connections, presence.is_cut), (3, is_cut));
        assert_eq!(users(&presence), expected);
    }
}

/// For any number of queries about a large channel, each worker scans once per lifetime.
#[test]
fn queries_about_a_large_channel_share_an_answer() {
    let fixture = fixture();
    follow(&fixture, 20 * SHARED_FOLLOWERS_MIN);
    let waiting: Vec<_> = (0..100).map(|nth| ask(&fixture, 1000, 1 + nth % 2)).collect();
    let queried = queries(&fixture);
    assert_eq!(queried.len(), WORKERS, "one query for a hundred");
    queried[0].answer([Arc::from("bo")], false);
    queried[1].answer([Arc::from("ann"), Arc::from("bo")], false);
    for (nth, answered) in waiting.into_iter().enumerate() {
        let presence = answered.try_recv().expect("all are answered together");
        assert_eq!(users(&presence), ["ann", "bo"][..1 + nth % 2]);
        assert_eq!(presence.is_cut, nth % 2 == 0);
    }
    // Followers are counted each time; their users are remembered.
    follow(&fixture, 1);
    let lifetime_ms = 20 * SHARED_FOLLOWERS_MIN as u64 / 4;
    for now_ms in [1000, 1000 + lifetime_ms - 1] {
        fixture.engine.tick(now_ms);
        let presence = ask(&fixture, now_ms, 5).try_recv().expect("it is remembered");
        assert_eq!(users(&presence), ["ann", "bo"]);
        assert_eq!(presence.connections, 20 * SHARED_FOLLOWERS_MIN + 1);
    }
    assert!(queries(&fixture).is_empty());
    for now_ms in [1000 + lifetime_ms, 5000] {
        fixture.engine.tick(now_ms);
        let answered = ask(&fixture, now_ms, 5);
        let queried = queries(&fixture);
        assert_eq!(queried.len(), WORKERS, "it is too old");
        queried.iter().for_each(|query| query.answer([], true));
        assert!(answered.try_recv().expect("it is new").is_cut);
    }
}

/// No answer is older than a second, for any number of followers.
#[test]
fn answers_expire_after_a_second() {
    let fixture = fixture();
    follow(&fixture, 10_000);
    drop(ask(&fixture, 0, 5));
    queries(&fixture).iter().for_each(|query| query.answer([], false));
    assert!(ask(&fixture, 999, 5).try_recv().is_ok());
    assert!(ask(&fixture, 1000, 5).try_recv().is_err());
}

/// A new follower is in the answer: a scan of few followers costs no more than the request.
#[test]
fn a_small_channel_is_scanned_for_each_query() {
    let fixture = fixture();
    follow(&fixture, SHARED_FOLLOWERS_MIN - 1);
    let waiting: Vec<_> = (0..3).map(|_| ask(&fixture, 0, 5)).collect();
    let queried = queries(&fixture);
    assert_eq!(queried.len(), 3 * WORKERS);
    queried.iter().for_each(|query| query.answer([], false));
    assert!(waiting.iter().all(|answered| answered.try_recv().is_ok()));
    drop(ask(&fixture, 0, 5));
    assert_eq!(queries(&fixture).len(), WORKERS);
}

/// Workers that do not answer keep a bounded number of queries, and publishers are not refused.
#[test]
fn open_queries_are_bounded_and_do_not_refuse_publishers() {
    for followers in [1, SHARED_FOLLOWERS_MIN] {
        let fixture = fixture();
        follow(&fixture, followers);
        let waiting: Vec<_> = (0..OPEN_MAX).map(|_| ask(&fixture, 0, 5)).collect();
        let mut issue = || panic!("it is refused");
        let refused = fixture.engine.presence(0, &name(), 5, Later::new(&mut issue));
        assert_eq!(refused, Err(PresenceBusy));
        assert!(fixture.queues.iter().all(|queue| queue.has_room()));
        fixture.publish(0, &name(), "still accepted");
        queries(&fixture).iter().for_each(|query| query.answer([], false));
        assert!(waiting.iter().all(|answered| answered.try_recv().is_ok()));
        drop(ask(&fixture, 5000, 5));
    }
}
