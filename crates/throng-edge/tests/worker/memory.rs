//! A worker under memory pressure: what goes, and what stays.

use std::sync::Arc;

use throng_access::{AccessControl, AllowAll};
use throng_core::{LagPolicy, MemoryStep, Rule, Rules, ScanAction, ScanTarget};
use throng_edge::{Counter, Limits, Settings};

use crate::rig::{Client, Rig};
use crate::scan::scan;

/// A rig that keeps this many bytes for clients that do not read.
fn rig(max_blocked_bytes: usize) -> Rig {
    let limits = Limits { max_blocked_bytes, ..Limits::default() };
    let settings = Settings { limits, ..Settings::for_tests() };
    let access = Arc::new(AccessControl::open(Arc::new(AllowAll)));
    // A client that lacks a message that is gone stays.
    let rule = Rule { lag_policy: LagPolicy::Skip, ..Rule::default() };
    Rig::with_rules(settings, access, Rules::new(Vec::new(), rule))
}

fn begin(rig: &mut Rig, step: MemoryStep) {
    rig.pressure.report(1, 1, step);
    rig.pass(1);
}

/// A client that follows a channel and does not read.
fn stuck(rig: &mut Rig, channel: &str) -> Client {
    let client = rig.get(&format!("/channels/{channel}"));
    client.received();
    client.stall_after(0);
    client
}

#[test]
fn short_memory_drops_backlogs_of_clients_that_do_not_read() {
    for limit in [8_000, 40_000, 400_000] {
        let mut rig = rig(limit);
        let (_stuck, reader) = (stuck(&mut rig, "a"), rig.get("/channels/a"));
        let count = limit / 1000;
        let publish = |rig: &mut Rig| {
            reader.received();
            for _ in 0..count {
                rig.publish("a", &"x".repeat(400), None);
                rig.work();
            }
            assert_eq!(reader.received().matches(&"x".repeat(400)).count(), count);
        };
        let evicted = |rig: &Rig| rig.count(Counter::ReplayMessagesEvicted);
        publish(&mut rig);
        rig.pass(1);
        assert_eq!(evicted(&rig), 0);
        begin(&mut rig, MemoryStep::Shrink);
        rig.pass(1);
        // A quarter of the limit is kept, and of each message some overhead counts, too.
        let kept = |rig: &Rig, count: usize| count as u64 - evicted(rig);
        let is_quarter = |kept: u64| {
            let quarter = limit as u64 / 4;
            kept * 400 <= quarter && (kept + 1) * 700 >= quarter
        };
        assert!(is_quarter(kept(&rig, count)), "{limit}: {}", kept(&rig, count));
        publish(&mut rig);
        rig.pass(1);
        assert!(is_quarter(kept(&rig, 2 * count)), "{limit}: {}", kept(&rig, 2 * count));
        begin(&mut rig, MemoryStep::None);
        let before = evicted(&rig);
        publish(&mut rig);
        rig.pass(1);
        assert_eq!(evicted(&rig), before, "the limit is back");
    }
}

#[test]
fn new_subscriptions_are_refused_and_those_that_are_there_stay() {
    let mut rig = rig(1 << 20);
    let stream = rig.get("/channels/a");
    let poll = rig.get("/channels/a?wait=30");
    let v1 = rig.v1();
    for client in [&stream, &poll, &v1] {
        client.received();
    }
    begin(&mut rig, MemoryStep::RefuseReads);
    assert!(rig.get("/channels/a").received().starts_with("HTTP/1.1 200"));
    let history = r#"{"type":"history","channel":"a"}"#;
    rig.send_frame(&v1, history);
    assert!(v1.received().contains(r#""code":"busy""#));
    begin(&mut rig, MemoryStep::RefuseSubscriptions);
    let refused = rig.get("/channels/a").received();
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(refused.to_lowercase().contains("\r\nretry-after: "), "{refused}");
    assert!(refused.contains("short of memory"), "{refused}");
    rig.send_frame(&v1, r#"{"type":"subscribe","channel":"a"}"#);
    assert!(v1.received().contains("short of memory"));
    rig.publish("a", "news", None);
    rig.work();
    assert!(stream.received().contains("news"));
    assert!(poll.received().contains("news"));
    // The client of a poll goes on with its place.
    rig.send(&poll, b"GET /channels/a?wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    rig.publish("a", "more", None);
    rig.work();
    assert!(poll.received().contains("more"));
    let counted: Vec<_> = rig.pressure.refused().collect();
    assert_eq!(counted, [("history", 1), ("batch", 0), ("subscription", 2)]);
    begin(&mut rig, MemoryStep::None);
    rig.send_frame(&v1, history);
    assert!(v1.received().contains(r#""type":"history""#));
    assert!(rig.get("/channels/a").received().starts_with("HTTP/1.1 200"));
}

#[test]
fn only_those_that_are_behind_are_closed_for_memory() {
    let mut rig = rig(1 << 20);
    let (slow, other, reader) =
        (stuck(&mut rig, "a"), stuck(&mut rig, "a"), rig.get("/channels/a"));
    rig.publish("a", "news", None);
    rig.work();
    let found = scan(&mut rig, ScanTarget::Behind, ScanAction::List { limit: 9 });
    let names: Vec<_> = found.connections.iter().map(|found| found.name).collect();
    assert_eq!(names.len(), 2);
    // One has caught up in between.
    rig.read_again(&other);
    rig.work();
    scan(&mut rig, ScanTarget::Connections(names), ScanAction::CloseForMemory);
    assert!(slow.is_closed() && !other.is_closed() && !reader.is_closed());
    assert!(slow.is_reset() && !other.is_reset() && !reader.is_reset());
    assert_eq!(rig.count(Counter::ClosedMemory), 1);
    reader.received();
    other.received();
    rig.publish("a", "more", None);
    rig.work();
    assert!(reader.received().contains("more") && other.received().contains("more"));
}
