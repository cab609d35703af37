//! Opens clients, publishes to them by plain HTTP, and audits: the load without phases and report,
//! to measure the generator itself.
//!
//! ```text
//! throng serve --listen 127.0.0.1:18080 --max-connections 20000 &
//! cargo run --release -p throng-flood --example clients -- \
//!     ws://127.0.0.1:18080/channels/a 10000 10
//! ```

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use throng_flood::plan::{Options, Plan, TargetOptions, Transport};
use throng_flood::{
    ClientCommand, ClientCounts, ClientPool, ClientSet as _, Mark, PublishDeliveries, now_ns,
};

const IN_FLIGHT: usize = 256;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, clients, publishes, rest @ ..] = &arguments[..] else {
        anyhow::bail!("clients URL CLIENTS PUBLISHES [websocket|sse|stream|long-poll] [SECONDS]");
    };
    let (clients, publishes): (usize, u32) = (clients.parse()?, publishes.parse()?);
    let pause = Duration::from_secs(rest.get(1).map_or(Ok(0), |seconds| seconds.parse())?);
    let pool = ClientPool::start(&plan(url, rest.first().map(String::as_str))?, clients)?;
    let pss_before = pss_bytes();
    let started = Instant::now();
    pool.command(ClientCommand::Ramp { to: clients, rate: None, in_flight: IN_FLIGHT });
    let mut active = 0;
    while active < clients as u64 && started.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(5));
        let counts = pool.counts();
        active = counts.states.active;
        if !counts.failures.is_empty() {
            println!("failures: {:?}", counts.failures);
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("{active} subscribed in {seconds:.2} s, {:.0}/s", active as f64 / seconds);
    println!("{:.1} us of client threads' CPU each", client_cpu_s() * 1e6 / active.max(1) as f64);
    // The first message fills buffers that later ones use again.
    publish_all(&pool, url, 1, active)?;
    std::thread::sleep(Duration::from_millis(500));
    drop((pool.counts(), pool.publishes(u64::MAX)));
    let bytes_each = (pss_bytes().saturating_sub(pss_before)) as f64 / active.max(1) as f64;
    println!("{bytes_each:.1} bytes of user space (Pss) per idle client");
    std::thread::sleep(pause);

    let cpu_before = client_cpu_s();
    let counts = publish_all(&pool, url, publishes, active)?;
    let deliveries = u64::from(publishes) * active;
    let cpu_us = (client_cpu_s() - cpu_before) * 1e6 / deliveries.max(1) as f64;
    println!("{} delivered, {cpu_us:.3} us of client threads' CPU each", counts.received);
    for percentile in [50.0, 99.0, 100.0] {
        let latency = counts.delivery.value_at_percentile(percentile) as f64 / 1e6;
        println!("  p{percentile}: {latency:.2} ms");
    }
    let deliveries: u64 = pool.publishes(u64::MAX).iter().map(deliveries_of).sum();
    let last = pool.counters().last_published(0);
    let audit = pool.audit([u64::from(last)].into());
    println!("{audit:?}, {deliveries} in publishes, failures {:?}", counts.failures);
    ensure!(
        audit.lost == 0 && audit.duplicated == 0 && audit.reordered == 0,
        "messages were lost, duplicated or reordered"
    );
    pool.stop();
    Ok(())
}

fn deliveries_of(publish: &PublishDeliveries) -> u64 {
    publish.latencies_us.len()
}

fn plan(url: &str, transport: Option<&str>) -> Result<Plan> {
    let transport = transport.unwrap_or("websocket").parse::<Transport>()?;
    let target = TargetOptions {
        url: Some(url.to_owned()),
        transport: Some(transport),
        ..TargetOptions::default()
    };
    Options { target, ..Options::default() }.into_plan().map_err(|errors| {
        let messages: Vec<String> = errors.into_iter().map(|error| error.message).collect();
        anyhow::anyhow!(messages.join("; "))
    })
}

/// Publishes messages one after the other, each when all clients have received the one before.
fn publish_all(pool: &ClientPool, url: &str, count: u32, audience: u64) -> Result<ClientCounts> {
    let (_, rest) = url.split_once("://").context("no scheme")?;
    let (authority, path) = rest.split_once('/').context("no path")?;
    let path = path.split('?').next().unwrap_or_default();
    let mut connection = TcpStream::connect(authority)?;
    let (counters, mut payload) = (pool.counters(), Vec::new());
    let mut counts = pool.counts();
    for due in 1..=count {
        let sequence = counters.last_published(0) + 1;
        let mark = Mark { run: pool.run(), stream: 0, sequence, intended_ns: now_ns() };
        payload.clear();
        mark.write_payload(64, &mut payload);
        counters.published(0, sequence);
        write!(connection, "POST /{path} HTTP/1.1\r\nHost: a\r\nContent-Length: 64\r\n\r\n")?;
        connection.write_all(&payload)?;
        let mut answer = [0; 1024];
        let bytes = connection.read(&mut answer)?;
        ensure!(answer[..bytes].starts_with(b"HTTP/1.1 201"), "the publish was refused");
        let deadline = Instant::now() + Duration::from_secs(30);
        while counts.received < u64::from(due) * audience && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
            counts += &pool.counts();
        }
    }
    Ok(counts)
}

fn pss_bytes() -> u64 {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
    kilobytes.map_or(0, |kilobytes: u64| kilobytes * 1024)
}

/// Processor time of the threads that hold clients.
fn client_cpu_s() -> f64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0.0 };
    let times = tasks.flatten().filter_map(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let stat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        let ns: f64 = stat.split(' ').next()?.parse().ok()?;
        name.starts_with("clients-").then_some(ns / 1e9)
    });
    times.sum()
}
