//! How busy the processors of the machine are, and which programs keep them busy.
//!
//! A process's own processor time ([`proc::cpu_ns`](crate::proc::cpu_ns)) leaves out what the
//! kernel does for it in threads of its own: `ksoftirqd` receives packets for whoever they are for.
//! The time that all processors were busy has everything; what other programs did meanwhile is
//! taken off again, as far as they can be seen.
//!
//! # Invariants
//!
//! - Busy is what is not idle: with tickless idle the kernel counts idle time exactly, and the rest
//!   only by looking 100 to 1000 times a second.
//! - The time of programs that end is not lost: it goes to the parent that waits for them, so that
//!   totals of [`Programs`] only grow.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

/// Both `/proc/stat` and the times of processes count in such steps.
const STEP: Duration = Duration::from_millis(10);

/// A processor's clock reads up to a [`STEP`] too low at either end of a span: by 4.1 ms in the
/// root mean square of the difference. Three times that, once for each root of a processor, is
/// hardly ever exceeded by chance.
const NOISE: Duration = Duration::from_millis(12);

/// A thread of the kernel, in the flags of `/proc/PID/stat` (`PF_KTHREAD`).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// How much all processors have been idle, at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processors {
    at: Instant,
    count: u32,
    /// Time of all processors together in which they did nothing, waited for disks, or were taken
    /// away by a hypervisor.
    unused: Duration,
}

impl Processors {
    /// Reads them now; `None` where the kernel does not tell.
    pub fn read() -> Option<Processors> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let (count, unused) = parse_stat(&text)?;
        Some(Processors { at: Instant::now(), count, unused })
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Time since an earlier reading.
    pub fn elapsed_since(&self, earlier: &Processors) -> Duration {
        self.at - earlier.at
    }

    /// How long they were busy since an earlier reading, all together; `None` if some were added or
    /// removed meanwhile.
    pub fn busy_since(&self, earlier: &Processors) -> Option<Duration> {
        let unused = self.unused.checked_sub(earlier.unused)?;
        let all = (self.at - earlier.at) * self.count;
        (self.count == earlier.count).then(|| all.saturating_sub(unused))
    }

    /// What [`Processors::busy_since`] may be wrong by.
    pub fn noise(&self) -> Duration {
        NOISE.mul_f64(f64::from(self.count).sqrt())
    }
}

/// Processes that can be seen here, but for some, and for threads of the kernel.
#[derive(Debug, Clone, Default)]
pub struct Programs(BTreeMap<u32, Program>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Program {
    name: String,
    /// Its time, and that of its children which have ended.
    time: Duration,
}

impl Programs {
    /// All processes but `ours`.
    pub fn others(ours: &[u32]) -> Programs {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let program = |pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, parse_program(&stat)?))
        };
        Programs(pids.filter(|pid| !ours.contains(pid)).filter_map(program).collect())
    }

    /// Processor time of all of them so far.
    pub fn time(&self) -> Duration {
        self.0.values().map(|program| program.time).sum()
    }

    /// Names of those that worked since an earlier reading, each once, the busiest first.
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

/// How many processors there are, and how long they were unused.
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

/// A line of `/proc/PID/stat`; `None` for threads of the kernel. The name may have spaces and
/// brackets.
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
    fn what_is_not_idle_is_busy() {
        assert_eq!(parse_stat(STAT), Some((2, Duration::from_millis(4580))));
        for text in ["", "cpu  1 2\ncpu0 1\n", "cpu  1 2 3 4 5\nintr 1\n", "cpu  x y z a b\ncpu0\n"]
        {
            assert_eq!(parse_stat(text), None, "{text:?}");
        }
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let (from, to) = (processors(start, 500), processors(start + second, 1900));
        assert_eq!(to.busy_since(&from), Some(Duration::from_millis(600)));
        // The clocks are not read at the same moment, so that idle may seem to be more than all.
        assert_eq!(processors(start + second, 2510).busy_since(&from), Some(Duration::ZERO));
        let more = Processors { count: 3, ..to };
        assert_eq!(more.busy_since(&from), None);
    }

    #[test]
    fn programs_have_a_name_and_the_time_of_their_children() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 12 30 100 1 20 0 1";
        let program = parse_program(stat).expect("a program");
        assert_eq!((&*program.name, program.time), ("a ) b", Duration::from_millis(1430)));
        let kernel = "15 (ksoftirqd/0) S 2 0 0 0 -1 69238848 0 0 0 0 0 14 0 0 20 0 1";
        assert_eq!(parse_program(kernel), None);
    }

    #[test]
    fn the_busiest_come_first() {
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
        let before = Processors::read().expect("the kernel tells");
        let own = std::process::id();
        assert!(before.count() > 0 && before.noise() > Duration::ZERO);
        assert!(Programs::others(&[]).0.contains_key(&own));
        assert!(!Programs::others(&[own]).0.contains_key(&own));
        assert!(Processors::read().expect("again").busy_since(&before).is_some());
    }
}
