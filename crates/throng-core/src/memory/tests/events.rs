//! Tests of the events of channels.

use std::sync::{Arc, Mutex};

use throng_wire::v1::ShownMember;

use super::*;
use crate::events::{Event, EventSink};
use crate::rules::MembersRule;

#[derive(Debug, Default)]
struct Heard(Mutex<Vec<(u64, String)>>);

impl EventSink for Heard {
    fn notify(&self, now_ms: u64, event: Event<'_>) {
        let text = match event {
            Event::Occupied(name) => format!("occupied {}", name.name()),
            Event::Vacated(name) => format!("vacated {}", name.name()),
            Event::Counted(name, count) => format!("counted {} {count}", name.name()),
            Event::MemberAdded(name, key) => format!("added {} {key}", name.name()),
            Event::MemberRemoved(name, key) => format!("removed {} {key}", name.name()),
            other => panic!("unexpected {other:?}"),
        };
        self.0.lock().unwrap().push((now_ms, text));
    }
}

impl Heard {
    fn take(&self) -> Vec<(u64, String)> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// Lets the fixture's engine report its events.
fn hear(fixture: &mut Fixture) -> Arc<Heard> {
    let heard = Arc::new(Heard::default());
    let engine = std::mem::replace(&mut fixture.engine, Fixture::empty());
    fixture.engine = engine.with_events(Some(Arc::clone(&heard) as _));
    heard
}

#[test]
fn the_first_and_the_last_subscriber_of_all_workers_are_events() {
    let mut fixture = Fixture::new(retention(10), 2, usize::MAX);
    let heard = hear(&mut fixture);
    let name = ChannelName::channel("a");
    let channel = fixture.follow(1, &name, 0, StartAt::Live).channel;
    assert_eq!(heard.take(), [(1, "occupied a".to_owned())]);
    fixture.follow(2, &name, 1, StartAt::Live);
    fixture.follow(3, &name, 1, StartAt::Live);
    fixture.engine.unfollow(4, channel, WorkerId(0));
    fixture.engine.unfollow(5, channel, WorkerId(1));
    assert_eq!(heard.take(), []);
    fixture.engine.unfollow(6, channel, WorkerId(1));
    assert_eq!(heard.take(), [(6, "vacated a".to_owned())]);
    fixture.publish(7, &name, "x");
    assert_eq!(heard.take(), [], "a message is no subscriber");
}

#[test]
fn members_are_events_once_each_however_many_connections_they_have() {
    let members = MembersRule { are_connections: false, grace_ms: 10 };
    let rule = Rule { members: Some(members), ..Rule::default() };
    let mut fixture = Fixture::with_rule(rule, 1, usize::MAX);
    let heard = hear(&mut fixture);
    let name = ChannelName::channel("a");
    let ann = ShownMember { connection: None, user: Some("ann"), info: None };
    let engine = &fixture.engine;
    for now_ms in [1, 2] {
        engine.begin_member(now_ms, &name, ann).unwrap();
    }
    assert_eq!(heard.take(), [(1, "added a ann".to_owned())]);
    for now_ms in [3, 4] {
        engine.end_member(now_ms, &name, "ann", 0);
    }
    engine.tick_members(13);
    assert_eq!(heard.take(), []);
    engine.tick_members(14);
    assert_eq!(heard.take(), [(14, "removed a ann".to_owned())]);
}

#[test]
fn subscribers_lost_in_a_freeze_vacate_their_channel() {
    let mut fixture = Fixture::new(retention(10), 2, usize::MAX);
    let name = ChannelName::channel("a");
    fixture.follow(1, &name, 0, StartAt::Live);
    fixture.freeze_and_thaw();
    let heard = hear(&mut fixture);
    let (_, _, channel) = fixture.engine.audience(&name).workers[0];
    fixture.engine.set_subscribers(2, channel, WorkerId(1), 0);
    assert_eq!(heard.take(), [], "it did not follow");
    fixture.engine.set_subscribers(3, channel, WorkerId(0), 0);
    fixture.engine.set_subscribers(4, channel, WorkerId(0), 0);
    assert_eq!(heard.take(), [(3, "vacated a".to_owned())]);
}

#[test]
fn a_channel_with_another_journal_is_occupied_until_all_have_left() {
    for returns in [false, true] {
        let mut fixture = Fixture::new(retention(10), 2, usize::MAX);
        let name = ChannelName::channel("a");
        let left = fixture.follow(1, &name, 0, StartAt::Live);
        fixture.rules = Arc::new(Rules::default().with_journal());
        fixture.freeze_and_thaw();
        let heard = hear(&mut fixture);
        if returns {
            let new = fixture.follow(2, &name, 1, StartAt::Live);
            fixture.engine.unfollow(3, left.channel, WorkerId(0));
            assert_eq!(heard.take(), [], "somebody was there all the time");
            fixture.engine.unfollow(4, new.channel, WorkerId(1));
            assert_eq!(heard.take(), [(4, "vacated a".to_owned())]);
        } else {
            fixture.engine.unfollow(3, left.channel, WorkerId(0));
            assert_eq!(heard.take(), [(3, "vacated a".to_owned())]);
        }
        fixture.tick_all(5);
        fixture.follow(6, &name, 1, StartAt::Live);
        assert_eq!(heard.take(), [(6, "occupied a".to_owned())]);
    }
}
