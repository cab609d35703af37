//! Limits of the control groups of this process: its own group and all ancestors, cgroup v1 and v2.
//! A container or a systemd service is such a group.

use std::fs;
use std::path::{Path, PathBuf};

/// The unused part of a control group's limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Headroom {
    /// The limit minus the current use, in bytes or threads.
    pub(crate) amount: u64,
    /// The group's folder under `/sys/fs/cgroup`.
    pub(crate) group: PathBuf,
}

/// cgroup v1 writes "no limit" as the largest number of whole pages.
const UNLIMITED_FROM: u64 = 1 << 60;

/// The smallest memory headroom of the groups, in bytes; `None` if no group is limited.
///
/// Inactive page cache counts as free, as in `MemAvailable` of the machine.
pub(crate) fn memory_left() -> Option<Headroom> {
    least(folders("memory"), |folder| {
        let limit = memory_limit(folder)?.bytes;
        Some(limit.saturating_sub(memory_used(folder).unwrap_or_default()))
    })
}

/// A control group's limit of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupLimit {
    pub(crate) bytes: u64,
    /// The group's folder under `/sys/fs/cgroup`.
    pub(crate) group: PathBuf,
    /// The control file that has the limit.
    pub(crate) file: &'static str,
}

/// The memory limits of all groups that have one, from the process's own group up.
pub(crate) fn memory_limits() -> Vec<GroupLimit> {
    folders("memory").iter().filter_map(|folder| memory_limit(folder)).collect()
}

/// The limit of a group. Above `memory.high` the kernel slows the group down.
fn memory_limit(folder: &Path) -> Option<GroupLimit> {
    let files = ["memory.high", "memory.max", "memory.limit_in_bytes"];
    let limits = files.into_iter().filter_map(|file| Some((number(folder, file)?, file)));
    let (bytes, file) = limits.min()?;
    Some(GroupLimit { bytes, group: folder.to_owned(), file })
}

/// Memory used by a group, without inactive page cache, which the kernel drops before the limit is
/// reached.
pub(crate) fn memory_used(folder: &Path) -> Option<u64> {
    let used =
        number(folder, "memory.current").or_else(|| number(folder, "memory.usage_in_bytes"))?;
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    Some(used.saturating_sub(cached(&stat)))
}

/// The smallest quota of processor time, in cores, and the control file that has it; `None` if no
/// group has one.
pub(crate) fn cpu_quota() -> Option<(f64, PathBuf)> {
    let quotas = folders("cpu").into_iter().filter_map(|folder| {
        let (file, quota, period) = match fs::read_to_string(folder.join("cpu.max")) {
            Ok(text) => {
                let (quota, period) = text.trim().split_once(' ')?;
                ("cpu.max", quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?)
            }
            Err(_) => {
                let quota = number(&folder, "cpu.cfs_quota_us")?;
                ("cpu.cfs_quota_us", quota as f64, number(&folder, "cpu.cfs_period_us")? as f64)
            }
        };
        (period > 0.0).then(|| (quota / period, folder.join(file)))
    });
    quotas.min_by(|(one, _), (other, _)| one.total_cmp(other))
}

/// How many threads the tightest group may still start; `None` if no group is limited.
pub(crate) fn threads_left() -> Option<Headroom> {
    least(folders("pids"), |folder| {
        let used = number(folder, "pids.current").unwrap_or_default();
        Some(number(folder, "pids.max")?.saturating_sub(used))
    })
}

fn least(folders: Vec<PathBuf>, left: impl Fn(&Path) -> Option<u64>) -> Option<Headroom> {
    let all =
        folders.into_iter().filter_map(|group| Some(Headroom { amount: left(&group)?, group }));
    all.min_by_key(|left| left.amount)
}

/// The number in a control file; `None` for `max` and for [`UNLIMITED_FROM`] or more.
fn number(folder: &Path, file: &str) -> Option<u64> {
    let text = fs::read_to_string(folder.join(file)).ok()?;
    text.trim().parse().ok().filter(|&number| number < UNLIMITED_FROM)
}

fn cached(stat: &str) -> u64 {
    let value = |name| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    // cgroup v1 has the group's own value and a total that includes its descendants.
    value("total_inactive_file ").or_else(|| value("inactive_file ")).unwrap_or_default()
}

/// The folders of the groups with this controller, from the process's own up to the root.
fn folders(controller: &str) -> Vec<PathBuf> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    folders_of(controller, &read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
}

