//! Notifications that are late: another channel has the ids of the one that they are about.
//!
//! Engine and worker reuse ids at once. So where both channels of a pair are in the same shard, the
//! second gets the ids of the first. Of many pairs some are.

use std::sync::Arc;
use std::sync::mpsc::channel;

use throng_access::{AccessControl, AllowAll};
use throng_core::{
    ChannelId, ChannelName, JournalId, Later, LocalId, Retention, Rule, Rules, Ticket, WantedTags,
};
use throng_edge::Settings;

use crate::kept::{self, change, update};
use crate::names::name;
use crate::presence::ask;
use crate::rig::{Client, Rig};

/// Pairs of channels. Of 64 one is in the same shard.
const PAIRS: usize = 1_000;

/// The ids of a channel in worker and engine.
fn ids(rig: &Rig, name: &ChannelName) -> Option<(LocalId, ChannelId)> {
    let audience = rig.engine.audience(name);
    audience.workers.first().map(|&(_, local, channel)| (local, channel))
}

/// The only client of the first channel leaves, and one comes that requests `target`, the second
/// channel. Returns it, and whether the second channel has got the ids of the first.
fn replace(
    rig: &mut Rig,
    first: &Client,
    [first_name, second_name]: [&ChannelName; 2],
    target: &str,
) -> (Client, bool) {
    let before = ids(rig, first_name);
    rig.hang_up(first);
    let second = rig.get(target);
    let has_ids = before.is_some() && ids(rig, second_name) == before;
    (second, has_ids)
}

/// The channels of a journal have offsets of their own, so these tell nothing.
#[test]
fn a_message_does_not_reach_the_other_channel() {
    let retention = Retention { max_messages: 0, max_bytes: 0, max_age_ms: 0 };
    let rule = Rule { journal: Some(JournalId(0)), retention, ..Rule::default() };
    let access = Arc::new(AccessControl::open(Arc::new(AllowAll)));
    let mut rig = Rig::with_rules(Settings::for_tests(), access, Rules::new(Vec::new(), rule));
    let mut reused = 0;
    for number in 0..PAIRS {
        let names = [format!("first-{number}"), format!("second-{number}")];
        let [first_name, second_name] = names.each_ref().map(|name| ChannelName::channel(name));
        let first = rig.get(&format!("/channels/{}", names[0]));
        // Without any, the late one has the very offset that comes next in the other channel.
        let delivered = number % 2 * 3;
        (0..delivered).for_each(|_| rig.publish(&names[0], "delivered", None));
        rig.work();
        assert_eq!(first.received().matches("delivered").count(), delivered);
        rig.publish(&names[0], "of the first", None);
        let target = format!("/channels/{}", names[1]);
        let pair = [&first_name, &second_name];
        let (second, has_ids) = replace(&mut rig, &first, pair, &target);
        reused += u32::from(has_ids);
        rig.work();
        rig.publish(&names[1], "of the second", None);
        rig.work();
        let received = second.received();
        assert!(!received.contains("of the first"), "{received}");
        assert!(received.contains("of the second"), "{received}");
        rig.hang_up(&second);
        rig.work();
    }
    assert!(reused > 0, "no second channel had the ids of the first");
}

#[test]
fn a_presence_query_finds_nobody_of_the_other_channel() {
    let mut rig = Rig::new();
    let mut reused = 0;
    for number in 0..PAIRS {
        let names = [format!("first-{number}"), format!("second-{number}")];
        let [first_name, second_name] = names.each_ref().map(|name| ChannelName::channel(name));
        let first = rig.get(&format!("/channels/{}", names[0]));
        let answered = ask(&rig, 1, &names[0]);
        let target = format!("/channels/{}?user=bo", names[1]);
        let pair = [&first_name, &second_name];
        let (second, has_ids) = replace(&mut rig, &first, pair, &target);
        reused += u32::from(has_ids);
        rig.work();
        let presence = answered.try_recv().expect("it was asked");
        assert!(presence.users.is_empty(), "{presence:?}");
        rig.hang_up(&second);
        rig.work();
    }
    assert!(reused > 0, "no second channel had the ids of the first");
}

