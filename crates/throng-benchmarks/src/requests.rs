//! Plain requests beside the load, each at its time whether or not the one before is answered.
//!
//! Several threads share the schedule, each with a connection of its own that is kept alive. A
//! request that has to wait for its thread counts from its intended time, so that a server that
//! stalls is charged for all that it held up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ureq::Agent;

/// Threads, and requests under way at most.
const THREADS: u32 = 8;

/// An answer must come within this.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The requests of a while, under way.
pub struct Requests {
    threads: Vec<JoinHandle<Seen>>,
    started: Instant,
    is_over: Arc<AtomicBool>,
}

/// What came of them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Response {
    /// Answered with success.
    pub answered: u64,
    /// Refused, or not answered.
    pub failed: u64,
    /// Answers a second.
    pub rate: f64,
    /// From the intended time to the whole answer: average …
    pub mean_ms: f64,
    /// … the 99th percentile …
    pub p99_ms: f64,
    /// … and the longest.
    pub max_ms: f64,
}

struct Seen {
    latencies_us: Histogram<u64>,
    failed: u64,
    /// When the last request was over.
    ended: Instant,
}

impl Requests {
    /// Asks `url` at `rate` a second for a time.
    pub fn start(url: &str, rate: f64, time: Duration) -> Requests {
        let started = Instant::now();
        let is_over = Arc::new(AtomicBool::new(false));
        let requests = (rate * time.as_secs_f64()).ceil() as u32;
        let threads = (0..THREADS).map(|index| {
            let (url, is_over) = (url.to_owned(), Arc::clone(&is_over));
            thread::spawn(move || {
                let due = (index..requests).step_by(THREADS as usize);
                let at = |nth| started + Duration::from_secs_f64(f64::from(nth) / rate);
                ask(&url, due.map(at), &is_over)
            })
        });
        Requests { threads: threads.collect(), started, is_over }
    }

    /// Sends no more: those that are due later are left out.
    pub fn cut_short(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Waits for the last answer.
    pub fn end(self) -> Response {
        let mut all = microseconds();
        let mut failed = 0;
        let mut ended = self.started;
        for thread in self.threads {
            // A thread that has panicked has its sentence on standard error.
            let Ok(seen) = thread.join() else { continue };
            // It grows as it must.
            let _ = all.add(&seen.latencies_us);
            failed += seen.failed;
            ended = ended.max(seen.ended);
        }
        let ms = |us: u64| us as f64 / 1e3;
        let seconds = (ended - self.started).as_secs_f64();
        Response {
            answered: all.len(),
            failed,
            rate: if seconds > 0.0 { all.len() as f64 / seconds } else { 0.0 },
            mean_ms: all.mean() / 1e3,
            p99_ms: ms(all.value_at_quantile(0.99)),
            max_ms: ms(all.max()),
        }
    }
}

fn ask(url: &str, times: impl Iterator<Item = Instant>, is_over: &AtomicBool) -> Seen {
    let config = Agent::config_builder().proxy(None).timeout_global(Some(ANSWER_TIMEOUT));
    let agent: Agent = config.build().into();
    let mut seen = Seen { latencies_us: microseconds(), failed: 0, ended: Instant::now() };
    for due in times {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let answer = agent.get(url).call().and_then(|mut answer| answer.body_mut().read_to_vec());
        match answer {
            Ok(_) => {
                let us = u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX);
                // It grows as it must.
                let _ = seen.latencies_us.record(us);
            }
            Err(_) => seen.failed += 1,
        }
        seen.ended = Instant::now();
    }
    seen
}

fn microseconds() -> Histogram<u64> {
    Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits are allowed"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn every_request_is_answered_or_failed() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while stream.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {
                        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                        let _ = stream.write_all(answer);
                    }
                });
            }
        });
        let time = Duration::from_millis(100);
        let seen = Requests::start(&format!("http://{address}/"), 200.0, time).end();
        assert_eq!((seen.answered, seen.failed), (20, 0));
        assert!(seen.mean_ms > 0.0 && seen.p99_ms <= seen.max_ms && seen.rate > 0.0);

        let long = Requests::start(&format!("http://{address}/"), 200.0, time * 36_000);
        long.cut_short();
        assert!(long.end().answered < 200);

        let nobody = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = nobody.local_addr().expect("an address");
        drop(nobody);
        let seen = Requests::start(&format!("http://{address}/"), 200.0, time).end();
        assert_eq!((seen.answered, seen.failed), (0, 20));
    }
}