fn folders_of(controller: &str, groups: &str, mounts: &str) -> Vec<PathBuf> {
    let has = |list: &str| list.split(',').any(|name| name == controller);
    let group = |is_ours: &dyn Fn(&str) -> bool| {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            fields.next().filter(|controllers| is_ours(controllers))?;
            fields.next()
        })
    };
    let (path, mount) = match group(&has) {
        Some(path) => (path, find_mount(mounts, |kind, options| kind == "cgroup" && has(options))),
        None => match group(&str::is_empty) {
            Some(path) => (path, find_mount(mounts, |kind, _| kind == "cgroup2")),
            None => return Vec::new(),
        },
    };
    let Some((root, top)) = mount else { return Vec::new() };
    // In a container the mount may show only the container's subtree, as if it were the root.
    let inside = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
    // The parent of "a" is ""; joined to the mount point it would add a trailing slash.
    let inside = inside.ancestors().filter(|part| !part.as_os_str().is_empty());
    inside.map(|part| Path::new(top).join(part)).chain([PathBuf::from(top)]).collect()
}

/// The root and the mount point (fields 4 and 5 of proc_pid_mountinfo(5)) of the first match.
fn find_mount(mounts: &str, matches: impl Fn(&str, &str) -> bool) -> Option<(&str, &str)> {
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        let mut before = before.split(' ').skip(3);
        matches(kind, options).then_some((before.next()?, before.next()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    fn found(controller: &str, groups: &str, mounts: &str) -> Vec<String> {
        let folders = folders_of(controller, groups, mounts);
        folders.iter().map(|folder| folder.display().to_string()).collect()
    }

    #[test]
    fn groups_of_both_versions_are_found_with_their_ancestors() {
        let groups = "4:memory:/a/b\n0::/c\n";
        assert_eq!(
            found("memory", groups, HYBRID),
            ["/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory"]
        );
        let unified = ["/sys/fs/cgroup/unified/c", "/sys/fs/cgroup/unified"];
        assert_eq!(found("pids", groups, HYBRID), unified);
        assert_eq!(found("pids", "", HYBRID), [""; 0]);
        assert_eq!(found("memory", groups, ""), [""; 0]);
    }

    #[test]
    fn a_container_sees_its_subtree_as_the_root() {
        let mounts = "9 1 0:2 /docker/7f /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(
            found("memory", "0::/docker/7f/app\n", mounts),
            ["/sys/fs/cgroup/app", "/sys/fs/cgroup"]
        );
        assert_eq!(found("memory", "0::/\n", mounts), ["/sys/fs/cgroup"]);
    }

    #[test]
    fn the_tightest_group_limits() {
        let directory = tempfile::tempdir().expect("made");
        let tree = directory.path().to_owned();
        let inner = tree.join("inner");
        fs::create_dir_all(&inner).expect("made");
        let write = |folder: &Path, file: &str, text: &str| {
            fs::write(folder.join(file), text).expect("written");
        };
        write(&tree, "pids.max", "100\n");
        write(&tree, "pids.current", "40\n");
        write(&inner, "pids.max", "max\n");
        let left =
            |folder: &Path| Some(number(folder, "pids.max")? - number(folder, "pids.current")?);
        let least = least(vec![inner, tree.clone()], left);
        assert_eq!(least, Some(Headroom { amount: 60, group: tree }));
    }

    #[test]
    fn the_lowest_limit_of_a_group_counts_and_cache_does_not() {
        let directory = tempfile::tempdir().expect("made");
        let folder = directory.path().to_owned();
        let write = |file: &str, text: &str| fs::write(folder.join(file), text).expect("written");
        write("memory.max", "max\n");
        let none = memory_limit(&folder);
        write("memory.high", "60000000\n");
        write("memory.max", "70000000\n");
        write("memory.current", "5000\n");
        write("memory.stat", "anon 1\ninactive_file 4096\n");
        let (limit, used) = (memory_limit(&folder), memory_used(&folder));
        directory.close().expect("removed");
        let expected = GroupLimit { bytes: 60_000_000, group: folder.clone(), file: "memory.high" };
        assert_eq!((none, limit, used), (None, Some(expected), Some(904)));
        assert_eq!((memory_limit(&folder), memory_used(&folder)), (None, None));
    }

    #[test]
    fn inactive_cache_is_not_counted_as_used() {
        assert_eq!(cached("anon 5\ninactive_file 4096\n"), 4096);
        assert_eq!(cached("inactive_file 1\ntotal_inactive_file 8192\n"), 8192);
        assert_eq!(cached(""), 0);
    }
}
