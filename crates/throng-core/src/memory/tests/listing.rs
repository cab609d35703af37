//! Lists of channels, in steps that hold a shard's lock for a short time.

use super::*;

fn room(nth: usize) -> ChannelName {
    ChannelName::channel(&format!("room-{nth}"))
}

fn fill(fixture: &Fixture, now_ms: u64, rooms: std::ops::Range<usize>) {
    for nth in rooms {
        fixture.publish(now_ms, &room(nth), "x");
    }
}

/// The names that the steps of a list find, and the number of steps. `between` is called before
/// each step but the first.
fn list(fixture: &Fixture, now_ms: u64, mut between: impl FnMut()) -> (Vec<String>, usize) {
    let (mut names, mut after, mut steps) = (Vec::new(), None, 0);
    loop {
        let step = fixture.engine.list(now_ms, Kind::Channel, after);
        names.extend(step.channels.iter().map(|listed| listed.name.name().to_owned()));
        steps += 1;
        if step.next.is_none() {
            return (names, steps);
        }
        after = step.next;
        between();
    }
}

#[test]
fn channels_that_stay_are_listed_once_while_others_come_and_go() {
    let fixture = Fixture::new(retention(9), 1, usize::MAX);
    let stays = |nth: &usize| nth.is_multiple_of(3);
    (0..3000).for_each(|nth| {
        fixture.publish(if stays(&nth) { DAY_MS } else { 0 }, &room(nth), "x");
    });
    let mut turn = 0;
    let (names, _) = list(&fixture, DAY_MS - 1, || {
        // The next shard forgets its old channels, and gets others.
        fixture.engine.tick(DAY_MS + 1);
        fill(&fixture, DAY_MS, 10_000 + turn..10_020 + turn);
        turn += 20;
    });
    for nth in (0..3000).filter(stays) {
        let name = room(nth);
        assert_eq!(names.iter().filter(|found| *found == name.name()).count(), 1, "{name:?}");
    }
    assert!(turn > 0 && !names.is_empty());
}

#[test]
fn a_step_passes_vacant_slots_faster_and_not_all_at_once() {
    let fixture = Fixture::new(retention(9), 1, usize::MAX);
    let count = 40_000;
    fill(&fixture, 0, 0..count);
    // The last channel of each shard keeps the slots before it.
    fill(&fixture, DAY_MS, count..count + 2000);
    fixture.tick_all(DAY_MS + 1);
    let (names, steps) = list(&fixture, DAY_MS + 1, || ());
    assert_eq!(names.len(), 2000);
    let places = 2000 + count / 32;
    assert!((places / 128..=2 * places / 128 + 1).contains(&steps), "{steps} steps");
}

#[test]
fn what_has_expired_is_not_listed() {
    let fixture = Fixture::new(retention(9), 1, usize::MAX);
    fixture.publish(0, &room(1), "x");
    fixture.follow(0, &room(2), 0, StartAt::Live);
    assert_eq!(list(&fixture, DAY_MS - 1, || ()).0.len(), 2);
    assert_eq!(list(&fixture, DAY_MS, || ()).0, ["room-2"]);
}
