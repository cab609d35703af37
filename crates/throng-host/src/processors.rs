//! Busy time of all processors, and the programs that used it.
//!
//! The CPU time of a process ([`proc::cpu_ns`](crate::proc::cpu_ns)) excludes the work of kernel
//! threads on its behalf: `ksoftirqd` receives packets for all processes. The busy time of all
//! processors includes it. Callers subtract the time of other visible programs.
//!
//! # Invariants
//!
//! - Busy time is elapsed time minus idle time: a tickless kernel counts idle time exactly, and
//!   samples all other states 100 to 1000 times a second.
//! - The kernel adds the time of an ended program to the parent that waits for it, so totals of
//!   [`Programs`] never decrease.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

/// Unit of the times in `/proc/stat` and `/proc/PID/stat`.
const STEP: Duration = Duration::from_millis(10);

/// Error bound of one processor's busy time over an interval. Each reading is up to one [`STEP`]
/// too low, so the difference of two has a root mean square error of 4.1 ms; this is three
/// times that. Errors of several processors add up with the square root of their number.
const NOISE: Duration = Duration::from_millis(12);

/// The flag of a kernel thread in `/proc/PID/stat` (`PF_KTHREAD`).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// A reading of the total idle time of all processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processors {
    at: Instant,
    count: u32,
    /// Idle, I/O wait and steal time, summed over all processors.
    unused: Duration,
}

impl Processors {
    /// Reads `/proc/stat`; `None` if it cannot be read or parsed.
    pub fn read() -> Option<Processors> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let (count, unused) = parse_stat(&text)?;
        Some(Processors { at: Instant::now(), count, unused })
    }

    /// The number of processors.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The time between an earlier reading and this one.
    pub fn elapsed_since(&self, earlier: &Processors) -> Duration {
        self.at - earlier.at
    }

    /// The busy time since an earlier reading, summed over all processors; `None` if the number of
    /// processors has changed.
    pub fn busy_since(&self, earlier: &Processors) -> Option<Duration> {
        let unused = self.unused.checked_sub(earlier.unused)?;
        let all = (self.at - earlier.at) * self.count;
        (self.count == earlier.count).then(|| all.saturating_sub(unused))
    }

    /// Error bound of [`Processors::busy_since`].
    pub fn noise(&self) -> Duration {
        NOISE.mul_f64(f64::from(self.count).sqrt())
    }
}

/// A reading of the CPU times of visible processes, without kernel threads.
#[derive(Debug, Clone, Default)]
pub struct Programs(BTreeMap<u32, Program>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Program {
    name: String,
    /// CPU time of the process and of its ended children.
    time: Duration,
}

impl Programs {
    /// Reads all visible processes except `ours`.
    pub fn others(ours: &[u32]) -> Programs {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let program = |pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, parse_program(&stat)?))
        };
        Programs(pids.filter(|pid| !ours.contains(pid)).filter_map(program).collect())
    }

    /// The total CPU time of the processes.
    pub fn time(&self) -> Duration {
        self.0.values().map(|program| program.time).sum()
    }

    /// Names of the programs that used CPU time since an earlier reading, without duplicates, the
    /// busiest first.
    pub fn busiest_since(&self, earlier: &Programs) -> Vec<String> {
        let mut by_name = BTreeMap::<&str, Duration>::new();
        for (pid, program) in &self.0 {
            let before = earlier.0.get(pid).filter(|before| before.name == program.name);
            let before = before.map_or(Duration::ZERO, |before| before.time);
            *by_name.entry(&program.name).or_default() += program.time.saturating_sub(before);
        }
        let mut sorted: Vec<_> = by_name.into_iter().filter(|(_, time)| *time > STEP).collect();
        sorted.sort_by_key(|&(_, time)| std::cmp::Reverse(time));
        sorted.into_iter().map(|(name, _)| name.to_owned()).collect()
    }
}