#[test]
fn whoever_follows_the_other_channel_does_not_follow_the_first() {
    let mut rig = Rig::new();
    let asked_about = rig.v1();
    let connection = name(&asked_about.received());
    let mut reused = 0;
    for number in 0..PAIRS {
        let names = [format!("first-{number}"), format!("second-{number}")];
        let [first_name, second_name] = names.each_ref().map(|name| ChannelName::channel(name));
        let first = rig.get(&format!("/channels/{}", names[0]));
        let before = ids(&rig, &first_name);
        let (answer, answered) = channel();
        let mut issue = || {
            let answer = answer.clone();
            Ticket::new(move |follows| answer.send(follows).expect("the test waits"))
        };
        let asked = (connection, WantedTags::ALL);
        let answer_now = rig.engine.follows(&first_name, asked, Later::new(&mut issue)).now();
        assert_eq!(answer_now, None, "the worker is asked");
        rig.hang_up(&first);
        let frame = |kind| format!(r#"{{"type":"{kind}","channel":"{}"}}"#, names[1]);
        rig.send_frame(&asked_about, &frame("subscribe"));
        reused += u32::from(ids(&rig, &second_name) == before);
        rig.work();
        assert_eq!(answered.try_recv(), Ok(Some(false)));
        rig.send_frame(&asked_about, &frame("unsubscribe"));
        rig.work();
    }
    assert!(reused > 0, "no second channel had the ids of the first");
}

#[test]
fn a_change_of_kept_channels_does_not_reach_the_other_user() {
    let (mut rig, access) = kept::rig(Settings::for_tests());
    let mut reused = 0;
    for number in 0..PAIRS {
        let users = [format!("ann-{number}"), format!("bo-{number}")];
        let [ann, bo] = users.each_ref().map(|user| ChannelName::user(user));
        change(&rig, &access, &users[1], &update(&["of-bo"], &[]), || {});
        let first = rig.get(&format!("/users/{}", users[0]));
        change(&rig, &access, &users[0], &update(&["of-ann"], &[]), || {});
        let target = format!("/users/{}", users[1]);
        let pair = [&ann, &bo];
        let (second, has_ids) = replace(&mut rig, &first, pair, &target);
        reused += u32::from(has_ids);
        rig.work();
        rig.publish("of-ann", "to ann", None);
        rig.publish("of-bo", "to bo", None);
        rig.work();
        let received = second.received();
        assert!(!received.contains("to ann"), "{received}");
        assert!(received.contains("to bo"), "{received}");
        rig.hang_up(&second);
        rig.work();
    }
    assert!(reused > 0, "no second inbox had the ids of the first");
}

/// Between two slices of a change, connections that were told of it end, and the next one; and the
/// id of its subscription is given to one that joins, and is last.
#[test]
fn a_kept_change_reaches_every_connection_of_its_user() {
    let names: Vec<_> = (0..300).map(|number| format!("kept-{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    for slices in 0..40 {
        let (mut rig, access) = kept::rig(Settings::for_tests());
        change(&rig, &access, "ann", &update(&names, &[]), || {});
        let clients = [(); 3].map(|()| rig.get("/users/ann"));
        rig.work();
        change(&rig, &access, "ann", &update(&[], &names), || {});
        for _ in 0..slices {
            rig.worker.work(false);
        }
        rig.hang_up(&clients[0]);
        rig.hang_up(&clients[1]);
        let last = rig.get("/users/ann");
        rig.work();
        names.iter().for_each(|name| rig.publish(name, "withdrawn", None));
        rig.work();
        for client in [&clients[2], &last] {
            let received = client.received();
            assert!(received.starts_with("HTTP/1.1 200"), "{received}");
            assert!(!received.contains("withdrawn"), "after {slices} slices: {received}");
        }
    }
}
