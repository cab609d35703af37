//! Events at a steady rate, spread over the threads.

/// One thread's part of events that happen `rate` times a second over all threads: event `k` of all
/// belongs to thread `k % threads`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule {
    start_ns: u64,
    /// Between two of this thread's.
    interval_ns: f64,
    offset_ns: f64,
    done: u64,
}

impl Schedule {
    /// From now on. A rate that is not above 0 has no events.
    pub(super) fn new(rate: f64, thread: usize, threads: usize, now_ns: u64) -> Option<Schedule> {
        (rate > 0.0 && rate.is_finite()).then(|| Schedule {
            start_ns: now_ns,
            interval_ns: threads as f64 * 1e9 / rate,
            offset_ns: thread as f64 * 1e9 / rate,
            done: 0,
        })
    }

    /// When the next one is due.
    pub(super) fn next_ns(&self) -> u64 {
        self.start_ns.saturating_add((self.offset_ns + self.done as f64 * self.interval_ns) as u64)
    }

    /// Whether one is due, which is then done.
    pub(super) fn take(&mut self, now_ns: u64) -> bool {
        let is_due = self.next_ns() <= now_ns;
        self.done += u64::from(is_due);
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_together_keep_the_rate() {
        let mut threads: Vec<_> =
            (0..3).filter_map(|thread| Schedule::new(100.0, thread, 3, 5)).collect();
        let mut due = 0;
        for now_ns in (5..5 + 1_000_000_000).step_by(1_000_000) {
            for thread in &mut threads {
                while thread.take(now_ns) {
                    due += 1;
                }
            }
        }
        assert_eq!(due, 100);
        assert!(Schedule::new(0.0, 0, 1, 0).is_none());
    }
}