/// The number of processors and their total unused time.
fn parse_stat(text: &str) -> Option<(u32, Duration)> {
    const IDLE: usize = 3;
    const DISKS: usize = 4;
    const STOLEN: usize = 7;
    let fields: Vec<u64> = text
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .map(|field| field.parse().ok())
        .collect::<Option<_>>()?;
    let ticks = fields.get(IDLE)? + fields.get(DISKS)? + fields.get(STOLEN).unwrap_or(&0);
    let count = text.lines().skip(1).take_while(|line| line.starts_with("cpu")).count();
    let count = u32::try_from(count).ok().filter(|&count| count > 0)?;
    Some((count, time_of(ticks)))
}

/// Parses `/proc/PID/stat`; `None` for kernel threads. The name may contain spaces and brackets.
fn parse_program(stat: &str) -> Option<Program> {
    const FLAGS: usize = 6;
    const TIMES: std::ops::Range<usize> = 11..15;
    let (start, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if fields.get(FLAGS)?.parse::<u64>().ok()? & KERNEL_THREAD != 0 {
        return None;
    }
    let ticks = fields.get(TIMES)?.iter().map(|field| field.parse::<u64>().ok());
    let name = start.split_once('(')?.1.to_owned();
    Some(Program { name, time: time_of(ticks.sum::<Option<u64>>()?) })
}

fn time_of(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(STEP.as_millis() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  10 20 30 400 50 6 7 8 9 0\ncpu0 1 2 3\ncpu1 1 2 3\nintr 9 9\n";

    fn processors(at: Instant, unused_ms: u64) -> Processors {
        Processors { at, count: 2, unused: Duration::from_millis(unused_ms) }
    }

    #[test]
    fn busy_time_is_elapsed_minus_idle_time() {
        assert_eq!(parse_stat(STAT), Some((2, Duration::from_millis(4580))));
        for text in ["", "cpu  1 2\ncpu0 1\n", "cpu  1 2 3 4 5\nintr 1\n", "cpu  x y z a b\ncpu0\n"]
        {
            assert_eq!(parse_stat(text), None, "{text:?}");
        }
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let (from, to) = (processors(start, 500), processors(start + second, 1900));
        assert_eq!(to.busy_since(&from), Some(Duration::from_millis(600)));
        // The clocks are not read at the same time, so idle time may exceed elapsed time.
        assert_eq!(processors(start + second, 2510).busy_since(&from), Some(Duration::ZERO));
        let more = Processors { count: 3, ..to };
        assert_eq!(more.busy_since(&from), None);
    }

    #[test]
    fn a_programs_time_includes_its_ended_children() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 12 30 100 1 20 0 1";
        let program = parse_program(stat).expect("a program");
        assert_eq!((&*program.name, program.time), ("a ) b", Duration::from_millis(1430)));
        let kernel = "15 (ksoftirqd/0) S 2 0 0 0 -1 69238848 0 0 0 0 0 14 0 0 20 0 1";
        assert_eq!(parse_program(kernel), None);
    }

    #[test]
    fn programs_are_sorted_by_cpu_time() {
        let programs = |times: &[(u32, &str, u64)]| {
            let each = |&(pid, name, ms): &(u32, &str, u64)| {
                (pid, Program { name: name.to_owned(), time: Duration::from_millis(ms) })
            };
            Programs(times.iter().map(each).collect())
        };
        let before = programs(&[(1, "init", 900), (2, "a", 100), (3, "old", 5000)]);
        let after = programs(&[(1, "init", 910), (2, "a", 400), (3, "new", 200), (4, "new", 200)]);
        assert_eq!(after.busiest_since(&before), ["new", "a"]);
        assert_eq!(after.time() - programs(&[]).time(), Duration::from_millis(1710));
    }

    #[test]
    fn this_machine_can_be_read() {
        let before = Processors::read().expect("/proc/stat is readable");
        let own = std::process::id();
        assert!(before.count() > 0 && before.noise() > Duration::ZERO);
        assert!(Programs::others(&[]).0.contains_key(&own));
        assert!(!Programs::others(&[own]).0.contains_key(&own));
        assert!(Processors::read().expect("again").busy_since(&before).is_some());
    }
}
