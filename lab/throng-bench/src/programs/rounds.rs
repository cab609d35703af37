//! Messages to all clients, each when all have the one before, on Throng and on the raw loop.
//!
//! Numbers of the file: `rounds` that are measured, after one to warm up and `parked` seconds in
//! which the idle machine is measured; `bytes` of a message; `messages` of a round, which are
//! published as one batch if `batch` is 1, and otherwise in as many requests on one connection,
//! without waiting for responses in between. Figures of a run:
//! `connect_rate`, and `slab`, bytes of kernel memory for each connection; medians of the rounds:
//! `rate` of deliveries, and `p50`, `p99` and `last` of a delivery, in milliseconds; for each
//! delivery, in milliseconds of processor time: `cpu` of the server, `client_cpu`, `machine_cpu`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use throng_flood::{ClientCounts, now_ns};
use throng_host::proc;
use throng_host::processors::{Processors, Programs};
use throng_units::format::count;

use super::led::Led;
use crate::context::{Abort, Context};
use crate::expression::median;
use crate::file::Run;
use crate::http::{Connection, parts, request};

/// Connections that connect at the same time: enough to keep the server busy, and far below the
/// backlog of a listener.
const IN_FLIGHT: usize = 256;

/// The channel that all clients follow.
const CHANNEL: &str = "everybody";

/// Between a message's last delivery and the next publish. The server's threads sleep meanwhile,
/// and then their processor time is exact.
const GAP: Duration = Duration::from_millis(100);

/// If other programs use more than this share of the processor time, a warning names them.
const OTHERS_SHARE: f64 = 0.05;

/// Time limit of a response.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Between two pairs of requests for `/health`, so that they are no load.
const PAUSE: Duration = Duration::from_millis(2);

/// The clients, and the messages of a round.
struct Rounds {
    led: Led,
    url: String,
    bytes: usize,
    messages: usize,
    is_batch: bool,
}

/// The deliveries of a round.
struct Round {
    counts: ClientCounts,
    last_ms: f64,
}

/// Processor times of the machine at one moment.
struct Machine {
    processors: Processors,
    others: Programs,
}

/// Processor time of the machine between two moments, and the time itself.
struct Used {
    /// Of both sides and the kernel.
    ours_s: f64,
    /// Of other programs.
    others_s: f64,
    time_s: f64,
}

/// Makes the rounds.
pub(super) fn run(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    let mut rounds = Rounds::connect(context, run)?;
    let server = context.pid().unwrap_or_default();
    let own_ns = || proc::cpu_ns(std::process::id());
    rounds.round(context)?;
    thread::sleep(GAP);
    let parked = Machine::read(server);
    thread::sleep(Duration::from_secs_f64(context.number(run, "parked")));
    let start = Machine::read(server);
    let (before_s, before_ns) = (context.cpu_s(), own_ns());
    let number = context.number(run, "rounds").max(1.0) as usize;
    let mut all: [Vec<f64>; 4] = Default::default();
    let messages = (context.size.connections * rounds.messages) as f64;
    for _ in 0..number {
        let Round { counts, last_ms } = rounds.round(context)?;
        let at = |share| counts.delivery.value_at_quantile(share) as f64 / 1e6;
        let values = [messages / last_ms * 1e3, at(0.5), at(0.99), last_ms];
        all.iter_mut().zip(values).for_each(|(list, value)| list.push(value));
        thread::sleep(GAP);
    }
    let used_s = context.cpu_s().zip(before_s).map(|(now, before)| now - before);
    let client_s = own_ns().zip(before_ns).map(|(now, before)| (now - before) as f64 / 1e9);
    let machine_s = machine_s(context, [parked, start, Machine::read(server)]);
    let each = |seconds: Option<f64>| Some(seconds? * 1e3 / messages / number as f64);
    let [rate, p50, p99, last] = all.map(median);
    context.give([
        ("rate", rate),
        ("p50", p50),
        ("p99", p99),
        ("last", last),
        ("cpu", each(used_s)),
        ("client_cpu", each(client_s)),
        ("machine_cpu", each(machine_s)),
    ]);
    rounds.led.end(context);
    Ok(())
}

