//! Users of the Pusher protocol go on after their connections have died.

use throng_access::limit::{ClientLimits, LimitSettings};
use throng_core::{MembersRule, ResumeRule, Retention, Rule};

use crate::pusher::{Peer, rig_with_limits, rig_with_rule};
use crate::rig::Rig;

const PING: &str = r#"{"event":"pusher:ping","data":"{}"}"#;
const PONG: &str = r#"{"event":"pusher:pong","data":{}}"#;
const ANN: Option<&str> = Some(r#"{"user_id":"ann"}"#);

/// Ticks until a client is asked, and until nothing is kept any more.
const ASKED: u32 = 10;
const FORGOTTEN: u32 = 301;

fn rule(is_at_least_once: bool) -> Rule {
    let resume = Some(ResumeRule { is_at_least_once, for_ms: 30_000 });
    Rule { resume, ..Rule::default() }
}

/// A worker where nothing is lost.
fn rig() -> Rig {
    rig_with_rule(rule(true))
}

/// The texts of the messages among frames.
fn texts(frames: &[String]) -> Vec<String> {
    let read = |frame: &String| serde_json::from_str::<serde_json::Value>(frame).ok();
    let frames = frames.iter().filter_map(read);
    let messages = frames.filter(|frame| frame["event"] == "message");
    messages.map(|frame| frame["data"].as_str().unwrap_or_default().to_owned()).collect()
}

fn publish(rig: &mut Rig, channel: &str, texts: &[&str]) {
    for text in texts {
        rig.publish(&format!("shop/{channel}"), text, None);
    }
    rig.work();
}

/// A new client of ann, signed in.
fn ann(rig: &mut Rig) -> Peer {
    let peer = Peer::new(rig);
    peer.sign_in(rig, "ann");
    peer
}

/// What a new client of ann gets in a private channel.
fn of_next(rig: &mut Rig) -> Vec<String> {
    texts(&ann(rig).subscribe(rig, "private-a", None))
}

#[test]
fn what_was_missed_comes_first_and_once() {
    for is_at_least_once in [true, false] {
        let mut rig = rig_with_rule(rule(is_at_least_once));
        let first = ann(&mut rig);
        first.subscribe(&mut rig, "private-a", None);
        rig.hang_up(&first.client);
        publish(&mut rig, "private-a", &["1", "2"]);
        let next = ann(&mut rig);
        let frames = next.subscribe(&mut rig, "private-a", None);
        assert!(frames[0].contains("subscription_succeeded"), "{frames:?}");
        assert!(frames[0].contains(r#"\"recovered\":true"#), "{frames:?}");
        assert_eq!(texts(&frames), ["1", "2"]);
        publish(&mut rig, "private-a", &["3"]);
        assert_eq!(texts(&next.heard()), ["3"]);
        assert_eq!(of_next(&mut rig), [""; 0], "it is taken");
        let metrics = rig.engine.bookmark_metrics();
        assert_eq!((metrics.left, metrics.taken, metrics.bookmarks), (1, 1, 0));
    }
}

#[test]
fn an_erased_user_begins_anew() {
    let mut rig = rig();
    let first = ann(&mut rig);
    first.subscribe(&mut rig, "private-a", None);
    rig.hang_up(&first.client);
    publish(&mut rig, "private-a", &["1"]);
    rig.engine.part_with_user(rig.now_ms(), "shop/ann", 0);
    assert_eq!(rig.engine.bookmark_metrics().bookmarks, 0);
    assert_eq!(of_next(&mut rig), [""; 0]);
}

#[test]
fn what_nobody_has_confirmed_comes_again_where_nothing_may_be_lost() {
    for (is_at_least_once, missed) in [(true, &["2", "3"][..]), (false, &["3"][..])] {
        let mut rig = rig_with_rule(rule(is_at_least_once));
        let first = ann(&mut rig);
        first.subscribe(&mut rig, "private-a", None);
        publish(&mut rig, "private-a", &["1"]);
        rig.pass(ASKED);
        let frames = first.heard();
        assert_eq!(frames.contains(&PING.to_owned()), is_at_least_once, "{frames:?}");
        first.say(&mut rig, PONG);
        publish(&mut rig, "private-a", &["2"]);
        rig.hang_up(&first.client);
        publish(&mut rig, "private-a", &["3"]);
        assert_eq!(of_next(&mut rig), missed);
    }
}

#[test]
fn an_answer_confirms_only_what_was_written_before_the_question() {
    let mut rig = rig();
    let first = ann(&mut rig);
    first.subscribe(&mut rig, "private-a", None);
    publish(&mut rig, "private-a", &["1"]);
    rig.pass(ASKED);
    publish(&mut rig, "private-a", &["2"]);
    first.say(&mut rig, PONG);
    rig.hang_up(&first.client);
    assert_eq!(of_next(&mut rig), ["2"]);
}

#[test]
fn a_client_owes_one_answer_and_unasked_ones_mean_nothing() {
    let mut rig = rig();
    let first = ann(&mut rig);
    first.subscribe(&mut rig, "private-a", None);
    let count = |frames: Vec<String>| frames.iter().filter(|frame| *frame == PING).count();
    publish(&mut rig, "private-a", &["1"]);
    for _ in 0..1_000 {
        first.say(&mut rig, PONG);
    }
    let mut asked = 0;
    for text in ["2", "3", "4"] {
        publish(&mut rig, "private-a", &[text]);
        rig.pass(ASKED);
        asked += count(first.heard());
    }
    assert_eq!(asked, 1);
    first.say(&mut rig, PONG);
    rig.pass(ASKED);
    assert_eq!(count(first.heard()), 1, "the rest is asked for");
    first.say(&mut rig, PONG);
    rig.pass(10 * ASKED);
    assert_eq!(count(first.heard()), 0, "nothing is left to confirm");
    rig.hang_up(&first.client);
    assert_eq!(of_next(&mut rig), [""; 0]);
}

#[test]
fn a_client_that_never_answers_gets_all_of_it_again() {
    let mut rig = rig();
    let first = ann(&mut rig);
    first.subscribe(&mut rig, "private-a", None);
    publish(&mut rig, "private-a", &["1", "2"]);
    (0..5).for_each(|_| rig.pass(ASKED));
    rig.hang_up(&first.client);
    assert_eq!(of_next(&mut rig), ["1", "2"]);
}

#[test]
fn clients_without_the_rule_are_asked_nothing() {
    let mut rig = rig_with_rule(Rule::default());
    let first = ann(&mut rig);
    first.subscribe(&mut rig, "private-a", None);
    publish(&mut rig, "private-a", &["1"]);
    rig.pass(ASKED);
    assert_eq!(first.heard().len(), 1);
    rig.hang_up(&first.client);
    publish(&mut rig, "private-a", &["2"]);
    assert_eq!(of_next(&mut rig), [""; 0]);
    assert_eq!(rig.engine.bookmark_metrics().left, 0);
}

#[test]
fn the_member_of_a_presence_channel_goes_on() {
    let mut rig = rig_with_rule(Rule {
        members: Some(MembersRule { are_connections: false, grace_ms: 0 }),
        ..rule(true)
    });
    let first = Peer::new(&mut rig);
    first.subscribe(&mut rig, "presence-r", ANN);
    rig.hang_up(&first.client);
    publish(&mut rig, "presence-r", &["1"]);
    let bob = Peer::new(&mut rig);
    let frames = bob.subscribe(&mut rig, "presence-r", Some(r#"{"user_id":"bob"}"#));
    assert_eq!(texts(&frames), [""; 0], "another user");
    let next = Peer::new(&mut rig);
    assert_eq!(texts(&next.subscribe(&mut rig, "presence-r", ANN)), ["1"]);
}

#[test]
fn only_the_same_user_goes_on_and_only_in_the_same_channel() {
    let mut rig = rig();
    let first = ann(&mut rig);
    first.subscribe(&mut rig, "private-a", None);
    rig.hang_up(&first.client);
    publish(&mut rig, "private-a", &["1"]);
    publish(&mut rig, "private-b", &["2"]);
    let bob = Peer::new(&mut rig);
    bob.sign_in(&mut rig, "bob");
    assert_eq!(texts(&bob.subscribe(&mut rig, "private-a", None)), [""; 0]);
    let next = ann(&mut rig);
    let other = next.subscribe(&mut rig, "private-b", None);
    assert_eq!((texts(&other).len(), other[0].contains("recovered")), (0, false));
    let thief = Peer::new(&mut rig);
    let forged = r#"{"event":"pusher:signin","data":{"auth":"app-key:00","user_data":
        "{\"id\":\"ann\"}"}}"#;
    assert!(thief.say(&mut rig, forged)[0].contains("4009"));
    thief.subscribe(&mut rig, "private-a", None);
    rig.pass(60);
    assert_eq!(texts(&thief.heard()), [""; 0]);
    assert_eq!(texts(&next.subscribe(&mut rig, "private-a", None)), ["1"]);
}

#[test]
fn ends_that_are_meant_leave_nothing() {
    let mut rig = rig();
    let unsubscribe = r#"{"event":"pusher:unsubscribe","data":{"channel":"private-a"}}"#;
    let left = ann(&mut rig);
    left.subscribe(&mut rig, "private-a", None);
    left.say(&mut rig, unsubscribe);
    rig.hang_up(&left.client);
    let closed = ann(&mut rig);
    closed.subscribe(&mut rig, "private-a", None);
    rig.send(&closed.client, &[0x88, 0x80, 0, 0, 0, 0]);
    rig.work();
    assert!(closed.client.is_finished() || closed.client.is_closed());
    publish(&mut rig, "private-a", &["1"]);
    assert_eq!(of_next(&mut rig), [""; 0]);
    assert_eq!(rig.engine.bookmark_metrics().left, 0);
}

#[test]
fn each_of_two_pages_that_die_goes_on_and_one_that_lives_gets_nothing_again() {
    for (is_at_least_once, again) in [(true, &["1", "2", "3"][..]), (false, &["3"][..])] {
        let mut rig = rig_with_rule(rule(is_at_least_once));
        let alive = ann(&mut rig);
        let first = ann(&mut rig);
        alive.subscribe(&mut rig, "private-a", None);
        first.subscribe(&mut rig, "private-a", None);
        publish(&mut rig, "private-a", &["1"]);
        rig.hang_up(&first.client);
        let second = ann(&mut rig);
        // A page of its own, as far as anybody knows.
        second.subscribe(&mut rig, "private-b", None);
        let third = ann(&mut rig);
        third.subscribe(&mut rig, "private-b", None);
        publish(&mut rig, "private-a", &["2"]);
        let fourth = ann(&mut rig);
        fourth.subscribe(&mut rig, "private-a", None);
        rig.hang_up(&fourth.client);
        publish(&mut rig, "private-a", &["3"]);
        let got = texts(&second.subscribe(&mut rig, "private-a", None));
        assert_eq!(got, again, "{is_at_least_once}");
        assert_eq!(texts(&alive.heard()), ["1", "2", "3"]);
        assert_eq!(texts(&third.subscribe(&mut rig, "private-a", None)), [""; 0]);
    }
}

#[test]
fn pages_that_die_together_all_go_on_from_the_place_of_the_slowest() {
    for (is_at_least_once, got) in [(true, &["1", "2", "3"][..]), (false, &["3"][..])] {
        let mut rig = rig_with_rule(rule(is_at_least_once));
        let slow = ann(&mut rig);
        slow.subscribe(&mut rig, "private-a", None);
        publish(&mut rig, "private-a", &["1", "2"]);
        let fast = ann(&mut rig);
        fast.subscribe(&mut rig, "private-a", None);
        rig.hang_up(&fast.client);
        rig.hang_up(&slow.client);
        publish(&mut rig, "private-a", &["3"]);
        for _ in 0..2 {
            assert_eq!(of_next(&mut rig), got, "{is_at_least_once}");
        }
        assert_eq!(of_next(&mut rig), [""; 0]);
    }
}

#[test]
fn who_comes_too_late_begins_anew() {
    let mut rig = rig();
    let first = ann(&mut rig);
    first.subscribe(&mut rig, "private-a", None);
    rig.hang_up(&first.client);
    publish(&mut rig, "private-a", &["1"]);
    rig.pass(FORGOTTEN);
    assert_eq!(of_next(&mut rig), [""; 0]);
    rig.engine.tick(rig.now_ms());
    let metrics = rig.engine.bookmark_metrics();
    assert_eq!((metrics.bookmarks, metrics.expired), (0, 1));
}

#[test]
fn a_client_that_asks_for_messages_itself_gets_those() {
    let mut rig = rig();
    let first = ann(&mut rig);
    first.subscribe(&mut rig, "news", None);
    publish(&mut rig, "news", &["1", "2", "3"]);
    rig.hang_up(&first.client);
    for (channel, begin, expected) in [
        ("news", r#""history":2"#, &["2", "3"][..]),
        ("news", r#""history":1"#, &["3"]),
        ("news", r#""since":"x-1""#, &["1", "2", "3"]),
        ("cache-c", r#""history":1"#, &["3"]),
    ] {
        if channel == "cache-c" {
            let first = ann(&mut rig);
            first.subscribe(&mut rig, channel, None);
            rig.hang_up(&first.client);
            publish(&mut rig, channel, &["1", "2", "3"]);
        }
        let text =
            format!(r#"{{"event":"pusher:subscribe","data":{{"channel":"{channel}",{begin}}}}}"#);
        // A page of its own, which may also sign in later.
        let [signed_in, later] = [ann(&mut rig), Peer::new(&mut rig)];
        assert_eq!(texts(&signed_in.say(&mut rig, &text)), expected, "{text}");
        assert_eq!(texts(&later.say(&mut rig, &text)), expected, "{text}");
        assert_eq!(texts(&later.sign_in(&mut rig, "ann")), [""; 0], "{text}");
    }
    let metrics = rig.engine.bookmark_metrics();
    assert_eq!((metrics.bookmarks, metrics.taken), (2, 0));
    // The page that has died comes back.
    let back = ann(&mut rig);
    assert_eq!(texts(&back.subscribe(&mut rig, "news", None)), ["1", "2", "3"]);
    assert_eq!(rig.engine.bookmark_metrics().taken, 1);
}

#[test]
fn what_the_log_has_no_longer_is_told_and_counted() {
    let retention = Retention { max_messages: 1, max_bytes: 1 << 20, max_age_ms: 60_000 };
    let mut rig = rig_with_rule(Rule { retention, ..rule(true) });
    let first = ann(&mut rig);
    first.subscribe(&mut rig, "private-a", None);
    rig.hang_up(&first.client);
    publish(&mut rig, "private-a", &["1", "2"]);
    let frames = ann(&mut rig).subscribe(&mut rig, "private-a", None);
    assert!(frames[0].contains(r#"\"recovered\":false"#), "{frames:?}");
    assert_eq!(texts(&frames), ["2"]);
}

#[test]
fn a_cache_channel_still_begins_with_its_newest_event() {
    let mut rig = rig();
    let first = ann(&mut rig);
    let text = r#"{"event":"pusher:subscribe","data":{"channel":"cache-c"}}"#;
    assert!(first.say(&mut rig, text)[1].contains("cache_miss"));
    rig.hang_up(&first.client);
    let second = ann(&mut rig);
    assert!(second.say(&mut rig, text)[1].contains("cache_miss"));
    publish(&mut rig, "cache-c", &["1"]);
    rig.pass(ASKED);
    second.say(&mut rig, PONG);
    rig.hang_up(&second.client);
    let third = ann(&mut rig);
    assert_eq!(texts(&third.say(&mut rig, text)), ["1"]);
    rig.pass(ASKED);
    third.say(&mut rig, PONG);
    rig.hang_up(&third.client);
    publish(&mut rig, "cache-c", &["2", "3"]);
    assert_eq!(texts(&ann(&mut rig).say(&mut rig, text)), ["1", "2", "3"]);
}

#[test]
fn who_signs_in_behind_a_subscription_goes_on_there() {
    for channel in ["news", "private-a"] {
        let mut rig = rig();
        let first = Peer::new(&mut rig);
        first.subscribe(&mut rig, channel, None);
        first.sign_in(&mut rig, "ann");
        rig.hang_up(&first.client);
        publish(&mut rig, channel, &["1", "2"]);
        let next = Peer::new(&mut rig);
        assert_eq!(next.subscribe(&mut rig, channel, None).len(), 1);
        publish(&mut rig, channel, &["3"]);
        assert_eq!(next.heard(), [""; 0], "its user is awaited");
        assert_eq!(texts(&next.sign_in(&mut rig, "ann")), ["1", "2", "3"]);
        publish(&mut rig, channel, &["4"]);
        assert_eq!(texts(&next.heard()), ["4"]);
        rig.hang_up(&next.client);
        let last = Peer::new(&mut rig);
        last.subscribe(&mut rig, channel, None);
        assert_eq!(texts(&last.sign_in(&mut rig, "ann")), ["1", "2", "3", "4"]);
        rig.worker.check_invariants();
    }
}

#[test]
fn a_volatile_message_brings_nothing_before_its_user_is_known() {
    let mut rig = rig();
    let first = ann(&mut rig);
    first.subscribe(&mut rig, "private-a", None);
    rig.hang_up(&first.client);
    publish(&mut rig, "private-a", &["1"]);
    let next = Peer::new(&mut rig);
    next.subscribe(&mut rig, "private-a", None);
    let volatile = |rig: &mut Rig| {
        rig.publish_volatile("shop/private-a", "typing");
        rig.work();
    };
    volatile(&mut rig);
    assert_eq!(texts(&next.heard()), ["typing"], "it lacks nothing");
    publish(&mut rig, "private-a", &["2"]);
    volatile(&mut rig);
    assert_eq!(next.heard(), [""; 0]);
    assert_eq!(texts(&next.sign_in(&mut rig, "ann")), ["1", "2"]);
}

#[test]
fn a_user_is_not_awaited_for_long_and_only_where_somebody_goes_on() {
    let mut rig = rig();
    let first = ann(&mut rig);
    first.subscribe(&mut rig, "news", None);
    rig.hang_up(&first.client);
    let stranger = Peer::new(&mut rig);
    stranger.subscribe(&mut rig, "news", None);
    stranger.subscribe(&mut rig, "other", None);
    publish(&mut rig, "news", &["1"]);
    publish(&mut rig, "other", &["2"]);
    assert_eq!(texts(&stranger.heard()), ["2"]);
    rig.pass(51);
    assert_eq!(texts(&stranger.heard()), ["1"]);
    stranger.sign_in(&mut rig, "ann");
    assert_eq!(texts(&stranger.heard()), [""; 0], "it has begun");
    assert_eq!(texts(&ann(&mut rig).subscribe(&mut rig, "news", None)), ["1"]);
}

#[test]
fn a_user_is_awaited_until_half_of_the_lag_limit() {
    for (max_lag_messages, max_lag_bytes) in [(10, 1 << 20), (1_000, 10_000)] {
        let mut rig = rig_with_rule(Rule { max_lag_messages, max_lag_bytes, ..rule(true) });
        let first = ann(&mut rig);
        first.subscribe(&mut rig, "news", None);
        rig.hang_up(&first.client);
        let strangers = [Peer::new(&mut rig), Peer::new(&mut rig)];
        for stranger in &strangers {
            stranger.subscribe(&mut rig, "news", None);
        }
        let text = "x".repeat(900);
        publish(&mut rig, "news", &[&*text; 4]);
        assert_eq!(strangers[0].heard(), [""; 0]);
        rig.replace_process();
        rig.work();
        publish(&mut rig, "news", &[&*text; 30]);
        for stranger in strangers {
            assert_eq!(texts(&stranger.heard()).len(), 34);
            stranger.sign_in(&mut rig, "ann");
            assert_eq!(texts(&stranger.heard()), [""; 0], "it has begun");
        }
        assert_eq!(rig.engine.bookmark_metrics().bookmarks, 1);
    }
}

#[test]
fn a_place_stays_if_the_user_may_not_have_one_more_subscription() {
    let user = ClientLimits { subscriptions: 1, ..ClientLimits::default() };
    let limits = LimitSettings { user, ..LimitSettings::default() };
    let mut rig = rig_with_limits(rule(true), limits);
    let first = ann(&mut rig);
    first.subscribe(&mut rig, "news", None);
    rig.hang_up(&first.client);
    publish(&mut rig, "news", &["1"]);
    let next = Peer::new(&mut rig);
    next.subscribe(&mut rig, "news", None);
    publish(&mut rig, "news", &["2"]);
    assert_eq!(texts(&next.sign_in(&mut rig, "ann")), ["2"]);
    let unsubscribe = r#"{"event":"pusher:unsubscribe","data":{"channel":"news"}}"#;
    next.say(&mut rig, unsubscribe);
    assert_eq!(texts(&next.subscribe(&mut rig, "news", None)), ["1", "2"]);
    let metrics = rig.engine.bookmark_metrics();
    assert_eq!((metrics.left, metrics.taken), (1, 1));
}

#[test]
fn another_process_knows_what_is_confirmed_and_who_is_awaited() {
    let mut rig = rig();
    let (asked, awaited) = (ann(&mut rig), Peer::new(&mut rig));
    asked.subscribe(&mut rig, "private-a", None);
    publish(&mut rig, "private-a", &["1"]);
    rig.pass(ASKED);
    assert!(asked.heard().contains(&PING.to_owned()));
    publish(&mut rig, "private-a", &["2"]);
    rig.replace_process();
    rig.work();
    asked.say(&mut rig, PONG);
    rig.hang_up(&asked.client);
    awaited.subscribe(&mut rig, "private-a", None);
    rig.replace_process();
    rig.work();
    publish(&mut rig, "private-a", &["3"]);
    assert_eq!(awaited.heard(), [""; 0]);
    assert_eq!(texts(&awaited.sign_in(&mut rig, "ann")), ["2", "3"]);
    rig.replace_process();
    rig.pass(ASKED);
    assert!(awaited.heard().contains(&PING.to_owned()), "what is not confirmed is asked for");
}
