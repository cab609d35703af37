//! Who is in a channel: what looking through it costs a worker, in slices of its work.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, channel};

use throng_core::{ChannelName, Engine as _, Presence};
use throng_edge::Settings;

use crate::rig::{Client, Rig};

/// Subscriptions that are looked at for one answer.
const LOOKS_PER_ANSWER: usize = 4096;

/// Those that one slice may look at.
const LOOKS_PER_SLICE: usize = 512;

fn ask(rig: &Rig, now_ms: u64, name: &str) -> Receiver<Presence> {
    let (answer, answered) = channel();
    let done = Box::new(move |presence| answer.send(presence).expect("somebody waits"));
    let asked = rig.engine.presence(now_ms, &ChannelName::channel(name), 1000, done);
    asked.expect("few ask");
    answered
}

fn crowd(rig: &mut Rig, followers: usize, users: usize) -> Vec<Client> {
    let follow = |nth| rig.get(&format!("/channels/a?user=u{:04}", nth % users));
    (0..followers).map(follow).collect()
}

/// The one at which the worker would go on leaves, and one that joins takes its number.
#[test]
fn an_answer_that_has_lost_its_place_does_not_pass_for_whole() {
    let place = LOOKS_PER_SLICE - LOOKS_PER_SLICE / 64;
    for nth in place - 4..place + 12 {
        let mut rig = Rig::new();
        let followers = crowd(&mut rig, 900, 900);
        rig.worker.work(false);
        let answered = ask(&rig, 1, "a");
        rig.worker.work(false);
        assert!(answered.try_recv().is_err(), "it takes more than one slice");
        rig.hang_up(&followers[nth]);
        rig.get("/channels/a?user=new");
        let (_, presence) = slices(&mut rig, &answered);
        let is_whole = presence.users.len() >= 899;
        assert_eq!(presence.is_cut, !is_whole, "{nth}: {} users", presence.users.len());
    }
}

/// Slices until the answer is there.
fn slices(rig: &mut Rig, answered: &Receiver<Presence>) -> (usize, Presence) {
    let mut slices = 0;
    loop {
        slices += 1;
        let has_more = rig.worker.work(false);
        if let Ok(presence) = answered.try_recv() {
            return (slices, presence);
        }
        assert!(has_more, "it does not sleep on a question");
    }
}

#[test]
fn all_users_are_found_a_slice_at_a_time() {
    let mut rig = Rig::new();
    crowd(&mut rig, 3000, 700);
    let answered = ask(&rig, 0, "a");
    let (slices, presence) = slices(&mut rig, &answered);
    assert!((3000 / LOOKS_PER_SLICE..=3000 / LOOKS_PER_SLICE + 1).contains(&slices), "{slices}");
    let expected: Vec<_> = (0..700).map(|user| format!("u{user:04}")).collect();
    let found: Vec<_> = presence.users.iter().map(|user| user.to_string()).collect();
    assert_eq!(found, expected);
    assert_eq!((presence.connections, presence.is_cut), (3000, false));
}

/// However many ask, and whether or not they name a user, a second's questions are one walk.
#[test]
fn many_questions_are_one_walk() {
    let mut rig = Rig::new();
    crowd(&mut rig, 6000, 1);
    let all: Vec<_> = (0..500).map(|_| ask(&rig, 0, "a")).collect();
    let (taken, presence) = slices(&mut rig, &all[0]);
    assert!(taken <= LOOKS_PER_ANSWER / LOOKS_PER_SLICE + 1, "{taken} slices");
    assert!(presence.is_cut, "it did not look at all of them");
    assert!(all[1..].iter().all(|answered| answered.try_recv().is_ok()));
    assert!(!rig.worker.work(false), "nothing is left to do");
    assert!(ask(&rig, 999, "a").try_recv().is_ok());
    assert!(rig.queue.is_empty(), "the worker is not asked again");
}

/// Between two slices anybody may come or go, also the one that the walk stands at.
#[test]
fn a_walk_goes_on_among_those_who_come_and_go() {
    let mut rig = Rig::new();
    crowd(&mut rig, 1000, 1000);
    let goers: Vec<_> = (0..200).map(|n| rig.get(&format!("/channels/a?user=x{n}"))).collect();
    crowd(&mut rig, 1000, 1000);
    let answered = ask(&rig, 0, "a");
    rig.worker.work(false);
    for goer in &goers {
        rig.hang_up(goer);
    }
    rig.get("/channels/a?user=late");
    let (_, presence) = slices(&mut rig, &answered);
    let found: BTreeSet<_> = presence.users.iter().map(|user| user.to_string()).collect();
    // At most a thousand are named, in order.
    assert!(found.contains("late") && found.contains("u0000") && found.contains("u0998"));
    assert!(presence.is_cut, "there are 1001");
}

#[test]
fn a_channel_that_nobody_follows_any_more_is_answered() {
    let mut rig = Rig::new();
    let follower = rig.get("/channels/a?user=ann");
    let answered = ask(&rig, 0, "a");
    rig.hang_up(&follower);
    let (_, presence) = slices(&mut rig, &answered);
    assert!(presence.users.is_empty());
}

/// One client alone does not keep all others from asking.
#[test]
fn a_connection_has_few_questions_open() {
    let mut rig = Rig::with(Settings { max_channels_per_connection: 4, ..Settings::for_tests() });
    rig.get("/channels/a?user=u");
    let client = rig.connect(
        "GET /subscribe HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: throng.v1\r\n\r\n",
    );
    let count = |client: &Client| {
        let received = client.received();
        let of = |kind| received.matches(&format!("\"type\":\"{kind}\"")).count();
        (of("presence"), of("error"))
    };
    assert_eq!(count(&client), (0, 0));
    rig.worker.work(false);
    for _ in 0..3 {
        for _ in 0..6 {
            rig.send_frame(&client, r#"{"type":"presence","channel":"a"}"#);
        }
        assert_eq!(count(&client), (0, 2));
        while rig.worker.work(false) || !rig.queue.is_empty() {}
        assert_eq!(count(&client), (4, 0));
    }
}
