//! Measures the memory of a million users with one subscription each, and the time of one step of
//! a fan-out pass.
//!
//! `cargo run --release -p throng-core --example channel_memory [USERS]`, on Linux. Bytes are the
//! process's own memory as the kernel counts it, including the allocator's overhead.

#![allow(clippy::print_stdout, reason = "a report")]

use std::sync::Arc;
use std::time::Instant;

use throng_core::{
    Body, ChannelId, ChannelName, ConnectionId, Epoch, Follow, Followed, LocalId, MemoryEngine,
    MessageId, Notification, Publication, Rules, StartAt, SubscriptionTable, Waiting, WorkerId,
    WorkerQueue,
};

/// The value of `field` in `/proc/self/{file}`, in bytes.
fn proc_bytes(file: &str, field: &str) -> usize {
    let text = std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).unwrap_or(0) * 1024
}

fn report(what: &str, users: usize, before: usize) {
    let bytes = proc_bytes("smaps_rollup", "Pss:").saturating_sub(before);
    let peak = proc_bytes("status", "VmHWM:").saturating_sub(before);
    let each = |bytes: usize| bytes as f64 / users as f64;
    println!("{what}: {:.1} bytes a user, {:.1} at the peak", each(bytes), each(peak));
}

fn local(user: usize) -> LocalId {
    LocalId(std::num::NonZeroU32::MIN.saturating_add(user as u32))
}

fn main() {
    let users = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let rules = Arc::new(Rules::default());
    let queue = Arc::new(WorkerQueue::new(|| {}));
    let epoch = Epoch::numbered(1);
    let engine = MemoryEngine::new(epoch, Arc::clone(&rules), vec![Arc::clone(&queue)], 1 << 30);

    let before = proc_bytes("smaps_rollup", "Pss:");
    for user in 0..users {
        let channel = &ChannelName::user(&format!("user-{user}"));
        let (worker, local_if_new) = (WorkerId(0), local(user));
        engine.follow(0, Follow { channel, worker, local_if_new, start: StartAt::Live });
    }
    report("engine, names like user-123456", users, before);

    let before = proc_bytes("smaps_rollup", "Pss:");
    let mut table = SubscriptionTable::new(Arc::clone(&rules));
    let rule = rules.find(&ChannelName::user("user"));
    let head = MessageId { epoch, offset: 0 };
    for user in 0..users {
        let (channel, local) = (ChannelId(user as u32), local(user));
        let followed = Followed {
            is_sparse: false,
            is_ended: false,
            channel,
            local,
            rule,
            head,
            cursor: head,
            is_recovered: None,
            are_offsets_consecutive: true,
            backlog: Vec::new(),
        };
        table.join(ConnectionId::new(user as u32), &followed, true, None);
    }
    report("table", users, before);

    broadcast(&engine, &queue, users);
}

/// Measures a broadcast to one channel that all users follow, without the writes.
fn broadcast(engine: &MemoryEngine, queue: &WorkerQueue, users: usize) {
    let mut table = SubscriptionTable::new(Arc::new(Rules::default()));
    let name = ChannelName::channel("all");
    for user in 0..users {
        let (channel, worker, local_if_new) = (&name, WorkerId(0), table.next_local());
        let follow = Follow { channel, worker, local_if_new, start: StartAt::Live };
        table.join(ConnectionId::new(user as u32), &engine.follow(0, follow), false, None);
    }
    let publication = Publication::new(name, Body::Text("hello".into()));
    engine.publish(0, publication).expect("the queue is empty");
    let mut notifications = Vec::new();
    queue.take(&mut notifications);
    for notification in notifications {
        if let Notification::Message { local, channel, message, .. } = notification {
            table.append(local, channel, &message);
        }
    }
    let start = Instant::now();
    let mut delivered = 0;
    let mut batch = Vec::new();
    while table.is_fanning_out() {
        table.next_batch(&mut 1000, &mut batch);
        for (id, _) in batch.drain(..) {
            let last = match table.waiting(id) {
                Waiting::Messages(messages) => messages.last().map(|last| last.id.offset),
                _ => None,
            };
            table.advance(id, last.expect("every subscription has the message pending"));
            delivered += 1;
        }
    }
    assert_eq!(delivered, users);
    let each_ns = start.elapsed().as_nanos() as f64 / users as f64;
    println!("next_batch, waiting and advance: {each_ns:.1} ns a subscription");
}
