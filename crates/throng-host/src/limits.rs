//! How much memory and processor time this process may use, and what says so.

use std::fmt;

use crate::{cgroup, own, proc};

/// The source of a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitSource {
    /// A setting of the program.
    Setting,
    /// A control file of a control group.
    Group(String),
    /// The cores that the process may run on (`sched_setaffinity(2)`).
    Affinity,
    /// The machine itself.
    Machine,
}

impl fmt::Display for LimitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitSource::Setting => f.write_str("setting"),
            LimitSource::Group(file) => f.write_str(file),
            LimitSource::Affinity => f.write_str("affinity"),
            LimitSource::Machine => f.write_str("machine"),
        }
    }
}

/// The memory that this process may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimit {
    pub bytes: u64,
    pub source: LimitSource,
}

/// Reads what counts against a limit of memory.
#[derive(Debug)]
pub struct MemoryMeter {
    limit: MemoryLimit,
    /// All control groups with a limit; empty if the limit is a setting or the machine's.
    groups: Vec<cgroup::GroupLimit>,
}

impl MemoryMeter {
    /// A meter for this limit, or else for the lowest one of the control groups, or else for the
    /// memory of the machine. `None` if the system does not say how much that is.
    pub fn new(setting: Option<u64>) -> Option<MemoryMeter> {
        if let Some(bytes) = setting {
            let limit = MemoryLimit { bytes, source: LimitSource::Setting };
            return Some(MemoryMeter { limit, groups: Vec::new() });
        }
        let machine = proc::memory_bytes();
        let mut groups = cgroup::memory_limits();
        // A limit that the machine cannot reach is none.
        groups.retain(|group| machine.is_none_or(|machine| group.bytes < machine));
        let lowest = groups.iter().min_by_key(|group| group.bytes).map(|lowest| {
            let file = lowest.group.join(lowest.file).display().to_string();
            MemoryLimit { bytes: lowest.bytes, source: LimitSource::Group(file) }
        });
        let machine = machine.map(|bytes| MemoryLimit { bytes, source: LimitSource::Machine });
        Some(MemoryMeter { limit: lowest.or(machine)?, groups })
    }

    /// The limit that decides how much the process plans to use.
    pub fn limit(&self) -> &MemoryLimit {
        &self.limit
    }

    /// The used bytes, and the limit that they count against, of the control group nearest to its
    /// limit. A group's use includes the kernel's buffers. Without limited groups it is the
    /// process's own heap and stacks.
    pub fn read(&self) -> Option<(u64, u64)> {
        let share = |&(used, limit): &(u64, u64)| used as f64 / limit.max(1) as f64;
        let of_groups = self
            .groups
            .iter()
            .filter_map(|group| Some((cgroup::memory_used(&group.group)?, group.bytes)));
        let nearest = of_groups.max_by(|one, other| share(one).total_cmp(&share(other)));
        nearest.or_else(|| Some((own::private_bytes()?, self.limit.bytes)))
    }
}

/// The cores that this process may use.
#[derive(Debug, Clone, PartialEq)]
pub struct Cores {
    /// The number of threads that can work at a time, at least one.
    pub count: usize,
    /// The quota of processor time, if there is one: it may be part of a core.
    pub quota: Option<f64>,
    pub source: LimitSource,
}

impl Cores {
    /// Reads the number, as the standard library counts it.
    pub fn read() -> Cores {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        let machine = crate::processors::Processors::read().map(|found| found.count() as usize);
        Cores::of(count, cgroup::cpu_quota(), machine)
    }

    fn of(count: usize, quota: Option<(f64, std::path::PathBuf)>, machine: Option<usize>) -> Cores {
        let is_all = machine.is_none_or(|machine| count >= machine);
        // A quota counts in whole cores, and as one if it is less.
        let decides = |quota: f64| quota.max(1.0) as usize == count && !is_all;
        let source = match &quota {
            Some((quota, file)) if decides(*quota) => {
                LimitSource::Group(file.display().to_string())
            }
            _ if is_all => LimitSource::Machine,
            _ => LimitSource::Affinity,
        };
        Cores { count, quota: quota.map(|(quota, _)| quota), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_compared_with_the_own_memory_of_the_process() {
        let meter = MemoryMeter::new(Some(1 << 40)).expect("a setting needs no system");
        assert_eq!(meter.limit(), &MemoryLimit { bytes: 1 << 40, source: LimitSource::Setting });
        let (used, limit) = meter.read().expect("on Linux");
        assert!(used > 0 && used < 1 << 36 && limit == 1 << 40);
    }

    #[test]
    fn a_default_limit_names_its_source() {
        let meter = MemoryMeter::new(None).expect("on Linux");
        assert!(meter.limit().bytes > 1 << 20 && meter.limit().source != LimitSource::Setting);
        assert!(meter.read().is_some_and(|(used, limit)| used > 0 && used <= limit));
    }

    #[test]
    fn what_decides_the_number_of_cores_is_named() {
        let file = || Some((0.5, "/sys/fs/cgroup/a/cpu.max".into()));
        let of = |count, quota, machine| {
            let cores = Cores::of(count, quota, machine);
            (cores.count, cores.quota, cores.source.to_string())
        };
        let group = "/sys/fs/cgroup/a/cpu.max".to_owned();
        assert_eq!(of(1, file(), Some(4)), (1, Some(0.5), group));
        assert_eq!(of(4, None, Some(4)), (4, None, "machine".into()));
        assert_eq!(of(2, None, Some(4)), (2, None, "affinity".into()));
        assert_eq!(of(2, Some((3.5, "x".into())), Some(4)), (2, Some(3.5), "affinity".into()));
        assert_eq!(of(1, file(), Some(1)), (1, Some(0.5), "machine".into()));
        assert!(Cores::read().count > 0);
    }
}
