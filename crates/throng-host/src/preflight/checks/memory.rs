//! Memory of a connection, mostly the kernel's: at rest, and with a message in flight.

use throng_units::format::{bytes, count};

use crate::preflight::capacity::{AvailableMemory, Capacity, Firewall};
use crate::preflight::check::{Check, CheckVerdict, verdict};
use crate::preflight::demand::Demand;

/// Kernel memory of an idle socket with its epoll entry, lower and upper bound. Measured: 3.9 to
/// 5.0 KiB.
const SOCKET_BYTES: (u64, u64) = (3_900, 5_100);

/// User-space memory of a subscriber in the server, and of a client in the load generator; see
/// docs/benchmarks.md.
const USER_BYTES: u64 = 64;

/// Kernel memory per connection of a short message until it is read. Measured.
const IN_FLIGHT_BYTES: u64 = 1_160;

/// Minimum kernel memory of a tracked connection.
const CONNTRACK_BYTES: u64 = 256;

const TCP_MEM: &str = "net.ipv4.tcp_mem";

pub(super) fn checks(demand: &Demand, capacity: &Capacity) -> Vec<Check> {
    let pages = demand.is_publishing.then(|| pages(demand.connections, capacity.tcp_pages));
    pages.into_iter().chain([memory(demand, capacity)]).collect()
}

/// `tcp_mem` for a message to all connections. The kernel charges at least a page per message.
fn pages(connections: u64, found: Option<[u64; 3]>) -> Check {
    let why =
        "beyond this the kernel throttles all TCP; a message to all takes a page per connection";
    let needed = format!("{} pages", count(connections));
    let check = Check::new(TCP_MEM, why);
    let Some(found) = found else { return check.unread(needed) };
    let is_short = found[1] < connections;
    let least = [connections / 4 * 3, connections, connections / 2 * 3];
    let text = |pages: [u64; 3]| pages.map(|pages| pages.to_string()).join(" ");
    let value: [u64; 3] = std::array::from_fn(|nth| found[nth].max(least[nth]));
    check
        .judged(
            format!("{} pages", count(found[1])),
            needed,
            verdict(is_short, CheckVerdict::Should),
        )
        .set(text(found), if is_short { text(value) } else { text(found) })
}

/// Free memory. [`CheckVerdict::Must`] only below the lower bound, because the upper one is an
/// estimate.
fn memory(demand: &Demand, capacity: &Capacity) -> Check {
    let (least, most) = connection_bytes(demand, capacity.firewall);
    let total = |each: u64| each.saturating_mul(demand.connections);
    let shown = |amount: u64| bytes(amount as f64);
    let why = format!("{} to {} a connection, most of it the kernel's", shown(least), shown(most));
    let check = Check::new("memory", why);
    let Some(AvailableMemory { bytes: free, group }) = &capacity.memory else {
        return check.unread(shown(total(most)));
    };
    let place = match group {
        Some(group) => format!(" that {group} allows"),
        None => String::new(),
    };
    let because = format!("{} of free memory{place}, {} a connection", shown(*free), shown(least));
    let (needed, verdict) = if *free < total(least) {
        (total(least), CheckVerdict::Must)
    } else if *free < total(most) {
        (total(most), CheckVerdict::Should)
    } else {
        (total(most), CheckVerdict::Ok)
    };
    let check = check
        .judged(format!("{} free", shown(*free)), shown(needed), verdict)
        .limited(free / least.max(1), because);
    match (verdict, group) {
        (CheckVerdict::Ok | CheckVerdict::Unknown, _) => check,
        (_, Some(group)) => check.advised(format!("give {group} more memory")),
        (CheckVerdict::Must, None) => check.advised("take a machine with more memory, or several"),
        (CheckVerdict::Should, None) => check
            .advised("take fewer connections, or watch the memory: the machine may run out of it"),
    }
}

fn connection_bytes(demand: &Demand, firewall: Firewall) -> (u64, u64) {
    let is_followed = matches!(firewall, Firewall::Tracking { now, .. } if now > 0);
    let tracked = if is_followed { CONNTRACK_BYTES } else { 0 };
    let in_flight = if demand.is_publishing { IN_FLIGHT_BYTES } else { 0 };
    let (least, most) = SOCKET_BYTES;
    let ends = demand.ends().max(1);
    (ends * least + USER_BYTES + tracked, ends * (most + USER_BYTES) + tracked + in_flight)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(free: u64) -> Capacity {
        Capacity {
            memory: Some(AvailableMemory { bytes: free, group: None }),
            ..Capacity::default()
        }
    }

    #[test]
    fn a_message_to_all_needs_a_page_per_connection() {
        let short = pages(1_000_000, Some([98_152, 130_869, 2_000_000]));
        // The third number is above the needed one and is not lowered.
        assert_eq!(short.help(), ["sysctl -w net.ipv4.tcp_mem=\"750000 1000000 2000000\""]);
        assert_eq!(short.verdict, CheckVerdict::Should);
        assert_eq!(pages(1_000, Some([98_152, 130_869, 196_304])).change(), None);
        assert_eq!(pages(1_000, None).verdict, CheckVerdict::Unknown);
        let quiet = Demand { is_publishing: false, ..Demand::server(1) };
        assert!(checks(&quiet, &Capacity::default()).iter().all(|check| check.name != TCP_MEM));
    }

    #[test]
    fn memory_must_reach_the_lower_and_should_reach_the_upper_bound() {
        let both = Demand::both(1_000_000);
        assert_eq!(memory(&both, &with(20 << 30)).verdict, CheckVerdict::Ok);
        assert_eq!(memory(&both, &with(9 << 30)).verdict, CheckVerdict::Should);
        let refused = memory(&both, &with(1 << 30));
        assert_eq!(refused.verdict, CheckVerdict::Must);
        let limit = refused.limit.expect("a limit");
        assert_eq!(limit.because, "1.00 GiB of free memory, 7.68 KiB a connection");
        assert_eq!(limit.allows, (1 << 30) / 7_864);
        // One end needs half.
        assert_eq!(memory(&Demand::server(1_000_000), &with(9 << 30)).verdict, CheckVerdict::Ok);
    }

    #[test]
    fn advice_names_the_control_group() {
        let group = Some("/sys/fs/cgroup/app".to_owned());
        let capacity = Capacity {
            memory: Some(AvailableMemory { bytes: 1 << 30, group }),
            ..Capacity::default()
        };
        let found = memory(&Demand::server(1_000_000), &capacity);
        assert_eq!(found.by_hand, ["give /sys/fs/cgroup/app more memory"]);
        assert!(found.limit.expect("a limit").because.contains("/sys/fs/cgroup/app"));
        assert_eq!(memory(&Demand::server(1), &Capacity::default()).verdict, CheckVerdict::Unknown);
    }
}
