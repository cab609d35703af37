//! Queues that connections and packets wait in.

use crate::preflight::check::{Check, Verdict, number, verdict};
use crate::preflight::room::Room;
use crate::preflight::wanted::Wanted;

/// Longer than any burst that a core works off before clients try again.
const QUEUE_MAX: u64 = 65_535;

/// What the packet queue is raised to where packets have found no room.
const NETDEV_BACKLOG: u64 = 16_384;

pub(super) fn checks(wanted: &Wanted, room: &Room) -> Vec<Check> {
    let mut checks = Vec::new();
    // Only a listener of this machine has our settings.
    if let Some(server) = &wanted.server {
        let why = "waiting to be accepted at once; beyond it they try again after a second";
        checks.push(queue("net.core.somaxconn", why, room.somaxconn, server.burst));
        let why = "in their handshake at once, at each listener";
        checks.push(queue("net.ipv4.tcp_max_syn_backlog", why, room.syn_backlog, server.burst));
        checks.push(syncookies(room.syncookies));
    }
    // Over loopback every packet waits there; a network's card brings a queue of its own.
    if wanted.ends() > 1 {
        checks.push(packets(room.netdev_backlog));
    }
    checks
}

fn queue(name: &'static str, why: &str, found: Option<u64>, burst: u64) -> Check {
    let needed = burst.next_power_of_two().min(QUEUE_MAX);
    let check = Check::new(name, why);
    let Some(found) = found else { return check.unread(number(needed)) };
    // What is set is a round number; what is needed is not.
    let is_short = found < burst.min(QUEUE_MAX);
    check
        .judged(number(found), number(burst.min(QUEUE_MAX)), verdict(is_short, Verdict::Should))
        .set(found, if is_short { needed } else { found })
}

/// Cookies only for a queue that is full: always, they cost every connection its options.
fn syncookies(found: Option<u64>) -> Check {
    let name = "net.ipv4.tcp_syncookies";
    let needed = "1".to_owned();
    let judged = |why, found: u64, verdict| {
        Check::new(name, why).judged(found.to_string(), "1".to_owned(), verdict)
    };
    match found {
        None => Check::new(name, "a full queue answers with cookies").unread(needed),
        Some(0) => judged("without, a full queue drops handshakes", 0, Verdict::Should).set(0, 1),
        Some(1) => judged("a full queue answers with cookies", 1, Verdict::Ok).set(1, 1),
        Some(found) => {
            judged("always, they cost connections their options", found, Verdict::Should)
                .advised("sysctl -w net.ipv4.tcp_syncookies=1")
        }
    }
}

/// How long the queue must be nobody can tell before; that it was too short is counted. The count
/// itself is not told: it would differ each time that somebody asks.
fn packets(found: Option<(u64, u64)>) -> Check {
    let name = "net.core.netdev_max_backlog";
    let Some((found, drops)) = found else {
        return Check::new(name, "packets over loopback").unread(number(NETDEV_BACKLOG));
    };
    let is_short = drops > 0 && found < NETDEV_BACKLOG;
    let why = match is_short {
        true => "packets over loopback have found no room and had to be sent again",
        false => "packets over loopback",
    };
    let needed = if is_short { NETDEV_BACKLOG } else { found };
    Check::new(name, why)
        .judged(number(found), number(needed), verdict(is_short, Verdict::Should))
        .set(found, needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_as_long_as_the_burst() {
        let found = queue("net.core.somaxconn", "", Some(128), 1_000);
        assert_eq!(found.help(), ["sysctl -w net.core.somaxconn=1024"]);
        assert_eq!(found.verdict, Verdict::Should);
        assert_eq!(queue("net.core.somaxconn", "", Some(1_000), 1_000).change(), None);
        let most = queue("net.core.somaxconn", "", Some(4_096), 1_000_000);
        assert_eq!(most.help(), ["sysctl -w net.core.somaxconn=65535"]);
    }

    #[test]
    fn only_a_server_here_has_queues_of_ours() {
        let names = |wanted: &Wanted| {
            let all = checks(wanted, &Room::default());
            all.iter().map(|check| check.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&Wanted::clients(10)), [""; 0]);
        assert!(names(&Wanted::server(10)).contains(&"net.core.somaxconn"));
        assert!(!names(&Wanted::server(10)).contains(&"net.core.netdev_max_backlog"));
        assert!(names(&Wanted::both(10)).contains(&"net.core.netdev_max_backlog"));
    }

    #[test]
    fn cookies_and_packets() {
        assert_eq!(syncookies(Some(1)).verdict, Verdict::Ok);
        assert_eq!(syncookies(Some(0)).help(), ["sysctl -w net.ipv4.tcp_syncookies=1"]);
        // Fewer cookies is a lower number, which is never set by itself.
        assert_eq!(syncookies(Some(2)).change(), None);
        assert_eq!(packets(Some((1_000, 0))).verdict, Verdict::Ok);
        let short = packets(Some((1_000, 17)));
        assert_eq!(short.help(), ["sysctl -w net.core.netdev_max_backlog=16384"]);
        assert_eq!(packets(Some((20_000, 17))).verdict, Verdict::Ok);
        assert_eq!(packets(None).verdict, Verdict::Unknown);
    }
}
