//! One channel that takes as many publications as it can: beside a raw client of JetStream with as
//! many acknowledgements under way, which publishes to the same stream.
//!
//! Figures, once for each round: `raw`, `publishers` and `batches`, publications per second; and
//! the 99th percentile of publications to other channels in milliseconds: `quiet`, and `beside`
//! publishers at half of their rate.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::jetstream::JetStreamClient;
use super::nodes::Cluster;
use crate::context::{Abort, Context};
use crate::file::Run;
use crate::http::{Connection, parts, request};

const ROUNDS: usize = 5;

/// Publishers that wait for their answers, and acknowledgements of the raw client under way.
const PUBLISHERS: usize = 64;

/// Lines of a batch: the most.
const LINES: usize = 10_000;

const BODY_BYTES: usize = 128;

/// The subject of the raw client's channel in the stream of the nodes.
const RAW_SUBJECT: &str = "throng.in.channels.c.raw";

/// How often other channels get a message, each another one.
const PROBE_INTERVAL: Duration = Duration::from_millis(5);

/// Publishers at a slower rate publish in groups of this size.
const GROUP: usize = 8;

/// Time limit of a response.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn hot(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    let mut cluster = Cluster::start(context, run, 1)?;
    let (Some(node), Some(broker)) = (cluster.nodes.first(), cluster.brokers.first()) else {
        return Ok(());
    };
    let (url, time) = (node.url().to_owned(), context.size.time);
    let mut raw = JetStreamClient::connect(&broker.url())?;
    for _ in 0..ROUNDS {
        context.check()?;
        let stored = raw.publish(RAW_SUBJECT, &[b'x'; BODY_BYTES], PUBLISHERS, time)?;
        let publishers = publish(&url, time, None, &AtomicBool::new(false))?;
        let batches = publish_batches(&url, time)?;
        let quiet = probe(&url, time)?;
        let beside = probe_beside(&url, time, publishers / 2.0)?;
        context.give([
            ("raw", Some(stored)),
            ("publishers", Some(publishers)),
            ("batches", Some(batches)),
            ("quiet", Some(quiet)),
            ("beside", Some(beside)),
        ]);
    }
    match cluster.ended() {
        Some(how) => Err(Abort::Failed(how)),
        None => Ok(()),
    }
}

/// A publication to a channel.
fn publication(url: &str, channel: &str) -> Vec<u8> {
    let (authority, _) = parts(url);
    request("POST", authority, &format!("/channels/{channel}"), None, &[b'x'; BODY_BYTES])
}

/// All publishers publish until the time is over or they are to end: as fast as answers come, or at
/// a rate for all together. Returns how many publications a second were accepted.
fn publish(
    url: &str,
    time: Duration,
    rate: Option<f64>,
    is_over: &AtomicBool,
) -> Result<f64, String> {
    let (authority, _) = parts(url);
    let connections = (0..PUBLISHERS).map(|_| Connection::open(authority, TIMEOUT));
    let mut connections = connections.collect::<Result<Vec<_>, _>>()?;
    let one = publication(url, "hot");
    let (begun, mut accepted) = (Instant::now(), 0);
    let Some(rate) = rate else {
        connections.iter_mut().try_for_each(|publisher| publisher.send(&one))?;
        while begun.elapsed() < time {
            for publisher in &mut connections {
                publisher.expect_success()?;
                publisher.send(&one)?;
            }
            accepted += PUBLISHERS;
        }
        for publisher in &mut connections {
            publisher.expect_success()?;
        }
        return Ok((accepted + PUBLISHERS) as f64 / begun.elapsed().as_secs_f64());
    };
    let pause = Duration::from_secs_f64(GROUP as f64 / rate);
    let mut due = begun;
    while !is_over.load(Ordering::Relaxed) {
        for group in connections.chunks_mut(GROUP) {
            group.iter_mut().try_for_each(|publisher| publisher.send(&one))?;
            for publisher in group {
                publisher.expect_success()?;
            }
            accepted += GROUP;
            due += pause;
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }
    Ok(accepted as f64 / begun.elapsed().as_secs_f64())
}

/// Publishes one batch after the other. Returns how many lines a second were accepted.
fn publish_batches(url: &str, time: Duration) -> Result<f64, String> {
    let (authority, _) = parts(url);
    let mut lines = String::new();
    for number in 0..LINES {
        let _ = writeln!(lines, r#"{{"channel":"hot","data":"{number:0>BODY_BYTES$}"}}"#);
    }
    let batch = request("POST", authority, "/publish", None, lines.as_bytes());
    let mut connection = Connection::open(authority, TIMEOUT)?;
    let (begun, mut accepted) = (Instant::now(), 0);
    while accepted == 0 || begun.elapsed() < time {
        connection.send(&batch)?;
        let answers = connection.expect_success()?;
        if let Some(refused) = answers.lines().find(|answer| !answer.contains("\"id\"")) {
            return Err(format!("a line of a batch is not accepted: {refused}"));
        }
        accepted += answers.lines().count();
    }
    Ok(accepted as f64 / begun.elapsed().as_secs_f64())
}

/// Publishes to other channels. Returns the 99th percentile of the time until the answer, in
/// milliseconds.
fn probe(url: &str, time: Duration) -> Result<f64, String> {
    let (authority, _) = parts(url);
    let mut connection = Connection::open(authority, TIMEOUT)?;
    let (begun, mut due, mut times_ms) = (Instant::now(), Instant::now(), Vec::new());
    while begun.elapsed() < time {
        let one = publication(url, &format!("other-{}", times_ms.len()));
        let sent = Instant::now();
        connection.send(&one)?;
        connection.expect_success()?;
        times_ms.push(sent.elapsed().as_secs_f64() * 1e3);
        due += PROBE_INTERVAL;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    times_ms.sort_by(f64::total_cmp);
    Ok(times_ms[times_ms.len() * 99 / 100])
}

/// The same while publishers publish at a rate.
fn probe_beside(url: &str, time: Duration, rate: f64) -> Result<f64, String> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let publishing = scope.spawn(|| publish(url, time, Some(rate), &is_over));
        let probed = probe(url, time);
        is_over.store(true, Ordering::Relaxed);
        publishing.join().unwrap_or_else(|_| Err("the publishers panicked".to_owned()))?;
        probed
    })
}
