//! The table in which the kernel finds the connection that a packet belongs to.
//!
//! It is made at boot, or with a network namespace, and does not grow. Each packet walks through
//! the connections that share its bucket, which comes first in a profile of a message to a million.

use crate::preflight::capacity::Capacity;
use crate::preflight::check::{Check, CheckVerdict, number, verdict};
use crate::preflight::demand::Demand;

/// As many to a bucket cost little.
const PER_BUCKET_MAX: u64 = 2;

const BUCKETS: &str = "net.ipv4.tcp_ehash_entries";

pub(super) fn checks(demand: &Demand, capacity: &Capacity) -> Vec<Check> {
    let ends = demand.ends().max(1);
    let least = demand.connections.saturating_mul(ends).div_ceil(PER_BUCKET_MAX);
    let Some(found) = capacity.established_buckets else {
        // Linux has the setting from 6.1 on.
        let why = "buckets of the table of connections, in which each packet looks for its own";
        return vec![Check::new(BUCKETS, why).unread(number(least))];
    };
    let is_short = found < least;
    let each = demand.connections.saturating_mul(ends).div_ceil(found.max(1));
    let why = if is_short {
        format!("each packet looks through about {} connections", number(each))
    } else {
        "buckets in which each packet looks for its connection".to_owned()
    };
    let check = Check::new(BUCKETS, why).judged(
        number(found),
        number(least),
        verdict(is_short, CheckVerdict::Should),
    );
    if !is_short {
        return vec![check];
    }
    let entries = least.next_power_of_two();
    let mut check = check.advised(format!("thash_entries={entries} on the kernel's command line"));
    if ends > 1 {
        check = check.advised(format!(
            "or, for server and clients of this machine alone: sysctl -w \
             net.ipv4.tcp_child_ehash_entries={entries}, and both in a new namespace (unshare -n; \
             ip link set lo up)"
        ));
    }
    vec![check]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(buckets: u64) -> Capacity {
        Capacity { established_buckets: Some(buckets), ..Capacity::default() }
    }

    #[test]
    fn both_ends_are_looked_up() {
        let found = |demand: &Demand| checks(demand, &with(262_144)).remove(0);
        assert_eq!(found(&Demand::server(500_000)).verdict, CheckVerdict::Ok);
        assert_eq!(found(&Demand::both(500_000)).verdict, CheckVerdict::Should);
        let million = found(&Demand::both(1_000_000));
        assert_eq!(million.why, "each packet looks through about 8 connections");
        assert_eq!(million.by_hand[0], "thash_entries=1048576 on the kernel's command line");
        assert!(million.by_hand[1].contains("tcp_child_ehash_entries=1048576"));
        // A server cannot leave its network for a larger table.
        assert_eq!(found(&Demand::server(1_000_000)).by_hand.len(), 1);
        assert_eq!(million.change(), None);
    }

    #[test]
    fn an_older_kernel_does_not_tell() {
        let found = checks(&Demand::server(10), &Capacity::default()).remove(0);
        assert_eq!(found.verdict, CheckVerdict::Unknown);
    }
}