/// Requests `GET /health` on new connections and on a kept one while messages go to all, one right
/// after the other, for the number of seconds `health`. The raw loop answers on other threads, so
/// that its latency is what the busy machine alone causes. Figures in milliseconds: `new_p50`,
/// `new_p99`, `kept_p50`, `kept_p99`.
pub(super) fn health(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    let mut rounds = Rounds::connect(context, run)?;
    rounds.round(context)?;
    let time =
        Duration::from_secs_f64(context.number(run, "health").min(context.size.time.as_secs_f64()));
    let (url, is_over) = (format!("{}/health", rounds.url), AtomicBool::new(false));
    let (new, kept) = thread::scope(|scope| {
        let requesting = scope.spawn(|| request_until(&url, &is_over));
        let end = Instant::now() + time;
        let mut made = Ok(());
        while made.is_ok() && Instant::now() < end {
            made = rounds.round(context).map(drop);
        }
        is_over.store(true, Ordering::Relaxed);
        let requested = requesting.join();
        made?;
        let panicked = |_| Err("the requesting thread has panicked".to_owned());
        let requested = requested.unwrap_or_else(panicked);
        requested.map_err(|reason| Abort::Failed(format!("GET /health: {reason}")))
    })?;
    let at = |list: &[f64], share: f64| {
        let rank = (list.len() as f64 * share).ceil().max(1.0) as usize;
        list.get(rank - 1).copied()
    };
    context.give([
        ("new_p50", at(&new, 0.5)),
        ("new_p99", at(&new, 0.99)),
        ("kept_p50", at(&kept, 0.5)),
        ("kept_p99", at(&kept, 0.99)),
    ]);
    rounds.led.end(context);
    Ok(())
}

/// The latencies on new connections and on a kept one, ascending.
fn request_until(url: &str, is_over: &AtomicBool) -> Result<(Vec<f64>, Vec<f64>), String> {
    let (authority, path) = parts(url);
    let request = request("GET", authority, path, None, b"");
    let timed = |connection: Option<&mut Connection>| {
        let started = Instant::now();
        match connection {
            Some(kept) => kept.send(&request).and_then(|()| kept.expect_success())?,
            None => {
                let mut new = Connection::open(authority, TIMEOUT)?;
                new.send(&request).and_then(|()| new.expect_success())?
            }
        };
        Ok::<_, String>(started.elapsed().as_secs_f64() * 1e3)
    };
    let mut connection = Connection::open(authority, TIMEOUT)?;
    let (mut new, mut kept) = (Vec::new(), Vec::new());
    while !is_over.load(Ordering::Relaxed) {
        new.push(timed(None)?);
        kept.push(timed(Some(&mut connection))?);
        thread::sleep(PAUSE);
    }
    new.sort_by(f64::total_cmp);
    kept.sort_by(f64::total_cmp);
    Ok((new, kept))
}

impl Rounds {
    /// Starts the server of a run, and connects all clients.
    fn connect(context: &mut Context<'_>, run: &Run) -> Result<Rounds, Abort> {
        context.serve(run)?;
        let clients = context.size.connections;
        let mut rounds = Rounds {
            led: Led::new(context, run)?,
            url: context.url(),
            bytes: run.given("bytes").unwrap_or(64.0) as usize,
            messages: run.given("messages").unwrap_or(1.0) as usize,
            is_batch: run.given("batch") == Some(1.0),
        };
        let before = proc::slab_bytes();
        let connected = rounds.led.connect(context, clients, IN_FLIGHT)?;
        let slab = proc::slab_bytes().zip(before);
        let seconds = connected.connecting.seconds().filter(|seconds| *seconds > 0.0);
        context.give([
            ("connect_rate", seconds.map(|seconds| clients as f64 / seconds)),
            ("slab", slab.map(|(now, before)| (now as f64 - before as f64) / clients as f64)),
        ]);
        Ok(rounds)
    }

