//! The roster against a simple model.
//!
//! A script of random steps drives a roster through a small engine whose mail may wait, with
//! connections that block in the middle of a write. The model knows every message of every channel,
//! so that each subscription must get the very next one after what it got last, or a gap that says
//! so.

mod check;
mod model;

use proptest::prelude::*;

use super::*;
use crate::rules::{Retention, Rule};
use model::{Offsets, Steps, World};

fn rules(
    retained: usize,
    behind_messages: usize,
    behind_bodies: usize,
    policy: BehindPolicy,
) -> Arc<Rules> {
    let weight_bytes = model::weight_bytes();
    Arc::new(Rules::new(
        Vec::new(),
        Rule {
            retention: Retention {
                messages_max: retained,
                bytes_max: retained * weight_bytes,
                age_ms_max: u64::MAX,
            },
            behind_messages_max: behind_messages,
            behind_bytes_max: behind_bodies * weight_bytes,
            behind_policy: policy,
            ..Rule::default()
        },
    ))
}

fn any_rules() -> impl Strategy<Value = Arc<Rules>> {
    let policy = prop_oneof![Just(BehindPolicy::Close), Just(BehindPolicy::Skip)];
    (0usize..6, 0usize..9, 0usize..12, policy)
        .prop_map(|(retained, messages, bodies, policy)| rules(retained, messages, bodies, policy))
}

fn steps() -> impl Strategy<Value = Steps> {
    prop::collection::vec(any::<[u8; 4]>(), 0..250)
}

proptest! {
    #[test]
    fn everyone_gets_everything_once_in_order(rules in any_rules(), steps in steps()) {
        World::new(rules, Offsets::CountingFrom(0)).run(&steps);
    }

    #[test]
    fn also_where_32_bits_of_an_offset_wrap(
        rules in any_rules(),
        steps in steps(),
        before in 0u64..40,
        wraps in 1u64..5,
    ) {
        // Cursors wrap at 2^32; at each 2^30 those left behind are pulled up.
        let from = (wraps << REACH_BITS) - before;
        World::new(rules, Offsets::CountingFrom(from)).run(&steps);
    }

    #[test]
    fn also_where_offsets_skip(rules in any_rules(), steps in steps(), from in 0u64..1 << 33) {
        World::new(rules, Offsets::SkippingFrom(from)).run(&steps);
    }

    #[test]
    fn also_where_offsets_leap(rules in any_rules(), steps in steps()) {
        World::new(rules, Offsets::Leaping).run(&steps);
    }

    #[test]
    fn a_hole_in_the_mail_is_told(rules in any_rules(), steps in steps()) {
        World::new(rules, Offsets::WithHoles).run(&steps);
    }
}

#[test]
fn a_burst_beyond_the_limit_reaches_whoever_keeps_up() {
    let mut world = World::new(rules(0, 1, 1, BehindPolicy::Close), Offsets::CountingFrom(0));
    for connection in 0..3 {
        world.subscribe(connection, 0, crate::Start::Live);
    }
    for _ in 0..5 {
        world.publish(0);
    }
    world.finish();
    assert_eq!(world.delivered, 15);
}

#[test]
fn a_backlog_that_skips_mail_on_its_way_hides_nothing_from_others() {
    let mut world = World::new(rules(1, 100, 100, BehindPolicy::Close), Offsets::CountingFrom(0));
    world.subscribe(0, 0, crate::Start::Live);
    for _ in 0..4 {
        world.publish(0);
    }
    world.subscribe(1, 0, crate::Start::Last(1));
    world.finish();
    assert_eq!(world.delivered, 4 + 1);
}

#[test]
fn unsubscribing_the_last_of_the_ring_in_a_sweep_keeps_the_count() {
    let mut world = World::new(rules(0, 9, 9, BehindPolicy::Close), Offsets::CountingFrom(0));
    for connection in 0..3 {
        world.subscribe(connection, 0, crate::Start::Live);
    }
    world.publish(0);
    world.take_mail(usize::MAX);
    world.sweep(2, usize::MAX);
    world.unsubscribe(2, 0);
    world.finish();
    assert_eq!(world.roster.unswept_bytes(), 0);
}
