//! Journals of several nodes and a model of the servers, driven by a seed: messages are lost, late,
//! repeated and reordered; connections are lost and what was sent on them arrives later; leaders
//! change, replicas lag, messages expire, streams are gone, another process becomes a node.
//! `THRONG_SEED` replays one seed, `THRONG_SEEDS` runs more.

mod broker;
mod oracle;
mod random;
mod world;

use world::{Tally, World};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn seeds() -> std::ops::Range<u64> {
    match number("THRONG_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("THRONG_SEEDS").unwrap_or(256),
    }
}

/// Runs the world of a seed, and says which one it was if that fails.
fn run(seed: u64, world: fn(u64) -> World) -> Tally {
    let run = std::panic::AssertUnwindSafe(|| world(seed).run(3_000));
    std::panic::catch_unwind(run).unwrap_or_else(|_| panic!("THRONG_SEED={seed}"))
}

#[test]
fn lists_have_each_channel_that_was_there() {
    let seeds = seeds();
    let is_single = seeds.end - seeds.start == 1;
    let named: usize = seeds.map(|seed| run(seed, World::of_names).named).sum();
    assert!(named > 0 || is_single);
}

/// Seeds that showed a fault: a change of a table answered before the entry was read that had taken
/// the place of its own, or of the one in its way, from a server that lagged behind.
#[test]
fn a_change_of_a_table_is_answered_after_what_replaced_its_entry() {
    for seed in [306, 362, 571] {
        run(seed, World::of_names);
    }
}

/// One with a refusal that came twice, the second time while the publication was sent again.
#[test]
fn a_refusal_that_comes_twice_says_nothing_of_the_next_copy() {
    run(637, World::of_names);
}

#[test]
fn a_head_before_expired_messages_is_a_conflict() {
    const ROUNDS: usize = 12;
    let tally = World::new(0).change_emptied_logs(ROUNDS);
    assert_eq!((tally.conflicts, tally.changed_logs), (ROUNDS, ROUNDS));
}

#[test]
fn a_head_before_an_erased_message_is_a_conflict() {
    for seed in 0..8 {
        let tally = World::new(seed).erase_behind_a_head();
        assert_eq!((tally.conflicts, tally.changed_logs), (1, 0), "THRONG_SEED={seed}");
    }
}

#[test]
fn a_dropped_value_is_no_gap_and_another_message_is() {
    for seed in 0..8 {
        assert!(World::new(seed).drop_messages().recovered_by_keys > 0, "THRONG_SEED={seed}");
    }
}

/// A node forgets what is erased in a state first, and may be gone before the message is.
#[test]
fn erasures_that_are_half_done_are_in_states() {
    for seed in 0..8 {
        let tally = World::new(seed).erase_in_states();
        assert_eq!((tally.without_key, tally.unrecovered), (1, 1), "THRONG_SEED={seed}");
    }
}

/// One with an erasure that is written down and not done, in a log that is almost full.
#[test]
fn a_message_that_is_to_be_erased_may_count_twice() {
    run(1889, World::new);
}

#[test]
fn pages_of_a_state_have_its_keys_in_their_order() {
    for seed in 0..8 {
        assert_eq!(World::new(seed).read_pages().without_key, 0, "THRONG_SEED={seed}");
    }
}

#[test]
fn a_copy_that_is_renewed_while_a_state_is_read_is_read() {
    for seed in 0..8 {
        let tally = World::new(seed).renew_between_parts();
        assert_eq!(tally.recovered + tally.unrecovered, 1, "THRONG_SEED={seed}");
    }
}

#[test]
fn followers_get_each_message_once_and_in_order() {
    let seeds = seeds();
    let mut sum = Tally::default();
    let is_single = seeds.end - seeds.start == 1;
    for seed in seeds {
        let tally = run(seed, World::new);
        sum.stored += tally.stored;
        sum.messages += tally.messages;
        sum.gaps += tally.gaps;
        sum.unknown += tally.unknown;
        sum.away += tally.away;
        sum.read += tally.read;
        sum.epochs += tally.epochs;
        sum.asked += tally.asked;
        sum.partly += tally.partly;
        sum.changed += tally.changed;
        sum.stalled += tally.stalled;
        sum.conflicts += tally.conflicts;
        sum.replaced += tally.replaced;
        sum.gone_on += tally.gone_on;
        sum.changed_logs += tally.changed_logs;
        sum.erased += tally.erased;
        sum.erased_reads += tally.erased_reads;
        sum.ended += tally.ended;
        sum.ended_reads += tally.ended_reads;
        sum.key_conflicts += tally.key_conflicts;
        sum.without_key += tally.without_key;
        sum.full_states += tally.full_states;
        sum.states += tally.states;
        sum.recovered += tally.recovered;
        sum.recovered_by_keys += tally.recovered_by_keys;
        sum.unrecovered += tally.unrecovered;
    }
    if !is_single {
        // A simulation in which these do not happen tests nothing.
        let Tally { stored, messages, gaps, unknown, away, read, .. } = sum;
        let Tally { epochs, asked, partly, changed, stalled, conflicts, .. } = sum;
        let Tally { replaced, gone_on, changed_logs, erased, erased_reads, .. } = sum;
        let Tally { ended, ended_reads, .. } = sum;
        let all = [stored, messages, gaps, unknown, away, read, epochs, asked, partly, changed];
        let others = [stalled, conflicts, replaced, gone_on, changed_logs, erased, erased_reads];
        let ends = [ended, ended_reads];
        let Tally { key_conflicts, without_key, full_states, states, .. } = sum;
        let Tally { recovered, recovered_by_keys, unrecovered, .. } = sum;
        let keys = [key_conflicts, without_key, full_states, states];
        let resumes = [recovered, recovered_by_keys, unrecovered];
        let all = all.iter().chain(&others).chain(&ends).chain(&keys).chain(&resumes);
        assert!(all.clone().all(|count| *count > 0), "{sum:?}");
    }
}
