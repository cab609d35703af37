//! Opens clients, publishes to them by plain HTTP and audits: the load without plan file, phases or
//! report. For measuring the generator itself.
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
use throng_flood::ClientCounts;
use throng_flood::Template;
use throng_flood::plan::{Network, Plan, Sources, Streams, Subscribed, Target, Transport};
use throng_flood::{ClientPool, PublishDeliveries};
use throng_flood::{Mark, now_ns};

const IN_FLIGHT: usize = 256;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, clients, publishes, rest @ ..] = &arguments[..] else {
        anyhow::bail!("clients URL CLIENTS PUBLISHES [websocket|sse|stream|poll] [SECONDS]");
    };
    let (clients, publishes): (usize, u32) = (clients.parse()?, publishes.parse()?);
    let pause = Duration::from_secs(rest.get(1).map_or(Ok(0), |seconds| seconds.parse())?);
    let fleet = ClientPool::start(&plan(url, rest.first().map(String::as_str))?, clients)?;
    let pss_before = pss_bytes();
    let started = Instant::now();
    fleet.ramp(clients, None, IN_FLIGHT);
    let mut active = 0;
    while active < clients as u64 && started.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(5));
        let tally = fleet.counts();
        active = tally.states.active;
        if !tally.failures.is_empty() {
            println!("failures: {:?}", tally.failures);
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("{active} subscribed in {seconds:.2} s, {:.0}/s", active as f64 / seconds);
    println!("{:.1} us of client threads' CPU each", client_cpu_s() * 1e6 / active.max(1) as f64);
    // The first message fills what is filled once.
    publish_all(&fleet, url, 1, active)?;
    std::thread::sleep(Duration::from_millis(500));
    drop((fleet.counts(), fleet.publishes(Duration::ZERO)));
    let parked = (pss_bytes().saturating_sub(pss_before)) as f64 / active.max(1) as f64;
    println!("{parked:.1} bytes of user space (Pss) a parked client");
    std::thread::sleep(pause);

    let cpu_before = client_cpu_s();
    let tally = publish_all(&fleet, url, publishes, active)?;
    let deliveries = u64::from(publishes) * active;
    let cpu_us = (client_cpu_s() - cpu_before) * 1e6 / deliveries.max(1) as f64;
    println!("{} delivered, {cpu_us:.3} us of client threads' CPU each", tally.received);
    for percentile in [50.0, 99.0, 100.0] {
        let latency = tally.delivery.value_at_percentile(percentile) as f64 / 1e6;
        println!("  p{percentile}: {latency:.2} ms");
    }
    let seen: u64 = fleet.publishes(Duration::ZERO).iter().map(deliveries_of).sum();
    let last = fleet.counters().last_published(0);
    let audit = fleet.audit([u64::from(last)].into());
    println!("{audit:?}, {seen} in publishes, failures {:?}", tally.failures);
    ensure!(audit.lost == 0 && audit.duplicated == 0 && audit.reordered == 0, "not all is well");
    fleet.stop();
    Ok(())
}

fn deliveries_of(seen: &PublishDeliveries) -> u64 {
    seen.latencies_us.len()
}

fn plan(url: &str, transport: Option<&str>) -> Result<Plan> {
    let transport = match transport {
        None | Some("websocket") => Transport::WebSocket,
        Some("sse") => Transport::Sse,
        Some("stream") => Transport::Stream,
        Some("poll") => Transport::LongPoll,
        Some(other) => anyhow::bail!("there is no transport {other:?}"),
    };
    Ok(Plan {
        name: "clients".to_owned(),
        profile: throng_flood::plan::Profile::Throng,
        target: Target {
            transport,
            url: Template::parse(url)?,
            ports: Vec::new(),
            headers: Vec::new(),
            subprotocol: None,
            hello: Vec::new(),
            subscribed: Subscribed::Handshake,
            refused: Vec::new(),
            pings: Vec::new(),
            handshake_timeout: Duration::from_secs(10),
            publish: None,
            streams: Streams::One,
        },
        sources: Sources { addresses: Vec::new(), ports: None },
        network: Network::default(),
        threads: None,
        keep: false,
        seed: 1,
        phases: Vec::new(),
        assertions: Vec::new(),
        server_pids: Vec::new(),
        deadline: Duration::from_secs(600),
    })
}

/// Publishes one after the other, each as soon as all have the one before.
fn publish_all(fleet: &ClientPool, url: &str, count: u32, audience: u64) -> Result<ClientCounts> {
    let (_, rest) = url.split_once("://").context("no scheme")?;
    let (authority, path) = rest.split_once('/').context("no path")?;
    let path = path.split('?').next().unwrap_or_default();
    let mut connection = TcpStream::connect(authority)?;
    let (board, mut payload) = (fleet.counters(), Vec::new());
    let mut tally = fleet.counts();
    for due in 1..=count {
        let sequence = board.last_published(0) + 1;
        let mark = Mark { run: fleet.run(), stream: 0, sequence, intended_ns: now_ns() };
        payload.clear();
        mark.write_payload(64, &mut payload);
        board.published(0, sequence);
        write!(connection, "POST /{path} HTTP/1.1\r\nHost: a\r\nContent-Length: 64\r\n\r\n")?;
        connection.write_all(&payload)?;
        let mut answer = [0; 1024];
        let bytes = connection.read(&mut answer)?;
        ensure!(answer[..bytes].starts_with(b"HTTP/1.1 201"), "the publish was refused");
        let deadline = Instant::now() + Duration::from_secs(30);
        while tally.received < u64::from(due) * audience && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
            tally.merge(&fleet.counts());
        }
    }
    Ok(tally)
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
