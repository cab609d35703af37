//! Who is in a channel, and what asking costs: counted in notifications to workers.

use std::sync::mpsc::{Receiver, channel};

use super::*;
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

fn ask(fixture: &Fixture, now_ms: u64, users_max: usize) -> Receiver<Presence> {
    let (answer, answered) = channel();
    // A test that does not look drops its end.
    let done = Box::new(move |presence| drop(answer.send(presence)));
    fixture.engine.presence(now_ms, &name(), users_max, done).expect("few ask");
    answered
}

/// The questions that have reached the workers.
fn queries(fixture: &Fixture) -> Vec<Arc<PresenceQuery>> {
    let mut notifications = Vec::new();
    fixture.queues.iter().for_each(|queue| queue.take(&mut notifications));
    let query = |piece| match piece {
        Notification::Presence { query, .. } => Some(query),
        _ => None,
    };
    notifications.into_iter().filter_map(query).collect()
}

fn users(presence: &Presence) -> Vec<&str> {
    presence.users.iter().map(AsRef::as_ref).collect()
}

#[test]
fn every_worker_is_asked_and_the_answer_comes_once() {
    let fixture = fixture();
    assert_eq!(ask(&fixture, 0, 5).try_recv(), Ok(Presence::default()), "nobody is there");
    follow(&fixture, 3);
    for (users_max, expected, is_cut) in [(5, vec!["ann", "bo"], false), (1, vec!["ann"], true)] {
        let answered = ask(&fixture, 0, users_max);
        let asked = queries(&fixture);
        assert_eq!(asked.len(), WORKERS);
        for (query, found) in asked.into_iter().zip([vec!["bo"], vec!["ann", "bo"]]) {
            assert!(answered.try_recv().is_err(), "not all have answered");
            query.answer(found.into_iter().map(Arc::from), false);
        }
        let presence = answered.try_recv().expect("both have answered");
        assert_eq!((presence.connections, presence.is_cut), (3, is_cut));
        assert_eq!(users(&presence), expected);
    }
}

/// However many ask about a large channel, each worker is asked once in a while.
#[test]
fn questions_about_a_large_channel_share_an_answer() {
    let fixture = fixture();
    follow(&fixture, 20 * SHARED_FOLLOWERS_MIN);
    let waiting: Vec<_> = (0..100).map(|nth| ask(&fixture, 1000, 1 + nth % 2)).collect();
    let asked = queries(&fixture);
    assert_eq!(asked.len(), WORKERS, "one query for a hundred");
    asked[0].answer([Arc::from("bo")], false);
    asked[1].answer([Arc::from("ann"), Arc::from("bo")], false);
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
        let asked = queries(&fixture);
        assert_eq!(asked.len(), WORKERS, "it is too old");
        asked.iter().for_each(|query| query.answer([], true));
        assert!(answered.try_recv().expect("it is new").is_cut);
    }
}

/// No answer is older than a second, however many follow.
#[test]
fn no_answer_is_old() {
    let fixture = fixture();
    follow(&fixture, 10_000);
    drop(ask(&fixture, 0, 5));
    queries(&fixture).iter().for_each(|query| query.answer([], false));
    assert!(ask(&fixture, 999, 5).try_recv().is_ok());
    assert!(ask(&fixture, 1000, 5).try_recv().is_err());
}

/// Whoever has just come is there: with few followers it costs no more than the request.
#[test]
fn a_small_channel_is_asked_each_time() {
    let fixture = fixture();
    follow(&fixture, SHARED_FOLLOWERS_MIN - 1);
    let waiting: Vec<_> = (0..3).map(|_| ask(&fixture, 0, 5)).collect();
    let asked = queries(&fixture);
    assert_eq!(asked.len(), 3 * WORKERS);
    asked.iter().for_each(|query| query.answer([], false));
    assert!(waiting.iter().all(|answered| answered.try_recv().is_ok()));
    drop(ask(&fixture, 0, 5));
    assert_eq!(queries(&fixture).len(), WORKERS);
}

/// Workers that do not answer keep a bounded number of questions, and publishers are not refused.
#[test]
fn open_questions_are_bounded_and_no_publishers_load() {
    for followers in [1, SHARED_FOLLOWERS_MIN] {
        let fixture = fixture();
        follow(&fixture, followers);
        let waiting: Vec<_> = (0..OPEN_MAX).map(|_| ask(&fixture, 0, 5)).collect();
        let refused = fixture.engine.presence(0, &name(), 5, Box::new(|_| panic!("refused")));
        assert_eq!(refused, Err(PresenceBusy));
        assert!(fixture.queues.iter().all(|queue| queue.has_room()));
        fixture.publish(0, &name(), "still accepted");
        queries(&fixture).iter().for_each(|query| query.answer([], false));
        assert!(waiting.iter().all(|answered| answered.try_recv().is_ok()));
        drop(ask(&fixture, 5000, 5));
    }
}
