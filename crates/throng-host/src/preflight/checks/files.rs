//! System-wide counts that include each connection: open files and tracked connections.

use throng_units::format::count;

use crate::preflight::capacity::{Capacity, Firewall};
use crate::preflight::check::{Check, CheckVerdict, number, verdict, with_reserve};
use crate::preflight::demand::Demand;

/// Maximum load of a hash bucket. A lookup walks the bucket; up to this many entries are cheap.
const PER_BUCKET_MAX: u64 = 8;

const MAX: &str = "net.netfilter.nf_conntrack_max";
const BUCKETS: &str = "net.netfilter.nf_conntrack_buckets";

pub(super) fn checks(demand: &Demand, capacity: &Capacity) -> Vec<Check> {
    let mut checks = vec![files(demand, capacity)];
    checks.extend(firewall(demand.connections, capacity.firewall));
    checks
}

fn files(demand: &Demand, capacity: &Capacity) -> Check {
    let ends = demand.ends().max(1);
    let more = demand.connections.saturating_mul(ends);
    let needed = capacity.files_open.saturating_add(more);
    let both = if ends > 1 { ", and both ends of a connection are here" } else { "" };
    let check = Check::new("fs.file-max", format!("open files of the whole system{both}"));
    let Some(found) = capacity.files_max else { return check.unread(number(needed)) };
    let left = found.saturating_sub(capacity.files_open);
    let is_short = left < more;
    let value = if is_short { capacity.files_open + with_reserve(more) } else { found };
    check
        .judged(number(found), number(needed), verdict(is_short, CheckVerdict::Must))
        .limited(left / ends, format!("{} more files in the whole system{both}", count(left)))
        .set(found, value)
}

fn firewall(connections: u64, firewall: Firewall) -> Vec<Check> {
    let why = "connections that the firewall can follow";
    let (now, most, buckets) = match firewall {
        Firewall::Absent => return Vec::new(),
        Firewall::Unknown => return vec![Check::new(MAX, why).unread(number(connections))],
        // The module is loaded, but no rule uses it.
        Firewall::Tracking { now: 0, most, .. } => {
            let check = Check::new(MAX, "the firewall follows nothing");
            return vec![check.judged(number(most), "any".to_owned(), CheckVerdict::Ok)];
        }
        Firewall::Tracking { now, most, buckets } => (now, most, buckets),
    };
    let left = most.saturating_sub(now);
    let is_short = left < connections;
    let value = if is_short { now + with_reserve(connections) } else { most };
    let table = Check::new(MAX, why)
        .judged(number(most), number(now + connections), verdict(is_short, CheckVerdict::Must))
        .limited(left, format!("{} more connections that the firewall can follow", count(left)))
        .set(most, value);
    let least = (now + connections).div_ceil(PER_BUCKET_MAX);
    let why = "its table: with fewer, each packet is looked up slowly";
    let width = match buckets {
        None => Check::new(BUCKETS, why).unread(number(least)),
        Some(found) => Check::new(BUCKETS, why)
            .judged(number(found), number(least), verdict(found < least, CheckVerdict::Should))
            .set(found, found.max(least)),
    };
    vec![table, width]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_open_files() {
        let capacity =
            Capacity { files_max: Some(150_000), files_open: 50_000, ..Capacity::default() };
        let one = files(&Demand::server(100_000), &capacity);
        assert_eq!((one.verdict, one.change()), (CheckVerdict::Ok, None));
        let both = files(&Demand::both(100_000), &capacity);
        assert_eq!(both.verdict, CheckVerdict::Must);
        assert_eq!(both.limit.as_ref().map(|limit| limit.allows), Some(50_000));
        assert_eq!(both.help(), ["sysctl -w fs.file-max=275000"]);
        let unlimited = Capacity { files_max: Some(i64::MAX as u64), ..Capacity::default() };
        let found = files(&Demand::both(1 << 31), &unlimited);
        assert_eq!(found.found.as_deref(), Some("no limit"));
    }

    #[test]
    fn connection_tracking_is_checked_only_if_in_use() {
        assert!(firewall(1_000_000, Firewall::Absent).is_empty());
        assert_eq!(firewall(10, Firewall::Unknown)[0].verdict, CheckVerdict::Unknown);
        let idle = Firewall::Tracking { now: 0, most: 10, buckets: Some(10) };
        assert_eq!(firewall(1_000_000, idle)[0].verdict, CheckVerdict::Ok);
        let busy = Firewall::Tracking { now: 8_000, most: 262_144, buckets: Some(65_536) };
        let found = firewall(1_000_000, busy);
        assert_eq!(found[0].help(), ["sysctl -w net.netfilter.nf_conntrack_max=1133000"]);
        assert_eq!(found[1].help(), ["sysctl -w net.netfilter.nf_conntrack_buckets=126000"]);
        assert_eq!(
            (found[0].verdict, found[1].verdict),
            (CheckVerdict::Must, CheckVerdict::Should)
        );
    }
}
