//! Users who are watched by others, over another process.

use super::*;
use crate::frozen::RecordKind;
use crate::watchlists::Watchlists;

/// Later than a process that has taken over looks at all users.
const LATER_MS: u64 = 20_000;

fn watchlists() -> Arc<Watchlists> {
    Arc::new(Watchlists::new(vec!["shop/".to_owned()], None))
}

fn with(fixture: Fixture, now_ms: u64) -> Fixture {
    let Fixture { engine, queues, rules, max_bytes, segments } = fixture;
    let watchlists = watchlists();
    let engine = engine.with_events(Some(watchlists.clone()));
    let engine = engine.with_watchlists(now_ms, Some(watchlists));
    Fixture { engine, queues, rules, max_bytes, segments }
}

#[test]
fn who_has_left_between_two_processes_is_told() {
    let mut fixture = with(Fixture::new(retention(1), 2, usize::MAX), 0);
    let logs = ["bob", "cat", "dan"].map(|user| ChannelName::online(&format!("shop/{user}")));
    for (log, nth) in logs.iter().zip(1..) {
        let follow = Follow {
            channel: log,
            worker: WorkerId(0),
            local_if_new: local(nth),
            start: StartAt::Live,
        };
        fixture.engine.follow(0, follow);
    }
    let bob = ChannelName::user("shop/bob");
    let followed = fixture.follow(0, &bob, 1, StartAt::Live);
    assert!(fixture.engine.watch(0, "shop/bob") && !fixture.engine.watch(0, "shop/cat"));
    let records = fixture.freeze();
    let at = records.iter().position(|it| it[0] == RecordKind::Watched as u8).expect("a record");
    for end in 1..records[at].len() {
        let mut cut = records.clone();
        cut[at].truncate(end);
        assert!(fixture.thaw(&cut).is_err(), "{end}");
    }
    // As one that nobody has heard of, on another node.
    fixture.engine.unfollow(0, followed.channel, WorkerId(1));
    let gone = fixture.freeze().into_iter().filter(|it| it[0] != RecordKind::Watched as u8);
    let mut gone: Vec<_> = gone.collect();
    let end = gone.pop().expect("an end");
    let watched = records.into_iter().filter(|it| it[0] == RecordKind::Watched as u8);
    let records: Vec<_> = gone.into_iter().chain(watched).chain([end]).collect();
    fixture.engine = fixture.thaw(&records).expect("all records");
    let fixture = with(fixture, 0);
    assert!(fixture.engine.watch(1, "shop/bob"), "it was told");
    fixture.engine.tick(1);
    assert_eq!(fixture.notifications(0), []);
    fixture.engine.tick(LATER_MS);
    assert_eq!(fixture.notifications(0), [(1, "offline".to_owned())]);
    assert!(!fixture.engine.watch(LATER_MS, "shop/bob"));
}

#[test]
fn what_the_queues_do_not_take_is_told_later() {
    let fixture = with(Fixture::new(retention(1), 1, usize::MAX), 0);
    let (log, bob) = (ChannelName::online("shop/bob"), ChannelName::user("shop/bob"));
    fixture.follow(0, &log, 0, StartAt::Live);
    fixture.engine.watch(0, "shop/bob");
    fixture.engine.tick(0);
    let follow =
        Follow { channel: &bob, worker: WorkerId(0), local_if_new: local(2), start: StartAt::Live };
    fixture.engine.follow(1, follow);
    // Until the queue is full.
    while fixture.engine.publish(1, publication(&bob, "x")).is_ok() {}
    fixture.engine.tick(2);
    assert!(!fixture.engine.watch(2, "shop/bob"), "nobody was told");
    fixture.queues[0].take(&mut Vec::new());
    fixture.engine.tick(200);
    assert_eq!(fixture.notifications(0), [(1, "online".to_owned())]);
}
