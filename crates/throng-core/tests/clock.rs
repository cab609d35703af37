//! Setting the machine's clock while a server runs: in a process of its own, because the clock is
//! per process.

use std::sync::Arc;

use throng_core::{
    Body, ChannelName, Epoch, HistoryQuery, MemoryEngine, Publication, Retention, Rule, Rules,
    clock,
};

const HOUR_MS: u64 = 60 * 60 * 1000;

fn publish(engine: &MemoryEngine, text: &str) {
    let publication = Publication::new(ChannelName::channel("a"), Body::Text(text.into()));
    engine.publish(clock::now_ms(), publication).expect("the queues have capacity");
}

/// The times in a page of history.
fn history_times(engine: &MemoryEngine) -> Vec<u64> {
    let now_ms = clock::now_ms();
    let history = engine.history(now_ms, &ChannelName::channel("a"), HistoryQuery::Newest, 9);
    let times = history.messages.iter().map(|message| {
        let mut envelope = Vec::new();
        message.write_envelope(&mut envelope);
        let value: serde_json::Value = serde_json::from_slice(&envelope).expect("it is JSON");
        value["time"].as_u64().expect("it has a time")
    });
    times.collect()
}

#[test]
fn times_follow_the_machines_clock_and_ages_do_not() {
    let retention = Retention { max_age_ms: HOUR_MS, ..Rule::default().retention };
    let rules = Rules::new(Vec::new(), Rule { retention, ..Rule::default() });
    let epoch = Epoch::numbered(1);
    let engine = MemoryEngine::new(epoch, Arc::new(rules), Vec::new(), 1 << 20);
    publish(&engine, "before");
    let first = history_times(&engine)[0];
    // If the thread is suspended between two readings, `follow` ignores them.
    let set = |is_set: &dyn Fn() -> bool, ahead_ms: i64| {
        while !is_set() {
            clock::follow(|| clock::now_ms().saturating_add_signed(ahead_ms));
        }
    };
    let day_ms = 24 * HOUR_MS;
    let is_ahead = || clock::wall_ms(0) > day_ms / 2;
    set(&is_ahead, day_ms.cast_signed());
    publish(&engine, "after");
    let times = history_times(&engine);
    assert_eq!(times.len(), 2, "a step of the clock expires no message");
    assert!(times[0].abs_diff(first + day_ms) < HOUR_MS, "{times:?} after {first}");
    assert!(times[0] <= times[1]);
    set(&|| !is_ahead(), 0);
    assert!(history_times(&engine)[0].abs_diff(first) < HOUR_MS, "the step was undone");
}
