//! Queues of connections and packets.

use crate::preflight::capacity::Capacity;
use crate::preflight::check::{Check, CheckVerdict, number, verdict};
use crate::preflight::demand::Demand;

/// Maximum recommended queue length; a core cannot accept more within a SYN retry interval.
const QUEUE_MAX: u64 = 65_535;

/// Recommended backlog queue length where packets have been dropped.
const NETDEV_BACKLOG: u64 = 16_384;

pub(super) fn checks(demand: &Demand, capacity: &Capacity) -> Vec<Check> {
    let mut checks = Vec::new();
    // These settings apply to listeners on this machine only.
    if let Some(server) = &demand.server {
        let why = "waiting to be accepted at once; beyond it they try again after a second";
        checks.push(queue("net.core.somaxconn", why, capacity.somaxconn, server.burst));
        let why = "in their handshake at once, at each listener";
        checks.push(queue("net.ipv4.tcp_max_syn_backlog", why, capacity.syn_backlog, server.burst));
        checks.push(syncookies(capacity.syncookies));
    }
    // Loopback packets pass through the backlog queue; network cards have their own.
    if demand.ends() > 1 {
        checks.push(packets(capacity.netdev_backlog));
    }
    checks
}

fn queue(name: &'static str, why: &str, found: Option<u64>, burst: u64) -> Check {
    let needed = burst.next_power_of_two().min(QUEUE_MAX);
    let check = Check::new(name, why);
    let Some(found) = found else { return check.unread(number(needed)) };
    // The recommended value is rounded up to a power of two; the check is exact.
    let is_short = found < burst.min(QUEUE_MAX);
    check
        .judged(
            number(found),
            number(burst.min(QUEUE_MAX)),
            verdict(is_short, CheckVerdict::Should),
        )
        .set(found, if is_short { needed } else { found })
}

/// SYN cookies: 1 sends them for a full queue only. Always on, they cost TCP options.
fn syncookies(found: Option<u64>) -> Check {
    let name = "net.ipv4.tcp_syncookies";
    let needed = "1".to_owned();
    let judged = |why, found: u64, verdict| {
        Check::new(name, why).judged(found.to_string(), "1".to_owned(), verdict)
    };
    match found {
        None => Check::new(name, "a full queue answers with cookies").unread(needed),
        Some(0) => {
            judged("without, a full queue drops handshakes", 0, CheckVerdict::Should).set(0, 1)
        }
        Some(1) => judged("a full queue answers with cookies", 1, CheckVerdict::Ok).set(1, 1),
        Some(found) => {
            judged("always, they cost connections their options", found, CheckVerdict::Should)
                .advised("sysctl -w net.ipv4.tcp_syncookies=1")
        }
    }
}

/// The backlog queue. The needed length cannot be predicted, so the check looks for drops. The text
/// omits their number, so that repeated checks give the same text.
fn packets(found: Option<(u64, u64)>) -> Check {
    let name = "net.core.netdev_max_backlog";
    let Some((found, drops)) = found else {
        return Check::new(name, "packets over loopback").unread(number(NETDEV_BACKLOG));
    };
    let is_short = drops > 0 && found < NETDEV_BACKLOG;
    let why = if is_short {
        "packets over loopback were dropped and sent again"
    } else {
        "packets over loopback"
    };
    let needed = if is_short { NETDEV_BACKLOG } else { found };
    Check::new(name, why)
        .judged(number(found), number(needed), verdict(is_short, CheckVerdict::Should))
        .set(found, needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_must_hold_the_burst() {
        let found = queue("net.core.somaxconn", "", Some(128), 1_000);
        assert_eq!(found.help(), ["sysctl -w net.core.somaxconn=1024"]);
        assert_eq!(found.verdict, CheckVerdict::Should);
        assert_eq!(queue("net.core.somaxconn", "", Some(1_000), 1_000).change(), None);
        let most = queue("net.core.somaxconn", "", Some(4_096), 1_000_000);
        assert_eq!(most.help(), ["sysctl -w net.core.somaxconn=65535"]);
    }

    #[test]
    fn queues_are_checked_only_with_a_local_server() {
        let names = |demand: &Demand| {
            let all = checks(demand, &Capacity::default());
            all.iter().map(|check| check.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&Demand::clients(10)), [""; 0]);
        assert!(names(&Demand::server(10)).contains(&"net.core.somaxconn"));
        assert!(!names(&Demand::server(10)).contains(&"net.core.netdev_max_backlog"));
        assert!(names(&Demand::both(10)).contains(&"net.core.netdev_max_backlog"));
    }

    #[test]
    fn syncookies_and_the_backlog_are_checked() {
        assert_eq!(syncookies(Some(1)).verdict, CheckVerdict::Ok);
        assert_eq!(syncookies(Some(0)).help(), ["sysctl -w net.ipv4.tcp_syncookies=1"]);
        // 1 is lower than 2, and `apply` never lowers a setting.
        assert_eq!(syncookies(Some(2)).change(), None);
        assert_eq!(packets(Some((1_000, 0))).verdict, CheckVerdict::Ok);
        let short = packets(Some((1_000, 17)));
        assert_eq!(short.help(), ["sysctl -w net.core.netdev_max_backlog=16384"]);
        assert_eq!(packets(Some((20_000, 17))).verdict, CheckVerdict::Ok);
        assert_eq!(packets(None).verdict, CheckVerdict::Unknown);
    }
}