    /// Publishes the messages of a round, and waits until all clients have all of them.
    fn round(&mut self, context: &mut Context<'_>) -> Result<Round, Abort> {
        // A new connection: an older one may be closed as idle.
        let (authority, _) = parts(&self.url);
        let mut connection = Connection::open(authority, TIMEOUT)?;
        let started_ns = now_ns();
        let messages: Vec<_> = (0..self.messages).map(|_| self.led.marked(self.bytes)).collect();
        let path = format!("/channels/{CHANNEL}");
        let (requests, answers) = if self.is_batch {
            // A mark has only characters that need no escaping.
            let line = |data: &Vec<u8>| {
                let data = String::from_utf8_lossy(data);
                format!("{{\"channel\":\"{CHANNEL}\",\"data\":\"{data}\"}}\n")
            };
            let lines: String = messages.iter().map(line).collect();
            (request("POST", authority, "/publish", None, lines.as_bytes()), 1)
        } else {
            let requests =
                messages.iter().map(|body| request("POST", authority, &path, None, body));
            (requests.flatten().collect(), self.messages)
        };
        connection.send(&requests)?;
        for _ in 0..answers {
            let answer = connection.expect_success()?;
            let answer = serde_json::from_str::<serde_json::Value>(&answer).unwrap_or_default();
            if let Some(blocked @ 1..) = answer["blocked"].as_u64() {
                context
                    .warn(format!("in the raw loop, sockets were full {} times", count(blocked)));
            }
        }
        let all = context.size.connections * self.messages;
        let counts = self.led.await_messages(context, all as u64, |counts| counts.received)?;
        let last_ns = counts.arriving.last_ns().unwrap_or(started_ns);
        let last_ms = last_ns.saturating_sub(started_ns) as f64 / 1e6;
        Ok(Round { counts, last_ms })
    }
}

/// The processor time of both sides and of the kernel in the second of two spans, without what the
/// idle machine of the first uses in the same time; warns about other programs. `None` if `/proc`
/// does not have it.
fn machine_s(context: &mut Context<'_>, [parked, start, end]: [Option<Machine>; 3]) -> Option<f64> {
    let (parked, start, end) = (parked?, start?, end?);
    let (idle, work) = (start.since(&parked)?, end.since(&start)?);
    if work.others_s > work.ours_s * OTHERS_SHARE {
        let mut names = end.others.busiest_since(&start.others);
        names.truncate(3);
        context.warn(format!(
            "other programs used {:.1} s of processor time beside {:.1} s: {}",
            work.others_s,
            work.ours_s,
            names.join(", ")
        ));
    }
    Some(work.without_idle(&idle))
}

impl Machine {
    /// Reads the times of the machine, and of programs other than this one and `server`.
    fn read(server: u32) -> Option<Machine> {
        let others = Programs::others(&[std::process::id(), server]);
        Some(Machine { processors: Processors::read()?, others })
    }

    /// The times since an earlier moment. `None` if the processors differ.
    fn since(&self, earlier: &Machine) -> Option<Used> {
        let busy = self.processors.busy_since(&earlier.processors)?;
        let others = self.others.time().saturating_sub(earlier.others.time());
        Some(Used {
            ours_s: busy.saturating_sub(others).as_secs_f64(),
            others_s: others.as_secs_f64(),
            time_s: self.processors.elapsed_since(&earlier.processors).as_secs_f64(),
        })
    }
}

impl Used {
    /// The time of both sides, without what the machine uses in the same time while idle.
    fn without_idle(&self, idle: &Used) -> f64 {
        let share = self.time_s / idle.time_s.max(f64::MIN_POSITIVE);
        (self.ours_s - idle.ours_s * share).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_idle_time_is_scaled_to_the_duration_of_the_work() {
        let used = |ours_s, time_s| Used { ours_s, others_s: 0.0, time_s };
        assert_eq!(used(1.0, 4.0).without_idle(&used(0.125, 2.0)), 0.75);
        assert_eq!(used(1.0, 4.0).without_idle(&used(0.9, 2.0)), 0.0);
    }

    #[test]
    fn this_machine_can_be_read() {
        let before = Machine::read(std::process::id()).expect("the kernel tells");
        let after = Machine::read(std::process::id()).expect("again");
        let used = after.since(&before).expect("the same processors");
        assert!(used.without_idle(&used) <= used.ours_s);
    }
}
