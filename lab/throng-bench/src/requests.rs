//! Plain requests alongside the load, in an open loop.
//!
//! Threads with one connection each share a fixed schedule. Latency counts from the intended time,
//! so that a blocked server is charged for every request that it delayed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::http::Http;

/// Number of threads, and so of concurrent requests.
const THREADS: u32 = 8;

/// Timeout of a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// A running schedule of requests.
pub(crate) struct Requests {
    threads: Vec<JoinHandle<Counted>>,
    started: Instant,
    is_stopped: Arc<AtomicBool>,
}

/// The outcome of the requests.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Response {
    /// Number of successful responses.
    pub(crate) answered: u64,
    /// Error responses and missing ones.
    pub(crate) failed: u64,
    /// Responses per second.
    pub(crate) rate: f64,
    /// Mean latency, from the intended time to the end of the response.
    pub(crate) mean_ms: f64,
    /// 99th percentile of the latency.
    pub(crate) p99_ms: f64,
}

struct Counted {
    latencies_us: Histogram<u64>,
    failed: u64,
    /// End of the last request.
    ended: Instant,
}

impl Requests {
    /// Requests the URLs in turn, `rate` per second in all, for `time`. If connections are not
    /// kept, each request has a new one.
    pub(crate) fn start(urls: Vec<String>, rate: f64, time: Duration, is_kept: bool) -> Requests {
        let started = Instant::now();
        let is_stopped = Arc::new(AtomicBool::new(false));
        let requests = (rate * time.as_secs_f64()).ceil() as u32;
        let urls: Arc<[String]> = urls.into();
        let threads = (0..THREADS).map(|index| {
            let (urls, is_stopped) = (Arc::clone(&urls), Arc::clone(&is_stopped));
            thread::spawn(move || {
                let due = (index..requests).step_by(THREADS as usize);
                let due = due.map(|nth| {
                    let at = started + Duration::from_secs_f64(f64::from(nth) / rate);
                    (&*urls[nth as usize % urls.len()], at)
                });
                send(due, is_kept, &is_stopped)
            })
        });
        Requests { threads: threads.collect(), started, is_stopped }
    }

    /// Skips the rest of the schedule.
    pub(crate) fn cut_short(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Waits for the last responses of several schedules, one after the other.
    pub(crate) fn end(schedules: Vec<Requests>) -> Response {
        let mut all = microseconds();
        let (mut failed, mut seconds) = (0, 0.0);
        for Requests { threads, started, .. } in schedules {
            let mut ended = started;
            for thread in threads {
                // A panicked thread has reported on standard error.
                let Ok(counted) = thread.join() else { continue };
                // Adding cannot fail: the histogram resizes itself.
                let _ = all.add(&counted.latencies_us);
                failed += counted.failed;
                ended = ended.max(counted.ended);
            }
            seconds += (ended - started).as_secs_f64();
        }
        Response {
            answered: all.len(),
            failed,
            rate: if seconds > 0.0 { all.len() as f64 / seconds } else { 0.0 },
            mean_ms: all.mean() / 1e3,
            p99_ms: all.value_at_quantile(0.99) as f64 / 1e3,
        }
    }
}

fn send<'a>(
    requests: impl Iterator<Item = (&'a str, Instant)>,
    is_kept: bool,
    is_stopped: &AtomicBool,
) -> Counted {
    let mut http = Http::new(RESPONSE_TIMEOUT);
    let mut counted = Counted { latencies_us: microseconds(), failed: 0, ended: Instant::now() };
    for (url, due) in requests {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if is_stopped.load(Ordering::Relaxed) {
            break;
        }
        if !is_kept {
            http = Http::new(RESPONSE_TIMEOUT);
        }
        match http.get(url) {
            Ok(_) => {
                let us = u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX);
                // Adding cannot fail: the histogram resizes itself.
                let _ = counted.latencies_us.record(us);
            }
            Err(_) => counted.failed += 1,
        }
        counted.ended = Instant::now();
    }
    counted
}

fn microseconds() -> Histogram<u64> {
    Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits are allowed"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn every_request_is_answered_or_failed() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("an address");
        let accepted = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&accepted);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                counter.fetch_add(1, Ordering::Relaxed);
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
        let start = |address, time, is_kept| {
            Requests::start(vec![format!("http://{address}/")], 200.0, time, is_kept)
        };
        let counted = Requests::end(vec![start(address, time, true), start(address, time, true)]);
        assert_eq!((counted.answered, counted.failed), (40, 0));
        assert!(counted.mean_ms > 0.0 && counted.rate > 0.0);

        assert!(accepted.swap(0, Ordering::Relaxed) <= 2 * u64::from(THREADS));
        let counted = Requests::end(vec![start(address, time, false)]);
        assert_eq!((counted.answered, accepted.load(Ordering::Relaxed)), (20, 20));

        let long = start(address, time * 36_000, true);
        long.cut_short();
        assert!(Requests::end(vec![long]).answered < 200);

        let closed = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = closed.local_addr().expect("an address");
        drop(closed);
        let counted = Requests::end(vec![start(address, time, true)]);
        assert_eq!((counted.answered, counted.failed), (0, 20));
    }
}
