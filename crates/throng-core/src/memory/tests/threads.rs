//! Concurrent publishers and followers.

use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::thread;

use super::*;

const PUBLISHERS: usize = 3;
const EACH: usize = 3000;

/// The offsets that one follower got: backlog, then notifications, without duplicates of the two.
fn listen(fixture: &Fixture, name: &ChannelName, start: StartAt, is_over: &AtomicBool) -> Vec<u64> {
    let followed = fixture.follow(0, name, 0, start);
    let mut got = offsets(&followed.backlog);
    let mut last = got.last().copied().unwrap_or(followed.cursor.offset);
    assert_eq!(last, followed.head.offset, "the backlog ends at the head");
    let mut previous = last;
    loop {
        // Read first: the notifications then include all messages published before.
        let is_last_round = is_over.load(Ordering::SeqCst);
        let mut notifications = Vec::new();
        fixture.queues[0].take(&mut notifications);
        for notification in notifications {
            let Notification::Message { message, channel, local, .. } = notification else {
                panic!("only messages")
            };
            assert_eq!((channel, local), (followed.channel, followed.local));
            let offset = message.id.offset;
            assert!(
                offset > previous || offset <= followed.head.offset,
                "notifications out of order"
            );
            previous = previous.max(offset);
            if offset > last {
                got.push(offset);
                last = offset;
            }
        }
        if is_last_round {
            return got;
        }
        thread::yield_now();
    }
}

#[test]
fn a_follower_gets_each_message_once_and_in_order() {
    for nth in 0..20 {
        let fixture = Fixture::new(retention(50), 1, usize::MAX);
        let name = ChannelName::channel("busy");
        let is_over = AtomicBool::new(false);
        let barrier = Barrier::new(PUBLISHERS + 1);
        let got = thread::scope(|scope| {
            let publishers: Vec<_> = (0..PUBLISHERS)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        for _ in 0..EACH {
                            while fixture.engine.publish(0, publication(&name, "a")).is_err() {
                                thread::yield_now();
                            }
                        }
                    })
                })
                .collect();
            let listener = scope.spawn(|| {
                barrier.wait();
                // Joins while messages are being published.
                while fixture.engine.metrics().published < nth * 200 {
                    thread::yield_now();
                }
                listen(&fixture, &name, StartAt::Last(20), &is_over)
            });
            for publisher in publishers {
                publisher.join().expect("it only publishes");
            }
            is_over.store(true, Ordering::SeqCst);
            listener.join().expect("it only listens")
        });
        let all = (PUBLISHERS * EACH) as u64;
        let first = got.first().copied().unwrap_or(all);
        let expected: Vec<u64> = (first..=all).collect();
        assert!(got == expected, "from {first}: {} instead of {}", got.len(), expected.len());
    }
}

#[test]
fn concurrent_expiry_and_publishing_never_repeat_an_offset() {
    let fixture = Fixture::new(Retention { max_age_ms: 1, ..retention(5) }, 1, usize::MAX);
    let name = ChannelName::channel("now and then");
    let is_over = AtomicBool::new(false);
    let mut all = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                fixture.tick_all(1);
            }
        });
        let publishers: Vec<_> = (0..PUBLISHERS)
            .map(|_| {
                scope.spawn(|| {
                    let publish = |_| fixture.publish(0, &name, "a").id.offset;
                    let mine: Vec<u64> = (0..EACH).map(publish).collect();
                    assert!(mine.is_sorted());
                    mine
                })
            })
            .collect();
        let published =
            publishers.into_iter().map(|publisher| publisher.join().expect("it only publishes"));
        let all: Vec<u64> = published.flatten().collect();
        is_over.store(true, Ordering::Relaxed);
        all
    });
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), PUBLISHERS * EACH);
}
