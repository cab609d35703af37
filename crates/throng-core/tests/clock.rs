//! The machine's clock is set while a server runs. In a process of its own, which has one clock.

use std::sync::Arc;

use throng_core::{
    Body, ChannelName, Engine as _, Epoch, HistoryQuery, MemoryEngine, Publication, Retention,
    Rule, Rules, clock,
};

const HOUR_MS: u64 = 60 * 60 * 1000;

fn publish(engine: &MemoryEngine, text: &str) {
    let publication = Publication {
        channel: ChannelName::channel("a"),
        body: Body::Text(text.into()),
        content_type: None,
        idempotency_key: None,
        excluded: None,
    };
    engine.publish(clock::now_ms(), publication).expect("nobody is behind");
}

/// The times that a page of history tells.
fn told(engine: &MemoryEngine) -> Vec<u64> {
    let now_ms = clock::now_ms();
    let history = engine.history(now_ms, &ChannelName::channel("a"), HistoryQuery::Newest, 9);
    let told = history.messages.iter().map(|message| {
        let mut envelope = Vec::new();
        message.write_envelope(&mut envelope);
        let value: serde_json::Value = serde_json::from_slice(&envelope).expect("it is JSON");
        value["time"].as_u64().expect("it has a time")
    });
    told.collect()
}

#[test]
fn times_follow_the_machines_clock_and_ages_do_not() {
    let retention = Retention { age_ms_max: HOUR_MS, ..Rule::default().retention };
    let rules = Rules::new(Vec::new(), Rule { retention, ..Rule::default() });
    let epoch = Epoch::numbered(1);
    let engine = MemoryEngine::new(epoch, Arc::new(rules), Vec::new(), 1 << 20);
    publish(&engine, "before");
    let first = told(&engine)[0];
    // A busy machine may hold the thread up between two readings; then it says nothing.
    let set = |is_set: &dyn Fn() -> bool, ahead_ms: i64| {
        while !is_set() {
            clock::follow(|| clock::now_ms().saturating_add_signed(ahead_ms));
        }
    };
    let day_ms = 24 * HOUR_MS;
    let is_ahead = || clock::told_ms(0) > day_ms / 2;
    set(&is_ahead, day_ms.cast_signed());
    publish(&engine, "after");
    let times = told(&engine);
    assert_eq!(times.len(), 2, "no jump of the clock makes a message old");
    assert!(times[0].abs_diff(first + day_ms) < HOUR_MS, "{times:?} after {first}");
    assert!(times[0] <= times[1]);
    set(&|| !is_ahead(), 0);
    assert!(told(&engine)[0].abs_diff(first) < HOUR_MS, "it was a mistake");
}
