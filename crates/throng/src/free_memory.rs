//! When free memory of the allocator goes back to the kernel.
//!
//! The allocator keeps what is freed below something that is not. These leave much of it, among
//! state that stays: logs that shrink; handshakes, each of which takes 8 KB while it is under way;
//! parts of logs that are fetched, each of which takes some hundred bytes until it has come; and
//! durable messages, which are in memory until they are in a file. After a storm of them the kernel
//! gets it back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use throng_core::Channels;
use throng_edge::Metrics;

/// When the logs have shrunk by this many bytes and by half, memory is returned.
const LOG_BYTES: u64 = 64 << 20;

/// Memory is returned after this many handshakes.
const HANDSHAKES: u64 = 256;

/// The same for what the channels have held for a short time.
const HELD_SHORTLY: u64 = 4_096;

/// They are over once a second brings less than this part of all since the last time. So it costs
/// the same however many there are: at a steady rate, memory is returned once a minute.
const CALM_PART: u64 = 64;

/// The time between two looks at both, in calls.
const LOOK_CALLS: u32 = 10;

/// To return memory takes at most this part of the time: the allocator's locks are held meanwhile.
const TIME_PART: u32 = 1000;

/// Decides when memory is returned, and returns it.
#[derive(Debug)]
pub(crate) struct FreeMemory {
    most_log_bytes: u64,
    handshakes: Storm,
    held_shortly: Storm,
    calls: u32,
    /// Duration of the last time, in microseconds.
    took_us: Arc<AtomicU64>,
    returned: Option<Instant>,
}

impl Default for FreeMemory {
    fn default() -> FreeMemory {
        FreeMemory {
            most_log_bytes: 0,
            handshakes: Storm::of(HANDSHAKES),
            held_shortly: Storm::of(HELD_SHORTLY),
            calls: 0,
            took_us: Arc::default(),
            returned: None,
        }
    }
}

impl FreeMemory {
    /// Looks at the logs, and at the workers' handshakes. Call it ten times a second on the
    /// runtime, whose threads for blocking work return the memory.
    pub(crate) fn look(&mut self, channels: &Channels, workers: &Metrics) {
        self.calls += 1;
        let mut is_due = self.have_logs_shrunk(channels.log_bytes());
        if self.calls >= LOOK_CALLS {
            self.calls = 0;
            if self.may_take_time() {
                is_due |= self.handshakes.is_over(workers.handshakes_ended());
                is_due |= self.held_shortly.is_over(channels.held_shortly());
            }
        }
        if is_due {
            self.returned = Some(Instant::now());
            let took_us = Arc::clone(&self.took_us);
            tokio::task::spawn_blocking(move || {
                let begun = Instant::now();
                throng_edge::release_unused_memory();
                took_us.store(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
            });
        }
    }

    fn have_logs_shrunk(&mut self, bytes: u64) -> bool {
        self.most_log_bytes = self.most_log_bytes.max(bytes);
        let have_shrunk = self.most_log_bytes - bytes >= LOG_BYTES.max(self.most_log_bytes / 2);
        if have_shrunk {
            self.most_log_bytes = bytes;
        }
        have_shrunk
    }

    fn may_take_time(&self) -> bool {
        let took = Duration::from_micros(self.took_us.load(Ordering::Relaxed));
        self.returned.is_none_or(|returned| returned.elapsed() >= took * TIME_PART)
    }
}

/// Handshakes, or what was held for a short time, since memory was returned.
#[derive(Debug)]
struct Storm {
    /// How many are one.
    least: u64,
    /// The number that had ended when memory was returned, and at the last look.
    returned: u64,
    last: u64,
    /// True if they were over at the last look. Meanwhile each worker gives back what the allocator
    /// keeps for its thread.
    were_over: bool,
}

impl Storm {
    fn of(least: u64) -> Storm {
        Storm { least, returned: 0, last: 0, were_over: false }
    }

    /// True if many had ended since the last time, and hardly any more, at the look before this.
    fn is_over(&mut self, ended: u64) -> bool {
        let since_look = ended - std::mem::replace(&mut self.last, ended);
        let since = ended - self.returned;
        let are_over = since >= self.least && since_look <= since / CALM_PART;
        if are_over {
            self.returned = ended;
        }
        std::mem::replace(&mut self.were_over, are_over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_returned_after_a_storm_of_handshakes() {
        let mut handshakes = Storm::of(HANDSHAKES);
        let counts = [0, 100, 4_000, 9_000, 15_000, 15_010, 15_010, 15_050, 15_265, 15_266, 15_266];
        let over: Vec<bool> = counts.map(|count| handshakes.is_over(count)).into();
        let after = |calm| counts.iter().position(|count| *count == calm).unwrap() + 1;
        let (first, second) = (after(15_010), after(15_266));
        let returned: Vec<usize> = (0..counts.len()).filter(|at| over[*at]).collect();
        assert_eq!(returned, [first, second]);
    }

    #[test]
    fn at_a_steady_rate_it_is_returned_once_a_minute() {
        for rate in [5_u64, 300, 10_000] {
            let mut handshakes = Storm::of(HANDSHAKES);
            let returned = (1..=641).filter(|second| handshakes.is_over(second * rate)).count();
            assert_eq!(returned, 10, "{rate} a second");
        }
    }

    #[test]
    fn logs_that_shrink_leave_memory() {
        let mut memory = FreeMemory::default();
        let mib = |count: u64| count << 20;
        assert!(!memory.have_logs_shrunk(mib(100)));
        assert!(!memory.have_logs_shrunk(mib(40)), "60 MiB");
        assert!(memory.have_logs_shrunk(mib(36)));
        assert!(!memory.have_logs_shrunk(mib(36)));
        assert!(!memory.have_logs_shrunk(mib(500)));
        assert!(!memory.have_logs_shrunk(mib(300)), "not by half");
        assert!(memory.have_logs_shrunk(mib(250)));
    }
}
