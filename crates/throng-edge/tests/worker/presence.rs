//! Presence queries: a worker scans a channel's subscriptions in slices.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, channel};

use throng_core::{ChannelName, Later, Presence, Ticket};

use crate::rig::{Client, Rig};

/// Subscriptions that one scan examines.
const EXAMINED_MAX: usize = 4096;

/// Subscriptions that one slice examines.
const EXAMINED_PER_SLICE: usize = 512;

pub(crate) fn ask(rig: &Rig, now_ms: u64, name: &str) -> Receiver<Presence> {
    let (answer, answered) = channel();
    let mut issue = || {
        let answer = answer.clone();
        Ticket::new(move |presence: Option<Presence>| {
            answer.send(presence.expect("no query is dropped")).expect("the test waits");
        })
    };
    let (later, name) = (Later::new(&mut issue), ChannelName::channel(name));
    let asked = rig.engine.presence(now_ms, &name, 1000, later).expect("few ask");
    if let Some(presence) = asked.now() {
        answer.send(presence).expect("the test waits");
    }
    answered
}

fn crowd(rig: &mut Rig, followers: usize, users: usize) -> Vec<Client> {
    let follow = |number| rig.get(&format!("/channels/a?user=u{:04}", number % users));
    (0..followers).map(follow).collect()
}

/// The subscription that the scan would go on with ends, and a new one takes its id.
#[test]
fn a_scan_whose_next_subscription_was_replaced_is_not_complete() {
    let place = EXAMINED_PER_SLICE - EXAMINED_PER_SLICE / 64;
    for left in place - 4..place + 12 {
        let mut rig = Rig::new();
        let followers = crowd(&mut rig, 900, 900);
        rig.worker.work(false);
        let answered = ask(&rig, 1, "a");
        rig.worker.work(false);
        assert!(answered.try_recv().is_err(), "it takes more than one slice");
        rig.hang_up(&followers[left]);
        rig.get("/channels/a?user=new");
        let (_, presence) = slices(&mut rig, &answered);
        let is_whole = presence.users.len() >= 899;
        assert_eq!(presence.is_cut, !is_whole, "{left}: {} users", presence.users.len());
    }
}

/// The next subscription is replaced after many visited ones have ended. Now the channel has no
/// more subscriptions than were visited, and yet some were not.
#[test]
fn a_scan_does_not_count_those_who_have_left() {
    let place = EXAMINED_PER_SLICE - EXAMINED_PER_SLICE / 64;
    for next in place - 4..place + 12 {
        let mut rig = Rig::new();
        let followers = crowd(&mut rig, 600, 600);
        rig.worker.work(false);
        let answered = ask(&rig, 1, "a");
        rig.worker.work(false);
        assert!(answered.try_recv().is_err(), "it takes more than one slice");
        (0..150).for_each(|left| rig.hang_up(&followers[left]));
        rig.hang_up(&followers[next]);
        rig.get("/channels/a?user=new");
        let (_, presence) = slices(&mut rig, &answered);
        let last = presence.users.iter().any(|user| **user == *"u0599");
        assert!(last, "{next}: {} users", presence.users.len());
    }
}

/// Runs slices until the query is answered. Returns their number and the answer.
fn slices(rig: &mut Rig, answered: &Receiver<Presence>) -> (usize, Presence) {
    let mut slices = 0;
    loop {
        slices += 1;
        let has_more = rig.worker.work(false);
        if let Ok(presence) = answered.try_recv() {
            return (slices, presence);
        }
        assert!(has_more, "it does not sleep on a query");
    }
}

#[test]
fn all_users_are_found_a_slice_at_a_time() {
    let mut rig = Rig::new();
    crowd(&mut rig, 3000, 700);
    let answered = ask(&rig, 0, "a");
    let (slices, presence) = slices(&mut rig, &answered);
    assert!(
        (3000 / EXAMINED_PER_SLICE..=3000 / EXAMINED_PER_SLICE + 1).contains(&slices),
        "{slices}"
    );
    let expected: Vec<_> = (0..700).map(|user| format!("u{user:04}")).collect();
    let found: Vec<_> = presence.users.iter().map(|user| user.to_string()).collect();
    assert_eq!(found, expected);
    assert_eq!((presence.connections, presence.is_cut), (3000, false));
}

/// All queries about a channel within a second share one scan.
#[test]
fn many_queries_share_one_scan() {
    let mut rig = Rig::new();
    crowd(&mut rig, 6000, 1);
    let all: Vec<_> = (0..500).map(|_| ask(&rig, 0, "a")).collect();
    let (taken, presence) = slices(&mut rig, &all[0]);
    assert!(taken <= EXAMINED_MAX / EXAMINED_PER_SLICE + 1, "{taken} slices");
    assert!(presence.is_cut, "it has not examined all of them");
    assert!(all[1..].iter().all(|answered| answered.try_recv().is_ok()));
    assert!(!rig.worker.work(false), "nothing is left to do");
    assert!(ask(&rig, 999, "a").try_recv().is_ok());
    assert!(rig.queue.is_empty(), "the worker is not asked again");
}

/// Between two slices any subscriber may come or go, also the one that the scan goes on with.
#[test]
fn a_scan_survives_subscribers_that_come_and_go() {
    let mut rig = Rig::new();
    crowd(&mut rig, 1000, 1000);
    let leaving: Vec<_> = (0..200).map(|n| rig.get(&format!("/channels/a?user=x{n}"))).collect();
    crowd(&mut rig, 1000, 1000);
    let answered = ask(&rig, 0, "a");
    rig.worker.work(false);
    for follower in &leaving {
        rig.hang_up(follower);
    }
    rig.get("/channels/a?user=late");
    let (_, presence) = slices(&mut rig, &answered);
    let found: BTreeSet<_> = presence.users.iter().map(|user| user.to_string()).collect();
    // At most a thousand are named, in order.
    assert!(found.contains("late") && found.contains("u0000") && found.contains("u0998"));
    assert!(presence.is_cut, "there are 1001");
}

#[test]
fn a_query_about_a_channel_without_followers_is_answered() {
    let mut rig = Rig::new();
    let follower = rig.get("/channels/a?user=ann");
    let answered = ask(&rig, 0, "a");
    rig.hang_up(&follower);
    let (_, presence) = slices(&mut rig, &answered);
    assert!(presence.users.is_empty());
}

/// The queries of one client do not delay the queries of others: it has one at a time.
#[test]
fn a_connection_has_one_open_query() {
    let mut rig = Rig::new();
    rig.get("/channels/a?user=u");
    let client = rig.v1();
    rig.worker.work(false);
    client.received();
    for _ in 0..3 {
        rig.send_frame(&client, r#"{"type":"presence","channel":"a"}"#);
    }
    rig.send_frame(&client, r#"{"type":"ping"}"#);
    let mut answers = String::new();
    while rig.worker.work(false) || !rig.queue.is_empty() {
        let received = client.received();
        assert!(received.matches("presence").count() <= 1, "one after the other");
        answers += &received;
    }
    answers += &client.received();
    assert_eq!(answers.matches("presence").count(), 3);
    assert!(answers.ends_with(r#"{"type":"pong"}"#), "{answers}");
}
