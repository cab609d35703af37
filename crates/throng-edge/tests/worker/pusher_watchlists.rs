//! Users of the Pusher protocol who are told whether others are online.

use throng_access::limit::{ClientLimits, LimitSettings};
use throng_core::{ChannelName, Rule};
use throng_edge::Settings;

use crate::pusher::{Peer, rig_with_rule, rig_with_watchlists};
use crate::rig::Rig;

/// Longer than a user stays online without a connection.
const GRACE_TICKS: u32 = 40;

fn rig() -> Rig {
    rig_with_watchlists(LimitSettings::default())
}

/// A client of a user who watches these others, and what it was told at first.
fn watcher(rig: &mut Rig, user: &str, watchlist: &[&str]) -> (Peer, Vec<String>) {
    let peer = Peer::new(rig);
    let user_data = serde_json::json!({ "id": user, "watchlist": watchlist });
    let frames = peer.sign_in_with(rig, &user_data.to_string());
    assert!(frames[0].contains("signin_success"), "{frames:?}");
    (peer, told(&frames))
}

/// What frames say of users.
fn told(frames: &[String]) -> Vec<String> {
    let frames = frames.iter().map(|it| serde_json::from_str::<serde_json::Value>(it).unwrap());
    let is_meant = |it: &serde_json::Value| it["event"] == "pusher_internal:watchlist_events";
    let mut told = Vec::new();
    for frame in frames.filter(is_meant) {
        assert!(frame.get("channel").is_none(), "{frame}");
        let data: serde_json::Value =
            serde_json::from_str(frame["data"].as_str().unwrap()).unwrap();
        for event in data["events"].as_array().unwrap() {
            let users = event["user_ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap());
            let users = users.collect::<Vec<_>>().join(" ");
            told.push(format!("{} {users}", event["name"].as_str().unwrap()));
        }
    }
    told
}

/// A client of a user, as stock clients sign in.
fn user(rig: &mut Rig, name: &str) -> Peer {
    let peer = Peer::new(rig);
    peer.sign_in(rig, name);
    let channel = format!("#server-to-user-{name}");
    assert!(peer.subscribe(rig, &channel, None)[0].contains("subscription_succeeded"));
    peer
}

fn tick(rig: &mut Rig) {
    rig.engine.tick(rig.now_ms());
    rig.work();
    rig.worker.check_invariants();
}

fn pass_grace(rig: &mut Rig) {
    rig.pass(GRACE_TICKS);
    tick(rig);
}

#[test]
fn a_client_is_told_who_is_online_and_what_changes() {
    let mut rig = rig();
    let bob = user(&mut rig, "bob");
    let (ann, first) = watcher(&mut rig, "ann", &["bob", "cat"]);
    assert_eq!(first, ["online bob"]);
    tick(&mut rig);
    assert_eq!(ann.heard(), [""; 0]);
    let cat = user(&mut rig, "cat");
    let _eve = user(&mut rig, "eve");
    tick(&mut rig);
    assert_eq!(told(&ann.heard()), ["online cat"]);
    rig.hang_up(&bob.client);
    tick(&mut rig);
    assert_eq!(ann.heard(), [""; 0], "the page may be loaded again");
    pass_grace(&mut rig);
    assert_eq!(told(&ann.heard()), ["offline bob"]);
    rig.hang_up(&cat.client);
    let _again = user(&mut rig, "cat");
    pass_grace(&mut rig);
    assert_eq!(ann.heard(), [""; 0]);
    let (_, first) = watcher(&mut rig, "dan", &["bob", "cat"]);
    assert_eq!(first, ["online cat"]);
}

#[test]
fn watchers_go_on_in_another_process() {
    let mut rig = rig();
    let (ann, _) = watcher(&mut rig, "ann", &["bob"]);
    rig.replace_process();
    let bob = user(&mut rig, "bob");
    tick(&mut rig);
    assert_eq!(told(&ann.heard()), ["online bob"]);
    rig.replace_process();
    rig.work();
    rig.hang_up(&bob.client);
    pass_grace(&mut rig);
    assert_eq!(told(&ann.heard()), ["offline bob"]);
}

#[test]
fn whom_nobody_watches_any_more_is_forgotten() {
    let mut rig = rig();
    let log = ChannelName::online("shop/bob");
    let (ann, _) = watcher(&mut rig, "ann", &["bob"]);
    tick(&mut rig);
    assert_eq!(rig.engine.audience(&log).subscribers, 1);
    rig.hang_up(&ann.client);
    (0..2).for_each(|_| tick(&mut rig));
    assert_eq!(rig.engine.audience(&log).subscribers, 0);
    let _bob = user(&mut rig, "bob");
    let (_, first) = watcher(&mut rig, "ann", &["bob"]);
    assert_eq!(first, ["online bob"], "it was no news to anybody");
}

#[test]
fn a_hundred_users_are_watched_and_more_are_left_out() {
    let mut rig = rig();
    let most = Settings::for_tests().max_channels_per_connection;
    let names: Vec<_> = (0..101).map(|nth| format!("u{nth:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let peer = Peer::new(&mut rig);
    let user_data = serde_json::json!({ "id": "ann", "watchlist": names });
    let frames = peer.sign_in_with(&mut rig, &user_data.to_string());
    assert!(frames[1].contains("\"code\":4302"), "{frames:?}");
    for (name, is_watched) in [(names[99], true), (names[100], false)] {
        let log = ChannelName::online(&format!("shop/{name}"));
        assert_eq!(rig.engine.audience(&log).subscribers, u64::from(is_watched), "{name}");
    }
    // They are no channels of the client.
    for nth in 0..most {
        let frames = peer.subscribe(&mut rig, &format!("c{nth}"), None);
        assert!(frames[0].contains("subscription_succeeded"), "{frames:?}");
    }
    let (_, first) = watcher(&mut rig, "bob", &["bob", "bob", "", "a\nb"]);
    assert_eq!(first, [""; 0]);
}

#[test]
fn a_watchlist_counts_as_subscriptions() {
    let user = ClientLimits { subscriptions: 2, ..ClientLimits::default() };
    let mut rig = rig_with_watchlists(LimitSettings { user, ..LimitSettings::default() });
    let peer = Peer::new(&mut rig);
    let frames = peer.sign_in_with(&mut rig, r#"{"id":"ann","watchlist":["a","b","c"]}"#);
    assert!(frames[0].contains("signin_success") && frames[1].contains("4302"), "{frames:?}");
    let (_, first) = watcher(&mut rig, "bob", &["a", "b"]);
    assert_eq!(first, [""; 0]);
}

#[test]
fn without_the_setting_nobody_is_watched() {
    let mut rig = rig_with_rule(Rule::default());
    let _bob = user(&mut rig, "bob");
    let (ann, first) = watcher(&mut rig, "ann", &["bob"]);
    assert_eq!(first, [""; 0]);
    tick(&mut rig);
    assert_eq!(ann.heard(), [""; 0]);
    assert_eq!(rig.engine.audience(&ChannelName::online("shop/bob")).subscribers, 0);
}
