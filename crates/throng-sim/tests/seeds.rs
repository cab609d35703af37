//! Runs many seeds: no check fails, and every interesting event happens.

use throng_sim::notes::Coverage;
use throng_sim::run;

/// The events that must happen in a full run.
const INTERESTING: &[&str] = &[
    "lag: WebSocket closed",
    "lag: skipped",
    "lag: stream closed",
    "lag: within the limit",
    "busy: WebSocket closed",
    "busy: command refused",
    "busy: publisher refused",
    "close: answered",
    "close: silent",
    "close: slow message",
    "close: violation",
    "closed: did not read",
    "closed: idle",
    "control: handed back",
    "counter: dropped",
    "counter: overload",
    "counter: deferred",
    "control: page answered",
    "drain: SSE",
    "drain: WebSocket",
    "drain: long-poll",
    "drain: long-poll answered",
    "drain: long-poll with nothing ready",
    "drain: stream",
    "drain: throng.v1",
    "drain: too late for some",
    "engine: a channel is forgotten",
    "heartbeat: SSE",
    "heartbeat: WebSocket",
    "heartbeat: stream",
    "heartbeat: throng.v1",
    "leave: half-close",
    "leave: in the middle of a fan-out",
    "leave: in the middle of a message",
    "leave: reset",
    "leave: vanish",
    "message: left out for its publisher",
    "overload: WebSocket closed",
    "overload: cut off",
    "offsets skip: gap",
    "offsets skip: resume between two messages",
    "permit: waited for",
    "ping",
    "poll: nothing",
    "poll: one answer to several",
    "poll: one message",
    "poll: pipelined",
    "poll: several messages",
    "publish: in the middle of a fan-out",
    "publish: known key",
    "publish: not to its publisher",
    "read: end",
    "read: reset",
    "refused: bad request",
    "refused: draining",
    "to worker: lost on its way",
    "closed: for room",
    "refused: SSE with a reconnect time",
    "refused: WebSocket with a reconnect time",
    "refused: full",
    "refused: slow head",
    "resume: foreign epoch",
    "resume: future id",
    "resume: gap",
    "resume: gap, evicted",
    "resume: whole",
    "sleep: nothing to do",
    "sleep: woken by another thread",
    "subscribe: in the middle of a fan-out",
    "subscribe: with a backlog",
    "to control: refused",
    "to worker: moved",
    "to worker: moved with its head",
    "v1: history",
    "v1: presence",
    "v1: refused",
    "v1: subscribed",
    "v1: unsubscribed",
    "decision: command denied",
    "decision: request denied",
    "expired: WebSocket",
    "expired: stream",
    "wait: WebSocket closed",
    "wait: command refused",
    "wait: for a decision or more",
    "wait: nothing waits for the answer",
    "wait: request refused",
    "wait: too long",
    "welcome",
    "write: blocked",
    "write: reset",
    "write: several messages at once",
    "write: to several at once",
    "write: short",
];

#[test]
fn every_client_gets_what_the_contract_says() {
    let seeds = run::seeds();
    let is_full = seeds.end - seeds.start >= run::SEEDS;
    let outcomes = run::all(seeds);
    let failed: Vec<_> = outcomes.iter().filter(|outcome| outcome.failure.is_some()).collect();
    for outcome in &failed {
        let (objection, _) = outcome.failure.as_ref().expect("it has failed");
        eprintln!("seed {}: {objection}", outcome.seed);
    }
    if let Some(report) = failed.first().and_then(|outcome| outcome.report()) {
        panic!("{report}");
    }
    let mut coverage = Coverage::default();
    outcomes.iter().for_each(|outcome| coverage.merge(&outcome.coverage));
    eprintln!("{}", coverage.report());
    let missing: Vec<_> = INTERESTING.iter().filter(|event| coverage.times(event) == 0).collect();
    assert!(missing.is_empty() || !is_full, "never happened: {missing:?}");
}
